"""Several processes on one study: no trial is trained twice, and none is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, Real, SearchSpace, StudyError
from botorch_dp.pareto.storage import NumberTakenError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.space import Config
from tests.one_draw import in_fork
from tests.pareto import test_paying, toy
from tests.postgres import wait_until

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")
TRIALS, REPLICATES = 16, 2


@dataclass(frozen=True)
class Logged:
    """The utility, after some time; each training adds its seed to a log when it begins."""

    log: str
    seconds: float = 0.02

    def __call__(self, config: Config, seed: int) -> float:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{seed}\n".encode())
        os.close(descriptor)
        time.sleep(self.seconds)
        return toy.utility(config, seed)


@pytest.fixture(params=["file", "server"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A place for a study in a file, or for the log of one in a database."""
    if request.param == "server":
        (tmp_path / "address").write_text(request.getfixturevalue("new_study")())
    return tmp_path


def storage(folder: Path) -> Path | str:
    address = folder / "address"
    return address.read_text() if address.exists() else folder / "study.sqlite"


def study(folder: Path, **options: Any) -> DPareto:
    options = {"acquisition": "ehvi", "candidates": 64, "seed": 0} | options
    problem = toy.problem(Logged(str(folder / "log")), replicates=REPLICATES)
    return DPareto(problem, storage=storage(folder), **options)


def run(folder: Path) -> None:
    torch.set_num_threads(1)
    with study(folder) as running:
        front = running.run(TRIALS, initial=6)
        assert len(front.trials) == TRIALS


def begun(folder: Path) -> Counter[str]:
    return Counter((folder / "log").read_text().split())


def test_three_processes_share_the_work(folder: Path) -> None:
    children = [FORK.Process(target=run, args=(folder,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    with study(folder) as finished:
        trials = finished.trials
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
    assert [trial.number for trial in trials] == list(range(TRIALS))
    # Each training of each trial, once; nothing failed on the way.
    assert begun(folder) == Counter(str(seed) for trial in trials for seed in trial.seeds)
    assert not any(trial.failures for trial in trials)
    assert all(t.utilities == tuple(toy.utility(t.config, s) for s in t.seeds) for t in trials)


def test_killed_in_their_midst(folder: Path) -> None:
    """Kill -9 of any of them: the others take up what it left, and train nothing else twice."""
    generator, kills = random.Random(1), 0
    children = [FORK.Process(target=run, args=(folder,)) for _ in range(3)]
    for child in children:
        child.start()
    while kills < 4:
        time.sleep(generator.uniform(0.1, 0.3))
        victim = generator.randrange(2)  # the third one lives on
        if children[victim].exitcode is None:
            children[victim].kill()
            children[victim].join()
            kills += 1
        children[victim] = FORK.Process(target=run, args=(folder,))
        children[victim].start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    with study(folder) as finished:
        trials = finished.trials
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
    counted = begun(folder)
    assert set(counted) == {str(seed) for trial in trials for seed in trial.seeds}
    assert sum(counted.values()) <= TRIALS * REPLICATES + kills


def test_a_living_owner_keeps_its_trial(folder: Path) -> None:
    with study(folder) as first, study(folder) as second:
        (asked,) = first.ask()
        (other,) = second.ask()
        assert (asked.number, other.number) == (0, 1)
        assert [trial.number for trial in first.trials] == [0, 1]
        # Whoever knows the number may tell.
        assert second.tell(asked, [0.5, 0.25]).state == "complete"
        assert first.trials[0].utilities == (0.5, 0.25)
    with study(folder) as third:
        assert third.ask()[0] == other, "who closes the study gives its trials back"


def test_a_run_does_not_wait_for_what_is_trained_by_hand(folder: Path) -> None:
    with study(folder) as first, study(folder) as second:
        (asked,) = first.ask()
        front = second.run(4)
        assert [trial.number for trial in front.trials] == [1, 2, 3]
        assert second.trials[0] == asked


def test_what_a_dead_process_claimed_is_free(folder: Path) -> None:
    def die() -> None:
        study(folder).ask(2)
        os._exit(0)

    assert in_fork(die) is None
    with study(folder) as alive:
        # A server needs a moment to notice.
        owners = alive._storage._owners
        wait_until(lambda: not any(alive._storage._may_be_at_work(o) for o in owners(0)))
        assert [trial.number for trial in alive.ask(3)] == [0, 1, 2]


def test_a_claim_of_another_machine_is_not_taken_over(tmp_path: Path) -> None:
    with study(tmp_path) as here:
        (asked,) = here.ask()
        storage = here._storage._state
        ((owner,),) = storage.query("SELECT owner FROM claim")
        elsewhere = json.dumps(json.loads(owner) | {"host": "elsewhere", "token": "another"})
        with storage.transaction():
            storage.execute("UPDATE claim SET owner = ?", (elsewhere,))
        here._queue._taken.clear()
        assert here.ask()[0].number == 1
        assert here.tell(asked, [0.5, 0.5]).state == "complete"


def test_two_proposals_of_one_number(folder: Path) -> None:
    with study(folder) as first, study(folder) as second:
        first.ask()
        assert second._queue.propose(6) is None, "it did not know of the first one"
        proposed = second._queue.propose(6)
        assert proposed is not None and proposed.number == 1
        with pytest.raises(NumberTakenError):
            first._storage.add_trial(1, {"noise": 1.0, "epochs": 2}, (1, 2), 1.0)


def test_a_fork_does_not_go_on_with_its_parents_study(folder: Path) -> None:
    with study(folder) as parent:
        parent.ask()
        answer = in_fork(lambda: parent.ask())
        assert isinstance(answer, StudyError) and "fork" in str(answer)
        assert in_fork(lambda: study(folder).ask()[0].number) == 1
        assert parent.trials[0].state == "pending"


def test_a_wider_space_elsewhere_is_noticed(folder: Path) -> None:
    def problem(high: float) -> PrivacyUtilityProblem:
        space = SearchSpace(noise=Real(0.5, high, log=True))
        return PrivacyUtilityProblem(
            space, privacy=lambda c: 1 / c["noise"], utility=lambda c, s: 0.5, name="one"
        )

    path = storage(folder)
    with DPareto(problem(2.0), storage=path, acquisition="random", seed=0) as narrow:
        narrow.run(2)
        with DPareto(problem(8.0), storage=path, acquisition="random") as wide:
            wide.run(4)
        with pytest.raises(StudyError, match=r"goes on with .* in a wider space"):
            narrow.run(6)


def test_paid_for_together(tmp_path: Path) -> None:
    """Two processes, one ledger: charges are the trainings that began."""
    log = tmp_path / "log"

    def work() -> None:
        train = test_paying.Trains(str(log))
        with test_paying.study(train, storage=tmp_path / "s", replicates=2) as running:
            running.run(8)

    children = [FORK.Process(target=work) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    with PrivacyLedger(tmp_path / "s.ledger", PrivacyBudget(8.0, 1e-6)) as ledger:
        assert len(ledger.entries()) == test_paying.began(log) == 16
