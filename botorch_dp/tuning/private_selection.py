"""Many secret trainings by anybody's trainer; the best one is published.

:mod:`botorch_dp.privacy.selection` has the proofs, :mod:`.calibration` the noise of each training,
and :mod:`.trials` makes them. None of them knows how a training works.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from botorch_dp._checks import check_begins_once, check_callable, check_choice, check_integer
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    DPSGD,
    ApproximateLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_mu,
)
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.ledger import LedgerSnapshot, charged_nowhere, check_payment
from botorch_dp.privacy.losses import SelectionLoss
from botorch_dp.privacy.receipt_document import Origin
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.privacy.runs import Run
from botorch_dp.privacy.selection import BaseProfile, Selection, TrialNumber
from botorch_dp.space import Config, SearchSpace
from botorch_dp.tuning.calibration import (
    Mechanism,
    check_mechanism,
    identity_of,
    least_noise,
    trial_profile,
    words_of,
)
from botorch_dp.tuning.trials import ScoreNoise, Trials, train_and_score

#: What a training makes.
Artifact = TypeVar("Artifact")
ScoredOn = Literal["sensitive", "public", "training"]
_TRAIN = (
    "`train` is the mechanism that was described: with every configuration and noise multiplier it "
    "is as private as `mechanism` says, its random numbers are secret and new in every call, and "
    "it shows and keeps nothing of the records but what it returns"
)
_SECRET = (
    "how many trainings ran and how long they took is hidden from those it protects against; "
    "whoever sees the machines, dashboards, databases or bills of the trainings learns both, and "
    "is trusted"
)
_CHOSEN = (
    "the space, the number of trials, all settings and the weights that trainings begin with were "
    "chosen without the records"
)
_FAILURES = "whether a training fails does not depend on what single records say"
_COUNT_IS_PUBLIC = (
    "the number of test records is public: a test record may be replaced by another one, and is "
    "neither added nor removed"
)
_PUBLIC_TEST = "the test records, which choose the model, are public"
_SCORES_ONLY = "the test records decide about scores only, and about nothing else in a training"
#: 20 expected trainings of this shape cost what 40 of a geometric number do. One or two trainings,
#: and so a configuration at random, come out in 1.6% of all runs instead of 5%.
_SHAPE = 3.0
#: The part of the squares of mu for a score that is measured on the training records.
_SCORE_SHARE = 0.1
#: What follows from the budget and cannot be tuned.
_NOISE = "noise_multiplier"


# --- What is planned and what comes out. ---


@dataclass(frozen=True)
class SelectionPlan:
    """Public facts about a selection that has not begun; nothing was read for them.

    Args:
        reason: What will be done, in a sentence.
        number: The law of the number of trainings; None for a single one.
        config: A typical configuration, for which the noise is stated.
        noise_multipliers: The noise that this configuration needs for the budget, over the
            clipping norm: ``"this"``, ``"tuning ignored"`` (what is usually published,
            and is too small), and ``"all published"`` (every training could be shown).
        score_std: The standard deviation of the noise in the score; 0 without noise.
        guarantee: The guarantee of everything that is published, for a training record.
        test_guarantee: The same for a test record; None if these are public or not used.
    """

    reason: str
    number: TrialNumber | None
    config: Config
    noise_multipliers: dict[str, float]
    score_std: float
    guarantee: Guarantee
    test_guarantee: Guarantee | None

    def __str__(self) -> str:
        trainings = "One training"
        if self.number is not None:
            trainings = (
                f"{self.number.mean:g} trainings expected, {self.number.quantile(0.95)} or fewer "
                "with 95% probability (keep the number and the time they take secret)"
            )
        noise = {name: rounded_up(z, 3) for name, z in self.noise_multipliers.items()}
        other = ""
        if self.number is not None:
            other = (
                f" (It would be {noise['tuning ignored']} if tuning were ignored, and "
                f"{noise['all published']} if all of the models were published.)"
            )
        lines = [
            self.reason,
            f"{trainings}.",
            f"Noise multiplier of a typical configuration: {noise['this']}.{other}",
            f"Noise of the score: {self.score_std:.2g}." if self.score_std else "",
            f"Training records: {self.guarantee.in_plan}",
            "" if self.test_guarantee is None else f"Test records: {self.test_guarantee.sentence}",
        ]
        return "\n".join(line for line in lines if line)


@dataclass(frozen=True, eq=False, repr=False)
class SelectionResult(Release[Any], Generic[Artifact]):
    """What a selection publishes: the artifact or, where nothing came out, the configuration.

    Args:
        artifact: What the best training made. If nothing came out (no trial, or all of them
            failed) its value is None.
        config: The released configuration, with its noise multiplier. If nothing came out, the
            typical one of the plan.
        score: The released score, or None if nothing came out; NaN if a score on public records
            was no number in every training. One that noise carried beyond 0 or 1 is that bound. The
            best of many noisy scores is too good on average.
        for_tests: The same with the guarantee for a test record, if those are sensitive, and a
            receipt of its own.
        number: The law of the number of trainings, which is public; None for a single one.
        scored_on: Which records scored.
    """

    artifact: Release[Artifact | None]
    config: Release[Config]
    score: Release[float] | None
    for_tests: Release[Any] | None
    number: TrialNumber | None
    scored_on: ScoredOn

    @property
    def test_guarantee(self) -> Guarantee | None:
        """The guarantee for a test record, if those are sensitive."""
        return None if self.for_tests is None else self.for_tests.guarantee

    def __str__(self) -> str:
        shown = {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in self.config.value.items()
        }
        score = "Nothing was chosen: no training ran, or all of them failed."
        if self.score is not None:
            score = f"Score: {self.score.value:.4f}"
        lines = [
            score,
            "Configuration: " + ", ".join(f"{name} = {value}" for name, value in shown.items()),
            f"Training records: {self.guarantee}",
            "" if self.test_guarantee is None else f"Test records: {self.test_guarantee}",
            *charged_nowhere(self.facts.get("ledger"), self.guarantee),
        ]
        return "\n".join(line for line in lines if line)


# --- The selection. ---


class PrivateSelection(Generic[Artifact]):
    r"""Tune a training of your own on sensitive records, and publish one result for one epsilon.

    ``run()`` calls ``train`` with a secret random number K of configurations, each with as much
    noise as it needs to reach one common level of privacy, and publishes the artifact with the
    best score, its configuration and the score [Liu2019, Papernot2022].

    Guarantee: each trial, its score included, keeps to the points of a Gaussian mechanism's privacy
    profile, whatever its configuration; K has a law of its own, drawn before a record is read, and
    the selection's epsilon follows from the points and that law (proof in
    :mod:`botorch_dp.privacy.selection`). What is published is (epsilon, delta)-DP at the budget,
    given that ``train`` is the mechanism that was described. A score on *sensitive* test records
    gets noise here, and a guarantee of its own for them: an artifact does not depend on them, so
    one trial reveals to them its score only. A score on the *training* records gets noise, too, as
    a part of the trial.

    The number of trainings would tell about the records if it were fixed or known: it is kept in
    the checkpoint (mode 0600) and shown nowhere. Time tells about it, too, and whoever runs the
    trainings elsewhere (a Ray cluster, an experiment tracker, a database of trials) can count them
    there: the guarantee holds for those who learn neither.

    A training that raises an error has the worst outcome there is, and the error is not shown. So
    try ``train`` before: ``rehearsal`` is called once before anything is charged.

    Args:
        train: Takes a configuration and a noise multiplier, trains on the sensitive records, and
            returns ``(artifact, score)``. The artifact is anything that can be pickled. The score
            is the mean of scores of single records in [0, 1], such as an accuracy, *without* noise;
            on public records it may be any number.
        space: What may be tried; or a single configuration, which is trained once, with the whole
            budget.
        mechanism: From a configuration to what its training is: a
            :class:`~botorch_dp.privacy.DPSGD` without its noise, or a function from a noise
            multiplier to an event of dp-accounting.
        budget: (epsilon, delta) of everything that is published: for the training records and, if
            they are sensitive, for the test records.
        trials: The expected number of trainings, or a law of it, a
            :class:`~botorch_dp.privacy.TrialNumber`; by default one of shape 3, for which very few
            trainings are unlikely.
        scored_on: Whose score ``train`` returns: ``"sensitive"`` test records, which are protected,
            too; ``"public"`` ones; or the ``"training"`` records.
        num_scored: How many records a score is the mean of, unless they are public.
        relation: What events are accounted under: add-or-remove-one or replace-one. A ``DPSGD``
            has its own.
        rehearsal: The same as ``train``, on public or synthetic records.
        unsafe_seed: Simulate with reproducible noise: ``train`` is called with ``seed=``, too. The
            result then guarantees nothing.

    Example:
        >>> from botorch_dp import PrivacyBudget, PrivateSelection, Real, SearchSpace
        >>> from botorch_dp.privacy import DPSGD
        >>> selection = PrivateSelection(
        ...     train,  # (config, noise_multiplier) -> (weights, accuracy)
        ...     SearchSpace(learning_rate=Real(0.01, 1.0, log=True)),
        ...     mechanism=lambda config: DPSGD(batch_size=100, num_records=1000, steps=50),
        ...     budget=PrivacyBudget(1.0, 1e-5), num_scored=200,
        ... )
        >>> print(selection.plan())
        >>> result = selection.run(checkpoint="model.run")
        >>> result.artifact.value, result.config.value, result.score.value, result.guarantee
    """

    _what = "a private selection"
    _result_type: type[SelectionResult[Any]] = SelectionResult
    _test_unit = PrivacyUnit("one test record")

    def __init__(
        self,
        train: Callable[..., tuple[Artifact, float]],
        space: SearchSpace | Mapping[str, Any],
        *,
        mechanism: Callable[[Config], Mechanism],
        budget: PrivacyBudget,
        trials: float | TrialNumber = 20,
        scored_on: ScoredOn = "sensitive",
        num_scored: int | None = None,
        relation: NeighboringRelation | None = None,
        rehearsal: Callable[..., tuple[Artifact, float]] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        check_callable("train", train)
        self._train, self._mechanism, self._rehearsal = train, mechanism, rehearsal
        self.budget = checked_budget(budget)
        self.number = trials if isinstance(trials, TrialNumber) else TrialNumber(trials, _SHAPE)
        check_choice("scored_on", scored_on, ("sensitive", "public", "training"))
        self.scored_on: ScoredOn = scored_on
        self.num_scored = _checked_scored(scored_on, num_scored)
        if not isinstance(space, SearchSpace | Mapping):
            raise TypeError("`space` must be a SearchSpace or a single configuration.")
        self.space = space if isinstance(space, SearchSpace) else None
        #: In the middle of the space, or the only one. It is named if nothing comes out.
        self.typical_config: Config = (
            space.middle() if isinstance(space, SearchSpace) else dict(space)
        )
        if _NOISE in self.typical_config:
            raise ValueError(f"`space` must not hold {_NOISE!r}: it follows from the budget.")
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
        self.unsafe_seed = unsafe_seed
        typical = self._mechanism(copy.deepcopy(self.typical_config))
        self._typical, self.relation = check_mechanism(typical, relation)
        self._level()  # a budget that no noise can meet is refused here
        if isinstance(typical, DPSGD):
            warn_large_delta(self.budget.delta, typical.num_records)
        if scored_on == "sensitive":
            warn_large_delta(self.budget.delta, self.num_scored)

    # What is known before anything is read.

    def plan(self) -> SelectionPlan:
        """Noise, number of trainings and guarantee; reads no record."""
        config, typical = self.typical_config, self._typical
        whole = BaseProfile((self.budget.epsilon,), (self.budget.delta,))
        noise = {
            "this": self.noise_multiplier(config),
            "tuning ignored": least_noise(typical, whole, self.relation),
        }
        if self._selects:
            together = least_noise(typical, whole, self.relation, times=self.number.mean)
            noise["all published"] = together
        return SelectionPlan(
            reason=self._reason(),
            number=self._number,
            config=config,
            noise_multipliers=noise,
            score_std=self._score_noise.std or 0.0,
            guarantee=self.guarantee,
            test_guarantee=self.test_guarantee,
        )

    def noise_multiplier(self, config: Mapping[str, Any]) -> float:
        """The least noise with which a training of a configuration reaches the common level."""
        beside = self._score_noise.mu if self.scored_on == "training" else None
        described = self._described(self._checked(config))
        return least_noise(described, self._level()[0], self.relation, beside_mu=beside or 0.0)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of everything that is published, for a training record."""
        mechanism, unit, assumptions = self._training_guarantee()
        unit = unit.given(_CHOSEN, _FAILURES)
        if self._selects:
            unit = unit.given(_SECRET)
        if self.scored_on == "public":
            unit = unit.given(_PUBLIC_TEST)
        return self._guarantee(mechanism, unit, assumptions)

    @cached_property
    def test_guarantee(self) -> Guarantee | None:
        """The guarantee of everything that is published, for a sensitive test record."""
        if self.scored_on != "sensitive":
            return None
        # Their number divides the score: they are replaced, whatever the trainings' relation is.
        unit = self._test_unit.given(_CHOSEN, *self._test_conditions())
        if self._selects:
            unit = unit.given(_SECRET)
        return self._guarantee("noisy test scores", unit, ())

    # What happens.

    def run(
        self,
        *,
        executor: Executor | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
    ) -> SelectionResult[Artifact]:
        """Train, and publish one result.

        Args:
            executor: Trains several configurations at a time: threads, processes, or Ray's by
                :class:`~botorch_dp.integrations.ray.RayExecutor`, all of which call ``train`` at
                most once for each configuration. Dask's may call it again, and is refused.
            checkpoint: A file to keep the run in and to continue it from: with the same number of
                trainings and the same configurations, to one published result. It is sensitive,
                has mode 0600, and one process at a time may hold it. Like every pickle, an
                artifact in it may run code when it is read: continue your own files only.
            ledger: Charged once, before a record is read: a record is a training record or a test
                record.
            label: What it is for, in public words; shown in the ledger.

        Raises:
            BudgetExhausted: If the budget is too small; nothing was read.
        """
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        if self.unsafe_seed is None:
            check_begins_once(executor)
        settings = {**self._settings(checkpoint is not None), "charged": ledger is not None}
        with Run(checkpoint, what=self._what, settings=settings, ledger=ledger, label=label) as run:
            if not run.resumed:
                self._rehearse()

            def read() -> dict[str, Any] | None:
                trials = Trials(run, self._number, self._config, unsafe_seed=self.unsafe_seed)
                return trials.train(
                    self._train, self.noise_multiplier, self._score_noise, self._stored, executor
                )

            # The noise of the trainings is not shown; what is shown is stored first.
            shown = run.release(self._price, self._published, read=read, key="model")
            charged = None if ledger is None else ledger.snapshot(run.identity)
        return self._result(shown, charged)

    def _rehearse(self) -> None:
        """What fails for reasons of its own fails here, before anything is charged."""
        if self._rehearsal is None:
            return
        config, seed = self.typical_config, self.unsafe_seed
        noise = self.noise_multiplier(config)
        outcome = train_and_score(self._rehearsal, config, noise, self._score_noise, seed)
        self._stored(outcome.artifact)

    def _config(self, seed: np.random.SeedSequence) -> Config:
        """What a trial tries: any configuration of the space, or the only one."""
        return self.space.sample(1, seed=seed)[0] if self.space else self.typical_config

    def _published(self, best: dict[str, Any] | None) -> dict[str, Any] | None:
        if best is None:
            return None
        config = {**best["config"], _NOISE: self.noise_multiplier(best["config"])}
        return {"config": config, "score": best["score"], "artifact": best["artifact"]}

    def _result(
        self, shown: dict[str, Any] | None, ledger: LedgerSnapshot | None
    ) -> SelectionResult[Artifact]:
        guarantee, test_guarantee, score, kept = self.guarantee, self.test_guarantee, None, None
        if shown is None:
            config = {**self.typical_config, _NOISE: self.noise_multiplier(self.typical_config)}
        else:
            config, kept = shown["config"], shown["artifact"]
            value = shown["score"] if math.isfinite(shown["score"]) else math.nan
            if self._score_noise.mu is not None:
                value = min(max(value, 0.0), 1.0)  # the noisy mean of numbers between
            score = Release(value, guarantee, scale=self._score_noise.std)
        training = self._parameters(config)
        if training is not None and score is not None:
            training = {**training, "released_score": score.value}
        facts: dict[str, Any] = {
            "settings": self._origin,
            "note": f"trainings were scored on {self.scored_on} records",
            "ledger": ledger,
        }
        value = self._loaded(kept)
        artifact = Release(
            value, guarantee, digest=digest_if_any(value), facts={**facts, "training": training}
        )
        released = artifact if value is not None else replace(artifact, value=config, digest=None)
        for_tests = None
        if test_guarantee is not None:
            if ledger is not None and ledger.relation is not test_guarantee.unit.relation:
                facts["ledger"] = None  # it is of trainings, and verifies for them
            for_tests = replace(released, guarantee=test_guarantee, facts=facts)
        return self._result_type(
            **vars(released),
            artifact=artifact,
            config=Release(config, guarantee),
            score=score,
            for_tests=for_tests,
            number=self._number,
            scored_on=self.scored_on,
        )

    # The parts, some of which a subclass says more about.

    @property
    def _selects(self) -> bool:
        return self.space is not None

    @property
    def _origin(self) -> Origin:
        return "private selection" if self._selects else "not stated"

    @property
    def _number(self) -> TrialNumber | None:
        return self.number if self._selects else None

    def _stored(self, artifact: Any) -> Any:
        """What a checkpoint stores of an artifact."""
        try:
            return np.frombuffer(pickle.dumps(artifact), dtype=np.uint8)
        except Exception as error:
            raise TypeError(
                f"`train` returned a {type(artifact).__name__} that cannot be pickled: return "
                "something that can, such as weights."
            ) from error

    def _loaded(self, kept: Any) -> Any:
        """The artifact that :meth:`_stored` stored; None if nothing came out."""
        return None if kept is None else pickle.loads(kept.tobytes())

    def _checked(self, config: Mapping[str, Any]) -> Config:
        return self.space.check(config) if self.space else dict(config)

    def _described(self, config: Config) -> Mechanism:
        """What a training of a configuration is.

        Nothing is kept of configurations that are tried: how many were is secret.
        """
        if config == self.typical_config:
            return self._typical
        return check_mechanism(self._mechanism(copy.deepcopy(config)), self.relation)[0]

    def _parameters(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Public parameters of one training, if it is described by them."""
        own = {name: value for name, value in config.items() if name != _NOISE}
        described = self._described(own)
        if not isinstance(described, DPSGD):
            return None
        return {
            "batch_size": described.batch_size,
            "num_records": described.num_records,
            "steps": described.steps,
            "noise_multiplier": config[_NOISE],
            "clip_norm": own.get("clip_norm"),
            "sampling": described.sampling,
            "relation": self.relation.name,
        }

    def _training_guarantee(self) -> tuple[str, PrivacyUnit, tuple[str, ...]]:
        """What one training is, whom it protects on which conditions, and what it assumes."""
        unit = PrivacyUnit("one training record", self.relation).given(_TRAIN)
        if self.scored_on == "training":
            unit = unit.given(self._mean_condition())
        return words_of(self._typical), unit, ()

    def _test_conditions(self) -> tuple[str, ...]:
        return self._mean_condition(), _SCORES_ONLY

    def _mean_condition(self) -> str:
        return (
            "the score that `train` returns is a sum of scores of single records, divided by "
            f"{self.num_scored:,} in double precision; each score lies in [0, 1] and depends on "
            "its record and the artifact only"
        )

    def _reason(self) -> str:
        if self._selects:
            return f"Private selection: the best of {self.number.mean:g} expected random trainings."
        return "One training of the configuration that was given."

    def _settings(self, with_data: bool) -> dict[str, Any]:
        """All that a run depends on; it is continued with the same settings only."""
        return {
            "space": self.space.to_dict() if self.space else self.typical_config,
            "mechanism": identity_of(self._typical),
            "relation": self.relation.name,
            "budget": [self.budget.epsilon, self.budget.delta],
            "number": [self.number.mean, str(self.number.shape)],
            "scored_on": [self.scored_on, self.num_scored],
            "unsafe_seed": self.unsafe_seed,
        }

    def _level(self) -> tuple[BaseProfile, float]:
        """What a trial keeps to, and about which mu that is."""
        budget = self.budget
        if not self._selects:
            point = BaseProfile((budget.epsilon,), (budget.delta,))
            return point, gaussian_mu(budget.epsilon, budget.delta)
        return trial_profile(Selection(self.number), budget.epsilon, budget.delta)

    @cached_property
    def _score_noise(self) -> ScoreNoise:
        if self.scored_on == "public":
            return ScoreNoise()
        share = _SCORE_SHARE if self.scored_on == "training" else 1.0
        return ScoreNoise(math.sqrt(share) * self._level()[1], self.num_scored)

    @property
    def _price(self) -> Guarantee:
        """What a ledger is charged: a record is a training record or a test record."""
        training, test = self.guarantee, self.test_guarantee
        if test is None:
            return training
        loss = ApproximateLoss(self.budget.epsilon, self.budget.delta)
        either = " or ".join(dict.fromkeys((training.protects, test.protects)))
        unit = replace(training.unit, protects=either)
        unit = unit.given(*test.unit.conditions)
        if unit.relation is not test.unit.relation:
            unit = unit.given(_COUNT_IS_PUBLIC)
        return replace(training, unit=unit, losses=(loss,))

    def _guarantee(
        self, mechanism: str, unit: PrivacyUnit, assumptions: tuple[str, ...]
    ) -> Guarantee:
        budget = self.budget
        what = "private selection of the best of a secret number of trainings"
        name = f"{what if self._selects else 'a single training'} ({mechanism})"
        loss = ApproximateLoss(budget.epsilon, budget.delta)
        if self._selects:
            number, (_, mu) = self.number, self._level()
            loss = SelectionLoss(budget.epsilon, budget.delta, mu, number.mean, number.shape)
        guarantee = Guarantee(name, unit, (loss,), assumptions, quoted_delta=budget.delta)
        return guarantee if self.unsafe_seed is None else guarantee.simulated()


# --- What was asked for. ---


def checked_budget(budget: PrivacyBudget) -> PrivacyBudget:
    """A budget that Gaussian noise can meet, or an error."""
    if budget.delta == 0:
        raise PrivacyError(
            "`budget` has no delta, and no Gaussian noise meets a pure epsilon: give one that is "
            "much smaller than 1 / (number of records), such as PrivacyBudget(1.0, 1e-6)."
        )
    return budget


def _checked_scored(scored_on: str, num_scored: int | None) -> int:
    if scored_on == "public":
        if num_scored is not None:
            raise ValueError("`num_scored` is for scores that get noise, not for public records.")
        return 1
    if num_scored is None:
        raise ValueError(
            f"`num_scored` is needed for scores on {scored_on} records: the number of records that "
            "a score is the mean of decides about its noise."
        )
    return check_integer("num_scored", num_scored)
