"""The dashboard follows a running study, for its owner only, and leaves the study alone."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `service`")
from starlette.testclient import TestClient

from botorch_dp.pareto import DPareto
from botorch_dp.report import dashboard_app
from tests.browser import chromium, opened, wait_until_drawn
from tests.cli.calling import SCRIPT
from tests.outsourced.serving import free_port
from tests.pareto.toy import problem

TOKEN = "a-token-for-the-tests"


def client(path: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(dashboard_app(path, token=TOKEN), base_url=f"http://{host}")


class TestAdmission:
    @pytest.mark.parametrize("place", ["/", "/state"])
    @pytest.mark.parametrize("query", ["", "?token=", "?token=a-token-for-the-testt"])
    def test_needs_the_token(self, tmp_path: Path, place: str, query: str) -> None:
        with DPareto(problem(), storage=tmp_path / "s", seed=0) as study:
            study.run(2)
        answer = client(tmp_path / "s").get(place + query)
        assert answer.status_code == 401
        assert "Privacy-utility" not in answer.text

    def test_other_names_of_this_machine_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "s").touch()
        assert client(tmp_path / "s", "evil.example").get(f"/?token={TOKEN}").status_code == 400

    def test_a_short_token(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least 16"):
            dashboard_app(tmp_path / "s", token="short")


def test_follows_the_study_that_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with DPareto(problem(), storage=path, seed=0) as study:
        served = client(path)
        states = []
        for trials in (1, 3):
            study.run(trials)
            shown = served.get(f"/?token={TOKEN}")
            assert shown.status_code == 200
            assert f"{trials} trials ({trials} complete)" in shown.text
            assert shown.headers["cache-control"] == "no-store"
            state = served.get(f"/state?token={TOKEN}").json()["state"]
            assert f'"state": "{state}"' in shown.text
            states.append(state)
        assert states[0] != states[1]


def test_live_in_the_browser(tmp_path: Path) -> None:
    """The command serves it on the loopback interface; the page changes when a trial ends."""
    port = free_port()
    path = tmp_path / "s"
    with DPareto(problem(), storage=path, seed=0) as study, chromium() as browser:
        study.run(3)
        environment = {**os.environ, "BOTORCH_DP_TOKEN": TOKEN}
        command = [SCRIPT, "dashboard", path, "--port", str(port)]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = re.match(r"\S+", server.stdout.readline())
            assert address is not None
            deadline = time.monotonic() + 120
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with opened(browser, address[0]) as page:
                wait_until_drawn(page)
                assert "3 trials" in page.inner_text("header")
                page.get_by_label("largest ε allowed").press("End")
                chosen = page.locator("#epsilon-shown").inner_text()
                study.run(4)
                page.get_by_text("4 trials").wait_for()
                wait_until_drawn(page)
                assert page.locator("#epsilon-shown").inner_text() == chosen
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=120) in (0, 130)
