r"""Forms of answers, each with near misses: other numbers, signs, bounds, letters.

`<a>`, `<b>` and `<c>` stand for numbers with a < b < c, `<word>` is c in words, and `<q>` depends on a.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """A gold answer, answers equal to it, and near misses."""

    gold: str
    answers: tuple[str, ...]
    near_misses: tuple[str, ...] = ()


FORMS = {
    "imaginary unit": [
        Form(
            r"\frac{<a>}{<b>}+\frac{<c>}{<b>}i",
            (r"\frac{<a>+<c>i}{<b>}", r"\frac{<c>i+<a>}{<b>}", r"\frac{i(<c>-<a>i)}{<b>}"),
            (
                r"\frac{<a>-<c>i}{<b>}",
                r"\frac{<c>+<a>i}{<b>}",
                r"\frac{<a>+<c>j}{<b>}",
                r"\frac{<a>+<c>}{<b>}",
            ),
        ),
        Form(
            r"(<a>+<b>i)^2",
            (r"<a>^2-<b>^2+2\cdot<a>\cdot<b>i",),
            (r"<a>^2+<b>^2", r"<a>^2-<b>^2-2\cdot<a>\cdot<b>i"),
        ),
        Form(
            r"\frac{<a>}{2}+\frac{<a>\sqrt{3}}{2}i",
            (
                r"<a>e^{i\pi/3}",
                r"<a>(\cos 60^\circ+i\sin 60^\circ)",
                r"<a>\operatorname{cis}(\frac{\pi}{3})",
                r"<a>\operatorname{cis}60^\circ",
            ),
            (r"<a>e^{-i\pi/3}", r"<a>e^{i\pi/6}", r"<a>\operatorname{cis}60"),
        ),
        Form(r"i\sqrt{<a>}", (r"\sqrt{-<a>}", r"\sqrt{<a>}i"), (r"-\sqrt{-<a>}", r"\sqrt{<a>}")),
    ],
    "degrees in functions": [
        Form(
            r"<a>\cos 5<c>^\circ",
            (
                r"<a>\sin(90^\circ-5<c>^\circ)",
                r"<a>\cos\left(5<c>^{\circ}\right)",
                r"<a>\cos\frac{5<c>\pi}{180}",
            ),
            (r"<a>\cos 5<c>", r"<a>\sin 5<c>^\circ", r"-<a>\cos 5<c>^\circ", r"<b>\cos 5<c>^\circ"),
        ),
        Form(r"\frac{<a>}{2}", (r"<a>\sin 30^\circ",), (r"<a>\sin 30", r"<a>\cos 30^\circ")),
    ],
    "tiny and huge numbers": [
        Form(
            r"\frac{<a>}{20<b>!}",
            (r"\frac{2\cdot<a>}{2\cdot 20<b>!}",),
            (r"\frac{<a>}{20<c>!}", r"\frac{<b>}{20<b>!}"),
        ),
        Form(r"1-\frac{1}{<b><c>!}", (r"\frac{<b><c>!-1}{<b><c>!}",), ("1", r"1+\frac{1}{<b><c>!}")),
        Form(r"<a>e^{-4<b>}", (r"\frac{<a>}{e^{4<b>}}",), (r"<a>e^{-4<c>}", "0")),
        Form(
            r"\frac{<b>\pi}{10^{2<a>}}",
            (r"<b>\pi\cdot 10^{-2<a>}",),
            (r"\frac{<b>\pi}{10^{3<a>}}", r"\frac{<c>\pi}{10^{2<a>}}"),
        ),
        Form(
            r"\sqrt{10^{6<a>}+<b>}",
            (r"\sqrt{<b>+10\cdot 10^{6<a>-1}}",),
            (r"10^{3<a>}", r"\sqrt{10^{6<a>}-<b>}"),
        ),
    ],
    "products and binomials": [
        Form(
            r"\prod_{k=1}^{1<a>} \frac{1}{k}",
            (r"\prod_{m=1}^{1<a>} \frac{1}{m}",),
            (r"\prod_{k=1}^{1<b>} \frac{1}{k}", r"2\prod_{k=1}^{1<a>} \frac{1}{k}"),
        ),
        Form("0", (r"\int_{-<c>}^{<c>} x^3 dx",), (r"\int_{0}^{<c>} x^3 10^{-9} dx", "10^{-<c>}")),
        Form(
            r"\binom{20<a>0}{1010}^{-1}",
            (r"\frac{1}{\binom{20<a>0}{1010}}",),
            (r"\binom{20<a>0}{1009}^{-1}", r"2\binom{20<a>0}{1010}^{-1}"),
        ),
        Form(
            r"\frac{1}{<c><a>3!!}",
            (r"(<c><a>3!!)^{-1}",),
            (r"\frac{1}{<c><a>1!!}", r"\frac{1}{<c><a>3!}"),
        ),
    ],
    "sets, points and intervals": [
        Form("(<a>,<b>)", (r"\langle <a>,<b>\rangle",), (r"\{<a>,<b>\}", "[<a>,<b>]", "(<b>,<a>)")),
        Form(r"\{<a>,<b>,<c>\}", (r"\{<c>,<a>,<b>\}", "<b>, <a>, <c>"), ("(<a>,<b>,<c>)", r"\{<a>,<b>\}")),
        Form(r"(-\infty,<a>)", ("x<<a>",), (r"\{-\infty,<a>\}", r"(<a>,-\infty)", r"(-\infty,<a>]")),
    ],
    "unit vectors": [
        Form(
            r"\langle <a>,-<b>\rangle",
            (
                r"<a>\hat{i}-<b>\hat{j}",
                r"<a>\mathbf{i}-<b>\mathbf{j}",
                r"<a>\vec{i}-<b>\vec{j}",
                r"-<b>\hat{\mathbf{j}}+<a>\hat{\imath}",
            ),
            (
                r"<b>\hat{i}-<a>\hat{j}",
                r"<a>\hat{i}+<b>\hat{j}",
                r"<a>\hat{i}-<b>\hat{k}",
                r"<a>-<b>\mathbf{i}",
                "<a>-<b>i",
            ),
        ),
        Form(
            r"\frac{<a>}{<c>}\mathbf{i}+<b>\mathbf{k}",
            (
                r"(\frac{<a>}{<c>},0,<b>)",
                r"\frac{<a>}{<c>}i+<b>k",
                r"\vec{v}=\frac{<a>}{<c>}\hat i+<b>\hat k",
            ),
            (r"(\frac{<a>}{<c>},<b>,0)", r"(\frac{<a>}{<c>},<b>)", r"\frac{<a>}{<c>}i+<b>j"),
        ),
    ],
    "vectors": [
        Form(
            r"\langle <a>,-<b>,<c> \rangle",
            ("(<a>,-<b>,<c>)", r"\begin{pmatrix}<a>\\-<b>\\<c>\end{pmatrix}", "<<a>,-<b>,<c>>"),
            (r"(<a>,<b>,<c>)", r"(<a>,<c>,-<b>)", r"\{<a>,-<b>,<c>\}"),
        )
    ],
    "powers beyond any computer": [
        Form(
            r"8^{<a>^{10<b>}}",
            (r"2^{3\cdot <a>^{10<b>}}", r"4^{\frac{3}{2}\cdot <a>^{10<b>}}", r"64^{\frac{<a>^{10<b>}}{2}}"),
            (r"2^{2\cdot <a>^{10<b>}}", r"-8^{<a>^{10<b>}}", r"8^{<a>^{10<b>}+1}", r"9^{<a>^{10<b>}}"),
        )
    ],
    "factorials": [
        Form(
            r"\frac{n!}{k!(n-<a>)!}",
            (r"\frac{(n-1)!}{k!} \frac{n}{(n-<a>)!}",),
            (r"\frac{(n-1)!}{k!} \frac{n}{(n-<b>)!}", r"\frac{(n-1)!}{m!} \frac{n}{(n-<a>)!}"),
        )
    ],
    "ranges of functions": [
        Form(
            r"-<a>\leq g(x)\leq <b>",
            (r"<b> \geq g(x) \geq -<a>", r"[-<a>,<b>]"),
            (r"-<a>\leq f(x)\leq <b>", r"-<a>\leq g(x)< <b>", r"<a>\leq g(x)\leq <b>"),
        )
    ],
    "sets of numbers": [
        Form(
            r"(-\infty,<a>)\cup(<b>,\infty)",
            (
                r"x<<a> \text{ or } x><b>",
                "x<<a>, x><b>",
                r"x \in (-\infty,<a>) \text{ or } x \in (<b>,\infty)",
                r"\{x \mid x<<a> \text{ or } x><b>\}",
                r"\mathbb{R}\setminus[<a>,<b>]",
            ),
            (r"x<<a> \text{ and } x><b>", r"x\le <a> \text{ or } x><b>", r"x><a> \text{ or } x<<b>"),
        ),
        Form(
            r"x\in[-<a>,<b>]",
            (r"-<a>\le x\le <b>", r"<b>\ge x\ge -<a>", r"\{x\in\mathbb{R}:-<a>\le x\le <b>\}", r"[-<a>,<b>]"),
            (r"-<a><x\le <b>", r"-<a>\le x\le <c>", r"<a>\le x\le <b>", r"-<a>\le y\le <b>"),
        ),
        Form(
            r"(<a>,<b>)\cup(<b>,<c>)",
            (r"<a><x<<c>, x\ne <b>", r"<a><x<<c> \text{ and } x\neq <b>", r"(<a>,<c>)\setminus\{<b>\}"),
            (r"<a><x<<c>", r"<a><x<<c>, x\ne <a>", r"<a><x\le <c>, x\ne <b>"),
        ),
        Form(
            r"(-\infty,<a>)\cup(<a>,\infty)",
            (r"x\ne <a>", r"\mathbb{R}\setminus\{<a>\}", r"x\in\mathbb{R}, x\neq <a>"),
            (r"x\ne -<a>", r"x=<a>", r"\mathbb{R}"),
        ),
        Form(
            r"x \neq \pm <a>",
            (r"x \neq <a>, -<a>", r"<a> \neq x \text{ and } -<a> \neq x", r"x \ne -<a>, x \ne <a>"),
            (r"x \neq <a>", r"x \neq \pm <b>", r"x = \pm <a>", r"y \neq \pm <a>"),
        ),
        Form(
            r"x \geq <a>, x \neq <b>",
            (r"<b> \neq x, x \geq <a>", r"[<a>,<b>) \cup (<b>,\infty)"),
            (r"x \geq <a>", r"x > <a>, x \neq <b>", r"x \geq <a>, x \neq <c>", r"x \geq <b>, x \neq <b>"),
        ),
        Form(
            r"x^<a> \neq <b>y",
            (r"<b>y \neq x^<a>", r"y \cdot <b> \neq x^<a>"),
            (r"<b>y \neq x^<b>", r"-<b>y \neq x^<a>", r"x^<a> = <b>y", r"<b>x \neq y^<a>"),
        ),
        Form(
            r"<a>x-<c> > 0",
            (
                r"x > \frac{<c>}{<a>}",
                r"<c>-<a>x < 0",
                r"(\frac{<c>}{<a>},\infty)",
                r"<b>x > <c>-<a>x+<b>x",
                r"-\frac{x}{<c>} < -\frac{1}{<a>}",
            ),
            (
                r"x < \frac{<c>}{<a>}",
                r"x \geq \frac{<c>}{<a>}",
                r"<a>x+<c> > 0",
                r"<c>-<a>x > 0",
                r"<a>y-<c> > 0",
                r"<a>|x|-<c> > 0",
            ),
        ),
        Form(
            r"(<a>,<b>)",
            (r"2\cdot<a>+1 < 2x+1 < 2\cdot<b>+1", r"-<b> < -x < -<a>", r"0 < x-<a> < <b>-<a>"),
            (r"2\cdot<a>+1 < 2x-1 < 2\cdot<b>+1", r"-<b> < x < -<a>", r"-<b> \le -x < -<a>"),
        ),
        Form(
            r"x > \frac{\pi}{<a>}",
            (r"<a>x > \pi", r"<a>x-\pi > 0"),
            (r"<a>x > -\pi", r"<a>x < \pi", r"<b>x > \pi"),
        ),
        Form(
            r"x \neq \frac{<c>}{<a>}",
            (r"<a>x-<c> \neq 0", r"<a>x \neq <c>"),
            (r"<a>x+<c> \neq 0", r"<b>x \neq <c>", r"<a>x-<c> = 0"),
        ),
        Form(r"[-<a>,<a>]", (r"|x|\le <a>",), (r"|x|<<a>", r"|x|\ge <a>")),
    ],
    "sets of numbers in words": [
        Form(
            r"(<a>,\infty)",
            (
                r"]<a>,\infty[",
                r"\left]<a>;+\infty\right[",
                r"\text{all real }x><a>",
                "all real x > <a>",
                r"\text{all real numbers } x \text{ such that } x><a>",
                r"\text{all real numbers greater than } <a>",
                r"\{x \text{ such that } x><a>\}",
                r"\{x\in\mathbb{R} \text{ with } x><a>\}",
            ),
            (
                r"[<a>,\infty[",
                r"]-\infty,<a>[",
                r"\text{all real }x<<a>",
                r"\text{all integers }x><a>",
                r"\text{all real numbers greater than or equal to } <a>",
                r"\text{not all real }x><a>",
                r"\{x\in\mathbb{Z} \text{ such that } x><a>\}",
                "<a>",
            ),
        ),
        Form(
            r"x \neq <a>",
            (
                "all real numbers except <a>",
                r"\text{all real numbers except <a>}",
                r"\text{All real numbers except } x = <a>",
                "All real numbers except $<a>$",
                r"\mathbb{R} \text{ excluding } <a>",
                r"\text{all real numbers not equal to } <a>",
            ),
            (
                r"\text{all real numbers except } -<a>",
                r"\text{all integers except } <a>",
                r"\text{all real numbers except } <a> \text{ and } <b>",
                r"\text{all real numbers}",
                "<a>",
            ),
        ),
        Form(
            r"x \neq <a>",
            (
                r"x \text{ can be any real number except } <a>",
                r"\text{all real numbers but } <a>",
                r"x\in\mathbb{R}: x \neq <a>",
            ),
            (
                r"x \text{ can be any real number except } <b>",
                r"\text{all real numbers but } <a>, <b>",
                r"x\in\mathbb{Z}: x \neq <a>",
                r"x \neq <a> \text{ for integer } x",
            ),
        ),
        Form(
            "x>0",
            (r"\mathbb{R}^+", r"x \in \mathbb{R}_{>0}"),
            (r"\mathbb{R}_{\geq 0}", r"\mathbb{R}_{<0}", r"\mathbb{R}", r"\mathbb{Z}^+"),
        ),
        Form(
            r"x>\log_{<a>} <c>, x \neq 1<c>",
            (r"\{x : x>\log_{<a>} <c>, x \neq 1<c>\}",),
            (r"\{x : x>\log_{<b>} <c>, x \neq 1<c>\}", r"\{x : x>\log_{<a>} <c>\}"),
        ),
        Form(
            r"(x,y) \neq (0,<a>)",
            (r"(0,<a>) \neq (x,y)",),
            (r"(<a>,0) \neq (x,y)", r"(0,<b>) \neq (x,y)", r"(x,y) = (0,<a>)"),
        ),
        Form("<a>", ("<a>",), ("All real numbers except $<a>$", "all real numbers greater than $<a>$")),
        Form(r"\mathbb{R}", (r"\text{all real } x", "all reals"), (r"\text{real}", r"\text{all integers}")),
        Form(
            r"[<a>,<b>)\cup(<c>,1<c>]",
            (
                r"[<a>,<b>[ \cup ]<c>,1<c>]",
                r"[<a>,<b>) \text{ and } (<c>,1<c>]",
                r"(<c>,1<c>], [<a>,<b>)",
                r"x \in [<a>,<b>), (<c>,1<c>]",
            ),
            (
                r"[<a>,<b>] \text{ and } (<c>,1<c>]",
                r"[<a>,<b>) \cap (<c>,1<c>]",
                r"]<a>,<b>[ \cup ]<c>,1<c>]",
                r"[<a>,<b>)",
            ),
        ),
        Form(r"(<a>,<b>),(<c>,1<c>)", (r"(<c>,1<c>),(<a>,<b>)",), (r"(<a>,<b>)\cup(<c>,1<c>)", "(<a>,<b>)")),
        Form(
            r"[0,\sqrt[3]{<a>})",
            (r"[0,\sqrt[3]{<a>}[", r"0 \le x < \sqrt[3]{<a>}"),
            (r"[0,\sqrt[3]{<a>}]", r"]0,\sqrt[3]{<a>}["),
        ),
    ],
    "conditions": [
        Form(
            r"<a>k",
            (
                r"<a>k, k\in\mathbb{Z}",
                r"<a>k \text{ for any integer } k",
                r"<a>k\ (k\in\mathbb{Z})",
                r"\{<a>k : k\in\mathbb{Z}\}",
                r"<a>k, k=0,\pm 1,\pm 2,\ldots",
            ),
            (
                r"<b>k, k\in\mathbb{Z}",
                r"<a>k, k=2",
                r"<a>k, k\in\{1,2\}",
                r"<a>m",
                r"-<a>k+1, k\in\mathbb{Z}",
            ),
        ),
        Form(
            r"<a>^{n-1}",
            (
                r"<a>^{n-1} \text{ for all } n\ge 1",
                r"<a>^{n-1} \text{ (for } n\geq 2)",
                r"<a>^{n-1}\ \forall n",
            ),
            (
                r"<b>^{n-1} \text{ for all } n\ge 1",
                r"<a>^{n} \text{ for all } n\ge 1",
                r"<a>^{n-1} \text{ for } n=3",
            ),
        ),
        Form(
            "f(x)=<a>x",
            (r"f(x)=<a>x \text{ for all real } x", r"f(x) = <a>x\ \forall x\in\mathbb{R}"),
            (r"f(x)=<b>x \text{ for all real } x", r"f(x)=-<a>x\ \forall x"),
        ),
        Form(
            r"\frac{\pi}{<b>}+k\pi, k\in\mathbb{Z}",
            (r"\frac{\pi}{<b>}+n\pi, n\in\mathbb{Z}", r"\frac{\pi}{<b>}-k\pi, k\in\mathbb{Z}"),
            (
                r"\frac{\pi}{<b>}+k\pi, k\in\mathbb{N}",
                r"\frac{\pi}{<c>}+k\pi, k\in\mathbb{Z}",
                r"\frac{\pi}{<b>}+2k\pi, k\in\mathbb{Z}",
            ),
        ),
        Form(
            r"<a>k, k\in\mathbb{Z}",
            (r"<a>n \text{ where } n \text{ is an integer}", r"<a>n, \text{ with } n \in \mathbb Z"),
            (r"<b>n \text{ where } n \text{ is an integer}", r"<a>n+1, n\in\mathbb Z"),
        ),
        Form(
            r"x \neq \frac{\pi}{<b>}+k\pi, k\in\mathbb{Z}",
            (r"x \neq \frac{\pi}{<b>}+n\pi, n\in\mathbb{Z}",),
            (
                r"x \neq \frac{\pi}{<c>}+k\pi, k\in\mathbb{Z}",
                r"x \neq \frac{\pi}{<b>}+k\pi, k\in\mathbb{N}",
                r"x = \frac{\pi}{<b>}+k\pi, k\in\mathbb{Z}",
                r"y \neq \frac{\pi}{<b>}+k\pi, k\in\mathbb{Z}",
            ),
        ),
        Form(
            "n=<a>k+1",
            (
                r"n=<a>m+1, m\in\mathbb{Z}",
                r"n=<a>m+1 \text{ for some integer } m",
                r"<a>k+1, k\in\mathbb{Z}",
                r"n=1-<a>m, m\in\mathbb{Z}",
            ),
            (
                r"n=<a>m+1",
                r"n=<b>m+1, m\in\mathbb{Z}",
                r"n=<a>m+1, m\in\mathbb{N}",
                r"q=<a>m+1, m\in\mathbb{Z}",
            ),
        ),
        Form(
            "y=<a>x",
            (r"y=<a>x, x\in\mathbb{Z}",),
            (r"y=<a>m, m\in\mathbb{Z}", r"y=<a>, m\in\mathbb{Z}", r"y=<b>x, x\in\mathbb{Z}"),
        ),
        Form("f(n)=<a>n", (r"f(n)=<a>n",), (r"f(n)=<a>m, m\in\mathbb{Z}", r"f(n)=<b>n, n\in\mathbb{Z}")),
        Form("x=<a>", ("<a>",), (r"x=<a>m, m\in\mathbb{Z}", r"<a>k, k\in\mathbb{Z}")),
        Form(r"<a>^n, n\ge <b>", (r"<a>^n \text{ for } n\ge <b>",), (r"<a>^n, n\ge <c>", r"<a>^n, n\le <b>")),
    ],
    "roots of positive names": [
        Form(
            r"\sqrt{\frac{<a>h}{g}}",
            (r"\frac{\sqrt{<a>h}}{\sqrt{g}}", r"\frac{\sqrt{<a>hg}}{g}", r"\sqrt{<a>}\,h^{1/2}g^{-1/2}"),
            (
                r"\frac{\sqrt{<b>h}}{\sqrt{g}}",
                r"\frac{\sqrt{<a>g}}{\sqrt{h}}",
                r"-\frac{\sqrt{<a>h}}{\sqrt{g}}",
            ),
        ),
        Form(r"\sqrt{<a>x+<b>}", (r"(<b>+<a>x)^{1/2}",), (r"\sqrt{<a>x}+\sqrt{<b>}", r"\sqrt{<a>y+<b>}")),
        Form(r"<a>\sqrt{x^2}", ("<a>|x|",), ("<a>x", "-<a>x")),
    ],
    "choices": [
        Form(
            "C",
            (r"\textbf{(C)}\ <a>", r"\text{(C) }\frac{<a>}{<b>}", "C: <a>", r"(C)\ <a>", r"\text{Option C}"),
            (r"\textbf{(D)}\ <a>", "C=<a>", "<a>C", r"\text{(C) or (D)}", "(C)(D)"),
        ),
        Form(r"\textbf{(C)}\ <a>", ("C", "<a>", r"(C)\ <a>"), ("D", "<b>", r"(C)\ <b>", r"(D)\ <a>")),
        Form(
            "B",
            (r"\text{Option B: } <a>", r"\text{The answer is (B)}", r"\text{The correct choice is B}"),
            (
                r"\text{Option C: } <a>",
                r"\text{The answer is not (B)}",
                r"\text{The answer is (B) or (C)}",
                r"\text{The answer is (D)}",
            ),
        ),
        Form("<a>", (r"\text{Option B: } <a>",), (r"\text{Option B: } <b>", r"\text{Option B: } -<a>")),
        Form("<a>", (r"\textbf{(C)}\ <a>",), (r"\textbf{(C)}\ <b>", r"\textbf{(C)}\ -<a>")),
    ],
    "words": [
        Form(
            "1<a>",
            (
                "**1<a>**",
                "*1<a>*",
                r"\text{The answer is } 1<a>",
                r"\text{The answer is 1<a>}",
                r"\text{Alice has } 1<a> \text{ apples}",
                r"\text{1<a> apples}",
                "Alice has 1<a> apples",
            ),
            (
                "**1<b>**",
                r"\text{The answer is not } 1<a>",
                r"\text{Alice has more than } 1<a> \text{ apples}",
                r"\text{multiples of } 1<a>",
                r"\text{Alice has } -1<a>",
                r"\text{1<a> or 1<b> apples}",
                r"\text{Alice has 1<a> million}",
            ),
        ),
        Form(
            r"\text{no solution}",
            (
                r"\text{No solutions}",
                "There are no solutions",
                r"\text{No real solutions}",
                "none",
                r"\emptyset",
            ),
            (r"\text{one solution}", "<a>", "0", r"\text{infinitely many solutions}", r"\text{no}"),
        ),
        Form(
            r"\text{infinitely many solutions}",
            (r"\text{infinitely many}", "There are infinitely many solutions", "infinite solutions"),
            (r"\text{finitely many solutions}", r"\text{no solutions}", r"\text{many solutions}", "<a>"),
        ),
        Form(
            "x=<a>",
            (
                r"x=<a> \text{ (since } x>0)",
                r"<a> \text{ because } x>0",
                r"<a> \text{ (since $x$ is not } <c>)",
            ),
            (r"x=<b> \text{ (since } x>0)", r"-<a> \text{ (since } x<0)", r"<a> \text{ (since } x>0), <b>"),
        ),
        Form(
            "<c>",
            (r"<c> \text{ (<word>)}", "<c> (<word>)", r"\text{<word> (<c>)}", r"\text{<word>}"),
            (r"<c> \text{ (two)}", r"<a> \text{ (<word>)}", r"\text{two (<c>)}", r"\text{two}"),
        ),
        Form(r"\text{May <a>}", ("May <a>", r"\text{may <a>}"), ("May <b>", "June <a>")),
    ],
    "boxes": [
        Form(
            "2<a>",
            (r"so $\boxed 2<a>$.", r"\boxed $2<a>$", r"\framebox{2<a>}", r"\boxed{2<b>}. No: \boxed{2<a>}"),
            (r"\boxed{2<a>}. Wait: \boxed{2<b>", r"so $\boxed 2<b>$.", r"\boxed{2<a>}. Wait: \boxed{"),
        ),
        Form(
            r"<a>\sqrt{<b>}",
            (r"\boxed <a>\sqrt<b>", r"so $\boxed <a>\sqrt{<b>}$.", r"\boxed $<a>\sqrt<b>$"),
            (r"\boxed <b>\sqrt<a>", r"\boxed <a>\sqrt7", r"\boxed <a>"),
        ),
        Form(
            r"\sqrt{2}",
            (
                r"\boxed{\sqrt{2}} = \boxed{1.414\ldots}",
                r"\boxed{\sqrt{2}=1.414\ldots}",
                r"\boxed{\sqrt{2}} \approx \boxed{1}",
            ),
            (
                r"\boxed{1.414\ldots}",
                r"\boxed{\sqrt{2}} = \boxed{1.732\ldots}",
                r"\boxed{\sqrt{3}} = \boxed{1.732\ldots}",
                r"\boxed{\sqrt{2}} \approx \boxed{3}",
            ),
        ),
        Form(
            r"100\pi",
            (r"\boxed{100\pi} \approx \boxed{314}", r"\boxed{100\pi}, which is about \boxed{314}."),
            (r"\boxed{101\pi} \approx \boxed{317}", r"\boxed{100\pi} \approx \boxed{300}"),
        ),
        Form(r"\frac{1}{3}", (r"\boxed{0.333\ldots}",), (r"\boxed{0.33}", r"\boxed{0.334\ldots}")),
        Form(
            r"\frac{1<a>}{3}",
            (r"\boxed{\frac{1<a>}{3}}, which is about \boxed{<q>.33}",),
            (
                r"\boxed{\frac{1<a>}{3}}, which is about \boxed{<q>.63}",
                r"\boxed{\frac{1<b>}{3}} \approx \boxed{<q>.33}",
            ),
        ),
    ],
    "formats": [
        Form(
            "10<a>_{<c>}",
            (r"10<a>_{\text{<word>}}", r"10<a> \text{ base } <c>", "(10<a>)_<c>"),
            (r"10<a>_{\text{two}}", "10<b>_{<c>}"),
        ),
        Form(
            "<a>.5",
            (
                r"\text{€}<a>.5",
                r"\$<a>.50",
                r"\pounds <a>.50",
                r"\text{USD } <a>.50",
                r"US\$<a>.50",
                r"\text{US\$}<a>.50",
                "USD <a>.50",
            ),
            (r"\text{€}<b>.5", r"\$-<a>.50", r"US\$<c>.50"),
        ),
        Form(
            r"<a>\sin(x)",
            (r"<a>\mathrm{sin}(x)", r"<a>\text{sin}\, x", r"<a>\operatorname{sin} x"),
            (r"<a>\mathrm{cos}(x)", r"<a>\mathrm{sin}(y)", r"-<a>\text{sin}(x)"),
        ),
        Form(r"<a>\sqrt{<b>}", (r"<a>\sqrt(<b>)", "<a>sqrt{<b>}"), (r"<a>\sqrt(<c>)", r"<b>\sqrt(<b>)")),
        Form(
            r"\begin{pmatrix}<a>\\<b>\end{pmatrix}",
            (
                r"\\boxed{\\begin{pmatrix}<a>\\\\<b>\\end{pmatrix}}",
                r"\\boxed{\\begin{pmatrix}<a>\\<b>\\end{pmatrix}}",
            ),
            (
                r"\\boxed{\\begin{pmatrix}<b>\\\\<a>\\end{pmatrix}}",
                r"\\boxed{\\begin{pmatrix}<a>\\\\-<b>\\end{pmatrix}}",
            ),
        ),
        Form(
            "<a>:1<b>", (r"<a> \text{ to } 1<b>", r"\frac{<a>}{1<b>}"), ("1<b>:<a>", "<a>:1<c>", "-<a>:1<b>")
        ),
        Form(
            r"<a>:2<b> \text{ p.m.}",
            (r"<a>:2<b> \text{ PM}", "<a>:2<b>"),
            (r"<a>:2<b> \text{ a.m.}", r"<a>:2<c> \text{ p.m.}", r"<b>:2<b> \text{ p.m.}"),
        ),
    ],
}
