"""A gold can be read if the same answer in another form is graded equal to it."""

from __future__ import annotations

import pytest

from atrium.grading.pool import GraderPool
from atrium.grading.soundness import restated
from atrium.grading.verifiers import MathVerifier


@pytest.fixture(scope="module")
def grader():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=20.0, memory_limit_mb=1024)) as pool:
        yield pool


READABLE = [
    *(
        "7e37",
        "1.77e-6",
        "np.arcsin(10/13)",
        "-1./3",
        "42",
        "0.25",
        r"50\%",
        "x=5",
        "(1,2)",
        "1,2,3",
        "C",
        "m",
    ),
    *(
        r"\{1,\frac{1}{2}\}",
        r"\text{Evelyn}",
        r"\alpha",
        r"E_{1},E_{2}",
        "11001_2",
        r"1 \pm \sqrt{19}",
        "2n+1",
    ),
    *(
        r"x \in [-2,7]",
        "k>2",
        r"(-\infty,1]\cup[10,\infty)",
        r"[1,\infty)",
        "x^2+y^2=1",
        r"\frac{1}{\sqrt{2}}c",
        r"90^\circ",
    ),
    *(r"x \neq 4", r"x\ne4", r"x\neq y", r"4 \neq x", r"x^2 \neq 4", r"a \ne b \ne c", r"x \ne -1, 3"),
    *(r"x \neq \pm 2", r"x\geq 0, x \neq 1", r"x > 3, x \neq 5", r"x \neq 0 \text{ and } x \neq 1"),
    *(r"\emptyset", r"\mathbb{R}", r"x \in \mathbb{Z}", r"\mathbb{R} \setminus \{4\}", r"x \notin \{1,2\}"),
    *(r"\{x \in \mathbb{R} : x > 2\}", r"x \in \mathbb{R}, x \neq 4", r"a \neq 0, b > 1", "2a-5>0", "i"),
    *(r"n = 3k, k \in \mathbb{Z}", r"x \neq \frac{\pi}{2}+k\pi, k \in \mathbb{Z}", r"x \in \emptyset"),
    *(r"\text{all real numbers except } 4", r"\text{all real } x > 2", "[2,3), (4,5]", "]2,3]"),
    *(r"(x,y) \neq (0,0)", r"\mathbb{R}_{>0}", r"x>\log_2 3, x \neq 5"),
    *("f(n)=n", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\lambda_{\text {red}} / \sqrt{2}"),
    r"\hbar \omega(v+1 / 2)-\frac{E_{0}^{2} e^{2}}{2 m \omega^{2}}",
]
UNREADABLE = [r"\frac{1}{", "t(0,4]", r"\frac{?}{2}", r"7 \pounds 3 \shillings", r"x \neq \frac{?}{2}"]
UNREADABLE += [r"m\text{except}="]


@pytest.mark.parametrize("gold", READABLE)
def test_a_readable_gold_accepts_itself_in_another_form(grader: GraderPool, gold: str):
    other = restated(gold)
    assert "".join(other.split()) != "".join(gold.split())
    verdict = grader.grade(rf"\boxed{{{other}}}", gold)
    assert verdict.is_correct, (other, verdict)


@pytest.mark.parametrize("gold", UNREADABLE)
def test_an_unreadable_gold_equals_its_own_text_only(grader: GraderPool, gold: str):
    assert not grader.compare(gold, restated(gold)).result().is_correct
