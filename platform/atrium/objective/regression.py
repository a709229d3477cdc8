"""Surrogates that regress the policy's implicit reward on the given one (GVPO, arXiv 2504.19599)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from atrium.objective.advantages import group_mean
from atrium.objective.batch import Batch, Needs
from atrium.objective.boundary import Surrogate, SurrogateInputs, SurrogateOutput, UsesWindow, kept


@dataclass(frozen=True, kw_only=True)
class ImplicitRewardRegression(Surrogate):
    """-(1/2) e^2 for the residual e between implicit and given reward (GVPO, arXiv 2504.19599, eq. 9).

    e = beta (log W - group mean of log W) - A, with W the sequence ratio and A the reward less its group
    mean; the coefficient on each of the row's tokens is -beta e. Reductions of the group decide between
    the paper's 1/(k - 1) and a plain mean.

    The loss is A's term plus beta^2 / 2 times the variance of log pi less beta^2 times its covariance
    with log pi_behavior. `without` leaves one of the two out, as the paper's ablations do: log pi or log
    pi_behavior then disappears from log W.
    """

    beta: float
    without: Literal["nothing", "variance", "covariance"] = "nothing"
    uses_window: ClassVar[UsesWindow] = "none"
    exponentiates: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(prepare_pass=True, whole_groups=True)

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Regress the implicit reward onto the advantage."""
        assert inputs.row_constant_B is not None, "`prepare` computes it for every minibatch"
        log_BT = self._log_ratio(inputs.log_weight_BT, inputs.logprob_BT)
        residual_BT = self.beta * (log_BT - inputs.row_constant_B[:, None]) - inputs.advantage_BT
        coefficient_BT = -self.beta * residual_BT
        if self.without == "variance":  # the coefficient does not depend on the policy
            return kept(inputs, coefficient_BT * inputs.logprob_BT, coefficient_BT)
        return kept(inputs, -0.5 * residual_BT**2, coefficient_BT)

    def row_constant(self, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch) -> Tensor:
        """The group's mean over rows with tokens; detaching it changes no gradient (eq. 11)."""
        log_BT = self._log_ratio(log_weight_BT, logprob_BT)
        log_B = log_BT[:, :1].sum(dim=1)  # the same at every token of a row
        return group_mean(log_B, minibatch.group_B, minibatch.mask_BT.any(dim=1))

    def _log_ratio(self, log_weight_BT: Tensor, logprob_BT: Tensor) -> Tensor:
        match self.without:
            case "variance":
                return log_weight_BT - logprob_BT
            case "covariance":
                return logprob_BT
            case _:
                return log_weight_BT
