"""Studies that live in Optuna: fronts found by DPareto's proposals, and values with known noise.

Needs the extra ``optuna``. A study keeps its trials in Optuna's storage (SQLite, PostgreSQL, MySQL,
a journal on a shared disk), as many processes and hosts as one likes take part in it, and Optuna's
dashboard shows it. Everything in such a storage is as sensitive as what was reported to it: only
what was released with noise, such as by :func:`report`, may be shown to anybody.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botorch_dp._checks import check_choice, check_integer, needs_extra
from botorch_dp.errors import BudgetExhausted
from botorch_dp.objectives import PrivateObjective
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.pareto.problem import Measurement, Trial
from botorch_dp.pareto.proposals import Proposer, propose
from botorch_dp.space import Choice, Config, Integer, SearchSpace

with needs_extra("optuna", "`botorch_dp.integrations.optuna`"):
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

_CONFIG = "botorch_dp:config"
_FIXED = "fixed_params"  # Optuna's, of trials that were enqueued
_VARIANCE = "botorch_dp:noise_variance"
#: How far a returned epsilon may be from that of `privacy`: two digits, or two decimals.
_ROUNDED = {"rel_tol": 0.01, "abs_tol": 0.005}
#: What Optuna stores in a categorical distribution as it is.
_STORED = (type(None), bool, int, float, str)


# --- Spaces. ---


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's distributions of a search space.

    Example:
        >>> from botorch_dp.space import Real, SearchSpace
        >>> distributions(SearchSpace(C=Real(0.1, 10.0, log=True)))
        {'C': FloatDistribution(high=10.0, log=True, low=0.1, step=None)}
    """
    found: dict[str, BaseDistribution] = {}
    for name, parameter in space.parameters.items():
        if isinstance(parameter, Choice):
            found[name] = CategoricalDistribution([_stored(value) for value in parameter.values])
        elif isinstance(parameter, Integer):
            found[name] = IntDistribution(parameter.low, parameter.high, log=parameter.log)
        else:
            found[name] = FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    return found


def suggest(trial: optuna.Trial, space: SearchSpace) -> Config:
    """The configuration of a trial: one of Optuna's suggestions for each active parameter.

    Example:
        >>> def objective(trial):
        ...     config = suggest(trial, space)
    """
    config: Config = {}
    for name, parameter in space.parameters.items():
        if not space.is_active(name, config):
            continue
        if isinstance(parameter, Choice):
            choices = [_stored(value) for value in parameter.values]
            stored: Any = trial.suggest_categorical(name, choices)
        elif isinstance(parameter, Integer):
            stored = trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
        else:
            stored = trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)
        config[name] = _value(space, name, stored)
    return space.check(config)


def _stored(value: Any) -> Any:
    return value if isinstance(value, _STORED) else repr(value)


def _value(space: SearchSpace, name: str, stored: Any) -> Any:
    parameter = space.parameters[name]
    if isinstance(parameter, Choice):
        for value in parameter.values:
            if _stored(value) == stored and isinstance(stored, bool) == isinstance(value, bool):
                return value
    return stored


def _config_of(space: SearchSpace, params: Mapping[str, Any]) -> Config | None:
    """The configuration that a trial's parameters are; None if they are none of the space."""
    config: Config = {}
    for name in space.parameters:
        if space.is_active(name, config) and name in params:
            config[name] = _value(space, name, params[name])
    try:
        return space.check(config)
    except (ValueError, TypeError):
        return None


# --- Fronts. ---


