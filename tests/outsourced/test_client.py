"""The modeler's client waits out what passes and reports what does not."""

from __future__ import annotations

import threading
import time

import pytest

from botorch_dp.outsourced import (
    CuratorClient,
)
from tests.outsourced.serving import (
    TOKEN,
    free_port,
    make_curator,
    measure,
    serving,
)


def test_client_waits_out_the_rate_limit() -> None:
    with serving(make_curator(), rate=20.0, burst=1) as url:
        remote = CuratorClient(url, token=TOKEN)
        assert [remote.query(i) for i in range(4)] == [measure(i) for i in range(4)]


def test_client_survives_a_curator_that_comes_back() -> None:
    port = free_port()
    remote = CuratorClient(f"http://127.0.0.1:{port}", token=TOKEN, patience=30)
    answers: list[float] = []
    thread = threading.Thread(target=lambda: answers.append(remote.query(2)))
    thread.start()
    time.sleep(0.5)
    with serving(make_curator(), port=port):
        thread.join(timeout=30)
    assert answers == [measure(2)]


def test_unknown_host_and_bad_url() -> None:
    with pytest.raises(ConnectionError):
        CuratorClient(f"http://127.0.0.1:{free_port()}", token=TOKEN, patience=0.2).status()
    with pytest.raises(ValueError, match="`url`"):
        CuratorClient("ftp://curator", token=TOKEN)
    assert TOKEN not in repr(CuratorClient("http://127.0.0.1:1", token=TOKEN))
