"""Several workers behind one port: one answer and one charge for each question."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from botorch_dp.outsourced import CuratorClient, serve
from tests.outsourced.fleet import charges, curator, fleet, load, worker_processes
from tests.outsourced.serving import TOKEN, make_curator, memory_folder, raw


def test_every_worker_gives_the_same_answer_for_one_charge() -> None:
    questions = 150
    with memory_folder() as folder:
        with fleet(folder, 2) as (url, _):
            found, seconds = load(url, questions, clients=4)
            status, text, _ = raw(url, "GET", "/metrics")
            assert status == 200
            assert f'status="200"}} {4 * questions}\n' in text.decode()
            assert "botorch_dp_worker_starts_total 2" in text.decode()
        assert len(seconds) == 4 * questions
        assert all(answers == found[0] for answers in found)
        assert len(set(found[0].values())) == questions
        assert charges(folder) == questions
        with closing(curator(folder)) as again:
            assert again.num_queries == questions
            for number, answer in found[0].items():
                assert again.query(number % 30, request_id=f"question {number}") == answer
        assert charges(folder) == questions


def test_what_a_killed_process_leaves() -> None:
    """Of a killed worker the others take over, and of a killed parent no worker stays behind."""
    questions, clients = 150, 3
    with memory_folder() as folder:
        with fleet(folder, 2) as (url, parent):
            before = worker_processes(parent.pid)
            assert len(before) == 2
            killer = threading.Timer(0.3, os.kill, (before[0], signal.SIGKILL))
            killer.start()
            found, _ = load(url, questions, clients)
            killer.join()
            deadline = time.monotonic() + 60
            while len(worker_processes(parent.pid)) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            now = worker_processes(parent.pid)
            assert before[0] not in now
            assert before[1] in now
            parent.kill()
            deadline = time.monotonic() + 60
            while any(map(is_running, now)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not any(map(is_running, now))
            with pytest.raises(ConnectionError):
                CuratorClient(url, token=TOKEN, patience=0.2).status()
        assert all(answers == found[0] for answers in found)
        # What the killed worker was drawing stays spent.
        assert questions <= charges(folder) <= questions + clients
        with closing(curator(folder)) as again:
            assert again.num_queries == questions


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def no_file() -> object:
    return make_curator()


def no_curator() -> object:
    return "a curator"


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "settings", "words"),
        [
            (make_curator, {"workers": 0}, "`workers`"),
            (no_file, {"workers": 2}, "must have a file as its `log`"),
            (lambda: make_curator(), {"workers": 2}, "`curator` must be a function that workers"),
            (no_curator, {}, "`curator` must be or make a Curator"),
            (make_curator, {"token": "short"}, "`token`"),
            (make_curator, {"token": None}, "exactly one of `token` and `token_file`"),
            (make_curator, {"token_file": "here too"}, "exactly one of `token` and `token_file`"),
            (make_curator, {"port": 70000}, "`port`"),
            (make_curator, {"host": "192.0.2.1"}, "`host` 192.0.2.1 .* cannot be listened on"),
            (make_curator, {"rate": 0.0}, "`rate`"),
        ],
    )
    def test_nothing_is_started(self, what, settings, words: str) -> None:
        started: list[str] = []
        with pytest.raises((TypeError, ValueError), match=words):
            serve(what, **{"token": TOKEN, "port": 0, "ready": started.append, **settings})
        assert started == []

    def test_one_curator_is_not_several(self) -> None:
        with pytest.raises(TypeError, match="each of several workers has its own"):
            serve(make_curator(), token=TOKEN, workers=2)

    def test_a_port_in_use_is_said_before_rows_are_released(self) -> None:
        made = []

        def make() -> object:
            made.append(1)
            return make_curator()

        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ValueError, match="Address already in use"):
                serve(make, token=TOKEN, port=port)
        assert made == []
