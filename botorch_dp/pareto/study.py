"""DPareto: the privacy-utility Pareto front of any differentially private algorithm [Avent2020].

A study alternates between proposing a config, from models of epsilon and error, and training with
it. Proposals are a pure function of the trials and the seed. Every trial is stored before it is
trained, each of its trainings is charged before it begins, and its measurement is stored as soon
as it ends; a trial is in training while one of its calls is in flight, and waits otherwise. Nothing
else takes note of it: a study that was killed goes on where its file ends.
"""

from __future__ import annotations

import math
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from botorch_dp._checks import check_choice, check_count, check_integer
from botorch_dp._files import MEMORY
from botorch_dp._progress import ProgressBar
from botorch_dp.errors import BudgetExhausted
from botorch_dp.pareto.charges import ChargedProblem, budget_for, check_payable
from botorch_dp.pareto.front import ParetoFront, data_frame, trial_table
from botorch_dp.pareto.problem import (
    InvalidUtilityError,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
    UtilityAnswer,
)
from botorch_dp.pareto.proposals import (
    AcquisitionFactory,
    NothingAffordableError,
    Proposer,
    propose,
)
from botorch_dp.pareto.publication import (
    TestOrTraining,
    caption_of,
    check_trained,
    publication,
)
from botorch_dp.pareto.recommendation import OperatingPoint, expected_values, recommended
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.pareto.surrogates import EpsilonScale, PrivacyModel, require_complete
from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyError, PrivacyLedger, Release
from botorch_dp.space import Config

AcquisitionName = Literal["ehvi", "hvpoi", "log_hvpoi", "random", "grid"]

#: If this many trials fail before any has finished, the study stops.
_MOST_FAILURES = 5