class DParetoSampler(optuna.samplers.BaseSampler):
    """Proposes what :class:`~botorch_dp.pareto.DPareto` would, to a study of Optuna.

    For studies of two objectives: epsilon, minimized, and an error, minimized, or a utility such as
    an accuracy in [0, 1], maximized. Epsilon is computed exactly for every candidate.

    A proposal is a function of the stored trials with smaller numbers and of the seed. Trials that
    run elsewhere count as pending, with what was proposed to them; so processes and hosts that
    share a storage complement each other, and one that is killed leaves a pending trial behind
    (see Optuna's ``RDBStorage(heartbeat_interval=...)``). Finished trials that lie outside of the
    space, or that have other parameters, are skipped with a warning.

    Only proposals are made here: the study is as sensitive as what its objective returns.

    Args:
        space_or_problem: What may be tried; suggest it by :func:`suggest`. Or a problem, such as
            :meth:`~botorch_dp.training.DPTrainer.problem` makes, which computes epsilon of
            thousands of candidates at once.
        privacy: ``config -> epsilon``, exact and cheap; for a space.
        seed: The same for all processes of a study.
        initial: Trials that are drawn before models are consulted.
        ref_point: The (epsilon, error) that counts as worthless; a problem has its own.
        acquisition: As for :class:`~botorch_dp.pareto.DPareto`: ``"ehvi"``, ``"hvpoi"``,
            ``"log_hvpoi"`` or ``"random"``.
        epsilon_scale: ``"log"`` or ``"linear"``.

    Example:
        >>> sampler = DParetoSampler(space, lambda config: 3.0 / config["noise"])
        >>> study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
        >>> study.optimize(objective, n_trials=40)  # returns (privacy(config), accuracy)

    Raises:
        ValueError: In a study whose objective returned a utility outside of [0, 1], or an epsilon
            that is not that of ``privacy``.
    """

    def __init__(
        self,
        space_or_problem: SearchSpace | PrivacyUtilityProblem,
        privacy: Callable[[Config], float] | None = None,
        *,
        seed: int = 0,
        initial: int = 16,
        ref_point: tuple[float, float] = (10.0, 1.0),
        acquisition: str = "ehvi",
        epsilon_scale: Any = "log",
    ) -> None:
        known = ("ehvi", "hvpoi", "log_hvpoi", "random")
        check_choice("acquisition", acquisition, known)
        check_choice("epsilon_scale", epsilon_scale, ("linear", "log"))
        self._problem = _problem(space_or_problem, privacy, ref_point)
        self._seed = check_integer("seed", seed, at_least=0)
        self._initial = check_integer("initial", initial)
        self._options = {"acquisition": acquisition, "epsilon_scale": epsilon_scale}
        self._independent = optuna.samplers.RandomSampler(seed=seed)
        self._start()

    def _start(self) -> None:
        self._warned = False
        self._proposer = Proposer(self._problem, seed=self._seed, **self._options)
        self._lock = threading.Lock()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All of the space, whatever earlier trials had."""
        return distributions(self._problem.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal for a trial, stored with it at once, so that others see it."""
        maximize = _is_utility(study)
        before = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number]
        with self._lock:
            config = self._proposed(before, maximize)
        params = {name: _stored(value) for name, value in config.items() if name in search_space}
        study._storage.set_trial_system_attr(trial._trial_id, _CONFIG, params)
        return params

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """What is not of the space is drawn at random; such trials are skipped later."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Refuse values that are no epsilon and utility of the space, as soon as there are some."""
        config = _config_of(self._problem.space, trial.params)
        if state is TrialState.COMPLETE and values is not None and config is not None:
            with self._lock:
                epsilon = self._proposer.known.epsilon(config)
            _check_values(trial.number, values, epsilon, maximize=_is_utility(study))

    def reseed_rng(self) -> None:
        """Proposals keep their seed; what is not of the space is drawn anew."""
        self._independent.reseed_rng()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_proposer", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _proposed(self, before: Sequence[FrozenTrial], maximize: bool) -> Config:
        """The proposal after these trials, in the order of their numbers."""
        trials: list[Trial] = []
        foreign: list[int] = []
        for frozen in sorted(before, key=lambda trial: trial.number):
            config = self._config_of(frozen)
            if config is None and not frozen.state.is_finished():
                # What somebody is about to propose to it, as far as is known by now.
                config = self._config_of(frozen, propose(self._proposer, trials, self._initial))
            if config is not None:
                trials.append(self._trial(len(trials), frozen, config, maximize))
            elif frozen.params and frozen.state.is_finished():
                foreign.append(frozen.number)
        if foreign and not self._warned:
            self._warned = True
            warnings.warn(
                f"{len(foreign)} finished trials of this study lie outside of the space or have "
                f"other parameters than {list(self._problem.space.parameters)}, the first of them "
                f"is number {foreign[0]}. They are skipped: widen the space to learn from them.",
                stacklevel=2,
            )
        return propose(self._proposer, trials, self._initial)

    def _config_of(self, frozen: FrozenTrial, proposal: Mapping[str, Any] = {}) -> Config | None:
        """The configuration of a trial; None if it is none of the space, or not known yet.

        A trial that has not finished perhaps has not asked for all of its parameters: they are
        those it was enqueued with, and otherwise those that were proposed to it.
        """
        space, known = self._problem.space, frozen.params
        if set(known) - set(space.parameters):
            return None
        if frozen.state is not TrialState.COMPLETE:
            attributes = frozen.system_attrs
            stored = {name: _stored(value) for name, value in proposal.items()}
            proposed, fixed = attributes.get(_CONFIG, {}), attributes.get(_FIXED, {})
            known = {**stored, **proposed, **fixed, **known}
        return _config_of(space, known)

    def _trial(self, number: int, frozen: FrozenTrial, config: Config, maximize: bool) -> Trial:
        epsilon = self._proposer.known.epsilon(config)
        trial = Trial(number, config, (0,), epsilon)
        if frozen.state in (TrialState.RUNNING, TrialState.WAITING):
            return trial
        if frozen.state is not TrialState.COMPLETE:
            return trial.failed(RuntimeError(frozen.state.name), trainings=1)
        _check_values(frozen.number, frozen.values, epsilon, maximize=maximize)
        value = min(max(frozen.values[1], 0.0), 1.0)
        return trial.measured({0: Measurement(value if maximize else 1 - value)})


