"""`curator` and `modeler`: two programs, one search."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.calling import SCRIPT, call


class TestOutsourcing:
    def test_curator_and_modeler_through_the_script(self, tmp_path: Path) -> None:
        import socket

        import numpy as np

        rows = np.random.default_rng(0).normal(size=(60, 2)) * 5
        np.save(tmp_path / "rows.npy", rows)
        np.savetxt(tmp_path / "values.csv", -np.abs(rows[:, :1]), delimiter=",")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "BOTORCH_DP_TOKEN": "a-shared-token-for-tests"}
        command = [
            *(SCRIPT, "curator", "rows.npy", "--evaluate", "values.csv", "--state", "state"),
            *("--epsilon", "3", "--delta", "1e-5", "--port", str(port)),
        ]
        served: list[bytes] = []
        for steps in (4, 6):
            curator = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
            )
            try:
                assert curator.stdout is not None
                assert "60 rows" in curator.stdout.readline()
                done = subprocess.run(
                    [
                        *(SCRIPT, "modeler", f"http://127.0.0.1:{port}", "--steps", str(steps)),
                        *("--checkpoint", "search.jsonl", "--quiet", "--json"),
                    ],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
            finally:
                curator.send_signal(signal.SIGINT)
                curator.wait(timeout=30)
            assert done.returncode == 0, done.stderr
            assert len(json.loads(done.stdout)["history"]) == steps
            served.append((tmp_path / "state" / "dataset.npz").read_bytes())
        # A restart serves the same rows: fresh noise would be a second release.
        assert served[0] == served[1]

    def test_no_token(self, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("BOTORCH_DP_TOKEN", raising=False)
        code, _, err = call(capsys, "modeler", "http://127.0.0.1:1")
        assert code == 1
        assert "BOTORCH_DP_TOKEN" in err

    def test_bad_files_are_not_quoted(
        self, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BOTORCH_DP_TOKEN", "a-shared-token-for-tests")
        (tmp_path / "rows.csv").write_text("Smith,1\n")
        (tmp_path / "values.csv").write_text("1\n")
        code, _, err = call(
            capsys,
            *("curator", str(tmp_path / "rows.csv"), "--evaluate", str(tmp_path / "values.csv")),
            *("--state", str(tmp_path / "state"), "--epsilon", "1", "--delta", "1e-5"),
        )
        assert code == 1
        assert "table of numbers" in err
        assert "Smith" not in err
