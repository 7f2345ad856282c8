"""`tasks`, `pareto` and `recommend`."""

from __future__ import annotations

import csv
import json
import os
import stat
from argparse import Namespace
from pathlib import Path

import pytest

from botorch_dp.cli import main
from botorch_dp.cli.fronts import load_problem, ready_tasks
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import PrivacyLedger
from tests.cli.calling import OWN_PROBLEM, call


class TestPareto:
    def test_own_problem_from_start_to_recommendation(self, own: str, capsys) -> None:
        arguments = ("pareto", own, "--storage", "s.sqlite", "--seed", "1", "--quiet")
        code, out, _ = call(
            capsys, *arguments, "--trials", "8", "--initial", "6", "--plot", "f.png"
        )
        assert code == 0
        assert "relation and delta are not stated" in " ".join(out.split())
        assert Path("f.png").read_bytes().startswith(b"\x89PNG")
        code, out, _ = call(capsys, *arguments, "--trials", "10", "--initial", "6", "--json")
        report = json.loads(out)
        assert (code, report["trials"]) == (0, 10)
        assert len(report["front"]["epsilon"]) == len(report["front"]["error"]) > 0
        assert "Sensitive" in report["caption"] and report["guarantee"] is None
        code, out, _ = call(capsys, "recommend", own, "--storage", "s.sqlite", "--epsilon", "1")
        assert code == 0
        assert "(exact)" in out
        code, out, _ = call(
            capsys, "recommend", own, "--storage", "s.sqlite", "--epsilon", "1", "--json"
        )
        assert json.loads(out)["epsilon"] <= 1

    @pytest.mark.parametrize("flags", [["--threads"], pytest.param([], marks=pytest.mark.slow)])
    def test_workers(self, flags: list[str], own: str, capsys) -> None:
        arguments = ("pareto", own, "--trials", "4", "--initial", "4", "--workers", "2")
        code, out, err = call(capsys, *arguments, "--json", "--quiet", *flags)
        assert code == 0, err
        assert json.loads(out)["trials"] == 4

    def test_curves(self, tmp_path: Path, capsys) -> None:
        task = ("adult_logistic_sgd", "--data", "breast_cancer", "--replicates", "1", "--curves")
        files = ("--storage", str(tmp_path / "c.sqlite"))
        code, out, err = call(
            capsys, "pareto", *task, *files, "--trials", "5", "--quiet", "--seed", "0", "--json"
        )
        assert code == 0, err
        front = json.loads(out)["front"]
        assert len(set(front["trial"])) < len(front["trial"])
        code, out, _ = call(capsys, "recommend", *task, *files, "--epsilon", "1", "--json")
        assert code == 0 and json.loads(out)["epsilon"] <= 1
        code, _, err = call(capsys, "pareto", "sparse_vector", "--curves", "--quiet")
        assert code == 1 and "has no --curves" in err

    def test_engines(self, tmp_path: Path, capsys) -> None:
        task = ("adult_logistic_sgd", "--data", "breast_cancer", "--trials", "3", "--seed", "0")
        fronts = []
        for engine in ("auto", "opacus"):
            options = ("--engine", engine, "--acquisition", "random", "--quiet", "--json")
            code, out, err = call(capsys, "pareto", *task, *options)
            assert code == 0, err
            fronts.append(json.loads(out)["front"]["epsilon"])
        assert fronts[0] == fronts[1]
        code, _, err = call(capsys, "pareto", "sparse_vector", "--engine", "opacus", "--quiet")
        assert code == 1 and "has no --engine" in err

    def test_paid_for(self, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = ("pareto", "adult_logistic_sgd", "--data", "breast_cancer", "--quiet")
        paid = (*arguments, "--storage", "s.sqlite", "--budget", "20", "1e-5", "--seed", "0")
        code, out, err = call(capsys, *paid, "--trials", "3", "--initial", "3", "--json")
        assert code == 0, err
        assert "Publishing it costs (ε = 20, δ = 1e-05)" in json.loads(out)["caption"]
        with PrivacyLedger("s.sqlite.ledger") as ledger:
            assert len(ledger.entries()) == 3
        recommend = ("recommend", *arguments[1:4], "--storage", "s.sqlite", "--epsilon", "5")
        code, out, err = call(capsys, *recommend)
        assert code == 0, err
        code, _, err = call(capsys, *arguments[:1], "sparse_vector", "--budget", "1", "1e-5")
        assert code == 1 and "only seeded trainings" in err

    def test_reevaluated_front(self, own: str, capsys) -> None:
        arguments = ("pareto", own, "--trials", "5", "--initial", "5", "--quiet")
        code, out, _ = call(capsys, *arguments, "--reevaluate", "2", "--json")
        assert code == 0
        assert json.loads(out)["front"]["error"]

    def test_expected_front(self, own: str, capsys) -> None:
        arguments = ("pareto", own, "--trials", "8", "--initial", "8", "--quiet", "--seed", "0")
        fronts = []
        for more in ((), ("--expected",), ("--expected", "--reevaluate", "2")):
            code, out, err = call(capsys, *arguments, *more, "--json")
            assert code == 0, err
            fronts.append(json.loads(out)["front"])
        observed, expected, again = fronts
        assert observed["error"] != expected["error"]
        assert set(again["trial"]) <= set(expected["trial"])

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

    @pytest.mark.parametrize("name", ["f.foo", "f", ".png"])
    def test_a_figure_that_cannot_be_drawn_is_refused_before_training(
        self, own: str, capsys, name: str
    ) -> None:
        code, _, err = call(capsys, "pareto", own, "--storage", "s.sqlite", "--plot", name)
        assert code == 1
        assert "--plot must end in one of" in err and "png" in err
        assert not Path("s.sqlite").exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
    def test_no_permission(self, own: str, capsys, tmp_path: Path) -> None:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        code, _, err = call(capsys, "pareto", own, "--storage", str(locked / "s.sqlite"))
        assert code == 1
        assert "no permission" in err

    def test_storage_that_another_process_has_open(self, own: str, capsys) -> None:
        """Another one may not go on with it, and may ask it for a recommendation."""
        options = {"task": own, "data": None, "replicates": None, "curves": False, "engine": None}
        with DPareto(load_problem(Namespace(**options)), storage="s.sqlite", seed=0) as study:
            study.run(3)
            code, out, err = call(capsys, "pareto", own, "--storage", "s.sqlite", "--quiet")
            assert (code, out) == (1, "") and "is in use" in err
            code, _, err = call(capsys, "recommend", own, "--storage", "s.sqlite", "--epsilon", "9")
            assert code == 0, err

    def test_ctrl_c_ends_with_what_there_is(
        self, own: str, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(study: DPareto, *_: object, **__: object) -> object:
            front = run(study, 3)
            study.last_run = "interrupted"
            return front

        run = DPareto.run
        monkeypatch.setattr(DPareto, "run", interrupt)
        code, out, _ = call(capsys, "pareto", own, "--quiet", "--reevaluate", "2")
        assert code == 130 and "Hypervolume" in out and "evaluated again" not in out

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


class TestSettings:
    def test_reach_the_study(
        self, capsys, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import botorch_dp.pareto.study as module

        seen: dict[str, object] = {}
        given = module.DPareto.__init__

        def spied(self: object, problem: object, **settings: object) -> None:
            seen.update(settings)
            given(self, problem, **settings)  # type: ignore[arg-type]

        monkeypatch.setattr(module.DPareto, "__init__", spied)
        code, _, err = call(
            capsys,
            *("pareto", own, "--trials", "3", "--quiet", "--retries", "0"),
            *("--epsilon-scale", "log", "--privacy-model", "gp", "--candidates", "64"),
        )
        assert code == 0, err
        wanted = {"retries": 0, "epsilon_scale": "log", "privacy_model": "gp", "candidates": 64}
        assert seen.items() >= wanted.items()

    def test_a_time_limit_ends_it(
        self, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sleepy.py").write_text(OWN_PROBLEM.format(seconds=0.2))
        monkeypatch.chdir(tmp_path)
        code, out, err = call(
            capsys,
            *("pareto", "sleepy:problem", "--trials", "99", "--quiet", "--json"),
            *("--timeout", "1", "--initial", "99"),
        )
        assert code == 0, err
        assert 1 <= json.loads(out)["trials"] < 10

    def test_all_trials_as_csv(self, capsys, own: str, tmp_path: Path) -> None:
        study = ("pareto", own, "--trials", "4", "--quiet", "--storage", "s.sqlite")
        code, _, err = call(capsys, *study, "--csv", "now.csv")
        assert code == 0, err
        assert call(capsys, "report", "s.sqlite", "--csv", "later.csv")[:2] == (0, "later.csv\n")
        now = (tmp_path / "now.csv").read_text()
        assert now == (tmp_path / "later.csv").read_text()
        assert stat.S_IMODE((tmp_path / "now.csv").stat().st_mode) == 0o600
        rows = list(csv.DictReader(now.splitlines()))
        assert [row["trial"] for row in rows] == ["0", "1", "2", "3"]
        for row in rows:
            # Every digit is there.
            assert float(row["epsilon"]) == 1 / float(row["noise"])
            assert float(row["error"]) == 1 - 1 / (1 + float(row["noise"]))

    def test_on_a_dask_cluster(self, capsys, own: str) -> None:
        distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster:
            code, out, err = call(
                capsys,
                *("pareto", own, "--trials", "3", "--quiet", "--json"),
                *("--dask", cluster.scheduler_address, "--workers", "2"),
            )
        assert code == 0, err
        assert json.loads(out)["trials"] == 3

    @pytest.mark.slow
    def test_on_a_ray_cluster(self, capsys, own: str) -> None:
        ray = pytest.importorskip("ray", reason="needs the extra `ray`")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            code, out, err = call(
                capsys, "pareto", own, "--trials", "3", "--quiet", "--json", "--ray", "auto"
            )
        finally:
            ray.shutdown()
        assert code == 0, err
        assert json.loads(out)["trials"] == 3

    def test_one_cluster_at_a_time(self, capsys, own: str) -> None:
        with pytest.raises(SystemExit):
            call(capsys, "pareto", own, "--ray", "auto", "--dask", "tcp://127.0.0.1:1")
        assert "not allowed with" in capsys.readouterr().err
