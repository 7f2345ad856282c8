"""A study's trainings, in flight on an executor: charged before they begin, stored as they end.

A trial is in training while one of its calls is in flight, and waits otherwise. Nothing else takes
note of it, so that a study which was killed goes on where its file ends.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from functools import partial
from typing import Any

import torch

from botorch_dp.errors import BudgetExhausted
from botorch_dp.pareto.problem import InvalidUtilityError, PrivacyUtilityProblem, Trial
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.space import Config


def train(
    oracle: Callable[..., Any], together: bool, config: Config, seeds: Sequence[int]
) -> tuple[list[Any], float]:
    """What the utility oracle answers for each seed, and the seconds it took; runs in a worker."""
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
        problem: Its utility oracle is called, and it is told of each training before that begins.
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

        A trial fails if the budget cannot bear it, or if one of its trainings has failed.
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
        self._file.change(number, partial(Trial.measured, measurements=measurements))

    def _fail(self, number: int, error: Exception, *, trainings: int) -> None:
        self._file.change(number, partial(Trial.failed, error=error, trainings=trainings))


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
