"""One call that tunes, trains and publishes: the model, its configuration and its score.

A :class:`~.private_selection.PrivateSelection` whose trainings are those of a
:class:`~botorch_dp.training.DPTrainer`, so that nothing about them rests on the caller's word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from botorch_dp._checks import (
    check_choice,
    check_count,
    check_integer,
    did_you_mean,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.privacy import (
    DPSGD,
    BaseProfile,
    PrivacyBudget,
    PrivacyUnit,
    Release,
)
from botorch_dp.space import Choice, Config, Integer, Parameter, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainingSettings, TrainTest, accuracy
from botorch_dp.training.plan import (
    FIXED_BEFOREHAND,
    LARGEST_PUBLISHED_BATCH,
    TrainingPlan,
)
from botorch_dp.training.records import synthetic_records
from botorch_dp.tuning.described import least_noise
from botorch_dp.tuning.private_selection import (
    PrivateSelection,
    ScoredOn,
    SelectionResult,
    checked_budget,
)
from botorch_dp.tuning.trainings import raise_if_of_the_machine

Method = Literal["auto", "untuned", "random", "single"]

#: Settings that follow from the budget, and those that may be tuned.
_FOLLOWING = {"noise_multiplier", "target_epsilon", "delta"}
_TUNED = TrainingSettings.__annotations__.keys() - _FOLLOWING
#: What the rule of an untuned training chooses beside the epochs.
_CHOSEN = ("optimizer", "learning_rate", "clip_norm", "batch_size")
#: How long the time of a step is measured for, about.
_TIMED_SECONDS = 0.2


class FitResult(SelectionResult):
    """What a fit publishes: as :class:`~.private_selection.SelectionResult`, with a model."""

    @property
    def model(self) -> Release[nn.Module]:
        """The released model, in evaluation mode; the untrained one if nothing came out."""
        return self.artifact


@dataclass(frozen=True)
class Training:
    """The training of a trainer: from a configuration and a noise multiplier to a scored model.

    Args:
        trainer: Trains.
        scored_on: Which records score.
        fixed: Settings of all trainings.
        delta: Where the trainer would evaluate epsilon.
        raises: Whether an error in scoring is raised; otherwise the score is no number.
    """

    trainer: DPTrainer
    scored_on: ScoredOn
    fixed: Mapping[str, Any]
    delta: float
    raises: bool = False

    def __call__(
        self, config: Config, noise_multiplier: float, *, seed: int | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """The weights of a model, and its score without noise."""
        own = {"noise_multiplier": noise_multiplier, "delta": self.delta}
        settings: Any = {**self.fixed, **config, **own}
        # The trainer would measure what nobody asks for here, and a test record might make it fail.
        blind = self.trainer.without_tests()
        model = blind.fit(**settings, seed=seed, publish=seed is None, on_interrupt="raise").model
        try:
            score = self.score(model)
        except Exception as error:
            raise_if_of_the_machine(error)
            if self.raises:
                raise
            score = math.nan
        return {name: value.cpu() for name, value in model.state_dict().items()}, score

    def score(self, model: nn.Module) -> float:
        """The trainer's metric on public records; on others, how many are classified right."""
        setup, training = self.trainer.setup, self.scored_on == "training"
        if self.scored_on == "public":
            return setup.utility(model)
        right = setup.right_of_each(model, on_training_records=training)
        return float(right.sum()) / right.numel()


