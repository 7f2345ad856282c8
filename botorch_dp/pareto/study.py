"""DPareto: the privacy-utility Pareto front of any differentially private algorithm [Avent2020].

A study alternates between proposing a config, from models of epsilon and error, and training with
it. Proposals are a pure function of the trials and the seed, and every trial is stored before it is
trained: a study that was killed goes on as if it had not been.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from botorch_dp._checks import (
    check_choice,
    check_count,
    check_integer,
    check_positive,
)
from botorch_dp._files import MEMORY
from botorch_dp.pareto.beliefs import EpsilonScale, PrivacyModel, require_complete
from botorch_dp.pareto.front import ParetoFront, data_frame, trial_table
from botorch_dp.pareto.paying import ChargedProblem, check_payable, fitting
from botorch_dp.pareto.problem import (
    InvalidUtilityError,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
    UtilityAnswer,
)
from botorch_dp.pareto.proposals import AcquisitionFactory, ProposalOptions, Search
from botorch_dp.pareto.publishing import TestOrTraining, caption_of, check_trained, publication
from botorch_dp.pareto.recommending import (
    OperatingPoint,
    believed_values,
    best_configs,
    recommended,
)
from botorch_dp.pareto.running import TrialLoop, TrialQueue, train_again
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.pareto.workers import ExecutorLike, Failure, Task
from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyError, PrivacyLedger, Release
from botorch_dp.space import Config

AcquisitionName = Literal["ehvi", "hvpoi", "log_hvpoi", "qlogehvi", "random", "grid"]

#: How a run ended: it has all trials, was stopped or out of time, was interrupted by Ctrl-C, or the
#: budget could bear no other trial.
RunEnd = Literal["complete", "stopped", "interrupted", "exhausted"]

#: How many trials are drawn before models are consulted, unless told otherwise.
_INITIAL = 16

#: Told of each trial that has ended.
Callback: TypeAlias = "Callable[[DPareto, Trial], object]"


class DPareto:
    """A study of a privacy-utility trade-off.

    Models see 512 of its trials at most, so that a proposal takes a second or two
    however many there are: half of them spread over all, a quarter the latest, a quarter near the
    front.

    Args:
        problem: The space and the oracles.
        acquisition: What a good next config is. ``"ehvi"``: the largest expected hypervolume
            improvement, with epsilon known. ``"hvpoi"`` and ``"log_hvpoi"``: the criterion of
            [Avent2020] and its logarithm. ``"qlogehvi"``: BoTorch's. ``"random"`` and ``"grid"``:
            the baselines. Or an :class:`~botorch_dp.pareto.proposals.AcquisitionFactory`.
        storage: A file that keeps the study; an existing study is continued. One process at a
            time holds the file. None keeps the study in memory.
        seed: Fixes the proposals and the trainings' seeds. None draws one (or takes the stored).
        privacy_model: ``"exact"`` computes epsilon for every candidate; ``"gp"`` models it from
            the trials, for oracles that are too slow for that. [Avent2020] does the latter.
        epsilon_scale: Whether hypervolume is improved in epsilon or in its logarithm; the latter
            works out the front at small epsilons. (``hvpoi`` works in logarithms in any case.)
        retries: How often a trial that raised is trained again before it counts as failed.
        candidates: Space-filling candidates for each proposal.
        grid_levels: Values of each parameter, for ``acquisition="grid"``.
        warm_start: A study of the same space on a public copy of the data (see
            :func:`~botorch_dp.datasets.public_copy`), or configs; a new study begins with the
            :meth:`best_configs` of it, and draws fewer initial ones. They must be known without the
            records.
        budget: What the trainings may spend, so that all of the study may be published at this
            price. It is kept beside ``storage`` in a file with the suffix ``.ledger``; or give a
            ledger. Each training (replicates, retries and re-evaluations too) is charged before it
            begins, and a run ends when the budget can bear no config of the space. The problem's
            promise must have ``secret_noise``.

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
        warm_start: DPareto | Sequence[Config] | None = None,
        budget: PrivacyBudget | PrivacyLedger | None = None,
    ) -> None:
        if not isinstance(problem, PrivacyUtilityProblem):
            raise TypeError(
                f"`problem` must be a PrivacyUtilityProblem, got {type(problem).__name__}."
            )
        if not callable(acquisition):
            names = get_args(AcquisitionName)
            check_choice("acquisition", acquisition, names, otherwise=" or a callable")
        check_choice("privacy_model", privacy_model, get_args(PrivacyModel))
        check_choice("epsilon_scale", epsilon_scale, get_args(EpsilonScale))
        check_integer("retries", retries, at_least=0)
        check_integer("candidates", candidates, at_least=16)
        if seed is not None:
            check_integer("seed", seed, at_least=0)
        starting = _checked_configs(warm_start, problem)
        description = problem.description()
        if budget is not None:
            check_payable(budget, problem)
            description["budget"] = True
        self.problem = problem
        #: How the last run ended; None before the first one.
        self.last_run: RunEnd | None = None
        self._file = StudyFile(storage, description=description, seed=seed)
        self._own_ledger: PrivacyLedger | None = None
        self._charged: ChargedProblem | None = None
        try:
            self._search = Search(
                problem,
                seed=self._file.seed,
                options=ProposalOptions(
                    acquisition, privacy_model, epsilon_scale, candidates, grid_levels
                ),
            )
            self._search.known.check_stored(self._file.trials)
            if budget is not None:
                self._charged = ChargedProblem(problem, self._opened(budget))
        except BaseException:
            self.close()
            raise
        self._queue = TrialQueue(
            self._charged or problem,
            self._file,
            self._search,
            budget=self._charged,
            retries=retries,
        )
        #: Pending trials that somebody trains by hand, and is to report by `tell`.
        self._asked: set[int] = set()
        self._is_running = self._stopping = False
        if len(self._file) == 0:
            for config in starting:
                self._queue.enqueue(config)

    @property
    def seed(self) -> int:
        """The study's seed."""
        return self._file.seed

    @property
    def trials(self) -> list[Trial]:
        """All trials by number: complete, failed and pending."""
        return self._file.trials

    @property
    def ledger(self) -> PrivacyLedger | None:
        """What trainings are charged to; None without a budget."""
        return None if self._charged is None else self._charged.ledger

    def run(
        self,
        trials: int,
        initial: int | None = None,
        batch_size: int = 1,
        executor: ExecutorLike | None = None,
        progress: bool = False,
        asynchronous: bool = True,
        *,
        timeout: float | None = None,
        training_timeout: float | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> ParetoFront:
        """Propose and train until the study has so many trials.

        Ctrl-C ends it cleanly: what has finished is kept and its front returned (with a warning);
        call ``run`` again to go on. A mistake in an oracle ends it at the first trials, with its
        cause. :attr:`last_run` says how it ended.

        Args:
            trials: Of the whole study, earlier and failed ones included.
            initial: How many of them are drawn before models are consulted; 16 if None.
            batch_size: How many are trained at a time; pending ones are accounted for.
            executor: Where trainings run: any ``concurrent.futures`` executor (threads, processes,
                that of a Dask client, a :class:`~botorch_dp.integrations.ray.RayExecutor`), or a
                callable that makes one (and another one if it dies); None: here.
            progress: Whether to show a progress bar.
            asynchronous: Whether a new trial starts whenever one ends. Otherwise a whole batch is
                awaited, which wastes time but repeats exactly, whatever ends first.
            timeout: Seconds after which no more trainings start; those in flight are awaited.
            training_timeout: Seconds after which one call of the utility oracle is ended and its
                trial has failed with ``TrainingTimeout``. Needs worker processes, or ``executor``
                None in the main thread, where code that never comes back to Python cannot be ended.
                A process that hangs there is ended itself, so give a callable that makes another
                pool.
            callbacks: Each is called as ``callback(study, trial)`` with every trial that has ended,
                in this thread, once it is stored. It may call :meth:`stop`; what it raises ends
                the run.
        """
        check_integer("trials", trials)
        check_integer("batch_size", batch_size)
        seconds = math.inf if timeout is None else check_positive("timeout", timeout)
        if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
            raise TypeError("`callbacks` must be a sequence of functions `(study, trial) -> None`.")
        if trials > (most := self._search.most_trials(self.trials)):
            raise ValueError(
                f"`trials` = {trials} is more than the grid's {most:g} points; raise `grid_levels`."
            )
        self._check_idle("run")
        deadline = time.monotonic() + seconds
        loop = TrialLoop(
            self._queue,
            self._asked,
            executor,
            training_timeout=training_timeout,
            target=trials,
            initial=self._initial(initial),
            batch_size=batch_size,
            asynchronous=asynchronous,
            may_start=lambda: not self._stopping and time.monotonic() < deadline,
            on_end=lambda trial: [callback(self, trial) for callback in callbacks],
        )
        self._is_running, self._stopping, self.last_run = True, False, None
        try:
            loop.run(progress=progress)
            left = self._queue.waiting(self._asked) is not None or len(self._file) < trials
            self.last_run = "exhausted" if loop.exhausted else "stopped" if left else "complete"
        except KeyboardInterrupt:
            self.last_run = "interrupted"
            if not self._file.count("complete"):
                raise
        finally:
            self._is_running = False
        self._warn_of_what_is_missing(trials)
        return self.front()

    def _warn_of_what_is_missing(self, wanted: int) -> None:
        """Say what a front is without; an error if the budget was too small for a single trial."""
        ended = len(self._file) - self._file.count("pending")
        if self.last_run == "interrupted":
            warnings.warn(
                f"Interrupted after {ended} of {wanted} trials. This is their front; "
                "run it again to go on.",
                stacklevel=3,
            )
        elif self.last_run == "exhausted" and not self._file.count("complete"):
            raise StudyError(
                "The budget cannot bear a single trial of what would be proposed: raise it, or "
                "narrow the space to cheaper trainings (more noise, fewer steps)."
            )
        elif self.last_run == "exhausted":
            warnings.warn(
                f"The budget cannot bear another trial: the study ends with {len(self._file)} of "
                f"{wanted}. This is their front.",
                stacklevel=3,
            )
        if failed := self._file.count("failed"):
            kinds = sorted({t.failures[-1] for t in self.trials if t.state == "failed"})
            warnings.warn(
                f"{failed} of {len(self._file)} trials failed with {kinds} and have no part "
                "in the front; `to_frame()` says which. Call the oracles by hand on one of "
                "their configs to see what is wrong.",
                stacklevel=3,
            )

    def stop(self) -> None:
        """Let the running :meth:`run` start no more trainings; those in flight are awaited."""
        self._stopping = True

    def ask(self, q: int = 1, *, initial: int | None = None) -> list[Trial]:
        """The next trials to train by hand: those a crash left behind first, then new ones.

        They are stored before they are returned, and charged if the study has a budget (again, if
        a trial is asked for again). Report each with :meth:`tell`.

        Args:
            q: How many; they are chosen to complement each other and all pending trials.
            initial: How many trials of the study are drawn before models are consulted; 16 if
                None.
        """
        check_count("q", q)
        self._check_idle("ask")
        initial = self._initial(initial)
        asked: list[Trial] = []
        while len(asked) < q:
            trial = self._queue.waiting(self._asked) or self._queue.propose(initial)
            if trial.state == "pending":
                label = f"trial {trial.number}, asked for"
                self._queue.problem.charge(trial.config, len(trial.missing), label)
                self._asked.add(trial.number)
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
        current = self._pending(trial)
        number, missing = current.number, current.missing
        if (utilities is None) == (error is None):
            raise ValueError("Give exactly one of `utilities` and `error`.")
        if error is not None:
            attempted = Task(number, current.config, missing, current.missing_seeds)
            told = self._queue.fail([attempted], Failure(type(error).__name__))
        else:
            answers = utilities if isinstance(utilities, list) else [utilities]
            if len(answers) != len(missing):
                raise InvalidUtilityError(
                    f"Trial {number} waits for a list of {len(missing)} utilities, one for each of "
                    f"its `missing_seeds`; got {len(answers)}."
                )
            measured = [self.problem.measurement(answer) for answer in answers]
            by_replicate = dict(zip(missing, measured, strict=True))
            told = self._file.change(number, lambda trial: trial.measured(by_replicate))
        self._asked.discard(number)
        return told

    def add_trial(self, config: Config, utilities: UtilityAnswer | list[UtilityAnswer]) -> Trial:
        """Add what was measured elsewhere, as a complete trial of its own.

        Args:
            config: The hyper-parameters; they must lie in the space.
            utilities: What the utility oracle answered, or a list with one answer for each
                training. Each counts as a
                training of the study, under the problem's promise.

        Example:
            >>> study.add_trial({"noise": 1.0, "epochs": 8}, [0.81, 0.79])
        """
        if self._charged is not None:
            raise PrivacyError(
                "`add_trial` on a study with a budget: trainings that were made elsewhere were not "
                "charged to it. Give their configs as `warm_start` if they are public, or let the "
                "study train them."
            )
        config = self.problem.space.check(config)
        answers = utilities if isinstance(utilities, list) else [utilities]
        if not answers:
            raise ValueError("`utilities` is empty: give what was measured.")
        measured = [self.problem.measurement(answer) for answer in answers]
        return self._queue.add_complete(config, measured)

    def _pending(self, trial: Trial | int) -> Trial:
        current = self._file[trial.number if isinstance(trial, Trial) else trial]
        if current.state != "pending":
            raise ValueError(f"`trial` {current.number} is {current.state} already.")
        return current

    def front(self) -> ParetoFront:
        """The Pareto front of the trials so far. Sensitive; see its ``caption``."""
        trials = self.trials
        return ParetoFront(
            self.problem,
            require_complete(trials, "front"),
            guarantee=self._priced(trials),
            charged=self._charged is not None,
            reevaluator=self._train_again,
            believer=partial(believed_values, self._search, trials),
        )

    def recommend(self, epsilon: float, *, level: float = 0.95) -> OperatingPoint:
        """The config expected to be most accurate within ``epsilon``, tried or not.

        Args:
            epsilon: The largest acceptable epsilon; the recommended config's is exact.
            level: Probability of the predicted error's interval, under the model.
        """
        return recommended(self._search.exact, self.trials, epsilon, level)

    def best_configs(self, count: int = 8, *, epsilon: float | None = None) -> list[Config]:
        """At most ``count`` different configs to start another study from, the best one first.

        Args:
            count: How many, at most 100.
            epsilon: Those expected to be most accurate within this epsilon: the recommended one,
                then tried ones by what the models believe of them. If None, the recommended ones
                for epsilons from the front's smallest to the reference point's.
        """
        check_integer("count", count, at_most=100)
        return best_configs(self._search.exact, self.trials, count, epsilon)

    def publication_guarantee(self, data: TestOrTraining = "training") -> Guarantee:
        """What publishing the front (or anything else the study knows) promises.

        Which configs are on the front depends on all trainings, so the guarantee covers *all* of
        them, not only those on the front: replicates, re-evaluations, and failed attempts. It is
        void unless the problem's promise says that their noise is secret. Trials are chosen by the
        results of earlier ones, so they are composed by a filter. With a budget, it is the
        guarantee of the ledger: the budget, however much of it was spent.

        Args:
            data: Whose records: those trained on, or those the utility was measured on. The latter
                have no guarantee unless the problem's promise has a ``utility_guarantee``.

        Raises:
            StudyError: The problem has no promise, or nothing was trained yet.
        """
        if data not in ("training", "test"):
            raise ValueError(f"`data` must be 'training' or 'test', got {data!r}.")
        if self._charged is not None and data == "training":
            check_trained(self.trials)
            return self._charged.ledger.guarantee
        return publication(self.problem, self.trials, data)

    def _priced(self, trials: Sequence[Trial]) -> Guarantee | Callable[[], Guarantee]:
        if self._charged is not None:
            return self.publication_guarantee()
        return partial(publication, self.problem, trials, "training")

    def publish(self, *, test_records_are_public: bool = False) -> Release[ParetoFront]:
        """The front, to be shown to others: with its figures, its models, and all trials.

        Only of a study with a ``budget``.

        Args:
            test_records_are_public: Utilities are computed from the test records. Say so if these
                are public; otherwise the problem's promise needs a ``utility_guarantee``.

        Returns:
            The front, under the ledger's guarantee for the training records. Its ``caption``
            belongs under every figure of it.
        """
        if self._charged is None:
            raise PrivacyError(
                "This study has no budget, so it cannot be published: its trainings were not "
                "charged. Begin one with `budget=PrivacyBudget(epsilon, delta)` and a problem that "
                "trains with secret noise."
            )
        front = self.front()
        guarantee = front.guarantee
        if self.problem.stated_promise.utility_guarantee is None:
            if not test_records_are_public:
                raise PrivacyError(
                    "The utilities were computed from the test records without noise, so the front "
                    "would tell about these. If they are public, say so by "
                    "`test_records_are_public=True`; otherwise let the oracle release noisy "
                    "utilities, with a `utility_guarantee` in the problem's promise."
                )
            unit = guarantee.unit.given("the test records are public")
            guarantee = replace(guarantee, unit=unit)
        return Release(front, guarantee)

    def table(self) -> dict[str, list[Any]]:
        """Columns of *all* trials: as of a front's table, and how each of them ended. Sensitive."""
        return trial_table(self.problem, self.trials)

    def to_frame(self) -> Any:
        """The :meth:`table` as a pandas data frame.

        ``frame.attrs["guarantee"]`` says what publishing it costs.
        """
        promise = self.problem.promise
        if not any(trial.num_trainings for trial in self.trials):
            caption = "Nothing was trained yet."
        elif promise is None:
            caption = caption_of(None)
        else:
            caption = caption_of(
                self.publication_guarantee(),
                test_records=promise.utility_guarantee is not None,
                charged=self._charged is not None,
            )
        return data_frame(self.table(), caption)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write what is known so far as one HTML file: the front, what to deploy, all trials.

        The file says what publishing any of it costs. It is as sensitive as the study, and only its
        owner may read it. Needs the extra ``plots``.

        Args:
            path: Where; must end in .html.

        Example:
            >>> study.report("front.html")
        """
        from botorch_dp.report import study_report

        return study_report(self, path)

    def _train_again(
        self,
        wanted: Sequence[Trial],
        replicates: int,
        *,
        executor: ExecutorLike | None = None,
        progress: bool = False,
        training_timeout: float | None = None,
    ) -> tuple[list[Trial], Guarantee | Callable[[], Guarantee]]:
        """See :meth:`ParetoFront.reevaluate`."""
        check_count("replicates", replicates)
        wanted = [self._file[trial.number] for trial in wanted]
        if self._charged is not None and not self._charged.bears(
            [trial.config for trial in wanted], replicates
        ):
            raise StudyError(
                f"The budget cannot bear {replicates} more trainings of each of the front's "
                f"{len(wanted)} configs; nothing was trained. Ask for fewer `replicates`."
            )
        again = train_again(
            self._queue,
            wanted,
            replicates,
            executor=executor,
            training_timeout=training_timeout,
            progress=progress,
        )
        return again, self._priced(self.trials)

    def _opened(self, budget: PrivacyBudget | PrivacyLedger) -> PrivacyLedger:
        """The ledger that trainings are charged to; one of its own is closed with the study."""
        if isinstance(budget, PrivacyLedger):
            return budget
        path = MEMORY if self._file.path == MEMORY else f"{self._file.path}.ledger"
        self._own_ledger = PrivacyLedger(path, fitting(budget, self.problem))
        return self._own_ledger

    def _initial(self, initial: int | None) -> int:
        if initial is None:
            return _INITIAL
        return check_integer("initial", initial)

    def _check_idle(self, what: str) -> None:
        if self._is_running:
            raise StudyError(f"`{what}` was called while the study runs: wait until it has ended.")
        self._file.check_held()

    def close(self) -> None:
        """Release the file; everything is on disk already. What is known can still be read."""
        self._file.close()
        if self._own_ledger is not None:
            self._own_ledger.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "A study is not copied or pickled, for two of them would train the same trials. Open "
            "its file in another process when this one has closed it, or make a new DPareto."
        )

    def __enter__(self) -> DPareto:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DPareto({self.problem.name!r}, {len(self._file)} trials, seed={self.seed})"


def _checked_configs(
    warm_start: DPareto | Sequence[Config] | None, problem: PrivacyUtilityProblem
) -> list[Config]:
    """What a study shall begin with."""
    if warm_start is None:
        return []
    configs = warm_start.best_configs() if isinstance(warm_start, DPareto) else warm_start
    if not isinstance(configs, Sequence) or not all(isinstance(c, Mapping) for c in configs):
        raise TypeError(
            "`warm_start` must be a DPareto or a sequence of configs, "
            f"got {type(warm_start).__name__}."
        )
    return [problem.space.check(config) for config in configs]