class DPareto:
    """A study of a privacy-utility trade-off.

    Models see 512 of its trials at most, so that a proposal takes a second or two however many
    there are: half of them spread over all, a quarter the latest, a quarter near the front.

    Args:
        problem: The space and the functions.
        acquisition: What a good next config is. ``"ehvi"``: the largest expected hypervolume
            improvement, with epsilon known. ``"hvpoi"`` and ``"log_hvpoi"``: the criterion of
            [Avent2020] and its logarithm. ``"random"`` and ``"grid"``: the baselines. Or an
            :class:`~botorch_dp.pareto.proposals.AcquisitionFactory`.
        storage: A file that keeps the study; an existing study is continued. One process at a
            time holds the file. None keeps the study in memory.
        seed: Fixes the proposals and the trainings' seeds. None draws one (or takes the stored).
        privacy_model: ``"exact"`` computes epsilon for every candidate; ``"gp"`` models it from
            the trials, for functions that are too slow for that. [Avent2020] does the latter.
        epsilon_scale: Whether hypervolume is improved in the logarithm of epsilon, in which fronts
            are read, or in epsilon itself, which neglects small ones. (``hvpoi`` always works in
            logarithms.)
        candidates: Space-filling candidates for each proposal.
        grid_levels: Values of each parameter, for ``acquisition="grid"``.
        budget: What the trainings may spend, so that all of the study may be published at this
            cost. It is kept beside ``storage`` in a file with the suffix ``.ledger``; or give a
            ledger. Each training (replicates and re-evaluations too) is charged before it begins,
            and a run ends when the budget is too small for every config. The problem's ``training``
            must have ``secret_noise``.
        label: What the study is for, in public words; shown in the ledger.

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
        epsilon_scale: EpsilonScale = "log",
        candidates: int = 2048,
        grid_levels: int = 3,
        budget: PrivacyBudget | PrivacyLedger | None = None,
        label: str = "",
    ) -> None:
        if not callable(acquisition):
            names = get_args(AcquisitionName)
            check_choice("acquisition", acquisition, names, otherwise=" or a callable")
        check_choice("privacy_model", privacy_model, get_args(PrivacyModel))
        check_choice("epsilon_scale", epsilon_scale, get_args(EpsilonScale))
        check_integer("candidates", candidates, at_least=16)
        if seed is not None:
            check_integer("seed", seed, at_least=0)
        description = problem.description()
        if budget is not None:
            check_payable(problem)
            description["budget"] = True
        self.problem = problem
        self._file = StudyFile(storage, description=description, seed=seed)
        self._own_ledger: PrivacyLedger | None = None
        self._charged: ChargedProblem | None = None
        #: Pending trials that somebody trains by hand, and is to report by `tell`.
        self._asked: set[int] = set()
        try:
            self._proposer = Proposer(
                problem,
                seed=self._file.seed,
                acquisition=acquisition,
                privacy_model=privacy_model,
                epsilon_scale=epsilon_scale,
                candidates=candidates,
                grid_levels=grid_levels,
            )
            self._proposer.known.check_stored(self._file.trials)
            if budget is not None:
                self._charged = ChargedProblem(problem, self._opened(budget), label)
        except BaseException:
            self.close()
            raise

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
        initial: int = 16,
        q: int = 1,
        executor: Executor | None = None,
        progress: bool = False,
    ) -> ParetoFront:
        """Propose and train until the study has ``trials`` trials.

        Ctrl-C keeps what has finished: :meth:`front` shows it, and the same call goes on. A trial
        whose training raises has failed, and what it raised is kept as ``trial.failure``.

        Args:
            trials: Of the whole study, earlier and failed ones included.
            initial: How many of them are drawn before models are consulted.
            q: How many are trained at a time; pending ones are accounted for.
            executor: Where trainings run: any ``concurrent.futures`` executor (threads, processes,
                that of a Dask client, a :class:`~botorch_dp.integrations.ray.RayExecutor`); None:
                here.
            progress: Whether to show a progress bar.

        Raises:
            StudyError: Nothing has finished, and the first trials have failed or the budget cannot
                bear one.
            BrokenExecutor: The executor died. Its trials wait for the next call of ``run``.
            KeyboardInterrupt: After Ctrl-C; a note says how to go on.
        """
        check_integer("trials", trials)
        check_integer("q", q)
        check_integer("initial", initial)
        if trials > (most := self._proposer.most_trials(self.trials)):
            raise ValueError(
                f"`trials` = {trials} is more than the grid's {most:g} points; raise `grid_levels`."
            )
        self._file.check_held()
        exhausted = False
        with (
            Trainings(self._charged or self.problem, self._file, executor) as trainings,
            ProgressBar(total=trials, disable=not progress, unit="trial") as bar,
        ):
            try:
                while True:
                    bar.n = len(self._file) - self._file.count("pending")
                    bar.refresh()
                    busy = trainings.busy
                    following = None
                    if len(busy) < q:
                        following = self._waiting(busy)
                        if following is None and len(self._file) < trials and not exhausted:
                            try:
                                with cores_left_to(executor):
                                    following = self._proposed(initial)
                            except NothingAffordableError:
                                exhausted = True
                    if following is not None:
                        seeds = zip(following.missing, following.missing_seeds, strict=True)
                        trainings.start(following, dict(seeds))
                    elif busy:
                        trainings.wait()
                    else:
                        break
            except KeyboardInterrupt as error:
                error.add_note(self._interrupted(trials))
                raise
        _warn_of_what_is_missing(self._file, trials, exhausted)
        return self.front()

    def _waiting(self, busy: Set[int] = frozenset()) -> Trial | None:
        """The first pending trial that nobody trains."""
        taken = busy | self._asked
        free = (t for t in self._file.trials if t.state == "pending" and t.number not in taken)
        return next(free, None)

    def _proposed(self, initial: int) -> Trial:
        """A new trial, stored before it trains; failed already if an exact function fails on it."""
        trials = self._file.trials
        if self._file.count("failed") == len(trials) >= _MOST_FAILURES:
            require_complete(trials, "front to improve")
        config, number = propose(self._proposer, trials, initial, self._charged), len(trials)
        seeds = tuple(training_seeds(self.seed, number, range(self.problem.replicates)).values())
        try:
            trial = Trial(number, config, seeds, self._proposer.known.epsilon(config))
        except Exception as error:
            trial = Trial(number, config, seeds, math.nan).failed(error, trainings=0)
        return self._file.add(trial)

    def _interrupted(self, wanted: int) -> str:
        """What an interruption leaves behind."""
        ended = len(self._file) - self._file.count("pending")
        where = "" if self._file.path == MEMORY else f" from {self._file.path}"
        said = f"A study was interrupted after {ended} of {wanted} trials; the same call goes on"
        if self._charged is None:
            return f"{said}{where}."
        return (
            f"{said}{where}. {self._charged.charges} trainings were charged to the ledger since "
            "the study was opened; those that were cut off are charged again when they are trained."
        )

    def ask(self, q: int = 1, *, initial: int = 16) -> list[Trial]:
        """The next trials to train by hand: those a crash left behind first, then new ones.

        They are stored before they are returned, and charged if the study has a budget (again, if
        a trial is asked for again). Report each with :meth:`tell`.

        Args:
            q: How many; they are chosen to complement each other and all pending trials.
            initial: How many trials of the study are drawn before models are consulted.
        """
        check_count("q", q)
        check_integer("initial", initial)
        self._file.check_held()
        asked: list[Trial] = []
        while len(asked) < q:
            trial = self._waiting() or self._proposed(initial)
            if trial.state == "pending":
                label = f"trial {trial.number}, asked for"
                (self._charged or self.problem).charge(trial.config, len(trial.missing), label)
                self._asked.add(trial.number)
                asked.append(trial)
        return asked

    def tell(
        self,
        trial: Trial | int,
        utilities: UtilityAnswer | list[UtilityAnswer] | None = None,
        *,
        error: Exception | None = None,
    ) -> Trial:
        """Report what came of a pending trial.

        Args:
            trial: The trial, or its number.
            utilities: What the utility function returned; a list of it if ``trial.missing_seeds``
                has several.
            error: What it raised instead: the trial has failed.

        Returns:
            The trial as it is now.
        """
        current = self._file[trial.number if isinstance(trial, Trial) else trial]
        if current.state != "pending":
            raise ValueError(f"`trial` {current.number} is {current.state} already.")
        number, missing = current.number, current.missing
        if (utilities is None) == (error is None):
            raise ValueError("Give exactly one of `utilities` and `error`.")
        if error is not None:
            told = self._file.change(number, lambda t: t.failed(error, trainings=len(missing)))
        else:
            answers = utilities if isinstance(utilities, list) else [utilities]
            if len(answers) != len(missing):
                raise InvalidUtilityError(
                    f"Trial {number} waits for a list of {len(missing)} utilities, one for each of "
                    f"its `missing_seeds`; got {len(answers)}."
                )
            found = [self.problem.measurement(answer) for answer in answers]
            measurements = dict(zip(missing, found, strict=True))
            told = self._file.change(number, lambda t: t.measured(measurements))
        self._asked.discard(number)
        return told

    def front(self) -> ParetoFront:
        """The Pareto front of the trials so far. Sensitive; see its ``caption``."""
        trials = self.trials
        complete = require_complete(trials, "front")
        return ParetoFront(
            self.problem,
            # What trainings raised may quote records: it stays here when a front is published.
            [replace(trial, failure="") if trial.failure else trial for trial in complete],
            guarantee=self._priced(trials),
            charged=self._charged is not None,
            reevaluator=self._train_again,
            expected=partial(expected_values, self._proposer, trials),
        )

    def recommend(self, epsilon: float) -> OperatingPoint:
        """The config expected to be most accurate within ``epsilon``, tried or not.

        Args:
            epsilon: The largest acceptable epsilon; the recommended config's is exact.
        """
        return recommended(self._proposer.exact, self.trials, epsilon)

    def publication_guarantee(self, data: TestOrTraining = "training") -> Guarantee:
        """The guarantee of publishing the front, or anything else the study knows.

        Which configs are on the front depends on all trainings, so the guarantee covers *all* of
        them, not only those on the front: replicates, re-evaluations, and failed attempts. It is
        void unless the problem's ``training`` says that their noise is secret. Trials are chosen by
        the results of earlier ones, so they are composed by a filter. With a budget, it is the
        guarantee of the ledger: the budget, however much of it was spent.

        Args:
            data: Whose records: those trained on, or those the utility was measured on, without
                noise, which no guarantee covers.

        Raises:
            StudyError: The problem says nothing of its ``training``, or nothing was trained yet.
        """
        check_choice("data", data, get_args(TestOrTraining))
        if self._charged is not None and data == "training":
            check_trained(self.trials)
            return self._charged.ledger.guarantee
        return publication(self.problem, self.trials, data)

    def _priced(self, trials: Sequence[Trial]) -> Guarantee | Callable[[], Guarantee]:
        if self._charged is not None:
            return self.publication_guarantee()
        return partial(publication, self.problem, trials, "training")

    def publish(self, *, test_records_are_public: bool = False) -> Release[ParetoFront]:
        """The front, to be shown to others: with its figures, its models, and its trials.

        Only of a study with a ``budget``.

        Args:
            test_records_are_public: Utilities are computed from the test records, without noise.
                Say so if these are public; otherwise nothing can be published.

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
        if not test_records_are_public:
            raise PrivacyError(
                "The utilities were computed from the test records without noise, so the front "
                "would tell about these. If they are public, say so by "
                "`test_records_are_public=True`."
            )
        front = self.front()
        unit = front.guarantee.unit.given("the test records are public")
        return Release(front, replace(front.guarantee, unit=unit))

    def table(self) -> dict[str, list[Any]]:
        """Columns of *all* trials: as of a front's table, and how each of them ended. Sensitive."""
        return trial_table(self.problem, self.trials)

    def to_frame(self) -> Any:
        """The :meth:`table` as a pandas data frame.

        ``frame.attrs["guarantee"]`` says what publishing it costs.
        """
        caption = "Nothing was trained yet."
        if any(trial.num_trainings for trial in self.trials):
            charged = self._charged is not None
            caption = caption_of(self.problem, self.publication_guarantee, charged=charged)
        return data_frame(self.table(), caption)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write what is known so far, and what publishing it costs, as one HTML file.

        It is as sensitive as the study; see :func:`~botorch_dp.report.study_report`. Needs the
        extra ``plots``.
        """
        from botorch_dp.report import study_report

        return study_report(self, path)

    def _train_again(
        self,
        trials: Sequence[Trial],
        replicates: int,
        *,
        executor: Executor | None = None,
        progress: bool = False,
    ) -> tuple[list[Trial], Guarantee | Callable[[], Guarantee]]:
        """See :meth:`ParetoFront.reevaluate`."""
        check_count("replicates", replicates)
        self._file.check_held()
        wanted = [self._file[trial.number] for trial in trials]
        if self._charged is not None and not self._charged.bears(
            [trial.config for trial in wanted], replicates
        ):
            raise StudyError(
                f"The budget is too small for {replicates} more trainings of each of the front's "
                f"{len(wanted)} configs; nothing was trained. Ask for fewer `replicates`."
            )
        seeds = [
            training_seeds(
                self.seed, t.number, range(t.next_replicate, t.next_replicate + replicates)
            )
            for t in wanted
        ]
        with (
            Trainings(self._charged or self.problem, self._file, executor) as trainings,
            ProgressBar(total=len(wanted), disable=not progress, unit="trial") as bar,
        ):
            for trial, fresh in zip(wanted, seeds, strict=True):
                trainings.start(trial, fresh)
                bar.update()
            while trainings.busy:
                trainings.wait()
        again = []
        for trial, fresh in zip(wanted, seeds, strict=True):
            found = self._file[trial.number].fresh
            if measurements := tuple(found[r] for r in fresh if r in found):
                again.append(replace(trial, measurements=measurements, fresh={}, failure=""))
        failed = sorted({t.number for t in wanted} - {t.number for t in again})
        if not again:
            raise StudyError(
                f"All re-evaluations failed; `study.trials[{failed[-1]}].failure` says more."
            )
        if failed:
            warnings.warn(
                f"All re-evaluations of trials {failed} failed; the new front is without them.",
                stacklevel=3,
            )
        return again, self._priced(self.trials)

    def _opened(self, budget: PrivacyBudget | PrivacyLedger) -> PrivacyLedger:
        """The ledger that trainings are charged to; one of its own is closed with the study."""
        if isinstance(budget, PrivacyLedger):
            return budget
        path = MEMORY if self._file.path == MEMORY else f"{self._file.path}.ledger"
        self._own_ledger = PrivacyLedger(path, budget_for(budget, self.problem))
        return self._own_ledger

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


def training_seeds(seed: int, number: int, replicates: Iterable[int]) -> dict[int, int]:
    """Seeds of a trial's trainings, below 2^31, by replicate."""
    streams = {r: np.random.SeedSequence(seed, spawn_key=(number, r)) for r in replicates}
    return {r: int(stream.generate_state(1)[0]) >> 1 for r, stream in streams.items()}