class PrivateFit(PrivateSelection):
    r"""Tune and train on sensitive records, and publish the model, all for one epsilon.

    ``run()`` trains a secret random number K of configurations with DP-SGD, each with as much noise
    as it needs to reach one common level of privacy, and publishes the model with the best score,
    its configuration and the score [Liu2019, Papernot2022]. Without a space there is nothing to
    choose, and one training has the whole budget. Methods:

    - ``"untuned"``: one training with settings that follow from public numbers, as
      ``DPTrainer.fit(target_epsilon=...)`` has them; pass ``fixed={"feature_norm": ...}``;
    - ``"random"``: configurations are drawn independently, from the space or, if these are given,
      from those of ``warm_start``;
    - ``"single"``: one training, with the whole budget, of the first configuration of
      ``warm_start`` (which did best on public data of the same shape), or of the configuration in
      the middle of the space;
    - ``"auto"``: ``"single"`` with a ``warm_start``, ``"untuned"`` without a space for a trainer
      whose ``optimizer`` was left out, otherwise ``"random"``.

    Guarantee: that of :class:`~.private_selection.PrivateSelection`, whose condition on ``train``
    the trainer keeps by itself. Status conditional, as for
    :class:`~botorch_dp.training.DPTrainer`.

    Args:
        trainer_or_problem: A :class:`~botorch_dp.training.DPTrainer`, or a problem that has one.
        space: What may be tried: settings of the trainer but the noise, which is solved for. If
            None, the problem's space; if there is none, nothing is tuned, or a wide space around
            what suits the number of records is taken where ``method`` needs one.
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
        fixed: Settings of the trainer that are the same in all trainings, such as
            ``{"epochs": 10}``.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.

    Example:
        >>> fit = PrivateFit(trainer, space, budget=PrivacyBudget(1.0, 1e-5), trials=20)
        >>> print(fit.plan())
        >>> result = fit.run(checkpoint="model.fit")
        >>> result.model.value, result.config.value, result.score.value, result.guarantee
    """

    _what = "a private fit"
    _result_type = FitResult

    def __init__(
        self,
        trainer_or_problem: DPTrainer | PrivacyUtilityProblem,
        space: SearchSpace | None = None,
        *,
        budget: PrivacyBudget,
        trials: Any = 20,
        method: Method = "auto",
        test_records: ScoredOn = "sensitive",
        test_budget: PrivacyBudget | None = None,
        warm_start: Sequence[Mapping[str, Any]] | DPareto | None = None,
        fixed: Mapping[str, Any] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.trainer, space = _trainer_and_space(trainer_or_problem, space)
        self.fixed = _checked_fixed(fixed)
        budget = checked_budget("budget", budget)
        # A delta that is warned of would be so once for each of a secret number of trainings.
        self._delta = min(budget.delta, 0.5 / len(self.trainer.setup.records))
        check_choice("method", method, get_args(Method))
        bare = space is None and warm_start is None and self.trainer.chooses_with(self.fixed)
        if method == "auto" and bare:
            method = "untuned"
        if method == "untuned":
            if not bare:
                raise ValueError(
                    "`method` is 'untuned', which needs no `space` and no `warm_start`, a trainer "
                    "whose `optimizer` was left out, and no `learning_rate` or `clip_norm` in "
                    "`fixed`."
                )
            given: Any = {**self.fixed, "noise_multiplier": 1.0, "delta": self._delta}
            chosen = self.trainer.plan(**given)
            space = SearchSpace(epochs=Choice(self.fixed.pop("epochs", chosen.epochs)))
        if space is None:
            space = _default_space(self.trainer, self.fixed)
        self.space = _checked_space(self.trainer, space, self.fixed, self._delta)
        check_choice("test_records", test_records, get_args(ScoredOn))
        if test_records != "public" and self.trainer.metric is not accuracy:
            raise PrivacyError(
                "`test_records` that are sensitive need a score of known sensitivity: the trainer "
                "has a metric of its own, of which nobody knows how far one record moves it. Use "
                "the trainer's default metric, or public test records."
            )
        self.starts = _starts(warm_start, self.space, budget.epsilon)
        if method == "auto":
            method = "single" if self.starts else "random"
        self.method: Method = method
        setup, scored = self.trainer.setup, None
        if test_records != "public":
            scored = len(setup.records) if test_records == "training" else setup.num_tests
        self._own = Training(self.trainer, test_records, self.fixed, self._delta)
        super().__init__(
            self._own,
            self._tried(),
            mechanism=self._dp_sgd,
            budget=budget,
            trials=trials,
            scored_on=test_records,
            num_scored=scored,
            test_budget=test_budget,
            rehearsal=self._on_made_up,
            unsafe_seed=unsafe_seed,
        )

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
            noise = least_noise(self._dp_sgd(config), single, self.trainer.relation)
            settings: Any = {**self.fixed, **config, "noise_multiplier": noise}
            return fmean(
                trained.accuracy or 0.0 for trained in trainer.replicates(seeds, **settings)
            )

        return sorted(configs, key=utility, reverse=True)

    # What a selection asks for.

    def _tried(self) -> SearchSpace | list[Config] | Config:
        if self.method == "random":
            return self.starts or self.space
        return self.starts[0] if self.starts else self.space.middle()

    def _checked(self, config: Mapping[str, Any]) -> Config:
        return self.space.check(config)

    def _plan_of(self, config: Mapping[str, Any]) -> TrainingPlan:
        """A training of a configuration, but for its noise."""
        settings: Any = {**self.fixed, **config, "noise_multiplier": 1.0}
        return self.trainer.plan(**settings, delta=self._delta)

    def _parameters(self, config: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: config[name] for name in self.space.parameters if name in config}
        plan = replace(self._plan_of(own), noise_multiplier=config["noise_multiplier"])
        return plan.parameters(plan.steps)

    def _dp_sgd(self, config: Mapping[str, Any]) -> DPSGD:
        plan = self._plan_of(config)
        return DPSGD(
            batch_size=plan.batch_size,
            num_records=plan.num_records,
            steps=plan.steps,
            sampling=plan.sampling,
            relation=plan.relation,
        )

    def _training(self) -> tuple[str, PrivacyUnit, tuple[str, ...]]:
        trained = self._plan_of(self.typical_config).guarantee
        conditions = tuple(c for c in trained.unit.conditions if c != FIXED_BEFOREHAND)
        unit = replace(trained.unit, conditions=conditions)
        return trained.mechanism, unit, trained.assumptions

    def _test_conditions(self) -> tuple[str, ...]:
        return self.trainer.setup.conditions

    def _handed_out(self, artifact: Any) -> nn.Module:
        return self.trainer.setup.untrained(artifact)

    def _shown(self, best: dict[str, Any] | None) -> dict[str, Any] | None:
        shown = super()._shown(best)
        if shown is None:
            return None
        config = {**self.fixed, **shown["config"]}
        if self.method == "untuned":
            plan = self._plan_of(self.space.middle())
            config |= {name: getattr(plan, name) for name in _CHOSEN}
        return {**shown, "config": config}

    def _reason(self) -> str:
        if self._selects:
            return super()._reason()
        if self.method == "untuned":
            return "One training with nothing tuned: its settings follow from public numbers."
        which = "that did best on public data" if self.starts else "in the middle of the space"
        return f"One training of the configuration {which}."

    def _settings(self, with_data: bool) -> dict[str, Any]:
        setup, data = self.trainer.setup, None
        if with_data:
            data = setup.fingerprint(tests=True)
        trainer = self._plan_of(self.space.middle()).to_dict()
        return {**super()._settings(with_data), "trainer": trainer, "data": data}

    # On made-up records.

    def _made_up(self, config: Config) -> tuple[Training, dict[str, Any]]:
        """The training on a few made-up records, and settings for a pass over them."""
        plan = self._plan_of(config)
        size = min(plan.num_records, 2 * plan.batch_size)
        generator = torch.Generator().manual_seed(0)
        trainer = self.trainer.on(synthetic_records(self.trainer.setup.form, size, generator))
        settings = {**config, "batch_size": min(plan.batch_size, size), "epochs": 1}
        return replace(self._own, trainer=trainer, raises=True), settings

    def _on_made_up(
        self, config: Config, noise_multiplier: float, *, seed: int | None = None
    ) -> tuple[dict[str, Tensor], float]:
        training, settings = self._made_up(config)
        return training(settings, noise_multiplier, seed=seed)

    def _seconds(self) -> float:
        """About how long a typical training takes, from some steps on made-up records."""
        training, settings = self._made_up(self.typical_config)

        def timed(epochs: int) -> tuple[float, int]:
            own = {**self.fixed, **settings, "epochs": epochs, "noise_multiplier": 1.0}
            start = time.perf_counter()
            steps = training.trainer.fit(**own, publish=True).steps
            return time.perf_counter() - start, steps

        timed(1)
        short, few = timed(1)
        long, many = timed(max(2, min(40, int(_TIMED_SECONDS / short))))
        each = (long - short) / (many - few) if long > 1.5 * short else long / many
        return each * self._plan_of(self.typical_config).steps

    def __repr__(self) -> str:
        return (
            f"PrivateFit({self.trainer!r}, {self.space!r}, budget={self.budget}, "
            f"trials={self.number}, method={self.method!r}, test_records={self.scored_on!r})"
        )


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


def _checked_fixed(fixed: Mapping[str, Any] | None) -> dict[str, Any]:
    if fixed is not None and not isinstance(fixed, Mapping):
        raise TypeError(
            "`fixed` must be settings by name, such as {'epochs': 10}, got "
            f"{type(fixed).__name__}."
        )
    settings = dict(fixed or {})
    for name in settings.keys() - _TUNED:
        reason = "the noise follows from the budget"
        if name not in _FOLLOWING:
            reason = f"a training has no such setting.{did_you_mean(name, _TUNED)}"
        raise ValueError(f"`fixed` must not hold {name!r}: {reason}")
    return settings


def _default_space(trainer: DPTrainer, fixed: Mapping[str, Any]) -> SearchSpace:
    """Ranges around what suits the number of records; batches are large, which suits the noise."""
    n = len(trainer.setup.records)
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
    known = {name: parameter for name, parameter in known.items() if name not in fixed}
    return SearchSpace(constraints=(), products=(), **known)


def _checked_space(
    trainer: DPTrainer, space: SearchSpace, fixed: Mapping[str, Any], delta: float
) -> SearchSpace:
    if not isinstance(space, SearchSpace):
        raise TypeError(f"`space` must be a SearchSpace, got {type(space).__name__}.")
    names = set(space.parameters)
    if names & _FOLLOWING:
        raise ValueError(
            f"`space` must not hold {sorted(names & _FOLLOWING)}: the noise follows from the "
            "budget."
        )
    if names & fixed.keys():
        raise ValueError(f"`fixed` and `space` both have {sorted(names & fixed.keys())}: choose.")
    for config in space.sample(8, seed=0):
        try:
            settings: Any = {**fixed, **config, "noise_multiplier": 1.0, "delta": delta}
            trainer.plan(**settings).check_publishable()
        except TypeError as error:
            raise ValueError(
                f"`space` must name the settings of a training, as in SearchSpace(learning_rate="
                f"Real(...), clip_norm=Real(...), batch_size=Integer(...), epochs=Integer(...)): "
                f"{error}"
            ) from None
    limit = min(len(trainer.setup.records), LARGEST_PUBLISHED_BATCH)
    batches: list[Any] = [0]
    if "batch_size" in space.parameters:
        batches = list(space.parameters["batch_size"].levels(2))
    if (largest := max(batches)) > limit:
        raise ValueError(
            f"`space` has batches of {largest} records, and at most {limit} can be used."
        )
    return space


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
