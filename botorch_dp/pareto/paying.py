"""What publishing a study costs, and studies that are paid for before they train.

A study that pays charges each training to a filter before it begins.

Proof. The configs depend on earlier results, so trainings compose with full adaptivity, and the
ledger is a filter for that: sums of (epsilon, delta) [Rogers2016], one mu [Smith2022] or Rényi
divergences of one order [Feldman2021]. A training has a key, under which its answer is claimed,
charged, drawn and stored, once; whatever is begun again draws again, and is charged again. So what
the study knows of the training records is the output of charged mechanisms and of nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from botorch_dp._addresses import is_address
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto.given_epsilon import Solved
from botorch_dp.pareto.problem import (
    SEEDED,
    Measurement,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
)
from botorch_dp.privacy import (
    DEFAULT_DELTA,
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyLoss,
    PrivacyUnit,
    PureLoss,
    compose,
)
from botorch_dp.space import Config

_FIXED_TOTAL = (
    "the total was fixed as a budget before the first training: configs depend on earlier results, "
    "and a total that does so too is no guarantee [Rogers2016]"
)
#: The order at which Rényi divergences are added up. A filter needs one that no result can move;
#: totals of whole studies are large, and large totals want a small order.
_RENYI_ORDER = 2.0
TestOrTraining = Literal["training", "test"]

_CHOSEN_BEFOREHAND = (
    "the space, the seed and what the study began with were chosen without looking at the records"
)


def check_payable(budget: object, problem: PrivacyUtilityProblem, storage: object) -> None:
    """Refuse what is no budget, and a study whose trainings nothing may be charged for.

    A ledger is a file. Of a study in a database, each host would have its own, and spend all of it.
    """
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
    if is_address(storage):
        raise PrivacyError(
            "`budget` was given to a study in a database: what is spent is kept in a file, so that "
            "each host would spend the whole budget. Keep a study that is paid for in a file on "
            "one machine; its trainings may run on others (`executor=`)."
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
        promise = self._problem.promise
        epsilon = math.nan if promise.guarantee is not None else self._problem.epsilon(config)
        one = promise.of_training(self._problem.name, config, epsilon)
        return self._of(one, trainings)

    def _of(self, one: Guarantee, trainings: int) -> Guarantee:
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

    def seems_to_afford(self, times: int, configs: Sequence[Config]) -> list[bool]:
        """The same of many configs, by bounds on their prices that are had for all at once."""
        whole = [self._problem.whole(config) for config in configs]
        trainings = times * self._problem.replicates
        try:
            return [self.ledger.bears(self._of(one, trainings)) for one in self._bounds(whole)]
        except Exception:  # one config can spoil a batch
            if len(configs) == 1:
                return [False]
            return [self.seems_to_afford(times, [config])[0] for config in configs]

    def _bounds(self, configs: Sequence[Config]) -> list[Guarantee]:
        """What one training of each config costs at most."""
        promise, name = self._problem.promise, self._problem.name
        if isinstance(promise.guarantee, Solved):
            solved = promise.guarantee.solver.rough(configs)
            promise = replace(promise, guarantee=promise.guarantee.function)
            return [promise.of_training(name, config, math.nan) for config in solved]
        if promise.guarantee is not None:
            return [promise.of_training(name, config, math.nan) for config in configs]
        epsilons = self._problem.epsilon_bounds(configs)
        return [promise.of_training(name, c, e) for c, e in zip(configs, epsilons, strict=True)]

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


def nothing_to_publish() -> StudyError:
    """The error that says so."""
    return StudyError("Nothing was trained yet, so there is nothing to publish.")


def publication(
    problem: PrivacyUtilityProblem, trials: Sequence[Trial], data: TestOrTraining = "training"
) -> Guarantee:
    """What publishing everything that is known of the trials promises.

    See :meth:`DPareto.publication_guarantee`.
    """
    trained = [trial for trial in trials if trial.num_trainings > 0]
    if not trained:
        raise nothing_to_publish()
    promise = problem.promise
    parts: list[Guarantee] = []
    if data == "training":
        for trial in trained:
            parts += _trainings(problem, trial)
    elif promise.utility_guarantee is not None:
        parts = [promise.utility_guarantee] * sum(trial.num_trainings for trial in trained)
    else:
        return Guarantee(
            mechanism="front of measured utilities",
            unit=PrivacyUnit("one record of the test data", promise.unit.relation),
            losses=(),
            void="utilities are computed from the test records without noise",
        )
    whole = _filtered(parts, promise.delta)
    if promise.secret_noise:
        return whole
    return replace(whole, void=SEEDED if whole.void is None else f"{whole.void}; {SEEDED}")


def _trainings(problem: PrivacyUtilityProblem, trial: Trial) -> list[Guarantee]:
    """What each training of a trial promises; a curve is paid for once, whatever was measured.

    A training that was stopped early, after a look at its utility, took part of its steps. Where
    losses add up step by step (Gaussian, or by Renyi divergence) it costs what it took: each step
    is a mechanism that was chosen by earlier results, and :func:`_filtered` composes such. An
    (epsilon, delta) statement speaks of the whole training, which may have been stopped anywhere.
    """
    whole = problem.promise.of_training(problem.name, trial.config, trial.epsilon)
    if trial.plan is None or any(loss.summed is not None for loss in whole.losses):
        return [whole] * trial.num_trainings
    epsilons = dict(zip(trial.plan.checkpoints, trial.plan.epsilons, strict=True))
    ends = [m.curve[-1][0] for m in (*trial.finished, *trial.fresh)]
    parts = [
        problem.promise.of_training(
            problem.name, problem.at(trial.config, end), epsilons.get(end, trial.epsilon)
        )
        for end in ends
    ]
    return parts + [whole] * (trial.num_trainings - len(ends))


def _filtered(parts: Sequence[Guarantee], delta: float) -> Guarantee:
    r"""What mechanisms promise together when each was chosen by the results of those before it.

    :func:`~botorch_dp.privacy.compose` takes the best of several bounds for the losses that
    occurred. That is no bound here: which losses occur depends on earlier results, and two paths
    that compose to delta = .375 each may be branches of one tree whose delta is .480. What follows
    holds for the whole tree if the total stays within a budget on every path. The form is chosen by
    the kinds of losses, which a problem has once and for all, and never by their values.

    * *Sums*, for (epsilon, delta) losses. By induction from the leaves: if the rest of the tree
      after any result ``y`` is (e - e1, d - d1)-DP, then ``P(S) <= d - d1 +
      E_P[min(1, exp(e - e1) Q(S|y))]``, of which the first mechanism, (e1, d1)-DP, makes
      ``P(S) <= d + exp(e) Q(S)``.
    * *One mu*, for Gaussian losses alone. Mechanism i shows a Brownian motion with drift 0 or 1 for
      another mu_i^2 units of its time. When to stop showing it may depend on what was seen; if
      it is by time mu^2, all of it is a function of the path until then, mu-GDP [Smith2022].
    * *Renyi divergence at one fixed order* ``a``, for all others [Feldman2021]: ``E_Q[(P/Q)^a]`` is
      multiplied by at most ``exp((a - 1) r_i)`` at each step, whatever was seen before, so that it
      ends below ``exp((a - 1) r)``. A minimum over orders would be taken after the results.
      Losses with a delta are summed beside it: outside an event of probability d they multiply
      the ratio by at most exp(e).

    Args:
        parts: At least one; all under one neighbouring relation.
        delta: Where Rényi divergence becomes (epsilon, delta); the parts' own or the usual one if
            it is 0.

    Returns:
        A guarantee with a single loss, and all conditions and assumptions of the parts.
    """
    whole = compose(*parts)
    delta = delta or whole.quoted_delta or DEFAULT_DELTA
    mus = [loss.mu for loss in whole.losses if isinstance(loss, GaussianLoss)]
    total: PrivacyLoss | None = None
    if len(mus) < len(whole.losses):
        total = _summed(Counter(whole.losses), delta)
    elif mus:
        total = GaussianLoss(math.hypot(*mus))
    if whole.void is None and total is None:
        whole = replace(whole, void="its deltas add up to 1")
    return replace(
        whole,
        losses=whole.losses if total is None else (total,),
        assumptions=(*whole.assumptions, _FIXED_TOTAL),
        quoted_delta=delta,
    )


def _summed(losses: Mapping[PrivacyLoss, int], delta: float) -> PrivacyLoss | None:
    """Sums of epsilons and deltas, beside Rényi divergences if there are; None if delta >= 1."""
    simple = all(loss.summed is not None for loss in losses)
    epsilons, deltas, divergences = [], [], []
    for loss, count in losses.items():
        if loss.summed is not None and (simple or loss.summed[1] > 0 or loss.summed[0] == 0):
            epsilons.append(count * loss.summed[0])
            deltas.append(count * loss.summed[1])
        else:
            divergences.append(count * float(loss.rdp((_RENYI_ORDER,))[0]))
    if divergences:
        # From Rényi divergence to epsilon [Canonne2020].
        order = _RENYI_ORDER
        gained = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        epsilons.append(max(0.0, math.fsum(divergences) + gained))
        deltas.append(delta)
    epsilon, delta = math.fsum(epsilons), math.fsum(deltas)
    if delta >= 1:
        return None
    return ApproximateLoss(epsilon, delta) if delta > 0 else PureLoss(epsilon)
