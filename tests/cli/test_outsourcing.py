"""`curator` and `modeler`: two programs, one search."""

from __future__ import annotations

import argparse
import json
import re
import stat
from pathlib import Path

import pytest
import torch

from botorch_dp.cli import parser
from botorch_dp.cli.outsourcing import open_curator, table
from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced import load_dataset
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.cli.calling import call, forked
from tests.outsourced.serving import free_port


class TestOutsourcing:
    def test_curator_and_modeler_are_two_processes(
        self, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import numpy as np

        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("BOTORCH_DP_TOKEN", "a-shared-token-for-tests")
        rows = np.random.default_rng(0).normal(size=(60, 2)) * 5
        np.save("rows.npy", rows)
        np.savetxt("values.csv", -np.abs(rows[:, :1]), delimiter=",")
        port = free_port()
        command = [
            *("curator", "rows.npy", "--evaluate", "values.csv", "--state", "state"),
            *("--epsilon", "3", "--delta", "1e-5", "--row-distance", "1", "--port", str(port)),
        ]

        modeler = ("modeler", f"http://127.0.0.1:{port}", "--checkpoint", "search.run")
        served: list[bytes] = []
        for steps in (4, 6):  # a search that is begun, and one that goes on
            with forked(tmp_path, *command) as curator:
                assert "60 rows" in curator.out.readline(), curator.err.read_text()
                noise = r"standard deviation 1\.\d+; .* columns range over [\d.]+ to [\d.]+\."
                assert re.search(noise, curator.out.readline())
                code, out, err = call(capsys, *modeler, "--steps", str(steps), "--quiet", "--json")
                assert curator.interrupted() in (0, 130)
            assert code == 0, err
            assert len(json.loads(out)["history"]) == steps
            served.append(Path("state/dataset.npz").read_bytes())
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
            *("--row-distance", "1", "--port", "0"),
        )
        assert code == 1
        assert "table of numbers" in err
        assert "Smith" not in err

    @pytest.mark.parametrize(
        ("text", "rows"),
        [
            ("age,income\n1,2\n3,4\n", [[1.0, 2.0], [3.0, 4.0]]),
            ('"age","income"\n1,2\n', [[1.0, 2.0]]),
            ("1,2\n3,4\n", [[1.0, 2.0], [3.0, 4.0]]),
            # A damaged first row is no header: it is not dropped.
            ("Smith,2\n3,4\n", None),
            ("age,income\nSmith,4\n", None),
        ],
    )
    def test_a_header_is_no_row(self, tmp_path: Path, text: str, rows: list | None) -> None:
        path = tmp_path / "rows.csv"
        path.write_text(text)
        if rows is None:
            with pytest.raises(ValueError, match="table of numbers") as caught:
                table(path)
            assert "Smith" not in str(caught.value).replace(str(path), "")
        else:
            assert table(path).tolist() == rows


class TestState:
    """A state folder is one release, of one set of rows, under one set of settings."""

    def options(self, folder: Path, **changed: object) -> argparse.Namespace:
        if not (folder / "rows.csv").exists():
            (folder / "rows.csv").write_text("1,2\n3,4\n5,6\n")
            (folder / "values.csv").write_text("1\n2\n3\n")
        settings = {
            "rows": str(folder / "rows.csv"),
            "evaluate": str(folder / "values.csv"),
            "state": str(folder / "state"),
            "epsilon": "1",
            "delta": "1e-5",
            "row_distance": "1",
            **changed,
        }
        words = ["curator", settings.pop("rows")]
        for name, value in settings.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return parser().parse_args(words)

    @pytest.mark.parametrize(
        ("added", "words"),
        [
            (["--keyfile", "key.pem"], "--keyfile needs a --certfile"),
            (["--certfile", "none.pem"], "`certfile` none.pem cannot be read"),
            (["--token-file", "none"], "`token_file` none cannot be read"),
            (["--token-file", "values.csv"], "`token_file` values.csv can be read by others"),
            (["--port", "65536"], "`port` must be"),
            (["--host", "192.0.2.1"], "cannot be listened on"),
            (["--row-distance", "0"], "above 0"),
            (["--workers", "2"], "unrecognized arguments"),
        ],
    )
    def test_a_wrong_argument_releases_nothing(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        added: list[str],
        words: str,
    ) -> None:
        self.options(tmp_path)
        monkeypatch.setenv("BOTORCH_DP_TOKEN", "a-shared-token-for-tests")
        monkeypatch.chdir(tmp_path)
        command = ["curator", "rows.csv", "--evaluate", "values.csv", "--state", "state"]
        command += ["--epsilon", "1", "--delta", "1e-5", "--row-distance", "1", *added]
        try:
            code, _, error = call(capsys, *command)
        except SystemExit as ended:
            code, error = ended.code, capsys.readouterr().err
        assert code in (1, 2)
        assert words in error
        assert not (tmp_path / "state").exists()

    def test_how_far_a_row_may_move_has_no_default(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            call(
                capsys,
                *("curator", "rows.csv", "--evaluate", "values.csv", "--state", "state"),
                *("--epsilon", "1", "--delta", "1e-5"),
            )
        assert "required: --row-distance" in capsys.readouterr().err

    def test_a_restart_serves_the_same_rows(self, tmp_path: Path) -> None:
        first = open_curator(self.options(tmp_path))
        rows = first.dataset.value
        first.close()
        again = open_curator(self.options(tmp_path, max_queries=7))
        assert torch.equal(again.dataset.value, rows)
        assert again.max_queries == 7
        again.close()
        assert stat.S_IMODE((tmp_path / "state" / "queries.sqlite").stat().st_mode) == 0o600
        assert torch.equal(load_dataset(tmp_path / "state" / "dataset.npz").value, rows)

    def test_a_second_one_is_refused(self, tmp_path: Path) -> None:
        first = open_curator(self.options(tmp_path))
        with pytest.raises(ValueError, match="in use"):
            open_curator(self.options(tmp_path))
        first.close()

    @pytest.mark.parametrize(
        ("changed", "named"),
        [
            ({"epsilon": 2}, "epsilon"),
            ({"delta": "1e-4"}, "delta"),
            ({"row_distance": 2}, "row_distance"),
            ({"projection_dim": 1}, "projection_dim"),
            ({"rows": "other.csv"}, "rows"),
            ({"ledger": "ledger"}, "charged"),
        ],
    )
    def test_other_settings_are_refused(self, tmp_path: Path, changed, named: str) -> None:
        open_curator(self.options(tmp_path)).close()
        (tmp_path / "other.csv").write_text("1,2\n3,4\n5,7\n")
        PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5)).close()
        changed = {
            name: str(tmp_path / value) if name in ("rows", "ledger") else value
            for name, value in changed.items()
        }
        with pytest.raises(ValueError, match=rf"other settings \(.*{named}"):
            open_curator(self.options(tmp_path, **changed))
        open_curator(self.options(tmp_path)).close()

    def test_the_release_is_charged_once(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger"
        with pytest.raises(ValueError, match="There is no ledger"):
            open_curator(self.options(tmp_path, ledger=path))
        with PrivacyLedger(path, PrivacyBudget(1.0, 1e-5)) as ledger:
            for _ in range(2):
                open_curator(self.options(tmp_path, ledger=path)).close()
            assert [entry.label for entry in ledger.entries()] == ["outsourced data set"]
            with pytest.raises(BudgetExhausted):
                open_curator(self.options(tmp_path, ledger=path, state=tmp_path / "second"))
            assert not (tmp_path / "second" / "dataset.npz").exists()
