"""DPareto: the privacy-utility Pareto front of any differentially private algorithm [Avent2020].

A study alternates between proposing a config, from models of epsilon and error, and training with
it. It is durable: proposals are a pure function of the trials and the seed, so a study that was
killed goes on as if it had not been.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from botorch_dp._checks import check_choice, check_count, check_integer, check_positive
from botorch_dp._files import MEMORY
from botorch_dp.pareto.beliefs import EpsilonScale, PrivacyModel, require_complete
from botorch_dp.pareto.front import (
    OperatingPoint,
    ParetoFront,
    by_expected_error,
    data_frame,
    expected_error,
    guarantee_sentence,
    point_table,
    recommended,
)
from botorch_dp.pareto.paying import (
    Purse,
    TestOrTraining,
    check_payable,
    fitting,
    nothing_to_publish,
    publication,
)
from botorch_dp.pareto.problem import (
    CurvePlan,
    InvalidUtilityError,
    Measurement,
    Point,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
    UtilityAnswer,
    thinned,
)
from botorch_dp.pareto.proposals import AcquisitionFactory, ProposalOptions, Proposer
from botorch_dp.pareto.running import TrialLoop, TrialQueue, evaluate_again
from botorch_dp.pareto.storage import NumberTakenError, StudyStorage
from botorch_dp.pareto.workers import ExecutorLike, Workers
from botorch_dp.privacy import (
    Guarantee,
    PrivacyBudget,
    PrivacyError,
    PrivacyLedger,
    Release,
)
from botorch_dp.space import Config

AcquisitionName = Literal["ehvi", "hvpoi", "log_hvpoi", "qlogehvi", "random", "grid"]

#: How many trials are drawn before models are consulted, unless told otherwise: a curve tells more.
INITIAL, INITIAL_CURVES = 16, 4

#: Told of each trial that has ended.
Callback: TypeAlias = "Callable[[DPareto, Trial], object]"

#: Relative differences of epsilon that another version of a library may make, and trials whose
#: epsilons are worked out again when a study is opened, for that may take long.
_SAME_EPSILON, _MOST_CHECKED = 1e-6, 512


class DPareto:
    """A study of a privacy-utility trade-off.

    Models see 512 of its trials at most (and 170 curves), so that a proposal takes a second or two
    however many there are: half of them spread over all, a quarter the latest, a quarter near the
    front.

    Args:
        problem: The space and the oracles.
        acquisition: What a good next config is. ``"ehvi"``: the largest expected hypervolume
            improvement, with epsilon known. ``"hvpoi"`` and ``"log_hvpoi"``: the criterion of
            [Avent2020] and its logarithm. ``"qlogehvi"``: BoTorch's. ``"random"`` and ``"grid"``:
            the baselines. Or an :class:`~botorch_dp.pareto.proposals.AcquisitionFactory`.
        storage: A file that keeps the study, or a PostgreSQL database that hosts share
            (``"postgresql://user@host/database?study=name"``); an existing study is continued, also
            in a wider space (longer ranges, more values, fewer constraints, parameters that are
            active for new values only). None keeps it in memory. Several processes may work on one
            study at a time: each trial is trained by one of them, and what one that died has left
            is taken up by the others. Proposals then follow what ends first.
        seed: Fixes the proposals and the trainings' seeds. None draws one (or takes the stored).
        privacy_model: ``"exact"`` computes epsilon for every candidate; ``"gp"`` models it from
            the trials, for oracles that are too slow for that. [Avent2020] does the latter.
        epsilon_scale: Whether hypervolume is improved in epsilon or in its logarithm; the latter
            works out the front at small epsilons. (``hvpoi`` works in logarithms in any case.)
        retries: How often a trial that raised is trained again before it counts as failed.
        candidates: Space-filling candidates for each proposal.
        grid_levels: Values of each parameter, for ``acquisition="grid"``.
        warm_start: A study of the same space on a public twin of the data (see
            :func:`~botorch_dp.datasets.public_twin`), or configs; a new study begins with the
            :meth:`best_configs` of it, and draws fewer initial ones. They must be known without the
            records.
        budget: Pays for the trainings, so that all of the study may be published at its price: what
            may be spent, kept beside ``storage`` in a file with the suffix ``.ledger``; or a
            ledger. Each training (replicates, retries and re-evaluations too) is charged before it
            begins, and the run ends when no config in the space can be paid for. Needs a problem
            whose promise has ``secret_noise``.

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
        for name, value, kind in (
            ("privacy_model", privacy_model, PrivacyModel),
            ("epsilon_scale", epsilon_scale, EpsilonScale),
        ):
            check_choice(name, value, get_args(kind))
        if seed is not None:
            check_integer("seed", seed, at_least=0)
        self.problem = problem
        self._own_ledger: PrivacyLedger | None = None
        self.retries = check_integer("retries", retries, at_least=0)
        starting = _checked_configs(warm_start, problem)
        options = ProposalOptions(
            acquisition=acquisition,
            privacy_model=privacy_model,
            epsilon_scale=epsilon_scale,
            candidates=check_integer("candidates", candidates, at_least=16),
            grid_levels=grid_levels,
        )
        description = problem.description()
        if budget is not None:
            check_payable(budget, problem, storage)
            description["paid"] = True
        self._purse: Purse | None = None
        self._storage = StudyStorage(storage, description=description, seed=seed)
        try:
            self._proposer = Proposer(problem, seed=self._storage.seed, options=options)
            if budget is not None:
                ledger = self._opened(budget)
                self._purse = Purse(problem, ledger, self._storage.identity)
                self._proposer.purse = self._purse
            self._check_stored_epsilons()
        except BaseException:
            self.close()
            raise
        self._queue = TrialQueue(problem, self._storage, self._proposer, retries=self.retries)
        self._stopping = False
        if len(self._storage) == 0:
            with suppress(NumberTakenError):  # another process was first
                for number, config in enumerate(starting):
                    self._queue.enqueue(config, number=number)

    @property
    def seed(self) -> int:
        """The study's seed."""
        return self._storage.seed

    @property
    def trials(self) -> list[Trial]:
        """All trials by number: complete, failed and pending; of a closed study, those it knew."""
        if not self._storage.closed:
            self._storage.refresh()
        return self._storage.trials()

    def ask(self, q: int = 1, *, initial: int | None = None) -> list[Trial]:
        """The next trials to train: those a crash left behind first, then new ones.

        They are stored before they are returned, and charged if the study is paid for (again, if a
        trial is asked for again). Report each with :meth:`tell`.

        Args:
            q: How many; they are chosen to complement each other and all pending trials.
            initial: How many trials of the study are drawn before models are consulted; 16 if
                None, and 4 of curves.
        """
        check_count("q", q)
        initial = self._initial(initial)
        asked: list[Trial] = []
        while len(asked) < q:
            trial = self._queue.take(asked=True) or self._queue.propose(initial)
            if trial is None or trial.state != "pending":
                continue
            self._storage.claim(trial.number, asked=True)
            if self._purse is not None:
                try:
                    self._purse.charge(trial.number, trial.config, len(trial.missing))
                except BaseException:
                    self._queue.release(trial.number)
                    raise
            asked.append(trial)
        return asked

    def tell(
        self,
        trial: Trial | int,
        utilities: UtilityAnswer
        | Mapping[int, UtilityAnswer]
        | list[UtilityAnswer]
        | list[Mapping[int, UtilityAnswer]]
        | None = None,
        *,
        error: BaseException | None = None,
    ) -> Trial:
        """Report what came of a pending trial.

        Args:
            trial: The trial, or its number.
            utilities: What the utility oracle answered; a list of it if ``trial.missing_seeds``
                has several. Of a curve, a dictionary: the answer at each checkpoint.
            error: What it raised instead. Only the type is kept. A trial with attempts left stays
                pending, and :meth:`ask` returns it again.

        Returns:
            The trial as it is now.
        """
        current = self._pending(trial)
        if (utilities is None) == (error is None):
            raise ValueError("Give exactly one of `utilities` and `error`.")
        missing = current.missing
        if error is not None:
            told = self._queue.fail(current.number, type(error).__name__, trainings=len(missing))
            self._queue.release(current.number)
            return told
        assert utilities is not None
        answers = utilities if isinstance(utilities, list) else [utilities]
        if len(answers) != len(missing):
            raise InvalidUtilityError(
                f"Trial {current.number} waits for a list of {len(missing)} utilities, one for "
                f"each of its `missing_seeds`; got {len(answers)}."
            )
        measured = [self._measurement(current.plan, answer) for answer in answers]
        return self._storage.add_measurements(
            current.number, dict(zip(missing, measured, strict=True))
        )

    def tell_point(
        self, trial: Trial | int, checkpoint: int, utility: UtilityAnswer, *, replicate: int = 0
    ) -> bool:
        """Store one point of a pending trial's curve, from within a training loop of your own.

        A training that is begun again after a kill may report all its points: those that are stored
        already are kept. The last point finishes the replicate, and with it perhaps the trial.

        Args:
            trial: The trial, or its number.
            checkpoint: One of ``trial.plan.checkpoints``.
            utility: What the utility oracle would answer there.
            replicate: Which training of the trial this is.

        Returns:
            Whether to go on training: False at the last checkpoint, and where the rest of the curve
            is not worth its cost.
        """
        current = self._pending(trial)
        plan = current.plan
        if plan is None or checkpoint not in plan.checkpoints:
            known = () if plan is None else plan.checkpoints
            raise ValueError(f"`checkpoint` must be one of {known}, got {checkpoint!r}.")
        if replicate not in current.missing:
            raise ValueError(
                f"`replicate` must be one of {current.missing}, which are not finished, "
                f"got {replicate!r}."
            )
        point = self.problem.measurement(utility)
        is_last = plan.is_last(checkpoint, [point.utility])
        self._storage.add_points(current.number, checkpoint, {replicate: point}, is_last=is_last)
        return not is_last

    def _pending(self, trial: Trial | int) -> Trial:
        self._storage.refresh()
        current = self._storage[trial.number if isinstance(trial, Trial) else trial]
        if current.state != "pending":
            raise ValueError(f"`trial` {current.number} is {current.state} already.")
        return current

    def _measurement(self, plan: CurvePlan | None, answer: Any) -> Measurement:
        """What was told of one replicate."""
        if plan is None:
            return self.problem.measurement(answer)
        known = plan.checkpoints
        if not isinstance(answer, Mapping) or not answer or not set(answer) <= set(known):
            raise InvalidUtilityError(
                f"The trial is a curve: give a dictionary with the utility at each of its "
                f"checkpoints {known} (or at the first ones, if training was stopped)."
            )
        return Measurement.of_curve({c: self.problem.measurement(u) for c, u in answer.items()})

    def add_trial(
        self,
        config: Config,
        utilities: UtilityAnswer
        | Mapping[int, UtilityAnswer]
        | list[UtilityAnswer]
        | list[Mapping[int, UtilityAnswer]],
    ) -> Trial:
        """Add what was measured elsewhere, as a complete trial of its own.

        Args:
            config: The hyper-parameters; they must lie in the space.
            utilities: What the utility oracle answered, or a list with one answer for each
                training. Of a curve, a dictionary: the answer at each checkpoint. Each counts as a
                training of the study, under the problem's promise.

        Example:
            >>> study.add_trial({"noise": 1.0, "epochs": 8}, [0.81, 0.79])
        """
        if self._purse is not None:
            raise PrivacyError(
                "`add_trial` on a study that is paid for: its ledger knows nothing of trainings "
                "that were made elsewhere. Give their configs as `warm_start` if they are public, "
                "or let the study train them."
            )
        config = self.problem.space.check(config)
        answers = utilities if isinstance(utilities, list) else [utilities]
        if not answers:
            raise ValueError("`utilities` is empty: give what was measured.")
        epsilon = self._proposer.known.epsilon(config)
        plan = self._proposer.plan(config, epsilon, ())
        measured = [self._measurement(plan, answer) for answer in answers]
        return self._queue.add(config, epsilon, measured, plan)

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
        together: int = 1,
    ) -> ParetoFront:
        """Propose and train until the study has so many trials.

        Ctrl-C ends it cleanly: what has finished is kept and its front returned (with a warning);
        call ``run`` again to go on. A mistake in an oracle ends it at the first trials, with its
        cause.

        Args:
            trials: Of the whole study, earlier and failed ones included.
            initial: How many of them are drawn before models are consulted; 16 if None, and 4 of
                curves.
            batch_size: How many are trained at a time; pending ones are accounted for.
            executor: Where trainings run: threads, processes, a Dask client, a
                :class:`RayExecutor`, or a callable that makes an executor (and another one if it
                dies); None: here.
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
            together: How many trials are trained in one batched computation, by the problem's
                ``batched``: the problems of our trainers have it, for configs of one batch size. They
                are proposed for it and count as ``batch_size`` at least. The results are those of
                trainings one after the other, up to rounding; a curve whose rest is not worth its
                cost ends, and the others go on.
        """
        for name, value in (("trials", trials), ("batch_size", batch_size), ("together", together)):
            check_integer(name, value)
        self._check_together(together)
        seconds = math.inf if timeout is None else check_positive("timeout", timeout)
        if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
            raise TypeError("`callbacks` must be a sequence of functions `(study, trial) -> None`.")
        most = self._proposer.most_trials(self.trials)
        initial = self._initial(initial)
        if trials > most:
            raise ValueError(
                f"`trials` = {trials} is more than the grid's {most:g} points; raise `grid_levels`."
            )
        self._stopping = False
        deadline = time.monotonic() + seconds

        def tell_all(trial: Trial) -> None:
            for callback in callbacks:
                callback(self, trial)

        try:
            with Workers(
                self.problem, executor, training_timeout=training_timeout, purse=self._purse
            ) as workers:
                loop = TrialLoop(
                    self._queue,
                    workers,
                    target=trials,
                    initial=initial,
                    batch_size=max(batch_size, together),
                    together=together,
                    asynchronous=asynchronous,
                    may_start=lambda: not self._stopping and time.monotonic() < deadline,
                    on_end=tell_all,
                )
                loop.run(progress=progress)
            if loop.exhausted and self._storage.count("complete"):
                warnings.warn(
                    f"The budget cannot bear another trial: the study ends with "
                    f"{len(self._storage)} of {trials}. This is their front.",
                    stacklevel=2,
                )
            elif loop.exhausted:
                raise StudyError(
                    "The budget cannot bear a single trial of what would be proposed: raise it, or "
                    "narrow the space to cheaper trainings (more noise, fewer steps)."
                )
            if failed := self._storage.count("failed"):
                kinds = sorted({t.failures[-1] for t in self.trials if t.state == "failed"})
                warnings.warn(
                    f"{failed} of {len(self._storage)} trials failed with {kinds} and have no part "
                    "in the front; `to_frame()` says which. Call the oracles by hand on one of "
                    "their configs to see what is wrong.",
                    stacklevel=2,
                )
        except KeyboardInterrupt:
            if not self._storage.count("complete"):
                raise
            ended = len(self._storage) - self._storage.count("pending")
            warnings.warn(
                f"Interrupted after {ended} of {trials} trials. This is their front; "
                "call `run` again to go on.",
                stacklevel=2,
            )
        return self.front()

    def _check_together(self, together: int) -> None:
        if together > 1 and self.problem.batched.utilities is None:
            raise ValueError(
                f"`together` = {together} needs a problem whose trainer can train several configs "
                "in one call: give it `batched.utilities`, or use `batch_size` with an `executor`."
            )
        if together > 1 and self._purse is not None:
            raise PrivacyError(
                f"`together` = {together} on a study that is paid for: each of its trainings is "
                "charged and released on its own. Use `batch_size` with an `executor`."
            )

    def stop(self) -> None:
        """Let the running :meth:`run` start no more trainings; those in flight are awaited."""
        self._stopping = True

    def table(self) -> dict[str, list[Any]]:
        """Columns of *all* trials: as of a front's table, and how each of them ended. Sensitive.

        A curve has a row for each of its points.
        """
        unmeasured = (math.nan,) * (len(self.problem.objective_names) - 1)
        rows: list[tuple[Trial, Point]] = []
        for trial in self.trials:
            nothing = Point(trial.number, trial.config, (trial.epsilon, *unmeasured), (), math.nan)
            points = self.problem.points(trial) if trial.finished else []
            rows += [(trial, point) for point in points or [nothing]]
        columns: dict[str, list[Any]] = {"trial": [], "state": [trial.state for trial, _ in rows]}
        columns |= point_table(self.problem, [point for _, point in rows])
        columns["trainings"] = [trial.num_trainings for trial, _ in rows]
        columns["failures"] = [", ".join(trial.failures) for trial, _ in rows]
        return columns

    def to_frame(self) -> Any:
        """The :meth:`table` as a pandas data frame.

        ``frame.attrs["guarantee"]`` says what publishing it costs.
        """
        trained = any(trial.num_trainings for trial in self.trials)
        caption = (
            guarantee_sentence(
                self.publication_guarantee(),
                test_records=self.problem.promise.utility_guarantee is not None,
                paid=self._purse is not None,
            )
            if trained
            else "Nothing was trained yet."
        )
        return data_frame(self.table(), caption)

    def _initial(self, initial: int | None) -> int:
        if initial is None:
            return INITIAL if self.problem.resource is None else INITIAL_CURVES
        return check_integer("initial", initial)

    def front(self) -> ParetoFront:
        """The Pareto front of the trials so far. Sensitive; see its ``caption``."""
        trials = self.trials
        return ParetoFront(
            self.problem,
            require_complete(trials, "front"),
            guarantee=partial(publication, self.problem, trials, "training")
            if self._purse is None
            else self.publication_guarantee(),
            paid=self._purse is not None,
            reevaluator=self._evaluate_again,
            believer=partial(self._believed, trials),
        )

    def best_configs(self, count: int = 8, *, epsilon: float | None = None) -> list[Config]:
        """At most ``count`` different configs to start another study from, the best one first.

        Args:
            count: How many, at most 100.
            epsilon: Those expected to be most accurate within this epsilon: the recommended one,
                then tried ones by what the models believe of them. If None, the recommended ones
                for epsilons from the front's smallest to the reference point's.
        """
        check_integer("count", count, at_most=100)
        if epsilon is not None:
            trials = require_complete(self.trials, "config to start from")
            found = [self.recommend(epsilon).config]
            found += by_expected_error(self._exact_proposer, trials, epsilon)
        else:
            least, most = self.front().points[0, 0].item(), self.problem.ref_point[0]
            least = min(max(least, 1e-3 * most), most)
            ladder = [most * (least / most) ** (k / max(count - 1, 1)) for k in range(count)]
            found = [self.recommend(rung * (1 + 1e-9)).config for rung in ladder]
        return list({tuple(config.items()): config for config in found}.values())[:count]

    def _believed(self, trials: Sequence[Trial]) -> Tensor:
        """What models of these trials expect of the points that they measured, ``n x m``."""
        complete = [trial for trial in trials if trial.state == "complete"]
        measured = [point for trial in complete for point in self.problem.points(trial)]
        beliefs = self._proposer.beliefs(complete)
        means, stds = (part[: len(measured)] for part in beliefs.predict(beliefs.incumbents))
        believed = torch.tensor([point.values for point in measured], dtype=torch.double)
        believed[:, 1] = expected_error(means[:, 1], stds[:, 1])
        return believed

    def recommend(self, epsilon: float, *, level: float = 0.95) -> OperatingPoint:
        """The config expected to be most accurate within ``epsilon``, tried or not.

        Args:
            epsilon: The largest acceptable epsilon; the recommended config's is exact.
            level: Probability of the predicted error's interval, under the model.
        """
        return recommended(self._exact_proposer, self.trials, epsilon, level)

    @property
    def _exact_proposer(self) -> Proposer:
        """The search may go without the exact epsilon; what is deployed may not."""
        if self._proposer.options.privacy_model == "exact":
            return self._proposer
        exact = replace(self._proposer.options, privacy_model="exact")
        return Proposer(self.problem, seed=self.seed, options=exact)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write what is known so far as one HTML file, to be opened without any network.

        The front, the recommendation for each epsilon, hypervolume, the importance of parameters,
        all trials, and what publishing any of it costs. The file is as sensitive as the study, and
        only its owner may read it. Needs the extra ``report``.

        Args:
            path: Where; must end in .html.

        Example:
            >>> study.report("front.html")
        """
        from botorch_dp.report.study import StudyView, study_report

        proposer = self._exact_proposer
        view = StudyView.of_problem(self.problem, self.trials, proposer, self.seed, self.ledger)
        return study_report(view, path)

    def publication_guarantee(self, data: TestOrTraining = "training") -> Guarantee:
        """What publishing the front (or anything else the study knows) promises.

        Which configs are on the front depends on all trainings, so the guarantee covers *all* of
        them, not only those on the front: replicates, re-evaluations, and failed attempts. It is
        void unless the problem's promise says that their noise is secret. Trials are chosen by the
        results of earlier ones, so they are composed by a filter; see :func:`_filtered`. If the
        study was paid for, it is the guarantee of its ledger: the budget, however much of it was
        spent.

        Args:
            data: Whose records: those trained on, or those the utility was measured on. The latter
                have no guarantee unless the problem's promise has a ``utility_guarantee``.
        """
        if data not in ("training", "test"):
            raise ValueError(f"`data` must be 'training' or 'test', got {data!r}.")
        if self._purse is not None and data == "training":
            if not any(trial.num_trainings for trial in self.trials):
                raise nothing_to_publish()
            return self._purse.ledger.guarantee
        return publication(self.problem, self.trials, data)

    def publish(self, *, test_records_are_public: bool = False) -> Release[ParetoFront]:
        """The front, to be shown to others: with its figures, its models, and all trials.

        Only of a study that was paid for (``budget=``).

        Args:
            test_records_are_public: Utilities are computed from the test records. Say so if these
                are public; otherwise the problem's promise needs a ``utility_guarantee``.

        Returns:
            The front, under the ledger's guarantee for the training records. Its ``caption``
            belongs under every figure of it.
        """
        if self._purse is None:
            raise PrivacyError(
                "This study was not paid for, so it cannot be published: its trainings were "
                "charged to nothing. Begin one with `budget=PrivacyBudget(epsilon, delta)` and a "
                "problem that trains with secret noise."
            )
        front = self.front()
        guarantee = front.guarantee
        if self.problem.promise.utility_guarantee is None:
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

    def _check_stored_epsilons(self) -> None:
        """Refuse to go on with another privacy oracle: the study would mix two epsilons."""
        trials = [trial for trial in self._storage.trials() if not math.isnan(trial.epsilon)]
        for place in thinned(range(len(trials)), _MOST_CHECKED):
            trial = trials[place]
            try:
                now = self._proposer.known.epsilon(trial.config)
            except Exception as error:
                raise StudyError(
                    f"`privacy` fails with {type(error).__name__} on the config of trial "
                    f"{trial.number}, whose epsilon was {trial.epsilon:.9g}. Continue the study "
                    "with the oracle that it began with."
                ) from error
            if not math.isclose(now, trial.epsilon, rel_tol=_SAME_EPSILON):
                raise StudyError(
                    f"`privacy` is not the oracle that this study began with: the epsilon of trial "
                    f"{trial.number} was {trial.epsilon:.9g} and is now {now:.9g}. Continue with "
                    "the old oracle, or give the new one a study of its own."
                )
        remember = self._proposer.known.remember
        for trial in trials:
            remember(trial.config, trial.epsilon)
            if trial.plan is not None:
                for end, epsilon in zip(trial.plan.checkpoints, trial.plan.epsilons, strict=True):
                    remember(self.problem.at(trial.config, end), epsilon)

    def _evaluate_again(
        self,
        points: Sequence[Point],
        replicates: int,
        *,
        executor: ExecutorLike | None = None,
        progress: bool = False,
        training_timeout: float | None = None,
    ) -> tuple[list[Trial], Guarantee]:
        check_count("replicates", replicates)
        numbers = list(dict.fromkeys(point.trial for point in points))
        wanted = [self._up_to(self._storage[n], points) for n in numbers]
        if self._purse is not None and not self._purse.bears(
            [trial.config for trial in wanted], replicates
        ):
            raise StudyError(
                f"The budget cannot bear {replicates} more trainings of each of the front's "
                f"{len(wanted)} configs; nothing was trained. Ask for fewer `replicates`."
            )
        with Workers(
            self.problem, executor, training_timeout=training_timeout, purse=self._purse
        ) as workers:
            again = evaluate_again(
                self._queue,
                workers,
                trials=wanted,
                replicates=replicates,
                progress=progress,
            )
        return again, self.publication_guarantee()

    def _up_to(self, trial: Trial, points: Sequence[Point]) -> Trial:
        """A trial whose training ends where the last of these points is, and gives these only."""
        if trial.plan is None:
            return trial
        name = self.problem.resource.name  # type: ignore[union-attr]
        wanted = {p.config[name]: p.values[0] for p in points if p.trial == trial.number}
        plan = CurvePlan(tuple(wanted), tuple(wanted.values()), (0.0,) * len(wanted))
        return replace(trial, config=self.problem.at(trial.config, max(wanted)), plan=plan)

    def _opened(self, budget: PrivacyBudget | PrivacyLedger) -> PrivacyLedger:
        """The ledger of a paid study; its own one is closed with it."""
        if isinstance(budget, PrivacyLedger):
            return budget
        stored = self._storage.path
        path = stored if stored == MEMORY else f"{stored}.ledger"
        self._own_ledger = PrivacyLedger(path, fitting(budget, self.problem))
        return self._own_ledger

    @property
    def ledger(self) -> PrivacyLedger | None:
        """What trainings are charged to; None if they are not paid for."""
        return None if self._purse is None else self._purse.ledger

    def close(self) -> None:
        """Release the storage; everything is on disk already."""
        self._storage.close()
        if self._own_ledger is not None:
            self._own_ledger.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "A study is not copied or pickled, for two of them would train the same trials. Open "
            "its file in another process instead, or make a new DPareto."
        )

    def __enter__(self) -> DPareto:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DPareto({self.problem.name!r}, {len(self._storage)} trials, seed={self.seed})"


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
