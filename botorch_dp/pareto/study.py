"""DPareto: the privacy-utility Pareto front of any differentially private algorithm [Avent2020].

A study alternates between proposing a config, from models of epsilon and error, and training with
it. It is durable: proposals are a pure function of the trials and the seed, so a study that was
killed goes on as if it had not been.

References:
    [Avent2020] B. Avent, J. Gonzalez, T. Diethe, A. Paleyes, B. Balle. Automatic Discovery of
        Privacy-Utility Pareto Fronts. Proceedings on Privacy Enhancing Technologies 2020(4).
    [Rogers2016] R. Rogers, A. Roth, J. Ullman, S. Vadhan. Privacy Odometers and Filters:
        Pay-as-you-Go Composition. NeurIPS 2016.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, get_args

from botorch_dp._checks import check_integer
from botorch_dp.pareto.execution import ExecutorLike, Workers
from botorch_dp.pareto.front import OperatingPoint, ParetoFront
from botorch_dp.pareto.loop import TrialLoop, evaluate_again
from botorch_dp.pareto.models import EpsilonScale, PrivacyModel, require_complete
from botorch_dp.pareto.problem import InvalidUtilityError, PrivacyUtilityProblem, UtilityAnswer
from botorch_dp.pareto.proposals import AcquisitionFactory, ProposalOptions, Proposer
from botorch_dp.pareto.recommendation import recommended
from botorch_dp.pareto.registry import Registry
from botorch_dp.pareto.storage import StudyStorage
from botorch_dp.pareto.trials import StudyError, Trial
from botorch_dp.privacy import Guarantee, PrivacyUnit, compose

AcquisitionName = Literal["ehvi", "hvpoi", "log_hvpoi", "qlogehvi", "random", "grid"]

_FIXED_TOTAL = (
    "the total was fixed as a budget before the first training: configs depend on earlier results, "
    "and a total that does so too is no guarantee [Rogers2016]"
)
_SECRET_NOISE = "the noise of each training is secret and independent of all others"


class DPareto:
    """A study of a privacy-utility trade-off.

    Args:
        problem: The space and the oracles.
        acquisition: What a good next config is. ``"ehvi"``: the largest expected hypervolume
            improvement, with epsilon known. ``"hvpoi"`` and ``"log_hvpoi"``: the criterion of
            [Avent2020] and its logarithm. ``"qlogehvi"``: BoTorch's. ``"random"`` and ``"grid"``:
            the baselines. Or an :class:`~botorch_dp.pareto.proposals.AcquisitionFactory`.
        storage: A file that keeps the study; an existing study is continued. None keeps it in
            memory. The file is private and locked while the study is open.
        seed: Fixes the proposals and the trainings' seeds. None draws one (or takes the stored).
        privacy_model: ``"exact"`` computes epsilon for every candidate; ``"gp"`` models it from
            the trials, for oracles that are too slow for that. [Avent2020] does the latter.
        epsilon_scale: Whether hypervolume is improved in epsilon or in its logarithm; the latter
            works out the front at small epsilons. (``hvpoi`` works in logarithms in any case.)
        retries: How often a trial that raised is trained again before it counts as failed.
        candidates: Space-filling candidates for each proposal.
        grid_levels: Values of each parameter, for ``acquisition="grid"``.

    Example:
        >>> study = DPareto(problem, storage="study.sqlite", seed=0)
        >>> front = study.run(40)
        >>> print(front)
        >>> study.recommend(epsilon=1.0)
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        *,
        acquisition: AcquisitionName | AcquisitionFactory = "ehvi",
        storage: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        privacy_model: PrivacyModel = "exact",
        epsilon_scale: EpsilonScale = "linear",
        retries: int = 1,
        candidates: int = 2048,
        grid_levels: int | Mapping[str, int] = 3,
    ) -> None:
        if not isinstance(problem, PrivacyUtilityProblem):
            raise TypeError(
                f"`problem` must be a PrivacyUtilityProblem, got {type(problem).__name__}."
            )
        if acquisition not in get_args(AcquisitionName) and not callable(acquisition):
            raise ValueError(
                f"`acquisition` must be one of {get_args(AcquisitionName)} or a callable, "
                f"got {acquisition!r}."
            )
        for name, value, kind in (
            ("privacy_model", privacy_model, PrivacyModel),
            ("epsilon_scale", epsilon_scale, EpsilonScale),
        ):
            if value not in get_args(kind):
                raise ValueError(f"`{name}` must be one of {get_args(kind)}, got {value!r}.")
        if seed is not None:
            check_integer("seed", seed, at_least=0)
        self.problem = problem
        self.retries = check_integer("retries", retries, at_least=0)
        options = ProposalOptions(
            acquisition=acquisition,
            privacy_model=privacy_model,
            epsilon_scale=epsilon_scale,
            candidates=check_integer("candidates", candidates, at_least=16),
            grid_levels=grid_levels,
        )
        self._storage = StudyStorage(storage, description=problem.description(), seed=seed)
        try:
            self._proposer = Proposer(problem, seed=self._storage.seed, options=options)
        except BaseException:
            self._storage.close()
            raise
        self._registry = Registry(problem, self._storage, self._proposer, retries=self.retries)

    @property
    def seed(self) -> int:
        """The study's seed."""
        return self._storage.seed

    @property
    def trials(self) -> list[Trial]:
        """All trials by number: complete, failed and pending."""
        return self._registry.trials

    def ask(self, q: int = 1, *, initial: int = 16) -> list[Trial]:
        """The next trials to train: those a crash left behind first, then new ones.

        They are stored before they are returned. Report each with :meth:`tell`.

        Args:
            q: How many; they are chosen to complement each other and all pending trials.
            initial: How many trials of the study are drawn before models are consulted.
        """
        check_integer("q", q)
        check_integer("initial", initial)
        asked: list[Trial] = []
        while len(asked) < q:
            trial = self._registry.take_waiting() or self._registry.propose(initial)
            if trial.state == "pending":
                asked.append(trial)
        return asked

    def tell(
        self,
        trial: Trial | int,
        utilities: UtilityAnswer | list[UtilityAnswer] | None = None,
        *,
        error: BaseException | None = None,
    ) -> Trial:
        """Report what came of a pending trial.

        Args:
            trial: The trial, or its number.
            utilities: What the utility oracle answered; a list of it if ``trial.missing_seeds``
                has several.
            error: What it raised instead. Only the type is kept. A trial with attempts left stays
                pending, and :meth:`ask` returns it again.

        Returns:
            The trial as it is now.
        """
        current = self._registry.trial(trial.number if isinstance(trial, Trial) else trial)
        if current.state != "pending":
            raise ValueError(f"Trial {current.number} is {current.state} already.")
        if (utilities is None) == (error is None):
            raise ValueError("Give exactly one of `utilities` and `error`.")
        missing = current.missing
        if error is not None:
            told = self._registry.record_failure(
                current.number, type(error).__name__, trainings=len(missing)
            )
            self._registry.release(current.number)
            return told
        assert utilities is not None
        answers = utilities if isinstance(utilities, list) else [utilities]
        if len(answers) != len(missing):
            raise InvalidUtilityError(
                f"Trial {current.number} waits for a list of {len(missing)} utilities, one for "
                f"each of its `missing_seeds`; got {len(answers)}."
            )
        measured = [self.problem.measurement(answer) for answer in answers]
        return self._registry.record(current.number, dict(zip(missing, measured, strict=True)))

    def run(
        self,
        trials: int,
        initial: int = 16,
        batch_size: int = 1,
        executor: ExecutorLike | None = None,
        progress: bool = False,
        asynchronous: bool = True,
    ) -> ParetoFront:
        """Propose and train until the study has so many trials.

        Ctrl-C ends it cleanly: what has finished is kept and its front returned (with a warning);
        call ``run`` again to go on.

        Args:
            trials: Of the whole study, earlier and failed ones included.
            initial: How many of them are drawn before models are consulted.
            batch_size: How many are trained at a time; pending ones are accounted for.
            executor: Where trainings run: threads, processes, a Dask client's ``get_executor()``,
                or a callable that makes an executor (and another one if it dies); None: here.
            progress: Whether to show a progress bar.
            asynchronous: Whether a new trial starts whenever one ends. Otherwise a whole batch is
                awaited, which wastes time but repeats exactly, whatever ends first.
        """
        for name, value in (("trials", trials), ("initial", initial), ("batch_size", batch_size)):
            check_integer(name, value)
        if trials > self._proposer.largest_number:
            raise ValueError(
                f"`trials` = {trials} is more than the grid's {self._proposer.largest_number:g} "
                "points; raise `grid_levels`."
            )
        try:
            with Workers(self.problem, executor) as workers:
                loop = TrialLoop(
                    self._registry,
                    workers,
                    target=trials,
                    initial=initial,
                    batch_size=batch_size,
                    asynchronous=asynchronous,
                )
                loop.run(progress=progress)
        except KeyboardInterrupt:
            ended = [trial for trial in self.trials if trial.state != "pending"]
            if not any(trial.state == "complete" for trial in ended):
                raise
            warnings.warn(
                f"Interrupted after {len(ended)} of {trials} trials. This is their front; "
                "call `run` again to go on.",
                stacklevel=2,
            )
        return self.front()

    def front(self) -> ParetoFront:
        """The Pareto front of the trials so far. Sensitive; see its ``caption``."""
        return ParetoFront(
            self.problem,
            require_complete(self.trials, "front"),
            guarantee=self.publication_guarantee(),
            reevaluator=self._evaluate_again,
        )

    def recommend(self, epsilon: float, *, level: float = 0.95) -> OperatingPoint:
        """The config expected to be most accurate within ``epsilon``, tried or not.

        Args:
            epsilon: The largest acceptable epsilon; the recommended config's is exact.
            level: Probability of the predicted error's interval, under the model.
        """
        proposer = self._proposer
        if proposer.options.privacy_model != "exact":
            # The search may go without the exact epsilon; what is deployed may not.
            exact = replace(proposer.options, privacy_model="exact")
            proposer = Proposer(self.problem, seed=self.seed, options=exact)
        return recommended(proposer, self.trials, epsilon, level)

    def publication_guarantee(self, data: Literal["training", "test"] = "training") -> Guarantee:
        """What publishing the front (or anything else the study knows) promises.

        Which configs are on the front depends on all trainings, so the guarantee composes *all* of
        them, not only those on the front: replicates, re-evaluations, and failed attempts.

        Args:
            data: Whose records: those trained on, or those the utility was measured on. The latter
                have no guarantee unless the problem has a ``utility_guarantee``.
        """
        if data not in ("training", "test"):
            raise ValueError(f"`data` must be 'training' or 'test', got {data!r}.")
        trained = [trial for trial in self.trials if trial.num_trainings > 0]
        if not trained:
            raise StudyError("Nothing was trained yet, so there is nothing to publish.")
        problem = self.problem
        if data == "test":
            if problem.utility_guarantee is None:
                return Guarantee(
                    mechanism="front of measured utilities",
                    unit=PrivacyUnit("one record of the test data", problem.relation),
                    losses=(),
                    void="utilities are computed from the test records without noise",
                )
            parts = [problem.utility_guarantee] * sum(t.num_trainings for t in trained)
        else:
            parts = []
            for trial in trained:
                one = problem.training_guarantee(trial.config, trial.epsilon)
                parts += [one] * trial.num_trainings
        whole = compose(*parts)
        return replace(
            whole,
            assumptions=(*whole.assumptions, _SECRET_NOISE, _FIXED_TOTAL),
        )

    def _evaluate_again(
        self,
        numbers: Sequence[int],
        replicates: int,
        *,
        executor: ExecutorLike | None = None,
        progress: bool = False,
    ) -> tuple[list[Trial], Guarantee]:
        check_integer("replicates", replicates)
        with Workers(self.problem, executor) as workers:
            again = evaluate_again(
                self._registry,
                workers,
                trials=[self._registry.trial(number) for number in numbers],
                replicates=replicates,
                progress=progress,
            )
        return again, self.publication_guarantee()

    def close(self) -> None:
        """Release the storage; everything is on disk already."""
        self._storage.close()

    def __enter__(self) -> DPareto:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DPareto({self.problem.name!r}, {len(self.trials)} trials, seed={self.seed})"
