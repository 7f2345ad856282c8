r"""How far the best score of a regularized Lipschitz learner may move between neighbours.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015. (Algorithm 3, Theorems 7 and 8.)
.. [Chaudhuri2013]
    K. Chaudhuri and S. A. Vinterbo. A Stability-based Validation Procedure for Differentially
    Private Machine Learning. NeurIPS 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, check_tensor
from botorch_dp.privacy import Guarantee, LaplaceLoss
from botorch_dp.release.bounds import LaplaceMaximum
from botorch_dp.release.utility import UtilityBound, laplace_tail


@dataclass(frozen=True, kw_only=True)
class LipschitzMaximum(LaplaceMaximum):
    r"""The best validation score of a regularized Lipschitz learner (Algorithm 3, Theorems 7, 8).

    ``D = min(g*, L / lambda_min) / m + L (1 / lambda_min - 1 / lambda_max)``; no prior is needed.

    *Why.* The score at one trained model moves by at most ``min(g*, L / lambda_min) / m`` when one
    of ``m`` records is replaced. Trained models at two regularizations are at most
    ``|1 / lambda - 1 / lambda'|`` apart [Chaudhuri2013]_, so their scores differ by at most ``L``
    times that: whatever points a search visits on either data set, any two scores differ by at
    most ``D``, and so do the two maxima. The guarantee is pure epsilon-DP where the constants are
    true.

    Args:
        num_validation: The number ``m`` of validation records.
        lipschitz: ``L``, of the score in the trained parameters.
        lambda_min: The smallest regularization searched.
        lambda_max: The largest one.
        max_loss: ``g*``: by how much one record's score can change at most; None if unknown.
    """

    num_validation: int
    lipschitz: float
    lambda_min: float
    lambda_max: float
    max_loss: float | None = None

    def _check(self) -> None:
        check_integer("num_validation", self.num_validation)
        check_positive("lipschitz", self.lipschitz)
        check_positive("lambda_min", self.lambda_min)
        check_positive("lambda_max", self.lambda_max)
        if self.lambda_max < self.lambda_min:
            raise ValueError(
                f"`lambda_max` = {self.lambda_max:g} must not be below `lambda_min` = "
                f"{self.lambda_min:g}."
            )
        if self.max_loss is not None:
            check_positive("max_loss", self.max_loss)

    @property
    def record_gap(self) -> float:
        """``min(g*, L / lambda_min)``: by how much one record's score can change."""
        by_norm = self.lipschitz / self.lambda_min
        return by_norm if self.max_loss is None else min(self.max_loss, by_norm)

    @property
    def model_gap(self) -> float:
        """``L (1 / lambda_min - 1 / lambda_max)``: by how much two trained models can differ."""
        return self.lipschitz * (1 / self.lambda_min - 1 / self.lambda_max)

    @property
    def sensitivity(self) -> float:
        """``D``."""
        return self.record_gap / self.num_validation + self.model_gap

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP, conditional on the constants."""
        return self.conditional(
            "Private maximum of a Lipschitz learner",
            LaplaceLoss(self.epsilon),
            (
                f"each value is the mean score of {self.num_validation} validation records",
                f"replacing one record changes its score at a trained model by at most "
                f"{self.record_gap:g}, the smaller of max_loss and lipschitz / lambda_min",
                f"the score is {self.lipschitz:g}-Lipschitz in the trained parameters",
                "the parameters minimize lambda/2 |w|^2 plus a convex training loss that is "
                f"1-Lipschitz in w, with lambda from {self.lambda_min:g} to {self.lambda_max:g}, "
                "exactly and on training data that holds no validation record",
            ),
        )

    def utility(self, confidence: float = 0.95) -> UtilityBound:
        """How far the released value may be from the best over all regularizations (Theorem 8)."""
        return UtilityBound(
            subject="the released maximum differs from the best over all regularizations",
            noise=laplace_tail(self.scale, confidence),
            model=self.model_gap,
            probability=confidence,
            spread=self.record_gap,
        )

    def statistic(self, values: Tensor) -> float:
        """The largest value."""
        check_tensor("values", values, shape=(None,), finite=False)
        return values.detach().double().nan_to_num(nan=-math.inf).max().clamp(-1e100, 1e100).item()
