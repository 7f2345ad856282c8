"""Running on executors: what finishes is stored, what fails or hangs is contained."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.pareto import (
    Batched,
    DPareto,
    ExecutorDiedError,
    PrivacyUtilityProblem,
    StudyError,
    workers,
)
from botorch_dp.pareto.workers import (
    Failure,
    Outcome,
    Task,
    Trainings,
    TrainingTimeout,
    time_limit,
    train,
)
from botorch_dp.space import Config
from tests.pareto import toy

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")
CONFIG = {"noise": 1.0, "epochs": 4}


def processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=FORK)


def study(problem: Any = None, **options: Any) -> DPareto:
    options = {"acquisition": "random", "seed": 0} | options
    return DPareto(toy.problem() if problem is None else problem, **options)


def task(number: int = 0, seeds: tuple[int, ...] = (1,)) -> Task:
    return Task(number, CONFIG, tuple(range(len(seeds))), seeds)


def outcomes(problem: PrivacyUtilityProblem, *tasks: Task, executor: Any = None) -> list[Outcome]:
    """What came of tasks, by their order."""
    found: dict[int, Outcome] = {}
    with Trainings(problem, executor) as trainings:
        for each in tasks:
            trainings.submit(each)
        while trainings.in_flight:
            found |= {done.trial: outcome for done, outcome in trainings.next_outcomes()}
    return [found[each.trial] for each in tasks]


def test_train_times_the_oracle() -> None:
    answers, seconds = train(toy.Slow(0.02), False, Task(0, CONFIG, (0, 1), (1, 2)))
    assert answers == [toy.utility(CONFIG, 1), toy.utility(CONFIG, 2)] and seconds >= 0.04
    answers, _ = train(lambda config, seeds: [0.5] * len(seeds), True, task(seeds=(1, 2, 3)))
    assert answers == [0.5] * 3


class TestOutcomes:
    @pytest.mark.parametrize("make", [None, ThreadPoolExecutor])
    def test_measurements(self, make: Any) -> None:
        executor = make and make(2)
        for outcome in outcomes(toy.problem(), *map(task, range(3)), executor=executor):
            assert isinstance(outcome, dict)
            assert outcome[0].utility == toy.utility(CONFIG, 1)

    def test_only_the_type_of_an_error_survives(self) -> None:
        record = 4.2

        def fails(config: dict[str, Any], seed: int) -> float:
            raise KeyError(f"record 17 says {record}")

        (failure,) = outcomes(toy.problem(fails), task())
        assert isinstance(failure, Failure) and failure.error_type == "KeyError"
        assert failure.retryable and not failure.mistake
        assert "4.2" not in repr(failure) + failure.shown
        assert "test_running.py" in failure.shown and "raise KeyError(f" in failure.shown

    @pytest.mark.parametrize("answer", [math.nan, 87.0, -0.1, None, "good"])
    def test_invalid_utility(self, answer: Any) -> None:
        (failure,) = outcomes(toy.problem(lambda config, seed: answer), task())
        assert isinstance(failure, Failure) and not failure.retryable
        assert failure.error_type == "InvalidUtilityError"

    @pytest.mark.parametrize(("answers", "fits"), [([0.5, 0.25], True), ([0.5], False)])
    def test_replicates_in_one_call(self, answers: list[float], fits: bool) -> None:
        together = Batched(replicates=lambda config, seeds: answers)
        problem = toy.problem(None, batched=together, replicates=2)
        (outcome,) = outcomes(problem, task(seeds=(1, 2)))
        assert isinstance(outcome, dict if fits else Failure)

    def test_discarded_tasks_are_not_reported(self) -> None:
        for executor in (None, ThreadPoolExecutor(1)):
            with Trainings(toy.problem(toy.Slow(0.01)), executor) as trainings:
                for number in range(3):
                    trainings.submit(task(number))
                trainings.discard(1)
                assert [t.trial for t in trainings.in_flight] == [0, 2]
                found = []
                while trainings.in_flight:
                    found += [done.trial for done, _ in trainings.next_outcomes()]
            assert found == [0, 2]

    def test_interruption_in_a_worker_is_one_here(self) -> None:
        def interrupted(config: dict[str, Any], seed: int) -> float:
            raise KeyboardInterrupt

        for executor in (None, ThreadPoolExecutor(1)):
            with pytest.raises(KeyboardInterrupt):
                outcomes(toy.problem(interrupted), task(), executor=executor)


class Fake(Executor):
    """Answers its calls in a given way each: finishes them, or is cancelled or broken."""

    def __init__(self, *ways: str) -> None:
        self.ways = list(ways)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        way = self.ways.pop(0)
        future: Future[Any] = Future()
        if way == "finishes":
            future.set_result(fn(*args))
        elif way == "fails":
            future.set_exception(OSError())
        elif way == "is cancelled":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif way == "breaks":
            raise BrokenExecutor
        elif way == "shut down":
            raise RuntimeError("cannot schedule new futures after shutdown")
        else:
            raise AttributeError("no such thing")
        return future


class TestDeath:
    @pytest.mark.parametrize(
        ("ways", "error"),
        [
            (("shut down",), "RuntimeError"),
            (("breaks",), "BrokenExecutor"),
            (("is cancelled",), "CancelledError"),
        ],
    )
    def test_of_an_executor(self, ways: tuple[str, ...], error: str) -> None:
        with pytest.raises(ExecutorDiedError, match=error):
            outcomes(toy.problem(), task(), executor=Fake(*ways))

    def test_a_killed_worker_breaks_a_process_pool(self) -> None:
        with (
            processes(1) as pool,
            Trainings(toy.problem(toy.KillsItsProcess(0.5)), pool) as trainings,
        ):
            trainings.submit(task())
            with pytest.raises(ExecutorDiedError, match="BrokenProcessPool"):
                trainings.next_outcomes()
            with pytest.raises(ExecutorDiedError, match="BrokenProcessPool"):
                trainings.submit(task(1))
            assert [t.trial for t in trainings.in_flight] == [0, 1]

    def test_what_finished_comes_first(self) -> None:
        with Trainings(toy.problem(), Fake("finishes", "is cancelled")) as trainings:
            trainings.submit(task(0))
            trainings.submit(task(1))
            assert [done.trial for done, _ in trainings.next_outcomes()] == [0]
            with pytest.raises(ExecutorDiedError):
                trainings.next_outcomes()

    def test_another_executor_in_its_place_is_shut_down_here(self) -> None:
        second = ThreadPoolExecutor(1)
        made: Iterator[Executor] = iter([Fake("breaks"), second])
        with Trainings(toy.problem(), lambda: next(made)) as trainings:
            with pytest.raises(ExecutorDiedError):
                trainings.submit(task())
            assert trainings.replace() and not trainings.in_flight
            trainings.submit(task())
            ((_, outcome),) = trainings.next_outcomes()
            assert isinstance(outcome, dict)
        with pytest.raises(RuntimeError, match="shutdown"):
            second.submit(print)
        assert not Trainings(toy.problem(), ThreadPoolExecutor(1)).replace()

    def test_the_study_survives_and_goes_on_with_a_new_executor(self, tmp_path: Path) -> None:
        killer = toy.problem(toy.KillsOnce(str(tmp_path / "killed")), replicates=1)
        tried = study(killer)
        with (
            processes(2) as pool,
            pytest.raises(ExecutorDiedError, match="call `run` again"),
        ):
            tried.run(6, batch_size=2, executor=pool)
        before = tried.trials
        assert any(trial.state == "pending" for trial in before)
        with processes(2) as pool:
            tried.run(6, batch_size=2, executor=pool)
        assert all(trial.state == "complete" for trial in tried.trials)
        assert [t.config for t in tried.trials[: len(before)]] == [t.config for t in before]
        assert [t.seeds for t in tried.trials[: len(before)]] == [t.seeds for t in before]

    def test_culprits_are_found_and_the_innocent_complete(self) -> None:
        """Trials in flight when a worker died run alone the next time; who dies alone is guilty."""
        tried = study(toy.problem(toy.KillsItsProcess(2.0)), retries=0)
        tried.run(8, batch_size=3, executor=lambda: processes(3))
        states = {trial.config["noise"] > 2.0: trial.state for trial in tried.trials}
        for trial in tried.trials:
            guilty = trial.config["noise"] > 2.0
            assert trial.state == ("failed" if guilty else "complete")
            assert trial.failures == (("BrokenProcessPool",) if guilty else ())
        assert len(states) == 2, "the seed gives both kinds"

    @pytest.mark.parametrize("replaceable", [False, True])
    def test_between_a_failure_and_its_retry(self, replaceable: bool) -> None:
        ways = ("fails", "finishes", "finishes", "breaks")
        tried = study(toy.problem(replicates=3), retries=1)
        if replaceable:
            made: Iterator[Executor] = iter([Fake(*ways), ThreadPoolExecutor(1)])
            tried.run(2, executor=lambda: next(made))
            assert [len(trial.finished) for trial in tried.trials] == [2, 3]
            return
        with pytest.raises(ExecutorDiedError, match="call `run` again"):
            tried.run(2, executor=Fake(*ways))
        (trial,) = tried.trials
        # One attempt failed, and the executor died while the trial was alone.
        assert trial.failures == ("OSError", "BrokenExecutor") and trial.state == "failed"
        assert len(trial.finished) == 2, "what finished is stored before anything is risked"

    def test_executors_that_never_live(self) -> None:
        tried = study(retries=1)
        with pytest.raises(StudyError, match="RuntimeError"):
            tried.run(3, executor=lambda: Fake("shut down"))
        assert all(trial.state == "failed" for trial in tried.trials)

    def test_another_exception_is_no_result(self) -> None:
        """A bug in an executor is raised; the trials stay queued."""
        tried = study()
        with pytest.raises(AttributeError):
            tried.run(2, executor=Fake("has a bug"))
        assert len(tried.run(2).trials) == 2


@pytest.mark.parametrize(
    ("make", "expected"), [(None, 1), (lambda: processes(1), 1), (lambda: ThreadPoolExecutor(1), 3)]
)
def test_threads_while_proposing(make: Any, expected: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Trainings(toy.problem(), make) as trainings:
            with trainings.leaving_cores_to_trainings():
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_an_oracle_that_cannot_travel() -> None:
    with processes(1) as pool, pytest.raises(ValueError, match="top level"):
        study(toy.problem(lambda config, seed: 0.5)).run(2, executor=pool)


@contextmanager
def dask(count: int) -> Iterator[Executor]:
    """The executor of a Dask client with workers on this machine."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=count, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor(pure=False, retries=0)