def _is_utility(study: Study) -> bool:
    """Whether the second objective of a study is a utility, and no error."""
    directions = study.directions
    if len(directions) != 2 or directions[0] is not StudyDirection.MINIMIZE:
        raise ValueError(
            "The study must have two objectives, epsilon first: create it with `directions="
            "['minimize', 'minimize']` for (epsilon, error), or ['minimize', 'maximize'] for "
            f"(epsilon, accuracy); got {[d.name.lower() for d in directions]}."
        )
    return directions[1] is StudyDirection.MAXIMIZE


def _check_values(number: int, values: Sequence[float], epsilon: float, *, maximize: bool) -> None:
    """Raise unless a trial returned the epsilon of its configuration, and a share."""
    if not math.isclose(values[0], epsilon, **_ROUNDED):
        raise ValueError(
            f"Trial {number} returned epsilon {values[0]:.4g}, but `privacy` says {epsilon:.4g} "
            "for its parameters (another delta or neighbouring relation?). Return what `privacy` "
            "says, in a new study."
        )
    if not -1e-9 <= values[1] <= 1 + 1e-9:
        raise ValueError(
            f"Trial {number} returned {'a utility' if maximize else 'an error'} outside of "
            "[0, 1]. Return a share, such as an accuracy of 0.93 instead of 93, in a new study."
        )


def _problem(
    given: SearchSpace | PrivacyUtilityProblem,
    privacy: Callable[[Config], float] | None,
    ref_point: tuple[float, float],
) -> PrivacyUtilityProblem:
    if not isinstance(given, PrivacyUtilityProblem):
        if privacy is None:
            raise TypeError("`privacy` is missing: a function from a config to its epsilon.")
        return PrivacyUtilityProblem(
            given, privacy=privacy, utility=_in_optuna, ref_point=ref_point
        )
    if privacy is not None:
        raise TypeError("`privacy` is for a space: a problem has its own.")
    if given.objectives:
        raise ValueError(
            "`space_or_problem` must have two objectives: Optuna's study keeps nothing else."
        )
    return given


def _in_optuna(config: Config, seed: int) -> float:
    raise RuntimeError("The trials of this problem are trained by a study of Optuna.")


# --- Values with known noise. ---


def report(
    trial: optuna.Trial, private: PrivateObjective, config: Config, space: SearchSpace
) -> float:
    """A private score of a configuration, for an objective to return, with its noise stored.

    The variance of the noise is kept with the trial, where :func:`noise_variance` finds it for
    samplers that take it. When the budget is spent the study is stopped and the trial pruned; no
    record is read for it.

    Args:
        trial: Of Optuna.
        private: Charges its ledger and evaluates.
        config: What is scored.
        space: Turns it into the point that ``private`` is asked about.

    Example:
        >>> def objective(trial):
        ...     return report(trial, private, suggest(trial, space), space)
    """
    try:
        value, variance = private(space.encode([config]))
    except BudgetExhausted as error:
        trial.study.stop()
        raise optuna.TrialPruned(str(error)) from None
    trial.set_user_attr(_VARIANCE, float(variance))
    return float(value)


def noise_variance(trial: FrozenTrial) -> float:
    """The variance of the noise in a trial's value, which :func:`report` has stored.

    Example:
        >>> module = optunahub.load_module("samplers/heteroscedastic_gp")
        >>> sampler = module.HeteroscedasticGPSampler(noise_func=noise_variance)
    """
    return float(trial.user_attrs.get(_VARIANCE, 0.0))
