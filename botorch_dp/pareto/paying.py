"""Studies that are paid for: each training is charged to a filter before it begins.

Proof. The configs depend on earlier results, so trainings compose with full adaptivity, and the
ledger is a filter for that: sums of (epsilon, delta) [Rogers2016], one mu [Smith2022] or Rényi
divergences of one order [Feldman2021]. A training has a key, under which its answer is claimed,
charged, drawn and stored, once; whatever is begun again draws again, and is charged again. So what
the study knows of the training records is the output of charged mechanisms and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from botorch_dp.errors import PrivacyError
from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem
from botorch_dp.privacy import GaussianLoss, Guarantee, PrivacyBudget, PrivacyLedger, compose
from botorch_dp.space import Config

_CHOSEN_BEFOREHAND = (
    "the space, the seed and what the study began with were chosen without looking at the records"
)


def check_payable(budget: object, problem: PrivacyUtilityProblem) -> None:
    """Refuse what is no budget, and a problem whose trainings nothing may be charged for."""
    if not isinstance(budget, PrivacyBudget | PrivacyLedger):
        raise TypeError(
            f"`budget` must be a PrivacyBudget or a PrivacyLedger, got {type(budget).__name__}."
        )
    if not problem.promise.secret_noise:
        raise PrivacyError(
            "`budget` was given to a study whose trainings are seeded: whoever knows a seed can "
            "subtract the noise, so nothing may be charged for it. Let the utility oracle train "
            "with noise from the operating system (`DPTrainer.fit(publish=True)`), and say so by "
            "`TrainingPromise(secret_noise=True)`."
        )


def fitting(budget: PrivacyBudget, problem: PrivacyUtilityProblem) -> PrivacyBudget:
    """The budget in the currency of the problem's trainings, if it leaves that open.

    The kinds of losses decide, which the problem has once and for all; never their values.
    """
    (config,) = problem.space.sample(1, seed=0)
    losses = problem.promise.of_training(problem.name, config, 1.0).losses
    unsummed = [loss for loss in losses if loss.summed is None]
    if budget.summed is None and any(not isinstance(loss, GaussianLoss) for loss in unsummed):
        return replace(budget, renyi=True)
    return budget


class Purse:
    """Pays for the trainings of one study.

    Args:
        problem: Whose trainings draw noise from the operating system.
        ledger: What they are charged to.
        identity: Of the study; the keys of its trainings begin with it.
    """

    def __init__(
        self, problem: PrivacyUtilityProblem, ledger: PrivacyLedger, identity: str
    ) -> None:
        self.ledger = ledger
        self._problem = problem
        self._identity = identity

    def price(self, config: Config, trainings: int = 1) -> Guarantee:
        """What so many trainings of a config cost together."""
        epsilon = self._problem.epsilon(config)
        one = self._problem.promise.of_training(self._problem.name, config, epsilon)
        one = replace(one, unit=one.unit.given(_CHOSEN_BEFOREHAND))
        return one if trainings == 1 else compose(*[one] * trainings)

    def bears(self, configs: Sequence[Config], trainings: int) -> bool:
        """Whether the budget can bear so many trainings of each config, without charging."""
        if not configs:
            return True
        return self.ledger.bears(compose(*(self.price(c, trainings) for c in configs)))

    def affords(self, times: int, config: Config) -> bool:
        """Whether the budget can bear so many trials of a config; not where its oracle fails."""
        try:
            return self.bears([self._problem.whole(config)], times * self._problem.replicates)
        except Exception:
            # To consider a config is not to try it; see KnownObjectives.
            return False

    def train(
        self,
        trial: int,
        replicates: Sequence[int],
        config: Config,
        draw: Callable[[], tuple[Measurement, ...]],
    ) -> tuple[Measurement, ...]:
        """The measurements of a training: what was stored of it, or what ``draw`` returns.

        Raises:
            BudgetExhausted: The budget cannot bear it. Nothing was charged or read.
        """
        names = ", ".join(map(str, replicates))
        stored = self.ledger.release(
            self.price(config, len(replicates)),
            lambda: [asdict(measurement) for measurement in draw()],
            key=f"{self._identity}/trial {trial}, replicates {names}",
            label=f"trial {trial}",
        )
        return tuple(_measurement(plain) for plain in stored)

    def charge(self, trial: int, config: Config, trainings: int) -> None:
        """Pay for trainings that are made elsewhere."""
        self.ledger.charge(self.price(config, trainings), label=f"trial {trial}, asked for")


def _measurement(plain: dict[str, Any]) -> Measurement:
    curve = tuple((checkpoint, _measurement(point)) for checkpoint, point in plain["curve"])
    return Measurement(**(plain | {"curve": curve, "objectives": tuple(plain["objectives"])}))
