"""DPareto: the privacy-utility Pareto front of any differentially private algorithm [Avent2020].

A study alternates between proposing a config, from models of epsilon and error, and training with
it. Proposals are a pure function of the trials and the seed, and every trial is stored before it is
trained: a study that was killed goes on as if it had not been.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from botorch_dp._checks import check_choice, check_count, check_integer
from botorch_dp._files import MEMORY
from botorch_dp._progress import ProgressBar
from botorch_dp.pareto.beliefs import EpsilonScale, PrivacyModel, require_complete
from botorch_dp.pareto.charges import ChargedProblem, check_payable, fitting
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
    ProposalOptions,
    Search,
    propose,
)
from botorch_dp.pareto.publication import TestOrTraining, caption_of, check_trained, publication
from botorch_dp.pareto.recommendation import OperatingPoint, believed_values, recommended
from botorch_dp.pareto.runner import Trainings, cores_left_to
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyError, PrivacyLedger, Release

AcquisitionName = Literal["ehvi", "hvpoi", "log_hvpoi", "random", "grid"]

#: So many trials that fail before any has finished are no bad luck.
_HOPELESS = 5


class DPareto:
    """A study of a privacy-utility trade-off.

    Models see 512 of its trials at most, so that a proposal takes a second or two however many
    there are: half of them spread over all, a quarter the latest, a quarter near the front.

    Args:
        problem: The space and the oracles.
        acquisition: What a good next config is. ``"ehvi"``: the largest expected hypervolume
            improvement, with epsilon known. ``"hvpoi"`` and ``"log_hvpoi"``: the criterion of
            [Avent2020] and its logarithm. ``"random"`` and ``"grid"``: the baselines. Or an
            :class:`~botorch_dp.pareto.proposals.AcquisitionFactory`.
        storage: A file that keeps the study; an existing study is continued. One process at a
            time holds the file. None keeps the study in memory.
        seed: Fixes the proposals and the trainings' seeds. None draws one (or takes the stored).
        privacy_model: ``"exact"`` computes epsilon for every candidate; ``"gp"`` models it from
            the trials, for oracles that are too slow for that. [Avent2020] does the latter.
        epsilon_scale: Whether hypervolume is improved in epsilon or in its logarithm; the latter
            works out the front at small epsilons. (``hvpoi`` works in logarithms in any case.)
        candidates: Space-filling candidates for each proposal.
        grid_levels: Values of each parameter, for ``acquisition="grid"``.
        budget: What the trainings may spend, so that all of the study may be published at this
            price. It is kept beside ``storage`` in a file with the suffix ``.ledger``; or give a
            ledger. Each training (replicates and re-evaluations too) is charged before it begins,
            and a run ends when the budget can bear no config of the space. The problem's promise
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
        epsilon_scale: EpsilonScale = "linear",
        candidates: int = 2048,
        grid_levels: int | Mapping[str, int] = 3,
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
            self._search = Search(
                problem,
                seed=self._file.seed,
                options=ProposalOptions(
                    acquisition, privacy_model, epsilon_scale, candidates, grid_levels
                ),
            )
            self._search.known.check_stored(self._file.trials)
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
        batch_size: int = 1,
        executor: Executor | None = None,
        progress: bool = False,
    ) -> ParetoFront:
        """Propose and train until the study has so many trials.

        Ctrl-C keeps what has finished, and the same call goes on. A study with a ``storage`` raises
        ``KeyboardInterrupt``, whose note says so; one in memory returns the front of what has
        finished, with a warning. A trial whose training raises has failed, and what it raised is
        kept as ``trial.failure``.

        Args:
            trials: Of the whole study, earlier and failed ones included.
            initial: How many of them are drawn before models are consulted.
            batch_size: How many are trained at a time; pending ones are accounted for.
            executor: Where trainings run: any ``concurrent.futures`` executor (threads, processes,
                that of a Dask client, a :class:`~botorch_dp.integrations.ray.RayExecutor`); None:
                here.
            progress: Whether to show a progress bar.

        Raises:
            StudyError: Nothing has finished, and the first trials have failed or the budget cannot
                bear one.
            BrokenExecutor: The executor died. Its trials wait for the next call of ``run``.
            KeyboardInterrupt: After Ctrl-C, with a ``storage`` or if nothing has finished.
        """
        check_integer("trials", trials)
        check_integer("batch_size", batch_size)
        check_integer("initial", initial)
        if trials > (most := self._search.most_trials(self.trials)):
            raise ValueError(
                f"`trials` = {trials} is more than the grid's {most:g} points; raise `grid_levels`."
            )
        self._file.check_held()
        exhausted, interrupted = False, ""
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
                    if len(busy) < batch_size:
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
                interrupted = self._interrupted(trials)
                if self._file.path != MEMORY or not self._file.count("complete"):
                    error.add_note(interrupted)
                    raise
        self._warn_of_what_is_missing(trials, exhausted, interrupted)
        return self.front()

    def _waiting(self, busy: Set[int] = frozenset()) -> Trial | None:
        """The first pending trial that nobody trains."""
        taken = busy | self._asked
        free = (t for t in self._file.trials if t.state == "pending" and t.number not in taken)
        return next(free, None)

    def _proposed(self, initial: int) -> Trial:
        """A new trial, stored before it trains; failed already if an exact oracle fails on it."""
        trials = self._file.trials
        if self._file.count("failed") == len(trials) >= _HOPELESS:
            require_complete(trials, "front to improve")
        config, number = propose(self._search, trials, initial, self._charged), len(trials)
        seeds = tuple(self._seeds(number, 0, self.problem.replicates).values())
        try:
            trial = Trial(number, config, seeds, self._search.known.epsilon(config))
        except Exception as error:
            trial = Trial(number, config, seeds, math.nan).failed(error, trainings=0)
        return self._file.add(trial)

    def _seeds(self, number: int, start: int, count: int) -> dict[int, int]:
        """Seeds of a trial below 2^31, by replicate."""
        streams = {
            replicate: np.random.SeedSequence(self.seed, spawn_key=(number, replicate))
            for replicate in range(start, start + count)
        }
        return {r: int(stream.generate_state(1)[0]) >> 1 for r, stream in streams.items()}

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

    def _warn_of_what_is_missing(self, wanted: int, exhausted: bool, interrupted: str) -> None:
        """Say what a front is without; an error if the budget was too small for a single trial."""
        if interrupted:
            warnings.warn(f"{interrupted} This is the front so far.", stacklevel=3)
        elif exhausted and not self._file.count("complete"):
            raise StudyError(
                "The budget cannot bear a single trial of what would be proposed: raise it, or "
                "narrow the space to cheaper trainings (more noise, fewer steps)."
            )
        elif exhausted:
            warnings.warn(
                f"The budget cannot bear another trial: the study ends with {len(self._file)} of "
                f"{wanted}. This is their front.",
                stacklevel=3,
            )
        if failed := [trial for trial in self.trials if trial.state == "failed"]:
            kinds = sorted({trial.failure_type for trial in failed})
            warnings.warn(
                f"{len(failed)} of {len(self._file)} trials failed with {kinds} and have no part "
                f"in the front; `study.trials[{failed[-1].number}].failure` says more.",
                stacklevel=3,
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
            utilities: What the utility oracle answered; a list of it if ``trial.missing_seeds``
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
            failed = partial(Trial.failed, error=error, trainings=len(missing))
            told = self._file.change(number, failed)
        else:
            answers = utilities if isinstance(utilities, list) else [utilities]
            if len(answers) != len(missing):
                raise InvalidUtilityError(
                    f"Trial {number} waits for a list of {len(missing)} utilities, one for each of "
                    f"its `missing_seeds`; got {len(answers)}."
                )
            found = [self.problem.measurement(answer) for answer in answers]
            measurements = dict(zip(missing, found, strict=True))
            measured = partial(Trial.measured, measurements=measurements)
            told = self._file.change(number, measured)
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
            believer=partial(believed_values, self._search, trials),
        )

    def recommend(self, epsilon: float, *, level: float = 0.95) -> OperatingPoint:
        """The config expected to be most accurate within ``epsilon``, tried or not.

        Args:
            epsilon: The largest acceptable epsilon; the recommended config's is exact.
            level: Probability of the predicted error's interval, under the model.
        """
        return recommended(self._search.exact, self.trials, epsilon, level)

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
        """The front, to be shown to others: with its figures, its models, and its trials.

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
                f"The budget cannot bear {replicates} more trainings of each of the front's "
                f"{len(wanted)} configs; nothing was trained. Ask for fewer `replicates`."
            )
        seeds = [self._seeds(t.number, t.next_replicate, replicates) for t in wanted]
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
        self._own_ledger = PrivacyLedger(path, fitting(budget, self.problem))
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
