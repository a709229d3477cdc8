r"""Conversion of other notations for numbers to LaTeX: `7e37`, `0.\overline{3}`, `3 1/2`, `½`, `√2`, `np.pi`.

Each rule preserves the value; only the rule for repeating decimals computes a value. Numbers that are already
in LaTeX remain unchanged.
"""

from __future__ import annotations

import re
import unicodedata

from atrium.grading.notation import word_set

_FUNCTIONS = {
    name: name for name in word_set("arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc cis lg")
} | {
    **{name: name for name in ("ln", "log", "exp")},
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
}
_NAMES = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_MODULE = r"(?<![\\A-Za-z.])(?P<module>(?:np|numpy|math|sympy|sp)\.)?"
_PLAIN = re.compile(_MODULE + rf"(?P<name>{_NAMES})(?=\s*\()")
_OPERATOR = re.compile(
    rf"\\operatorname\s*\{{\s*({_NAMES})\s*\}}|"
    rf"\\(?:mathrm|text|textrm)\s*\{{\s*({_NAMES})\s*\}}(?=\s*(?:[(\\_A-Za-z0-9]|\^\s*\{{?[0-9]))"
)
_SQRT = re.compile(_MODULE + r"sqrt\s*\((?P<radicand>[^()]*)\)")
_PI = re.compile(_MODULE + r"pi(?![A-Za-z])")
_EXPONENT = re.compile(
    r"(?<![A-Za-z0-9./^])(?P<mantissa>[0-9]+\.?[0-9]*|\.[0-9]+)[eE](?P<exponent>[-+]?[0-9]{1,4})(?![0-9A-Za-z.^(!])"
)
_LETTER_TIMES = re.compile(r"(?<=[0-9.])\s*[xX]\s*(?=10\s*\^)")
_NEGATIVE_POWER = re.compile(r"\^\s*-\s*([0-9]+)")
_BARE_POINT = re.compile(r"(?<=[0-9])\.(?=\s*[-+*/)}^])")  # `1./3`
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]{1,40})\s*\}|([0-9]))(?![0-9])"
)
_ENDLESS = re.compile(
    r"(?<![0-9.])([0-9]{0,30})\.([0-9]{0,12}?)([0-9]{1,6}?)\3{2,9}(?:\s|\\[,!])*(?:\\[lc]?dots|\.\.\.)"
)
_MIXED = re.compile(r"(?<![0-9./^_{,])([0-9]+)(?:\s|~|\\[ ,;:!])+([0-9]+)\s*/\s*([0-9]+)(?![0-9.^!/])")
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_ROOT_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}
_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPT = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_IS_PLAIN = re.compile(r"[-+]?[0-9]+")


def spell_unicode(text: str) -> str:
    """Convert fractions, roots, superscripts and subscripts that are Unicode characters to LaTeX."""
    text = _ROOT.sub(lambda m: rf"\sqrt{_ROOT_INDEX[m[1]]}{{{m[2] or m[3] or m[4]}}}", text)
    text = _SUPERSCRIPT.sub(lambda m: f"^{{{unicodedata.normalize('NFKD', m[0])}}}", text)
    text = _SUBSCRIPT.sub(lambda m: f"_{{{unicodedata.normalize('NFKD', m[0])}}}", text)
    return "".join(map(_fraction, text))


def spell_numbers(text: str) -> str:
    """Convert numbers and functions to LaTeX, in linear time except for very long sequences of digits."""
    if _IS_PLAIN.fullmatch(text):
        return text
    text = text.replace("**", "^")
    if "(" in text:
        text = _SQRT.sub(r"\\sqrt{\g<radicand>}", _PLAIN.sub(_function, text))
    text = _OPERATOR.sub(lambda m: rf"\{_FUNCTIONS[m[1] or m[2]]} ", _PI.sub(r"\\pi ", text))
    text = _EXPONENT.sub(lambda m: rf"{m['mantissa'].rstrip('.')}\times 10^{{{int(m['exponent'])}}}", text)
    text = _NEGATIVE_POWER.sub(r"^{-\1}", _LETTER_TIMES.sub(r"\\times ", text))
    if "dots" in text or "..." in text:
        text = _ENDLESS.sub(_repeating, text)
    return _MIXED.sub(_mixed, _REPEATING.sub(_repeating, _BARE_POINT.sub("", text)))


def _fraction(char: str) -> str:
    parts = unicodedata.normalize("NFKD", char).split("⁄") if "¼" <= char <= "⅞" else []
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 and all(parts) else char


def _function(match: re.Match[str]) -> str:
    name = _FUNCTIONS[match["name"]]
    return r"\ln" if match["module"] and name == "log" else rf"\{name}"


def _repeating(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction with a denominator such as 9, 99 or 990."""
    whole, fixed, period = match[1] or "0", match[2], match[3] or match[match.re.groups]
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    return rf"\frac{{{int(whole + fixed + period) - int(whole + fixed)}}}{{{nines}}}"


def _mixed(match: re.Match[str]) -> str:
    whole, upper, lower = match.groups()
    return rf"{whole}\frac{{{upper}}}{{{lower}}}" if 0 < int(upper) < int(lower) else match[0]
