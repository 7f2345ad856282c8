"""Exit codes, one-line errors and help, through the installed script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from botorch_dp import tasks
from botorch_dp.cli import main, parser
from tests.cli.calling import OWN_PROBLEM, SCRIPT, call, forked
from tests.conftest import ROOT


class Warns(dict):  # type: ignore[type-arg]
    """A dictionary that warns when it is read."""

    def items(self) -> Any:
        warnings.warn("a warning", stacklevel=2)
        return super().items()


class TestInstalledScript:
    def test_help_teaches(self) -> None:
        done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        for command in (
            "pareto",
            "recommend",
            "ledger",
            "calibrate",
            "curator",
            "modeler",
        ):
            assert command in done.stdout
        assert "examples:" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 84
        for about in ("the configuration to deploy within an epsilon", "the epsilon of a run"):
            assert re.search(rf"^  \w+ +{about}$", done.stdout, flags=re.M)

    def test_help_and_refusals_are_quick(self) -> None:
        """Nothing heavy is imported to print help or to refuse an argument."""
        curator = "--evaluate no.csv --state s --epsilon 1 --delta 1e-5 --row-distance 1"
        refused = [
            "--help",
            "tasks",
            "nonsense",
            "pareto nonsense",
            "pareto adult_logistic_sgd --data nothing",
            "pareto sparse_vector --data digits",
            "pareto sparse_vector --storage no_folder/file",
            "pareto sparse_vector --plot no_folder/file",
            "pareto no_such_module:problem",
            "recommend sparse_vector --storage no_file --epsilon 1",
            "pareto sparse_vector --csv no_folder/file",
            "pareto sparse_vector --trials 1.5",
            "report no_file",
            "report pyproject.toml --out no_folder/file.html",
            "dashboard no_file",
            f"curator no_file {curator}",
            f"curator pyproject.toml {curator}",
            "modeler http://127.0.0.1:1 --checkpoint no_folder/file",
            "ledger show no_file",
            "ledger show tests",
            "report tests",
            "report benchmarks/results/no_study.sqlite --out file.txt",
            "pareto os:no_such_problem",
            "fit adult_logistic_sdg --epsilon 1 --delta .1",
            "fit adult_logistic_sgd --epsilon 1 --delta .1 --plan --test-records public "
            "--test-epsilon 1",
            "calibrate laplace --sensitivity 1 --epsilon -1",
            "calibrate dp-sgd --epsilon 1 --delta .1 --records 9 --batch 10 --epochs 1",
        ]
        program = f"""
import sys
from botorch_dp.cli import main
for arguments in {refused!r}:
    try:
        code = main(arguments.split())
    except SystemExit as exit:
        code = exit.code
    heavy = [m for m in ("torch", "bokeh", "numpy", "opendp", "matplotlib") if m in sys.modules]
    print(arguments, code, heavy, file=sys.stderr)
    assert (code == 0) is (arguments in ("--help", "tasks")) and not heavy
"""
        token = {**os.environ, "BOTORCH_DP_TOKEN": "a-token-for-the-tests"}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=token
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize(
        "arguments", [[], ["nonsense"], ["pareto"], ["pareto", "x", "--trials", "0"], ["ledger"]]
    )
    def test_wrong_arguments_exit_with_2(self, arguments: list[str]) -> None:
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert re.fullmatch(r"botorch-dp.*: error: .*\n`botorch-dp.* --help` .*\n", done.stderr)
        assert "Traceback" not in done.stderr

    def test_warnings_are_one_line(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "READY", Warns(tasks.READY))
        assert main(["tasks"]) == 0
        assert capsys.readouterr().err == "botorch-dp: warning: a warning\n"

    def test_errors_are_one_line(self) -> None:
        done = subprocess.run([SCRIPT, "pareto", "nonsense"], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stdout == ""
        assert re.fullmatch(r"botorch-dp: error: There is no task 'nonsense'.*\n", done.stderr)

    @pytest.mark.parametrize(
        ("arguments", "guess"),
        [
            (["pareot", "x"], "pareto"),
            (["ledger", "shwo", "x"], "show"),
            (["pareto", "x", "--acquisition", "ehiv"], "ehvi"),
            (["pareto", "adult_logistic_sdg"], "adult_logistic_sgd"),
            (["pareto", "adult_logistic_sgd", "--trails", "9"], "--trials"),
            (["pareto", "adult_logistic_sgd", "--aquisition=ehvi"], "--acquisition"),
            (["pareto", "adult_logistic_sgd", "--data", "breast-cancer"], "breast_cancer"),
        ],
    )
    def test_a_typo_gets_a_guess(
        self, arguments: list[str], guess: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            code = main(arguments)
        except SystemExit as exit:
            code = exit.code
        assert code in {1, 2}
        assert f"Did you mean '{guess}'?" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "wanted"),
        [
            (["pareto", "x", "--trials", "many"], "must be a whole number of at least 1"),
            (["pareto", "x", "--seed", "1.5"], "must be a whole number of at least 0"),
            (["modeler", "u", "--noise-std", "x"], "must be a finite number of at least 0"),
            (["modeler", "u", "--delta", "2"], "must be a probability between 0 and 1"),
        ],
    )
    def test_numbers_are_asked_for_in_plain_words(
        self, arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert wanted in captured.err
        assert not re.search(r"invalid \w+ value", captured.err)

    def test_a_whole_number_may_have_an_exponent(self) -> None:
        options = parser().parse_args(["pareto", "x", "--trials", "1e2", "--seed", "0"])
        assert (options.trials, options.seed) == (100, 0)

    def test_module_form(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "botorch_dp", "--version"], capture_output=True, text=True
        )
        assert re.fullmatch(r"botorch-dp \d+\.\d+\.\d+(\.dev\d+)?\n", done.stdout)

    def test_ctrl_c_keeps_the_study(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "slow.py").write_text(OWN_PROBLEM.format(seconds=0.3))
        command = ("pareto", "slow:problem", "--trials", "400", "--storage", "s.sqlite")
        deadline = time.monotonic() + 120
        trained = tmp_path / "trained"
        with forked(tmp_path, *command) as process:
            while time.monotonic() < deadline and not (
                trained.exists() and trained.stat().st_size > 1
            ):
                time.sleep(0.02)
            code, err = process.interrupted(), process.err.read_text()
        assert code == 130, err
        assert "Traceback" not in err
        assert "Interrupted after" in err or "interrupted" in err
        monkeypatch.chdir(tmp_path)
        arguments = ("pareto", "slow:problem", "--trials", "1", "--storage", "s.sqlite", "--json")
        code, out, err = call(capsys, *arguments)
        assert code == 0, err
        assert json.loads(out)["trials"] >= 1