def _warn_of_what_is_missing(file: StudyFile, wanted: int, exhausted: bool) -> None:
    """Say what a front is without; an error if the budget was too small for a single trial."""
    if exhausted and not file.count("complete"):
        raise StudyError(
            "The budget is too small for a single trial of what would be proposed: raise it, or "
            "narrow the space to cheaper trainings (more noise, fewer steps)."
        )
    elif exhausted:
        warnings.warn(
            f"The budget is too small for another trial: the study ends with {len(file)} of "
            f"{wanted}. This is their front.",
            stacklevel=3,
        )
    if failed := [trial for trial in file.trials if trial.state == "failed"]:
        kinds = sorted({trial.failure_type for trial in failed})
        warnings.warn(
            f"{len(failed)} of {len(file)} trials failed with {kinds} and have no part "
            f"in the front; `study.trials[{failed[-1].number}].failure` says more.",
            stacklevel=3,
        )


# --- Trainings in flight. ---


def train(
    oracle: Callable[..., Any], together: bool, config: Config, seeds: Sequence[int]
) -> tuple[list[Any], float]:
    """What the utility function returns for each seed, and the seconds it took; in a worker."""
    start = time.perf_counter()
    answers = oracle(config, seeds) if together else [oracle(config, seed) for seed in seeds]
    return list(answers), time.perf_counter() - start