@pytest.mark.parametrize("make", [ThreadPoolExecutor, processes, dask])
def test_the_same_study_wherever_its_initial_trials_are_trained(make: Any) -> None:
    problem = toy.problem(toy.Slow(0.005), replicates=2)
    with make(2) as executor:
        front = study(problem).run(6, batch_size=3, executor=executor)
    assert front.all_points.equal(study(problem).run(6).all_points)


class TestBatches:
    def test_no_more_than_the_batch_is_in_flight(self) -> None:
        lock, running, most = threading.Lock(), Counter[str](), [0]
        others = threading.Barrier(3, timeout=60)  # nine trainings end three by three

        def train(config: dict[str, Any], seed: int) -> float:
            with lock:
                running["now"] += 1
                most[0] = max(most[0], running["now"])
            others.wait()
            time.sleep(0.01)
            with lock:
                running["now"] -= 1
            return 0.5

        with ThreadPoolExecutor(8) as pool:
            study(toy.problem(train)).run(9, batch_size=3, executor=pool)
        assert most[0] == 3

    def test_asynchronous_workers_do_not_wait_for_the_slowest(self) -> None:
        release = threading.Event()
        finished: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            if seed == first_seed:
                assert release.wait(30)
            finished.append(seed)
            if len(finished) == 5:
                release.set()
            return 0.5

        tried = study(toy.problem(train))
        first_seed = study().ask()[0].seeds[0]
        with ThreadPoolExecutor(2) as pool:
            tried.run(6, batch_size=2, executor=pool)
        assert finished[-1] == first_seed

    def test_synchronous_batches_repeat_whatever_ends_first(self) -> None:
        def run(slow_is_odd: bool) -> Any:
            def train(config: dict[str, Any], seed: int) -> float:
                time.sleep(0.02 if (seed % 2 == 1) == slow_is_odd else 0)
                return toy.utility(config, seed)

            with ThreadPoolExecutor(3) as pool:
                return study(toy.problem(train), acquisition="ehvi", candidates=64).run(
                    10, initial=4, batch_size=3, executor=pool, asynchronous=False
                )

        assert run(True).all_points.equal(run(False).all_points)

    def test_pending_trials_spread_a_batch(self) -> None:
        asked = study(acquisition="ehvi", candidates=128)
        asked.run(8, initial=8)
        codes = toy.SPACE.encode([trial.config for trial in asked.ask(4, initial=8)])
        assert (codes.unsqueeze(0) - codes.unsqueeze(1)).norm(dim=-1).fill_diagonal_(1).min() > 0.02


