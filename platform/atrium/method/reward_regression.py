"""GVPO's surrogate, which fits the policy's implicit reward to the given reward (arXiv 2504.19599)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from atrium.base.section import Positive
from atrium.method.advantages import group_mean
from atrium.method.batch import Batch, row_mean
from atrium.method.needs import Needs
from atrium.method.ratios import Level
from atrium.method.surrogates import OnlyPathwise, Surrogate
from atrium.method.terms import SurrogateInputs, SurrogateOutput

if TYPE_CHECKING:
    from torch import Tensor


class ImplicitRewardRegression(Surrogate):
    """-(1/2) e^2 for the residual e between implicit and given reward (GVPO, arXiv 2504.19599, eq. 9).

    e = beta (log W - group mean of log W) - (A - group mean of A), where W is the sequence ratio and A the
    advantage; the coefficient on each of the row's tokens is -beta e. Both means are over the group's rows
    with trained tokens, so the residuals of a group sum to 0. If a group has only one such row, its residual
    is 0. The reduction decides whether the sum over a group's k rows is divided by k - 1, as in the paper, or
    by k.

    Up to a constant, the mean loss of a group is -beta times the covariance of A and log pi, plus beta^2 / 2
    times the variance of log pi, minus beta^2 times the covariance of log pi and log pi_behavior. As in the
    paper's ablations, `without` can leave out the variance (log W then lacks log pi) or the second covariance
    (log W then lacks log pi_behavior).
    """

    kind: Literal["implicit_reward_regression"] = "implicit_reward_regression"
    gradient: OnlyPathwise = "pathwise"
    beta: Positive
    """KL coefficient of the implicit reward."""
    without: Literal["nothing", "variance", "covariance"] = "nothing"
    """Regularizing part of the loss that is left out as an ablation."""
    reads: ClassVar = "nothing"
    exponentiates: ClassVar[bool] = False
    weight_level: ClassVar[Level | None] = "sequence"
    regresses: ClassVar[bool] = True

    needs: ClassVar = Needs(prepare_pass=True, whole_groups=True)
    """Whole groups and a pass over the minibatch, to compute group means at the current parameters."""

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the coefficient -beta e and the value -(1/2) e^2.

        With `without: variance`, e does not depend on the policy, and the value is the coefficient times log
        pi.
        """
        assert x.row_constant_B is not None, "`prepare` computes it for every minibatch"
        log_BT = self._regressed(x.log_weight_BT, x.logprob_BT)
        residual_BT = self.beta * log_BT - x.advantage_BT - x.row_constant_B[:, None]
        coefficient_BT = -self.beta * residual_BT
        if self.without == "variance":
            return x.uncut(coefficient_BT, coefficient_BT * x.logprob_BT)
        return x.uncut(coefficient_BT, -0.5 * residual_BT**2)

    def row_constant(self, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch) -> Tensor:
        """Return for each row [B] its group's mean of beta log W - A over the rows with trained tokens.

        With this mean subtracted, the residuals of a group sum to 0. Detaching the mean changes no gradient
        (arXiv 2504.19599, eq. 11).
        """
        assert minibatch.advantage_BT is not None, "`with_advantages` must be called before `prepare`"
        log_BT = self._regressed(log_weight_BT, logprob_BT)
        log_B = log_BT[:, :1].sum(dim=1)  # the same at every token of a row
        advantage_B = row_mean(minibatch.advantage_BT.double(), minibatch.mask_BT).to(log_B)
        distance_B = self.beta * log_B - advantage_B
        return group_mean(distance_B, minibatch.group_B, minibatch.mask_BT.any(dim=1))

    def _regressed(self, log_weight_BT: Tensor, logprob_BT: Tensor) -> Tensor:
        match self.without:
            case "variance":
                return log_weight_BT - logprob_BT
            case "covariance":
                return logprob_BT
            case "nothing":
                return log_weight_BT