class _Here(Executor):
    """Makes each call at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Trainings:
    """Trainings in flight on one executor; as a context, it leaves nothing queued behind.

    Args:
        problem: Its utility function is called, and it is told of each training before that begins.
        file: Gets each measurement, and what a training raised.
        executor: Where to train; None for this thread.
    """

    def __init__(
        self, problem: PrivacyUtilityProblem, file: StudyFile, executor: Executor | None
    ) -> None:
        if executor is not None:
            problem.check_executor(executor)
        if isinstance(executor, ProcessPoolExecutor):
            pickle.dumps(problem.oracle)  # raises here, and not in a worker after a charge
        self._problem, self._file = problem, file
        self._executor = _Here() if executor is None else executor
        #: What was submitted, in this order: the number of a trial and its replicates.
        self._futures: dict[Future[Any], tuple[int, tuple[int, ...]]] = {}

    def __enter__(self) -> Trainings:
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._futures:
            future.cancel()

    @property
    def busy(self) -> set[int]:
        """The trials in training."""
        return {number for number, _ in self._futures.values()}

    def start(self, trial: Trial, seeds: Mapping[int, int]) -> None:
        """Charge and begin a training for each of these seeds, by replicate.

        A trial fails if the budget is too small for it, or if one of its trainings has failed.
        """
        together = self._problem.batched.replicates is not None
        for replicates in [tuple(seeds)] if together else [(replicate,) for replicate in seeds]:
            if self._file[trial.number].state == "failed":
                return
            try:
                self._problem.charge(trial.config, len(replicates), f"trial {trial.number}")
            except BudgetExhausted as exhausted:
                self._fail(trial.number, exhausted, trainings=0)
                return
            chosen = [seeds[replicate] for replicate in replicates]
            config = dict(trial.config)
            future = self._executor.submit(train, self._problem.oracle, together, config, chosen)
            self._futures[future] = (trial.number, replicates)
            if future.done():
                self._store_ended()

    def wait(self) -> None:
        """Wait until at least one call ends, and store what did.

        Raises:
            BrokenExecutor: The executor died. What it had in flight waits for the next run.
            KeyboardInterrupt: In a worker.
        """
        wait(self._futures, return_when=FIRST_COMPLETED)
        self._store_ended()

    def _store_ended(self) -> None:
        broken: BaseException | None = None
        for future in [future for future in self._futures if future.done()]:
            number, replicates = self._futures.pop(future)
            error = future.exception()
            if isinstance(error, BrokenExecutor) or not isinstance(error, Exception | None):
                broken = error  # no fault of the training; what others gave is stored first
                continue
            try:
                if error is None:
                    self._measured(number, replicates, *future.result())
                    continue
            except InvalidUtilityError as invalid:
                error = invalid
            self._fail(number, error, trainings=len(replicates))
        if broken is not None:
            raise broken

    def _measured(
        self, number: int, replicates: tuple[int, ...], answers: list[Any], seconds: float
    ) -> None:
        if len(answers) != len(replicates):
            raise InvalidUtilityError(
                f"`batched.replicates` must return {len(replicates)} utilities, one for each seed, "
                f"got {len(answers)}."
            )
        each = seconds / len(answers)
        found = [self._problem.measurement(answer, each) for answer in answers]
        measurements = dict(zip(replicates, found, strict=True))
        self._file.change(number, lambda trial: trial.measured(measurements))

    def _fail(self, number: int, error: Exception, *, trainings: int) -> None:
        self._file.change(number, lambda trial: trial.failed(error, trainings=trainings))


@contextmanager
def cores_left_to(executor: Executor | None) -> Iterator[None]:
    """Compute with one thread here while trainings in other processes keep all cores busy.

    Models of some hundred trials gain nothing from more threads, and lose twentyfold when threads
    wait for each other on busy cores. Trainings in threads of this process would share the setting.
    """
    if executor is None or isinstance(executor, ThreadPoolExecutor):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
