"""A problem whose trainings are charged to a ledger before they begin.

Nothing else knows of money: a study runs a :class:`ChargedProblem` as it runs any other, and asks
it what the budget still allows when it looks for the next config.

Proof. The configs depend on earlier results, so trainings compose with full adaptivity, and the
ledger is a filter for that: sums of (epsilon, delta) [Rogers2016], one mu [Smith2022] or Rényi
divergences of one order [Feldman2021]. Each training is charged before it begins, whatever becomes
of it; one that is begun again draws again, and is charged again. So what the study knows of the
training records is the output of charged mechanisms and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from botorch_dp._checks import check_begins_once
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.privacy import (
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    compose,
)
from botorch_dp.space import Config

_CHOSEN_BEFOREHAND = "the space and the seed were chosen without looking at the records"


def check_payable(problem: PrivacyUtilityProblem) -> None:
    """Refuse trainings that nothing may be charged for."""
    if not problem.stated_training.secret_noise:
        raise PrivacyError(
            "`budget` was given to a study whose trainings are seeded, so that their noise is "
            "known. Train with `DPTrainer.fit(publish=True)`, and say so by "
            "`TrainingPrivacy(secret_noise=True)`."
        )


def budget_for(budget: PrivacyBudget, problem: PrivacyUtilityProblem) -> PrivacyBudget:
    """The budget as a Rényi filter, if the problem's trainings compose by Rényi divergences."""
    if budget.summed is None and _composes_by_renyi(problem):
        return replace(budget, renyi=True)
    return budget


def _composes_by_renyi(problem: PrivacyUtilityProblem) -> bool:
    """Whether trainings, as those by DP-SGD, are neither Gaussian nor sums of (epsilon, delta).

    The kinds of losses decide, which the problem has once and for all; never their values.
    """
    (config,) = problem.space.sample(1, seed=0)
    losses = problem.training_guarantee(config, 1.0).losses
    return any(loss.summed is None and not isinstance(loss, GaussianLoss) for loss in losses)


class ChargedProblem(PrivacyUtilityProblem):
    """The same problem; each of its trainings is charged to a ledger before it begins.

    Args:
        problem: Its trainings draw noise from the operating system.
        ledger: What they are charged to.
        label: What the study is for.
    """

    def __init__(
        self, problem: PrivacyUtilityProblem, ledger: PrivacyLedger, label: str = ""
    ) -> None:
        vars(self).update(vars(problem))
        self.ledger, self.label = ledger, label
        #: Trainings that were charged here.
        self.charges = 0
        #: A ledger that adds up epsilons and deltas only is told both of a training by DP-SGD.
        self._adds_up = (
            not ledger.budget.renyi
            and self.stated_training.delta > 0
            and _composes_by_renyi(problem)
        )

    def charge(self, config: Config, trainings: int, label: str) -> None:
        """Charge for trainings that are about to begin.

        Raises:
            BudgetExhausted: The budget is too small for them. Nothing was charged.
        """
        label = f"{self.label}: {label}" if self.label else label
        self.ledger.charge(self.price(config, trainings), label=label)
        self.charges += trainings

    def check_executor(self, executor: Executor) -> None:
        """See :func:`.check_begins_once`."""
        check_begins_once(executor)

    def price(self, config: Config, trainings: int = 1) -> Guarantee:
        """The cost of this many trainings of a config together."""
        training, epsilon = self.stated_training, math.nan
        if self._adds_up:
            epsilon = self.training_guarantee(config, epsilon).epsilon(training.delta)
        elif training.guarantee is None:
            epsilon = self.epsilon(config)
        return self._priced(config, trainings, epsilon)

    def _priced(self, config: Config, trainings: int, epsilon: float) -> Guarantee:
        one = self.training_guarantee(config, epsilon)
        one = replace(one, unit=one.unit.given(_CHOSEN_BEFOREHAND))
        if self._adds_up:
            one = replace(one, losses=(ApproximateLoss(epsilon, self.stated_training.delta),))
        return one if trainings == 1 else compose(*[one] * trainings)

    def bears(self, configs: Sequence[Config], trainings: int) -> bool:
        """Whether the budget allows this many trainings of each config, all together."""
        if not configs:
            return True
        return self.ledger.affords(compose(*(self.price(c, trainings) for c in configs)))

    def affordable(
        self, configs: Sequence[Config], trials: int, *, exact: bool = False
    ) -> list[bool]:
        """Whether the budget allows this many trials of a config, for each of them alone.

        By upper bounds on their costs, which are computed for all at once, unless ``exact``.
        """
        trainings = trials * self.replicates
        try:
            if exact:
                prices = [self.price(config, trainings) for config in configs]
            else:
                known = self.stated_training.guarantee is not None and not self._adds_up
                bounds = [math.nan] * len(configs) if known else self.epsilon_bounds(configs)
                prices = [
                    self._priced(config, trainings, bound)
                    for config, bound in zip(configs, bounds, strict=True)
                ]
            return [self.ledger.affords(price) for price in prices]
        except Exception:
            # To consider a config is not to try it: an oracle that fails must not end the study,
            # and one config must not spoil the others.
            if len(configs) == 1:
                return [False]
            return [self.affordable([c], trials, exact=exact)[0] for c in configs]
