"""What a study optimizes, and the records of its trials.

A problem is a space, an exact privacy function and a noisy utility function. A :class:`Trial` is an
immutable record of what was tried and what came of it. What happens to a trial gives another record
(:meth:`Trial.measured`, :meth:`Trial.failed`); a study stores each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Literal, TypeAlias

from botorch_dp._checks import check_delta, check_finite, check_integer, check_positive
from botorch_dp.privacy import ApproximateLoss, Guarantee, PrivacyUnit, PureLoss
from botorch_dp.privacy.guarantee import check_unit
from botorch_dp.space import Config, SearchSpace

#: What one training gives: a utility, or a utility and further measured objectives by name.
UtilityAnswer: TypeAlias = float | tuple[float, Mapping[str, float]]

State = Literal["pending", "complete", "failed"]

_ORACLE_CONDITION = "`privacy(config)` bounds the privacy loss of one training at its delta"
_SECRET_NOISE = "the noise of each training is secret and drawn anew, whatever its seed"

_TRAINING_RECORD = PrivacyUnit("one record of the training data")

#: Why a study whose trainings were seeded guarantees nothing.
SEEDED = "the noise of its trainings follows from their seeds, which the study knows"


class StudyError(RuntimeError):
    """A study cannot go on; the message says what to do. What was stored is kept."""


class InvalidEpsilonError(ValueError):
    """The privacy function returned something that is no finite epsilon >= 0."""


class InvalidUtilityError(ValueError):
    """The utility function returned something that is no utility in [0, 1]."""


@dataclass(frozen=True)
class Objective:
    """A further objective to minimize, such as training time or model size.

    Args:
        name: Its name in tables and axes.
        ref_point: The value that counts as worthless, beyond which nothing is gained.
        function: ``config -> value`` where it is known exactly (model size). None if it is
            measured: the utility function then returns ``(utility, {name: value})``.
        log: Whether models see its logarithm; it must then be positive.
    """

    name: str
    ref_point: float
    function: Callable[[Config], float] | None = None
    log: bool = True

    def __post_init__(self) -> None:
        if self.name in ("", "epsilon", "error"):
            raise ValueError(f"`name` must be a new, non-empty name, got {self.name!r}.")
        (check_positive if self.log else check_finite)("ref_point", self.ref_point)

    def known(self, config: Config) -> float:
        """The value of an objective that has a function."""
        assert self.function is not None
        return self.check(self.function(dict(config)))

    def check(self, value: object) -> float:
        """Return ``value`` as a float, or raise an error that does not quote it."""
        number = _number(value)
        if not math.isfinite(number) or (self.log and number <= 0):
            kind = "positive and finite" if self.log else "finite"
            raise InvalidUtilityError(f"Objective {self.name!r} must be {kind}.")
        return number


@dataclass(frozen=True, kw_only=True)
class Batched:
    """Functions that take several configs in one call, where that is faster.

    Args:
        replicates: ``config, seeds -> utilities``, in place of ``utility``, where all replicates of
            a trial are trained in one computation.
        epsilons: ``configs -> epsilons`` for thousands of candidates. They may be larger than what
            ``privacy`` says, never smaller; trials get the exact value.
    """

    replicates: Callable[..., Iterable[Any]] | None = None
    epsilons: Callable[[Sequence[Config]], Sequence[float]] | None = None


@dataclass(frozen=True)
class Measurement:
    """What one training gave: its utility, further measured objectives, and how long it took."""

    utility: float
    objectives: tuple[float, ...] = ()
    seconds: float = math.nan

    def __repr__(self) -> str:
        return "Measurement(sensitive)"


@dataclass(frozen=True)
class Trial:
    """One config, its seeds, and whatever is known about it so far.

    Args:
        number: Position in the study, from 0.
        config: The hyper-parameters.
        seeds: One for each replicate.
        epsilon: Exact; NaN if the privacy function failed.
        state: ``"pending"`` (proposed, perhaps training), ``"complete"`` or ``"failed"``.
        measurements: One for each replicate, None where it is missing. Sensitive.
        fresh: Measurements of later re-evaluations by replicate, numbered after the trial's own; no
            proposal has seen them. Sensitive.
        failure: What a training raised last, in full. Sensitive: it may quote records.
        failed_trainings: How many trainings may have begun without measuring.
    """

    number: int
    config: Config
    seeds: tuple[int, ...]
    epsilon: float
    state: State = "pending"
    measurements: tuple[Measurement | None, ...] = field(default=(), repr=False)
    fresh: Mapping[int, Measurement] = field(default_factory=dict, repr=False)
    failure: str = field(default="", repr=False)
    failed_trainings: int = 0

    @property
    def failure_type(self) -> str:
        """The type of the error alone."""
        return self.failure.partition(":")[0]

    @property
    def finished(self) -> tuple[Measurement, ...]:
        """The measurements there are."""
        return tuple(m for m in self.measurements if m is not None)

    @property
    def missing(self) -> tuple[int, ...]:
        """The replicates that were not measured yet."""
        measured = dict(enumerate(self.measurements))
        return tuple(r for r in range(len(self.seeds)) if measured.get(r) is None)

    @property
    def missing_seeds(self) -> tuple[int, ...]:
        """Their seeds."""
        return tuple(self.seeds[replicate] for replicate in self.missing)

    @property
    def utilities(self) -> tuple[float, ...]:
        """The measured utilities. Sensitive."""
        return tuple(m.utility for m in self.finished)

    @cached_property
    def error(self) -> float:
        """One minus the mean utility; NaN before any was measured. Sensitive."""
        utilities = [m.utility for m in self.measurements if m is not None]
        return 1.0 - fmean(utilities) if utilities else math.nan

    @property
    def seconds(self) -> float:
        """Training time of all replicates together."""
        return sum(m.seconds for m in self.finished)

    @property
    def num_trainings(self) -> int:
        """How many trainings of it have told the study something, re-evaluations included."""
        return len(self.finished) + len(self.fresh) + self.failed_trainings

    @property
    def next_replicate(self) -> int:
        """The first replicate after all that were ever measured."""
        return 1 + max(self.fresh, default=len(self.seeds) - 1)

    def measured(self, measurements: Mapping[int, Measurement]) -> Trial:
        """The trial after trainings have ended; it is complete when none is missing."""
        own = [*self.measurements, *[None] * (len(self.seeds) - len(self.measurements))]
        fresh = dict(self.fresh)
        for replicate, measurement in measurements.items():
            if replicate >= len(self.seeds):
                fresh.setdefault(replicate, measurement)
            elif own[replicate] is None:
                own[replicate] = measurement
        ended = self.state == "pending" and None not in own
        return replace(
            self,
            measurements=tuple(own),
            fresh=fresh,
            state="complete" if ended else self.state,
        )

    def failed(self, error: Exception, *, trainings: int) -> Trial:
        """The trial after this many of its trainings have begun and raised an error."""
        return replace(
            self,
            failure=f"{type(error).__name__}: {error}",
            failed_trainings=self.failed_trainings + trainings,
            state="failed" if self.state == "pending" else self.state,
        )


@dataclass(frozen=True)
class TrainingPrivacy:
    """What is known about the privacy of one training, and of one measurement of its utility.

    Args:
        delta: The delta at which ``privacy`` states epsilon.
        unit: Whom it protects, under which neighbouring relation.
        guarantee: ``config -> Guarantee`` of one training, where more is known than its epsilon:
            many trainings then cost less than the sum of their epsilons.
        secret_noise: Whether each training draws its noise from the operating system, and uses its
            seed for what needs no secrecy only (initial weights). Otherwise the noise follows from
            the seed, the study guarantees nothing, and can only state the cost of a repetition with
            secret noise.
        trainer: Makes the :class:`~botorch_dp.training.DPTrainer` that publishes models of
            this privacy, for :class:`~botorch_dp.tuning.PrivateFit`.
    """

    delta: float = 0.0
    unit: PrivacyUnit = _TRAINING_RECORD
    guarantee: Callable[[Config], Guarantee] | None = None
    secret_noise: bool = False
    trainer: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        check_unit(self.unit)
        object.__setattr__(self, "delta", check_delta("delta", self.delta, allow_zero=True))


class PrivacyUtilityProblem:
    """The privacy and the utility function of a trade-off, over a space of hyper-parameters.

    Both (epsilon, error = 1 - utility) are minimized. Epsilon is a known function of the
    hyper-parameters; utility is measured by training, averaged over ``replicates``.

    Args:
        space: The hyper-parameters.
        privacy: ``config -> epsilon``, exact and cheap; called for thousands of candidates a trial.
        utility: ``config, seed -> utility`` in [0, 1], noisy and expensive. Define it at the top
            level of a module if it shall run in other processes.
        ref_point: The anti-ideal (epsilon, error): hypervolume is measured from there.
        replicates: Trainings for each trial, with seeds of their own.
        objectives: Further objectives to minimize.
        training: What epsilon speaks of (delta, neighbouring relation), and what else is known
            about the privacy of one training; see :class:`TrainingPrivacy`. Without one, nothing is
            known but the number: figures say that its relation and delta are not stated, and
            no cost can be stated.
        name: What reports call the problem; the names of its parameters by default. A stored study
            recognizes the problem by it, or by the name of ``utility``.
        batched: Functions that answer several questions in one call.

    Example:
        >>> problem = PrivacyUtilityProblem(
        ...     SearchSpace(noise=Real(0.1, 10.0, log=True)),
        ...     privacy=lambda config: 1 / config["noise"],
        ...     utility=lambda config, seed: 1 / (1 + config["noise"]),
        ... )
        >>> problem.epsilon({"noise": 2.0})
        0.5
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        privacy: Callable[[Config], float],
        utility: Callable[[Config, int], UtilityAnswer] | None = None,
        ref_point: tuple[float, float] = (10.0, 1.0),
        replicates: int = 1,
        objectives: Sequence[Objective] = (),
        training: TrainingPrivacy | None = None,
        name: str | None = None,
        batched: Batched | None = None,
    ) -> None:
        batched = Batched() if batched is None else batched
        if (utility is None) == (batched.replicates is None):
            raise ValueError("Give either `utility` or `batched.replicates`.")
        oracle: Any = utility or batched.replicates
        epsilon, error = ref_point
        check_positive("ref_point[0]", epsilon)
        if not 0 < error <= 1:
            raise ValueError(f"`ref_point[1]` is an error in (0, 1], got {error}.")
        names = [objective.name for objective in objectives]
        if len(set(names)) < len(names):
            raise ValueError(f"`objectives` must have different names, got {names}.")
        self.batched = batched
        self.space = space
        self.privacy = privacy
        self.oracle: Callable[..., Any] = oracle
        self.ref_point = (float(epsilon), float(error))
        self.replicates = check_integer("replicates", replicates)
        self.objectives = tuple(objectives)
        self.training = training
        self.name = " and ".join(space.parameters) if name is None else name
        self._recognized_by = {"oracle": _name_of(oracle)} if name is None else {"name": name}

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Names of all objectives, in the order of points and reference points."""
        return ("epsilon", "error", *(objective.name for objective in self.objectives))

    @property
    def full_ref_point(self) -> tuple[float, ...]:
        """The reference point with the further objectives' values."""
        return (*self.ref_point, *(objective.ref_point for objective in self.objectives))

    @property
    def measured_objectives(self) -> tuple[Objective, ...]:
        """The further objectives that only a training reveals."""
        return tuple(o for o in self.objectives if o.function is None)

    @property
    def stated_training(self) -> TrainingPrivacy:
        """What is known about its trainings, or an error if nothing was stated."""
        if self.training is None:
            raise StudyError(
                "This problem does not say what its epsilon means, so no cost can be stated: pass "
                "`training=TrainingPrivacy(delta=...)` to the PrivacyUtilityProblem, with the "
                "delta (0 for pure epsilon) and the neighbouring relation of `privacy`."
            )
        return self.training

    def training_guarantee(self, config: Config, epsilon: float) -> Guarantee:
        """The guarantee of one training, if its noise is secret."""
        training = self.stated_training
        if training.guarantee is not None:
            promised = training.guarantee(dict(config))
        else:
            approximate = training.delta > 0
            loss = ApproximateLoss(epsilon, training.delta) if approximate else PureLoss(epsilon)
            mechanism, conditions = f"training for {self.name!r}", (_ORACLE_CONDITION,)
            promised = Guarantee(mechanism, training.unit, (loss,), assumptions=conditions)
        return replace(promised, unit=promised.unit.given(_SECRET_NOISE))

    def charge(self, config: Config, trainings: int, label: str) -> None:
        """Called before this many trainings of a config begin. Here they are free.

        See :class:`~botorch_dp.pareto.charges.ChargedProblem`.
        """

    def check_executor(self, executor: Executor) -> None:
        """Raise if trainings may not run there. Here they may run anywhere."""

    def epsilon(self, config: Config) -> float:
        """The exact epsilon of one training.

        Raises:
            InvalidEpsilonError: ``privacy`` answered no finite epsilon >= 0.
            Exception: What ``privacy`` raises.
        """
        answer = self.privacy(dict(config))
        epsilon = _number(answer)
        if not 0 <= epsilon < math.inf:
            raise InvalidEpsilonError(
                f"`privacy` must return a finite epsilon >= 0, got {answer!r} for {config}."
            )
        return epsilon

    def epsilon_bounds(self, configs: Sequence[Config]) -> list[float]:
        """Upper bounds on the epsilons of candidates, exact unless ``batched.epsilons`` is."""
        if self.batched.epsilons is None:
            return [self.epsilon(config) for config in configs]
        bounds = [float(value) for value in self.batched.epsilons([dict(c) for c in configs])]
        if len(bounds) != len(configs) or not all(0 <= value < math.inf for value in bounds):
            raise InvalidEpsilonError(
                f"`batched.epsilons` must return {len(configs)} finite epsilons >= 0, "
                f"got {len(bounds)} values."
            )
        return bounds

    def values(self, trials: Iterable[Trial]) -> list[tuple[float, ...]]:
        """The mean objective values of complete trials: epsilon, error, further objectives."""
        if not self.objectives:
            return [(trial.epsilon, trial.error) for trial in trials]
        return [self._values(trial) for trial in trials]

    def _values(self, trial: Trial) -> tuple[float, ...]:
        measured = iter(zip(*(m.objectives for m in trial.finished), strict=True))
        further = (
            fmean(next(measured)) if o.function is None else o.known(trial.config)
            for o in self.objectives
        )
        return (trial.epsilon, trial.error, *further)

    def measurement(self, answer: Any, seconds: float = math.nan) -> Measurement:
        """Check one value of the utility function; an error does not quote it."""
        further: Mapping[str, float] = {}
        if self.measured_objectives:
            try:
                answer, further = answer
                further = dict(further)
            except (TypeError, ValueError):
                names = [objective.name for objective in self.measured_objectives]
                raise InvalidUtilityError(
                    f"`utility` must return a pair (utility, dict of {names})."
                ) from None
        utility = _number(answer)
        if not 0 <= utility <= 1:
            raise InvalidUtilityError(
                "`utility` must return a number in [0, 1], a share and not percent, such as "
                f"float(accuracy); got {type(answer).__name__}."
            )
        objectives = (o.check(further.get(o.name)) for o in self.measured_objectives)
        return Measurement(utility, tuple(objectives), seconds)

    def description(self) -> dict[str, Any]:
        """What must be the same for a stored study to be continued, JSON-ready."""
        described = {
            "space": self.space.to_dict(),
            **self._recognized_by,
            "ref_point": list(self.ref_point),
            "replicates": self.replicates,
            "objectives": [
                {
                    "name": o.name,
                    "ref_point": o.ref_point,
                    "log": o.log,
                    "measured": o.function is None,
                }
                for o in self.objectives
            ],
        }
        if self.training is not None:
            described["delta"] = self.training.delta
            described["relation"] = self.training.unit.relation.name
            described["secret_noise"] = self.training.secret_noise
        return described


def _number(answer: Any) -> float:
    """What a function answered as a float; NaN where it is no number."""
    try:
        return float(answer)
    except (TypeError, ValueError):
        return math.nan


def _name_of(oracle: Callable[..., Any]) -> str:
    return getattr(oracle, "__qualname__", None) or type(oracle).__qualname__