class TestFailures:
    def test_types_are_recorded_and_the_others_go_on(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            if config["epochs"] % 3 == 0:
                raise FloatingPointError(f"loss of record 12 is {seed}")
            return toy.utility(config, seed)

        tried = study(toy.problem(train), acquisition="ehvi", candidates=64, retries=1)
        tried.run(24, initial=12)
        for trial in tried.trials:
            bad = trial.config["epochs"] % 3 == 0
            assert trial.state == ("failed" if bad else "complete")
            assert trial.failures == (("FloatingPointError",) * 2 if bad else ())
        assert any(trial.state == "failed" for trial in tried.trials)

    def test_retry_keeps_number_config_and_seeds(self) -> None:
        calls: list[tuple[str, int]] = []

        def train(config: dict[str, Any], seed: int) -> float:
            calls.append((str(config), seed))
            if len(calls) == 1:
                raise OSError
            return 0.5

        tried = study(toy.problem(train))
        tried.run(1)
        assert calls[0] == calls[1]
        (trial,) = tried.trials
        assert trial.state == "complete" and trial.failures == ("OSError",)
        assert trial.num_trainings == 2

    def test_finished_replicates_of_a_retried_trial_are_not_trained_again(self) -> None:
        calls: Counter[int] = Counter()

        def train(config: dict[str, Any], seed: int) -> float:
            calls[seed] += 1
            if len(calls) == 2 and calls[seed] == 1:
                raise OSError
            return 0.5

        study(toy.problem(train, replicates=3)).run(1)
        assert sorted(calls.values()) == [1, 1, 2]

    def test_replicates_that_fail_together_share_the_attempts(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            time.sleep(0.02)
            raise OSError

        tried = study(toy.problem(train, replicates=3), retries=1)
        with ThreadPoolExecutor(3) as pool, pytest.raises(StudyError, match="OSError"):
            tried.run(1, executor=pool)
        (trial,) = tried.trials
        assert trial.state == "failed" and 2 <= len(trial.failures) <= 3

    def test_without_retries(self) -> None:
        tried = study(toy.problem(lambda config, seed: 1 / 0), retries=0)
        with pytest.raises(StudyError, match="ZeroDivisionError"):
            tried.run(3)
        assert all(trial.failures == ("ZeroDivisionError",) for trial in tried.trials)

    @pytest.mark.parametrize("answer", [float("nan"), 87.5, -0.5, None])
    def test_nonsense_utilities_fail_their_trial_only(self, answer: Any) -> None:
        def train(config: dict[str, Any], seed: int) -> Any:
            return answer if config["epochs"] > 10 else toy.utility(config, seed)

        tried = study(toy.problem(train))
        front = tried.run(12)
        kinds = {trial.failures for trial in tried.trials if trial.state == "failed"}
        assert kinds == {("InvalidUtilityError",)}
        assert all(trial.config["epochs"] <= 10 for trial in front.trials)

    def test_all_initial_trials_fail(self) -> None:
        tried = study(toy.problem(lambda config, seed: 87.5), acquisition="ehvi")
        with pytest.raises(StudyError, match="a share, not percent"):
            tried.run(10, initial=4)
        assert len(tried.trials) == 1, "no budget is spent on what cannot work"

    def test_no_message_of_an_oracle_reaches_the_caller(self) -> None:
        record = 4.2

        def train(config: dict[str, Any], seed: int) -> float:
            raise ValueError(f"record 17 says {record}")

        with pytest.raises(StudyError) as caught:
            study(toy.problem(train)).run(2)
        chain = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert not any("4.2" in str(error) for error in chain)


class TestInterruption:
    def test_ctrl_c_keeps_what_finished(self) -> None:
        calls: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            calls.append(seed)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return 0.5

        tried = study(toy.problem(train))
        with pytest.warns(UserWarning, match="Interrupted after 4 of 10 trials"):
            front = tried.run(10)
        assert len(front.trials) == 4 and tried.last_run == "interrupted"
        (pending,) = [trial for trial in tried.trials if trial.state == "pending"]
        assert not pending.failures
        assert len(tried.run(10).trials) == 10
        assert calls[4] == calls[5], "the interrupted trial is trained again, as it was"

    def test_before_anything_finished(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            raise KeyboardInterrupt

        tried = study(toy.problem(train))
        with pytest.raises(KeyboardInterrupt):
            tried.run(10)
        assert [trial.state for trial in tried.trials] == ["pending"]

    def test_queued_trainings_are_cancelled(self) -> None:
        started: list[int] = []
        submitted: list[Future[Any]] = []
        first_is_stored = threading.Event()

        class Pool(ThreadPoolExecutor):
            def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
                submitted.append(super().submit(*args, **kwargs))
                return submitted[-1]

        def train(config: dict[str, Any], seed: int) -> float:
            started.append(seed)
            if len(started) == 2:
                assert first_is_stored.wait(60)
                raise KeyboardInterrupt
            if len(started) == 3:  # it begins before the interruption arrives
                until = time.monotonic() + 60
                while time.monotonic() < until and not submitted[-1].cancelled():
                    time.sleep(0.01)
            return 0.5

        with Pool(1) as pool, pytest.warns(UserWarning, match="Interrupted"):
            study(toy.problem(train)).run(
                10, batch_size=5, executor=pool, callbacks=[lambda *_: first_is_stored.set()]
            )
        assert len(started) <= 3


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    study().run(3, progress=True)
    assert "3/3" in capsys.readouterr().err
    study().run(3)
    assert capsys.readouterr().err == ""


#: What ends a training that hangs; no other may need it, however busy the machine is.
LIMIT = 0.5


@dataclass(frozen=True)
class Hangs:
    """The utility, except that trainings of many epochs never end.

    Args:
        way: In Python code ("sleep"), catching every error ("stubborn"), or in C ("c").
    """

    way: str

    def __call__(self, config: Config, seed: int) -> float:
        if config["epochs"] > 14:
            if self.way == "c":
                # No signal comes through, and the interpreter's lock is held all the time.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                ctypes.PyDLL(None).sleep(600)
            while True:
                try:
                    time.sleep(600)
                except Exception:  # what careless training loops do
                    if self.way != "stubborn":
                        raise
        return toy.utility(config, seed)


def hanging(way: str, **options: Any) -> DPareto:
    return study(toy.problem(Hangs(way), **options))


def check(tried: DPareto, trials: int) -> None:
    assert len(tried.trials) == trials
    for trial in tried.trials:
        hung = trial.config["epochs"] > 14
        assert trial.state == ("failed" if hung else "complete")
        assert trial.failures[-1:] == (("TrainingTimeout",) if hung else ())
        assert trial.num_trainings >= 1
    assert {trial.state for trial in tried.trials} == {"complete", "failed"}


@pytest.mark.parametrize("way", ["sleep", "stubborn"])
def test_in_this_thread(way: str) -> None:
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    tried = hanging(way)
    tried.run(8, training_timeout=LIMIT)
    check(tried, 8)
    assert all(trial.failed_trainings == 1 for trial in tried.trials if trial.state == "failed")
    assert signal.getsignal(signal.SIGALRM) is before
    assert timer[0] - 30 <= signal.getitimer(signal.ITIMER_REAL)[0] <= timer[0]


@pytest.mark.parametrize("way", ["sleep", "stubborn"])
def test_in_worker_processes(way: str) -> None:
    tried = hanging(way, replicates=2)
    with processes(2) as pool:
        tried.run(8, batch_size=2, executor=pool, training_timeout=LIMIT)
    check(tried, 8)


def test_a_process_that_hangs_in_c_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_GRACE", 0.3)
    tried = hanging("c")
    start = time.monotonic()
    tried.run(
        8,
        batch_size=2,
        executor=lambda: processes(2),
        training_timeout=LIMIT,
    )
    assert time.monotonic() - start < 60
    check(tried, 8)


def test_re_evaluations_too() -> None:
    hung = {"epochs": 20, "noise": 1.0}
    tried = hanging("sleep")
    tried.add_trial(hung, 0.99)
    tried.add_trial({"epochs": 2, "noise": 9.0}, 0.2)
    with pytest.warns(UserWarning, match=r"trials \[0\] failed, with \['TrainingTimeout'\]"):
        again = tried.front().reevaluate(2, training_timeout=LIMIT)
    assert [trial.number for trial in again.trials] == [1]
    assert tried.trials[0].failed_trainings == 2


def test_threads_cannot_be_ended() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="A thread cannot be ended"):
        hanging("sleep").run(4, executor=pool, training_timeout=1.0)
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            hanging("sleep").run(4, training_timeout=1.0)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_an_executor_whose_workers_turn_out_to_be_threads() -> None:
    class Hidden(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(fn, *args)
                future.exception()
            return future

    tried = hanging("sleep")
    with pytest.raises(StudyError, match="A thread cannot be ended"):
        tried.run(4, executor=Hidden(), training_timeout=1.0)
    assert [trial.state for trial in tried.trials] == ["pending"]


def test_an_earlier_timer_goes_on() -> None:
    rang: list[float] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TrainingTimeout), time_limit(0.05, ends_process=False):
            time.sleep(60)
        while not rang and time.monotonic() < start + 30:
            time.sleep(0.01)
        assert rang and 0.29 < rang[0] - start < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
