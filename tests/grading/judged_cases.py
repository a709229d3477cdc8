"""Published cases that Atrium judges otherwise than their authors, each with the reason."""

from __future__ import annotations

JUDGED = {
    7: "prose, with a decimal comma",
    109: "the answer says 3+3=2, which is false",
    133: "agrees to fewer than six digits",
    166: "text behind the box counts there",
    253: "the label is wrong",
    305: "prose, with a decimal comma",
    411: "agrees to fewer than six digits",
    442: "text behind the box counts there",
    603: "an unreduced fraction is refused there",
    619: "an unreduced fraction is refused there",
    726: "agrees to fewer than six digits",
    729: "agrees to fewer than six digits",
}
