"""The command line as a user meets it: through the installed script, and in process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from botorch_dp.cli import main
from botorch_dp.cli.study import ready_tasks
from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyLedger,
    gaussian_epsilon,
    gaussian_guarantee,
    laplace_guarantee,
)

SCRIPT = Path(sys.executable).parent / "botorch-dp"

OWN_PROBLEM = """
from botorch_dp.pareto import PrivacyUtilityProblem, Real, SearchSpace

def epsilon(config):
    return 1 / config["noise"]

def utility(config, seed):
    import time
    time.sleep({seconds})
    return 1 / (1 + config["noise"])

def problem():
    return PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 10.0, log=True)), privacy=epsilon, utility=utility
    )

not_a_problem = 3
"""


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A problem in a module of the user's, in the current folder."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN_PROBLEM.format(seconds=0))
    monkeypatch.chdir(tmp_path)
    return f"{name}:problem"


class TestInstalledScript:
    def test_help_teaches(self) -> None:
        done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        for command in (
            "pareto",
            "recommend",
            "ledger",
            "audit",
            "calibrate",
            "curator",
            "modeler",
        ):
            assert command in done.stdout
        assert "examples:" in done.stdout

    def test_help_is_quick(self) -> None:
        """Nothing heavy is imported to print help or to refuse an argument."""
        program = (
            "import sys; from botorch_dp.cli.main import parser; parser(); "
            "print([m for m in ('torch', 'opendp', 'matplotlib') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.stdout.strip() == "[]"

    @pytest.mark.parametrize(
        "arguments", [[], ["nonsense"], ["pareto"], ["pareto", "x", "--trials", "0"], ["ledger"]]
    )
    def test_wrong_arguments_exit_with_2(self, arguments: list[str]) -> None:
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert "usage: botorch-dp" in done.stderr
        assert "Traceback" not in done.stderr

    def test_errors_are_one_line(self) -> None:
        done = subprocess.run([SCRIPT, "pareto", "nonsense"], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stdout == ""
        assert re.fullmatch(r"botorch-dp: error: There is no task 'nonsense'.*\n", done.stderr)

    def test_module_form(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "botorch_dp", "--version"], capture_output=True, text=True
        )
        assert re.fullmatch(r"botorch-dp \d+\.\d+\.\d+\n", done.stdout)

    def test_ctrl_c_keeps_the_study(self, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text(OWN_PROBLEM.format(seconds=0.3))
        command = [SCRIPT, "pareto", "slow:problem", "--trials", "400", "--storage", "s.sqlite"]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (tmp_path / "s.sqlite").exists():
            time.sleep(0.1)
        time.sleep(3.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert "Interrupted after" in err or "interrupted" in err
        again = subprocess.run(
            [SCRIPT, "pareto", "slow:problem", "--trials", "1", "--storage", "s.sqlite", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["trials"] >= 1


class TestPareto:
    def test_own_problem_from_start_to_recommendation(self, own: str, capsys) -> None:
        arguments = ("pareto", own, "--storage", "s.sqlite", "--seed", "1", "--quiet")
        code, out, _ = call(
            capsys, *arguments, "--trials", "8", "--initial", "6", "--plot", "f.png"
        )
        assert code == 0
        assert "publishing it costs" in out
        assert Path("f.png").read_bytes().startswith(b"\x89PNG")
        code, out, _ = call(capsys, *arguments, "--trials", "10", "--initial", "6", "--json")
        report = json.loads(out)
        assert (code, report["trials"]) == (0, 10)
        assert len(report["front"]["epsilon"]) == len(report["front"]["error"]) > 0
        assert "Not private" in report["caption"]
        code, out, _ = call(capsys, "recommend", own, "--storage", "s.sqlite", "--epsilon", "1")
        assert code == 0
        assert "(exact)" in out
        code, out, _ = call(
            capsys, "recommend", own, "--storage", "s.sqlite", "--epsilon", "1", "--json"
        )
        assert json.loads(out)["epsilon"] <= 1

    def test_workers(self, own: str, capsys) -> None:
        for flag in ("--threads", "--quiet"):
            arguments = ("pareto", own, "--trials", "4", "--initial", "4", "--workers", "2")
            code, out, err = call(capsys, *arguments, "--json", "--quiet", flag)
            assert code == 0, err
            assert json.loads(out)["trials"] == 4

    def test_reevaluated_front(self, own: str, capsys) -> None:
        arguments = ("pareto", own, "--trials", "5", "--initial", "5", "--quiet")
        code, out, _ = call(capsys, *arguments, "--reevaluate", "2", "--json")
        assert code == 0
        assert json.loads(out)["front"]["error"]

    @pytest.mark.parametrize(
        ("task", "message"),
        [
            ("nonsense", "There is no task"),
            ("no_such_module:problem", "Cannot load"),
            ("OWN:missing", "Cannot load"),
            ("OWN:not_a_problem", "not a PrivacyUtilityProblem"),
        ],
    )
    def test_wrong_task(self, own: str, capsys, task: str, message: str) -> None:
        code, out, err = call(capsys, "pareto", task.replace("OWN", own.split(":")[0]))
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1

    def test_unknown_data(self, capsys) -> None:
        code, _, err = call(capsys, "pareto", "adult_logistic_sgd", "--data", "nothing")
        assert code == 1
        assert "breast_cancer" in err
        code, _, err = call(capsys, "pareto", "sparse_vector", "--data", "digits")
        assert code == 1
        assert "no --data" in err

    def test_missing_folders_are_noticed_before_training(self, own: str, capsys) -> None:
        for flag in ("--storage", "--plot"):
            code, _, err = call(capsys, "pareto", own, flag, "nowhere/file", "--quiet")
            assert code == 1
            assert f"{flag}: there is no folder" in err

    @pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
    def test_no_permission(self, own: str, capsys, tmp_path: Path) -> None:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        code, _, err = call(capsys, "pareto", own, "--storage", str(locked / "s.sqlite"))
        assert code == 1
        assert "no permission" in err

    def test_storage_in_use(self, own: str, capsys) -> None:
        from botorch_dp.cli.study import load_problem
        from botorch_dp.pareto import DPareto

        options = type("Options", (), {"task": own, "data": None, "replicates": None})
        with DPareto(load_problem(options), storage="s.sqlite", seed=0):
            code, _, err = call(capsys, "pareto", own, "--storage", "s.sqlite", "--quiet")
        assert code == 1
        assert "in use" in err

    def test_recommend_without_a_study(self, own: str, capsys) -> None:
        code, _, err = call(capsys, "recommend", own, "--storage", "none", "--epsilon", "1")
        assert code == 1
        assert "no study" in err
        assert not Path("none").exists()

    def test_debug_shows_the_traceback(self) -> None:
        with pytest.raises(ValueError, match="There is no task"):
            main(["--debug", "pareto", "nonsense"])


def test_tasks(capsys) -> None:
    code, out, _ = call(capsys, "tasks", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert set(rows) == set(ready_tasks())
    assert rows["adult_logistic_sgd"]["data"] == ["adult", "breast_cancer"]
    assert all(len(row["about"]) > 20 for row in rows.values())
    code, out, _ = call(capsys, "tasks")
    assert "sparse_vector" in out


class TestLedger:
    def test_show(self, capsys, tmp_path: Path) -> None:
        path = tmp_path / "ledger.sqlite"
        with PrivacyLedger(path, PrivacyBudget(2.0, 1e-6, summed=0.5)) as ledger:
            ledger.charge(laplace_guarantee(sensitivity=1.0, epsilon=0.3), label="best score")
            ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=0.05))
            spent = ledger.spent()
        code, out, _ = call(capsys, "ledger", "show", str(path))
        assert code == 0
        assert "best score" in out
        assert "Gaussian mechanism" in out
        assert "REPLACE_ONE" in out
        code, out, _ = call(capsys, "ledger", "show", str(path), "--json")
        report = json.loads(out)
        assert tuple(report["spent"]) == spent
        assert [entry["label"] for entry in report["entries"]] == ["best score", ""]

    def test_errors(self, capsys, tmp_path: Path) -> None:
        code, _, err = call(capsys, "ledger", "show", str(tmp_path / "none"))
        assert code == 1
        assert "no ledger" in err
        assert not (tmp_path / "none").exists()
        (tmp_path / "text").write_text("not a ledger at all")
        code, _, err = call(capsys, "ledger", "show", str(tmp_path / "text"))
        assert code == 1
        assert "damaged" in err


class TestCalibrate:
    def test_gaussian(self, capsys) -> None:
        arguments = ("--sensitivity", "2", "--epsilon", "1", "--delta", "1e-5", "--json")
        code, out, _ = call(capsys, "calibrate", "gaussian", *arguments)
        report = json.loads(out)
        assert code == 0
        assert gaussian_epsilon(2 / report["noise"], 1e-5) == pytest.approx(1.0, rel=1e-6)

    def test_laplace(self, capsys) -> None:
        code, out, _ = call(capsys, "calibrate", "laplace", "--sensitivity", "2", "--epsilon", "4")
        assert code == 0
        assert "0.5" in out
        assert "replaced" in out

    def test_dp_sgd_names_both_relations(self, capsys) -> None:
        arguments = ("--epsilon", "2", "--delta", "1e-5", "--records", "5000", "--lot", "100")
        code, out, _ = call(capsys, "calibrate", "dp-sgd", *arguments, "--epochs", "2")
        assert code == 0
        assert "replace one record" in out
        assert "add or remove one record" in out
        code, out, _ = call(capsys, "calibrate", "dp-sgd", *arguments, "--epochs", "2", "--json")
        rows = {row["sampling"]: row for row in json.loads(out)["calibrations"]}
        fixed, poisson = rows["without_replacement"], rows["poisson"]
        assert fixed["std_over_clip"] == 2 * fixed["noise_multiplier"]
        assert poisson["std_over_clip"] == poisson["noise_multiplier"]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("gaussian", "--sensitivity", "nan", "--epsilon", "1", "--delta", "1e-5"),
            ("gaussian", "--sensitivity", "1", "--epsilon", "1", "--delta", "2"),
            ("laplace", "--sensitivity", "1", "--epsilon", "-1"),
            (
                *("dp-sgd", "--epsilon", "1", "--delta", "1e-5"),
                *("--records", "10", "--lot", "11", "--epochs", "1"),
            ),
        ],
    )
    def test_wrong_numbers(self, capsys, arguments: tuple[str, ...]) -> None:
        code, out, err = call(capsys, "calibrate", *arguments)
        assert (code, out) == (1, "")
        assert err.startswith("botorch-dp: error: ")


def test_audit(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "40000")
    assert code == 0
    assert "caught" in out
    assert "not refuted" in out
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "400", "--json")
    rows = json.loads(out)
    # So few draws cannot catch the twin, and the command says so.
    assert (code, [row["good"] for row in rows]) == (1, [True, False])
    code, _, err = call(capsys, "audit", "nonsense")
    assert code == 1
    assert "no mechanism" in err


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
                        *("--journal", "search.jsonl", "--quiet", "--json"),
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
