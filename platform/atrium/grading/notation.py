r"""Tables for `normalization`: equivalent spellings in LaTeX and Unicode.

The tables contain only spellings whose meaning does not depend on the context. `numerals` converts spellings
that depend on a number, as in `4²` and `3½`.
"""

from __future__ import annotations

import re


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def word_set(text: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(text.split())


REWRITES = tuple(
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("<|", r"<\|[^<>|]{1,40}\|>", ""),  # special tokens left in by a decoder
        ("box", r"\\(?:boxed|fbox|framebox)\s*\{([^{}]*)\}", r"\1"),  # a nested box
        ("color", r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        ("<", r"^\s*<([^<>]*,[^<>]*)>\s*$", r"(\1)"),  # a tuple in angle brackets
        ("{", r"(?<![\\a-zA-Z])([dt]?frac|sqrt)(?=\s*\{)", r"\\\1"),  # a lost backslash
        ("o", r"(?<=[0-9)}])\s*\^\s*(?:\{\s*o\s*\}|o(?![a-zA-Z]))", r"^{\\circ}"),
        (":", r"(?<=[0-9])\s*(?:\{:\}|\\?:\\?)\s*(?=[0-9])", ":"),
        ("mathbb", r"(\\mathbb)\s*([A-Z])(?![a-zA-Z])", r"\1{\2}"),
        ("<=", r"<=", r"\\leq "),
        (">=", r">=", r"\\geq "),
        ("frac", r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        ("frac", r"\\frac\s*([0-9])\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        ("frac", r"\\frac\s*([0-9])\s*\{", r"\\frac{\1}{"),
        ("frac", r"\\frac\s*\{([^{}]*)\}\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        ("sqrt", r"\\sqrt\s*([0-9]|[a-zA-Z](?![a-zA-Z]))(?![0-9])", r"\\sqrt{\1}"),
        ("^", r"\^\s*([0-9]+)", r"^{\1}"),  # `2^10` means `2^{10}`, and math-verify reads it so
        ("_", r"(?<=[0-9])_\s*([0-9]{1,2})(?![0-9])", r"_{\1}"),  # a number base
        ("", r"([_^])\s*([0-9](?![0-9])|[a-zA-Z](?![a-zA-Z]))", r"\1{\2}"),
        ("times", r"\\text\s*\{\s*times\s*\}\s*(?=[0-9(\\])", r"\\times "),  # elsewhere `times` is a unit
        (".", r"(?:=\s*)?([0-9]*\.[0-9]+)\s*(?:\\[lc]?dots|\.\.\.)", r"\\approx \1"),
        ("\\", r"\\degree(?![a-zA-Z])|\^\s*\\circ(?![a-zA-Z])|\^\s*\\degree(?![a-zA-Z])", r"^{\\circ}"),
    )
)
"""Rewriting rules in order: a string that must occur in the text, the pattern, and its replacement.

Each rule takes linear time, except in texts with very long sequences of digits.
"""

UNICODE = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63", "-")
    | dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2009\u200a\u202f\u3000\u200b\ufeff", " ")
    | _pairs("、 , 。 . ⁄ / ∕ / ° ^{\\circ}")
    | {
        char: rf"\{name} "
        for char, name in _pairs(
            "× times · cdot ⋅ cdot ÷ div ≤ leq ≥ geq ≠ neq ≈ approx π pi ∞ infty ∪ cup ∩ cap "
            "∈ in ± pm θ theta α alpha β beta ∅ emptyset … ldots μ mu µ mu Ω Omega Ω Omega"
        ).items()
    }
)
"""Unicode characters and their replacements in ASCII or LaTeX."""

SYNONYMS = _pairs(
    r"""\dbinom \binom \tbinom \binom \lt < \gt > \ne \neq \le \leq \leqslant \leq \ge \geq
    \geqslant \geq \% % \lbrace \{ \rbrace \} \lbrack [ \rbrack ] \infin \infty
    \varnothing \emptyset \langle ( \rangle ) \lang ( \rang ) \lvert | \rvert | \vert | \colon :
    \wedge \land \vee \lor
    \thickapprox \approx \ast *"""
)
"""Tokens and their canonical synonyms."""

SPACES = word_set(r"\, \; \: \! \> ~ \quad \qquad \thinspace \enspace") | {r"\ "}
"""Tokens for white space."""

DROPPED = word_set(
    r"""\left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \displaystyle \textstyle \limits
    \nolimits \boxed \fbox \framebox \rm \bf \underline \large \Large \LARGE \huge \Huge \small
    $ \$ \( \) \[ \] € £ ¥ ₹ \pounds \euro \yen \ """
)
"""Tokens that only change the appearance or delimit mathematics, and currency symbols."""

TEXT_FONTS = word_set(r"\text \textbf \textit \textrm \textnormal \mbox \hbox \emph")
MATH_FONTS = word_set(r"\mathrm \mathbf \mathit \mathsf \mathnormal \bm")

WORD_SYNONYMS = (
    dict.fromkeys(("and", ",and"), r"\land")
    | dict.fromkeys(("or", ",or", "and/or"), r"\lor")
    | {",": ","}
    | dict.fromkeys(("percent", "percentage", "pct", "%"), "%")
    | {"dividedby": "/", "plus": "+", "minus": "-", "to": ":", "isto": ":"}
)
"""Words and their canonical tokens."""

CONJUNCTIONS = frozenset((",", r"\land", r"\lor"))
"""Tokens between the members of a list, and between conditions."""
RELATIONS = frozenset(("<", ">", r"\leq", r"\geq", r"\neq", r"\in", r"\notin"))
"""Tokens between a variable and its bound or the set of its values."""
