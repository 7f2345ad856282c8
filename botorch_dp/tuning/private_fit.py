r"""One call that tunes, trains and publishes: the model, its configuration and its score.

Whoever tries many configurations on sensitive records and publishes the best model has used the
records for the choice, too. *Private selection* accounts for that: a secret random number of
trainings with real noise, of which only the best is seen by anybody.
:mod:`botorch_dp.privacy.selection` has the proofs, :mod:`.trainings` the trainings.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from botorch_dp._checks import check_choice, check_count, check_integer, check_nonnegative
from botorch_dp._progress import ProgressBar
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.privacy import (
    ApproximateLoss,
    BaseProfile,
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    Selection,
    TrialNumber,
    dp_sgd_noise_multiplier,
    gaussian_mu,
    rounded_up,
    training_noise,
    warn_large_delta,
)
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.privacy.runs import Run, fingerprint
from botorch_dp.space import Config, Integer, Parameter, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainingSettings, TrainTest, accuracy
from botorch_dp.training.plan import (
    FIXED_BEFOREHAND,
    LARGEST_PUBLISHED_BATCH,
    TrainingPlan,
)
from botorch_dp.training.records import synthetic_records
from botorch_dp.tuning.trainings import Scoring, Trials, train_and_score, train_once

Method = Literal["auto", "random", "single"]
TestRecords = Literal["sensitive", "public", "training"]

_SECRET = "those it protects against learn neither how many trainings ran nor how long they took"
_CHOSEN = "the space, the number of trials and all settings were chosen without the records"
_FAILURES = "whether a training fails does not depend on what single records say"
_COUNT_IS_PUBLIC = (
    "the number of test records is public: a test record may be replaced by another one, and is "
    "neither added nor removed"
)
_PUBLIC_TEST = "the test records, which choose the model, are public"
#: 20 expected trainings of this shape cost what 40 of a geometric number do. One or two trainings,
#: and so a configuration at random, come out in 1.6% of all runs instead of 5%.
_SHAPE = 3.0
#: The part of the squares of mu for a score that is measured on the training records.
_SCORE_SHARE = 0.1
#: Settings that follow from the budget, and those that may be tuned.
_FOLLOWING = {"noise_multiplier", "target_epsilon", "delta"}
_TUNED = TrainingSettings.__annotations__.keys() - _FOLLOWING
#: How long the time of a step is measured for, about.
_TIMED_SECONDS = 0.2


# --- What is planned and what comes out. ---


@dataclass(frozen=True)
class FitPlan:
    """Public facts about a fit that has not begun; nothing was read for them.

    Args:
        method: What will be done.
        reason: Why, in a sentence.
        number: The law of the number of trainings; None for a single one.
        config: The configuration in the middle of the space, for which the noise is stated.
        noise_multipliers: The noise that this configuration needs for the budget, over the
            clipping norm: ``"this"``, ``"tuning ignored"`` (what is usually published, and
            promises more than it keeps), and ``"all published"`` (every training could be shown).
        score_std: The standard deviation of the noise in the score; 0 without noise.
        seconds: About how long a training of this configuration takes here.
        guarantee: What everything that is published promises a training record.
        test_guarantee: What it promises a test record; None if these are public or not used.
    """

    method: Method
    reason: str
    number: TrialNumber | None
    config: Config
    noise_multipliers: dict[str, float]
    score_std: float
    seconds: float
    guarantee: Guarantee
    test_guarantee: Guarantee | None

    @property
    def expected_trainings(self) -> float:
        """The mean of the secret number."""
        return 1.0 if self.number is None else self.number.mean

    @property
    def expected_hours(self) -> float:
        """With one training at a time."""
        return self.expected_trainings * self.seconds / 3600

    def __str__(self) -> str:
        trainings = f"{self.expected_trainings:g} training(s)"
        if self.number is not None:
            trainings = (
                f"{self.number.mean:g} trainings expected, {self.number.quantile(0.95)} or fewer "
                "with a probability of 95% (the number itself stays secret)"
            )
        noise = {name: rounded_up(z, 3) for name, z in self.noise_multipliers.items()}
        other = f"(It would be {noise['tuning ignored']} if tuning were ignored"
        if "all published" in noise:
            other += f", and {noise['all published']} if all of the models were published"
        lines = [
            self.reason,
            f"{trainings}; about {_duration(self.expected_trainings * self.seconds)} in all.",
            f"Noise multiplier of a typical configuration: {noise['this']}. {other}.)",
            f"Noise of the score: {self.score_std:.2g}." if self.score_std else "",
            f"Training records: {self.guarantee}",
            "" if self.test_guarantee is None else f"Test records: {self.test_guarantee}",
        ]
        return "\n".join(line for line in lines if line)


@dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """What a fit publishes.

    Args:
        model: The released model, in evaluation mode. If nothing came out (no trial, or all of
            them failed) the untrained one of the factory.
        config: The released configuration, with its noise multiplier. If nothing came out, that
            in the middle of the space.
        score: The released score, or None if nothing came out; NaN if a metric failed on public
            test records for every model. The best of many noisy scores is too good on average.
        test_guarantee: What all of it promises a test record, if those are sensitive.
    """

    model: Release[nn.Module]
    config: Release[Config]
    score: Release[float] | None
    test_guarantee: Guarantee | None

    @property
    def guarantee(self) -> Guarantee:
        """What model, configuration and score together promise a training record."""
        return self.model.guarantee

    def __repr__(self) -> str:
        score = "nothing chosen" if self.score is None else f"score={self.score.value:.4g}"
        return f"FitResult(config={self.config.value}, {score}, guarantee: {self.guarantee})"

    def __str__(self) -> str:
        shown = {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in self.config.value.items()
        }
        score = "Nothing was chosen: this is the untrained model."
        if self.score is not None:
            score = f"Score: {self.score.value:.4f}"
        lines = [
            score,
            "Configuration: " + ", ".join(f"{name} = {value}" for name, value in shown.items()),
            f"Training records: {self.guarantee}",
            "" if self.test_guarantee is None else f"Test records: {self.test_guarantee}",
        ]
        return "\n".join(line for line in lines if line)


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second"


# --- The fit. ---


class PrivateFit:
    r"""Tune and train on sensitive records, and publish the model, all for one epsilon.

    ``run()`` trains a secret random number K of configurations with DP-SGD, each with as much noise
    as it needs to reach one common level of privacy, and publishes the model with the best score,
    its configuration and the score [Liu2019, Papernot2022]. Methods:

    - ``"random"``: configurations are drawn independently, from the space or, if these are given,
      from those of ``warm_start``;
    - ``"single"``: one training, with the whole budget, of the first configuration of
      ``warm_start`` (which did best on public data of the same shape), or of the configuration in
      the middle of the space;
    - ``"auto"``: ``"single"`` with a ``warm_start``, otherwise ``"random"``.

    Guarantee: each trial, its score included, keeps to the points of a Gaussian mechanism's privacy
    profile, whatever its configuration; K has a law of its own, drawn before a record is read, and
    the selection's price follows from the points and that law (proof in
    :mod:`botorch_dp.privacy.selection`). What is published is (epsilon, delta)-DP at the budget.
    A score on *sensitive* test records gets noise, and a guarantee of its own for them: the model
    of a trial does not depend on them, so one trial reveals to them its score only. A score on the
    *training* records gets noise, too, as a part of the trial. Status conditional, as for
    :class:`~botorch_dp.training.DPTrainer`.

    The number of trainings would tell about the records if it were fixed or known: it is kept in
    the checkpoint (mode 0600) and shown nowhere. Time tells about it: ``run(at_least=...)`` hands
    the result out no earlier than so many seconds after the beginning.

    Args:
        trainer_or_problem: A :class:`~botorch_dp.training.DPTrainer`, or a problem that has one.
        space: What may be tried: settings of the trainer but the noise, which is solved for. By
            default the problem's space, or a wide one around what suits the number of records.
        budget: (epsilon, delta) of everything that is published.
        trials: The expected number of trainings, or a law of it, a
            :class:`~botorch_dp.privacy.TrialNumber`; by default one of shape 3, for which very few
            trainings are unlikely.
        method: See above.
        test_records: ``"sensitive"``: the trainer's test records are protected, too;
            ``"public"``: they are public, and the trainer's own metric scores;
            ``"training"``: the training records score, with noise.
        test_budget: (epsilon, delta) for sensitive test records; ``budget`` unless given.
        warm_start: Configurations, the best one first, such as :meth:`rank_on` returns, or a study
            of public data: ``"single"`` trains the first one, ``"random"`` selects among all.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.

    Example:
        >>> fit = PrivateFit(trainer, space, budget=PrivacyBudget(1.0, 1e-5), trials=20)
        >>> print(fit.plan())
        >>> result = fit.run(checkpoint="model.fit")
        >>> result.model.value, result.config.value, result.score.value, result.guarantee
    """

    def __init__(
        self,
        trainer_or_problem: DPTrainer | PrivacyUtilityProblem,
        space: SearchSpace | None = None,
        *,
        budget: PrivacyBudget,
        trials: Any = 20,
        method: Method = "auto",
        test_records: TestRecords = "sensitive",
        test_budget: PrivacyBudget | None = None,
        warm_start: Sequence[Mapping[str, Any]] | DPareto | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.trainer, space = _trainer_and_space(trainer_or_problem, space)
        self.budget = _checked_budget("budget", budget)
        warn_large_delta(self.budget.delta, len(self.trainer.setup.tensors.train_X))
        self.space = _checked_space(self.trainer, space, self.budget.delta)
        self.test_budget = self.budget
        if test_budget is not None:
            self.test_budget = _checked_budget("test_budget", test_budget)
        self.number = _checked_number(trials)
        check_choice("method", method, get_args(Method))
        check_choice("test_records", test_records, get_args(TestRecords))
        self.test_records: TestRecords = test_records
        if test_records != "public" and self.trainer.metric is not accuracy:
            raise PrivacyError(
                "`test_records` that are sensitive need a score of known sensitivity: the trainer "
                "has a metric of its own, of which nobody knows how far one record moves it. Use "
                "the trainer's default metric, or public test records."
            )
        if test_budget is not None and test_records != "sensitive":
            raise ValueError("`test_budget` is for test_records='sensitive' only.")
        if test_records == "sensitive":
            warn_large_delta(self.test_budget.delta, len(self.trainer.setup.tensors.test_X))
        self.starts = _starts(warm_start, self.space, self.budget.epsilon)
        if method == "auto":
            method = "single" if self.starts else "random"
        self.method: Method = method
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
        self.unsafe_seed = unsafe_seed
        self._level()  # a budget that no noise can meet is refused here

    # What is known before anything is read.

    def plan(self) -> FitPlan:
        """Noise, trainings, hours, price and what else could be done for it; reads no record."""
        config, budget = self.only_config, self.budget
        plan = self._plan_of(config)

        def noise(trainings: float) -> float:
            return dp_sgd_noise_multiplier(
                epsilon=budget.epsilon,
                delta=budget.delta,
                batch_size=plan.batch_size,
                num_records=plan.num_records,
                steps=math.ceil(plan.steps * trainings),
                sampling=plan.sampling,
                relation=plan.relation,
                tolerance=1e-3,
            )

        noise_multipliers = {"this": self.noise_multiplier(config), "tuning ignored": noise(1)}
        if self._selects:
            noise_multipliers["all published"] = noise(self.number.mean)
        return FitPlan(
            method=self.method,
            reason=self._reason(),
            number=self.number if self._selects else None,
            config=config,
            noise_multipliers=noise_multipliers,
            score_std=0.0 if self._scoring.mu is None else 1 / (self._scored * self._scoring.mu),
            seconds=self._seconds(config),
            guarantee=self.guarantee,
            test_guarantee=self.test_guarantee,
        )

    def noise_multiplier(self, config: Mapping[str, Any]) -> float:
        """The least noise with which a training of a configuration reaches the common level."""
        scoring = self._scoring
        beside = scoring.mu if scoring.on_training_records else None
        return self._noise(config, self._level()[0], beside or 0.0)

    def _plan_of(self, config: Mapping[str, Any]) -> TrainingPlan:
        """A training of a configuration, but for its noise."""
        settings: Any = {**config, "noise_multiplier": 1.0, "delta": self.budget.delta}
        return self.trainer.plan(**settings)

    def _noise(self, config: Mapping[str, Any], base: BaseProfile, beside_mu: float) -> float:
        plan = self._plan_of(self.space.check(config))
        return _least_noise(
            base,
            plan.batch_size,
            plan.steps,
            num_records=plan.num_records,
            sampling=plan.sampling,
            relation=plan.relation,
            beside_mu=beside_mu,
        )

    @property
    def guarantee(self) -> Guarantee:
        """What everything that is published promises a training record."""
        plan = self._plan_of(self._middle)
        trained = plan.guarantee
        conditions = [c for c in trained.unit.conditions if c != FIXED_BEFOREHAND]
        extra = [_CHOSEN, _FAILURES] + ([_SECRET] if self._selects else [])
        if self.test_records == "public":
            extra.append(_PUBLIC_TEST)
        unit = replace(trained.unit, conditions=tuple(conditions)).given(*extra)
        return self._promise(trained.mechanism, unit, self.budget, trained.assumptions)

    @property
    def test_guarantee(self) -> Guarantee | None:
        """What everything that is published promises a test record, if those are sensitive."""
        if self.test_records != "sensitive":
            return None
        # Their number divides the score: they are replaced, whatever the trainer's relation is.
        unit = PrivacyUnit("one test record").given(_CHOSEN, *self.trainer.setup.conditions)
        if self._selects:
            unit = unit.given(_SECRET)
        return self._promise("noisy test scores", unit, self.test_budget, ())

    def rank_on(
        self, public: TrainTest, *, count: int = 24, replicates: int = 1, seed: int = 0
    ) -> list[Config]:
        """Configurations of the space by their utility on *public* data of the same shape.

        For ``warm_start``: each is trained there with the noise that a single training of it would
        need, so that ranks can be carried over. Costs the records nothing, and reads none.

        Args:
            public: Public or generated data; see :func:`botorch_dp.datasets.public_copy`.
            count: How many random configurations.
            replicates: Trainings for each.
            seed: Gives the same ranking again.
        """
        single = BaseProfile((self.budget.epsilon,), (self.budget.delta,))
        trainer = self.trainer.on(public)
        configs = self.space.sample(check_integer("count", count), seed=seed)
        seeds = range(seed, seed + check_count("replicates", replicates))

        def utility(config: Config) -> float:
            settings = {**config, "noise_multiplier": self._noise(config, single, 0.0)}
            return fmean(
                trained.accuracy or 0.0 for trained in trainer.replicates(seeds, **settings)
            )

        return sorted(configs, key=utility, reverse=True)

    # What happens.

    def run(
        self,
        *,
        progress: bool = False,
        executor: Executor | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        at_least: float = 0.0,
    ) -> FitResult:
        """Train, and publish one model.

        Args:
            progress: Whether to show that something happens; it does not say how much is left,
                because that would be the number of trainings.
            executor: Where to train several configurations at a time; left running.
            checkpoint: A file to keep the run in and to continue it from: with the same number of
                trainings and the same configurations, to one published model. It is sensitive, has
                mode 0600, and one process at a time may hold it.
            ledger: Charged once, before a record is read, with the larger one of the two budgets:
                a record is a training record or a test record.
            at_least: The result is stored, in the ledger too, and handed out no earlier than so
                many seconds after the run began, so that time does not tell how many trainings
                ran, unless they take longer.

        Raises:
            BudgetExhausted: If the ledger cannot bear it; nothing was read.
        """
        at_least = check_nonnegative("at_least", at_least)
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        if ledger is not None and not isinstance(ledger, PrivacyLedger):
            raise TypeError(f"`ledger` must be a PrivacyLedger, got {type(ledger).__name__}.")
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise TypeError(f"`executor` must have `submit`, got {type(executor).__name__}.")
        settings = {**self._settings(checkpoint is not None), "charged": ledger is not None}
        with Run(checkpoint, what="a private fit", settings=settings, ledger=ledger) as run:
            began = run.get("began") or time.time()
            run.put(began=began)
            until = began + at_least
            if not run.resumed:
                # What fails for reasons of its own fails here, before anything is charged.
                made_up, once = self._made_up(self.only_config)
                train_and_score(made_up, once, self._scoring, self.unsafe_seed)
            with ProgressBar(
                desc="PrivateFit",
                bar_format="{desc}: training for {elapsed}",
                disable=not progress,
            ) as bar:

                def read() -> Any:
                    trained = self._trained(run, executor, bar.refresh)
                    # When a result is stored tells how many trainings there were, as showing it.
                    time.sleep(max(0.0, until - time.time()))
                    return trained

                # The noise of the trainings is not shown; what is shown is stored first.
                shown = run.release(
                    self._price,
                    self._shown,
                    read=read,
                    key="model",
                    label="private fit",
                )
            time.sleep(max(0.0, until - time.time()))
        return self._result(shown)

    def _trained(
        self, run: Run, executor: Executor | None, tick: Callable[[], object]
    ) -> dict[str, Any] | None:
        def task(config: Config, seed: int | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            noise = self.noise_multiplier(config)
            # A delta that is warned of would be so once for each of a secret number of trainings.
            delta = min(self.budget.delta, 0.5 / len(self.trainer.setup.tensors.train_X))
            settings = {**config, "noise_multiplier": noise, "delta": delta}
            return train_once, (self.trainer, settings, self._scoring, seed)

        number = self.number if self._selects else None
        trials = Trials(run, number, self._config, unsafe_seed=self.unsafe_seed)
        return trials.train(task, executor=executor, tick=tick)

    def _config(self, seed: np.random.SeedSequence) -> Config:
        """What a trial tries: the only configuration, a given one or any of the space."""
        if not self._selects:
            return self.only_config
        if self.starts:
            return self.starts[int(np.random.default_rng(seed).integers(len(self.starts)))]
        return self.space.sample(1, seed=seed)[0]

    def _shown(self, best: dict[str, Any] | None) -> dict[str, Any] | None:
        if best is None:
            return None
        config = {**best["config"], "noise_multiplier": self.noise_multiplier(best["config"])}
        return {"config": config, "score": best["score"], "weights": best["weights"]}

    def _result(self, shown: dict[str, Any] | None) -> FitResult:
        guarantee, middle = self.guarantee, self.only_config
        if shown is None:
            shown = {"config": {**middle, "noise_multiplier": self.noise_multiplier(middle)}}
        score = None
        if "score" in shown:
            mu = self._scoring.mu
            scale = None if mu is None else 1 / (self._scored * mu)
            value = shown["score"] if math.isfinite(shown["score"]) else math.nan
            score = Release(value, guarantee, scale)
        return FitResult(
            model=Release(self.trainer.setup.untrained(shown.get("weights")), guarantee),
            config=Release(shown["config"], guarantee),
            score=score,
            test_guarantee=self.test_guarantee,
        )

    # The parts.

    @property
    def _selects(self) -> bool:
        return self.method == "random"

    @property
    def only_config(self) -> Config:
        """The configuration that is trained if only one is, and published if nothing comes out."""
        return self.starts[0] if self.starts else self._middle

    @cached_property
    def _middle(self) -> Config:
        (middle,) = self.space.spread(np.full((1, len(self.space.parameters)), 0.5))
        return middle if self.space.satisfies(middle) else self.space.sample(1, seed=0)[0]

    def _level(self, budget: PrivacyBudget | None = None) -> tuple[BaseProfile, float]:
        """What a trial keeps to for a budget, and about which mu that is."""
        budget = self.budget if budget is None else budget
        if not self._selects:
            point = BaseProfile((budget.epsilon,), (budget.delta,))
            return point, gaussian_mu(budget.epsilon, budget.delta)
        return _level_of(Selection(self.number), budget.epsilon, budget.delta)

    @property
    def _scored(self) -> int:
        """How many records the score is measured on."""
        data = self.trainer.setup.tensors
        return len(data.train_X if self.test_records == "training" else data.test_X)

    @cached_property
    def _scoring(self) -> Scoring:
        if self.test_records == "public":
            return Scoring()
        if self.test_records == "training":
            _, mu = self._level()
            return Scoring(on_training_records=True, mu=math.sqrt(_SCORE_SHARE) * mu)
        _, mu = self._level(self.test_budget)
        return Scoring(mu=mu)

    @property
    def _price(self) -> Guarantee:
        """What a ledger is charged: a record is a training record or a test record."""
        training, test = self.guarantee, self.test_guarantee
        if test is None:
            return training
        loss = ApproximateLoss(
            max(self.budget.epsilon, self.test_budget.epsilon),
            max(self.budget.delta, self.test_budget.delta),
        )
        unit = replace(training.unit, protects=f"{training.protects} or {test.protects}")
        unit = unit.given(*test.unit.conditions)
        if unit.relation is not test.unit.relation:
            unit = unit.given(_COUNT_IS_PUBLIC)
        return replace(training, unit=unit, losses=(loss,))

    def _promise(
        self,
        mechanism: str,
        unit: PrivacyUnit,
        budget: PrivacyBudget,
        assumptions: tuple[str, ...],
    ) -> Guarantee:
        what = "private selection of the best of a secret number of trainings"
        name = f"{what if self._selects else 'a single training'} ({mechanism})"
        loss = ApproximateLoss(budget.epsilon, budget.delta)
        guarantee = Guarantee(name, unit, (loss,), assumptions, quoted_delta=budget.delta)
        return guarantee if self.unsafe_seed is None else guarantee.simulated()

    def _reason(self) -> str:
        if self._selects:
            among = f" among {len(self.starts)} given configurations" if self.starts else ""
            how = f"the best of {self.number.mean:g} expected random trainings"
            return f"Private selection: {how}{among}."
        which = "that did best on public data" if self.starts else "in the middle of the space"
        return f"One training of the configuration {which}."

    def _made_up(self, config: Config) -> tuple[DPTrainer, dict[str, Any]]:
        """The trainer on a few made-up records, and settings for a pass over them."""
        plan = self._plan_of(config)
        size = min(plan.num_records, 2 * plan.batch_size)
        generator = torch.Generator().manual_seed(0)
        trainer = self.trainer.on(synthetic_records(self.trainer.setup.form, size, generator))
        batch_size = min(plan.batch_size, size)
        return trainer, {**config, "batch_size": batch_size, "epochs": 1, "noise_multiplier": 1.0}

    def _seconds(self, config: Config) -> float:
        """About how long a training takes, from some steps on made-up records."""
        trainer, settings = self._made_up(config)

        def timed(epochs: int) -> tuple[float, int]:
            start = time.perf_counter()
            steps = trainer.fit(**{**settings, "epochs": epochs}, publish=True).steps
            return time.perf_counter() - start, steps

        timed(1)
        short, few = timed(1)
        long, many = timed(max(2, min(40, int(_TIMED_SECONDS / short))))
        each = (long - short) / (many - few) if long > 1.5 * short else long / many
        return each * self._plan_of(config).steps

    def _settings(self, with_data: bool) -> dict[str, Any]:
        """All that a run depends on; it is continued with the same settings only."""
        plan = self._plan_of(self._middle)
        return {
            "space": self.space.to_dict(),
            "trainer": plan.to_dict(),
            "budget": [self.budget.epsilon, self.budget.delta],
            "test_budget": [self.test_budget.epsilon, self.test_budget.delta],
            "number": [self.number.mean, str(self.number.shape)],
            "method": self.method,
            "config": self.only_config,
            "starts": self.starts,
            "test_records": self.test_records,
            "unsafe_seed": self.unsafe_seed,
            "data": fingerprint(*self.trainer.setup.tensors) if with_data else None,
        }

    def __repr__(self) -> str:
        return (
            f"PrivateFit({self.trainer!r}, {self.space!r}, budget={self.budget}, "
            f"trials={self.number}, method={self.method!r}, test_records={self.test_records!r})"
        )


# Solved for once, whoever asks again: a fit needs them for its plan, its trainings and its result.


@lru_cache(maxsize=256)
def _level_of(selection: Selection, epsilon: float, delta: float) -> tuple[BaseProfile, float]:
    mu = selection.mu(epsilon, delta)
    return selection.profile(mu, delta), mu


@lru_cache(maxsize=4096)
def _least_noise(base: BaseProfile, batch_size: int, steps: int, **settings: Any) -> float:
    return float(training_noise(base, [batch_size], [steps], **settings)[0])


# --- What was asked for. ---


def _trainer_and_space(
    given: object, space: SearchSpace | None
) -> tuple[DPTrainer, SearchSpace | None]:
    if isinstance(given, PrivacyUtilityProblem):
        if given.promise is None or given.promise.trainer is None:
            raise PrivacyError(
                f"The problem {given.name!r} measures utilities and has no `promise.trainer` that "
                "could publish a model: pass a DPTrainer, or a problem with one."
            )
        if space is None:
            tuned = {n: p for n, p in given.space.parameters.items() if n in _TUNED}
            space = SearchSpace(constraints=given.space.constraints, products=(), **tuned)
        given = given.promise.trainer()
    if not isinstance(given, DPTrainer):
        raise PrivacyError(
            f"`trainer_or_problem` must be a DPTrainer or a problem with one, whose models may be "
            f"published; got {type(given).__name__}."
        )
    return given, space


def _default_space(trainer: DPTrainer) -> SearchSpace:
    """Ranges around what suits the number of records; batches are large, which suits the noise."""
    n = len(trainer.setup.tensors.train_X)
    largest = max(1, min(n // 8, LARGEST_PUBLISHED_BATCH))
    known: dict[str, Parameter] = {
        "batch_size": Integer(max(1, largest // 16), largest, log=True),
        "epochs": Integer(4, 64, log=True),
    }
    if trainer.optimizer != "scale_free":  # which chooses its own steps
        adam = trainer.optimizer == "adam"
        known["learning_rate"] = Real(1e-3, 0.3, log=True) if adam else Real(0.03, 10.0, log=True)
    if trainer.clipping == "flat":  # otherwise only its product with the learning rate matters
        known["clip_norm"] = Real(0.1, 4.0, log=True)
    return SearchSpace(constraints=(), products=(), **known)


def _checked_space(trainer: DPTrainer, space: SearchSpace | None, delta: float) -> SearchSpace:
    space = _default_space(trainer) if space is None else space
    if not isinstance(space, SearchSpace):
        raise TypeError(f"`space` must be a SearchSpace, got {type(space).__name__}.")
    names = set(space.parameters)
    fixed = names & _FOLLOWING
    if fixed:
        raise ValueError(
            f"`space` must not hold {sorted(fixed)}: the noise follows from the budget."
        )
    for config in space.sample(8, seed=0):
        try:
            trainer.plan(**config, noise_multiplier=1.0, delta=delta).check_publishable()
        except TypeError as error:
            raise ValueError(
                f"`space` must name the settings of a training, as in SearchSpace(learning_rate="
                f"Real(...), clip_norm=Real(...), batch_size=Integer(...), epochs=Integer(...)): "
                f"{error}"
            ) from None
    batches: list[Any] = list(space.parameters["batch_size"].levels(2))
    largest = max(batches)
    limit = min(len(trainer.setup.tensors.train_X), LARGEST_PUBLISHED_BATCH)
    if largest > limit:
        raise ValueError(
            f"`space` has batches of {largest} records, and at most {limit} can be used."
        )
    return space


def _checked_budget(name: str, budget: object) -> PrivacyBudget:
    if not isinstance(budget, PrivacyBudget):
        raise TypeError(f"`{name}` must be a PrivacyBudget, got {type(budget).__name__}.")
    if budget.delta == 0:
        raise PrivacyError(
            f"`{name}` has no delta, and no Gaussian noise meets a pure epsilon: give one that is "
            "much smaller than 1 / (number of records), such as PrivacyBudget(1.0, 1e-6)."
        )
    return budget


def _checked_number(trials: object) -> TrialNumber:
    if isinstance(trials, TrialNumber):
        return trials
    if isinstance(trials, bool) or not isinstance(trials, int | float):
        raise PrivacyError(
            "`trials` must be an expected number or a TrialNumber: how many trainings there are "
            "must be random and stay secret, since a fixed number would cost as much as their "
            f"composition. Got {type(trials).__name__}."
        )
    try:
        return TrialNumber(trials, _SHAPE)
    except ValueError as error:
        raise ValueError(f"`trials`: {error}") from error


def _starts(given: Any, space: SearchSpace, epsilon: float) -> list[Config]:
    """Configurations of the space, the best one first."""
    if given is None:
        return []
    if isinstance(given, DPareto):
        given = given.best_configs(epsilon=epsilon)
    if isinstance(given, Mapping):
        given = [given]
    starts = []
    for config in given:
        if not isinstance(config, Mapping):
            raise TypeError(
                "`warm_start` must be configurations, the best one first, or a study of public "
                f"data; got {type(config).__name__}."
            )
        kept = {name: value for name, value in config.items() if name in space.parameters}
        starts.append(space.check(kept))
    return starts
