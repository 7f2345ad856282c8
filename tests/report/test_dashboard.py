"""The dashboard follows a running study, for its owner only, and leaves the study alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `service`")
from starlette.testclient import TestClient

from botorch_dp.pareto import DPareto
from botorch_dp.report import dashboard_app
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
