"""Section 4 of the DPareto paper on this machine: fronts of five private learning problems.

DPareto against random sampling (from the paper's distributions) and grids of 3 and 4 values for
each parameter. A study chooses its front from noisy trials, so the best of them are partly luck:
fronts are *evaluated again* with fresh seeds, and what was observed first stands beside that. All
methods share the seeds of their studies; differences are paired over them.

By default sizes are reduced so that all of it takes some twenty minutes of one core (see
``dpareto_runs.REDUCED``): fewer epochs, trials and replicates; all training records are used.
``--full`` takes the paper's sizes: 16 + 256 trials of 10 replicates, 1,500 random points from the
paper's distributions as in figure 5, of which 19 draws of 256 test the lead as in Table 2, and
grids linear in the parameters. It says first how many core-hours that is; ``--settings`` names
the problems to run, and ``--minutes`` ends it, to be gone on with later.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.dpareto_paper``. The studies are kept in a folder
of their own, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    Interval,
    mean_interval,
    results_folder,
    save_results,
)
from benchmarks.dpareto_figures import draw
from benchmarks.dpareto_runs import DRAWN, FULL, REDUCED, Setting, expected_hours, run_study

NAME = "dpareto_paper"
#: By how much DPareto's hypervolume is ahead in the paper's Table 2 where it is most.
PAPER_GAP = 0.158

Runs = dict[str, dict[str, dict[str, dict[str, Any]]]]


def jobs(settings: Sequence[Setting]) -> list[tuple[Setting, str, int]]:
    """All studies, one seed after the other, so that an interrupted run is balanced."""
    every = [
        (setting, method, seed)
        for setting in settings
        for method in setting.methods
        for seed in range(1 if method.startswith("grid") else setting.seeds)
    ]
    return sorted(every, key=lambda job: (job[2], job[1].startswith("grid")))


def earlier_runs(settings: Sequence[Setting], name: str) -> Runs:
    """What the results file has already of these settings, where nothing of them has changed."""
    path = results_folder() / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {"settings": {}}
    now = json.loads(json.dumps(described(settings)))
    known = [label for label, setting in now.items() if record["settings"].get(label) == setting]
    return {label: record["runs"][label] for label in known if label in record["runs"]}


def described(settings: Sequence[Setting]) -> dict[str, Any]:
    return {
        setting.label: {k: v for k, v in asdict(setting).items() if k != "task"}
        for setting in settings
    }


def of_seeds(runs: dict[str, dict[str, Any]], when: str, kind: str, scale: str) -> list[float]:
    """One hypervolume for each seed: at the ``"first"`` or the ``"last"`` stop of the study."""
    stops = [list(run["at"].values()) for run in runs.values()]
    return [at[0 if when == "first" else -1][kind][scale] for at in stops]


def over_seeds(values: Sequence[float]) -> Interval | float:
    """Mean and interval; a single seed has no interval."""
    return mean_interval(values) if len(values) > 1 else values[0]


def summarized(setting: Setting, runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for method, by_seed in runs.items():
        first = next(iter(by_seed.values()))
        one: dict[str, Any] = {"trials": first["trials"], "seeds": len(by_seed)}
        for scale in ("linear", "log"):
            again = of_seeds(by_seed, "last", "evaluated_again", scale)
            observed = of_seeds(by_seed, "last", "observed", scale)
            one[scale] = {
                "evaluated_again": over_seeds(again),
                "observed": over_seeds(observed),
                "luck": over_seeds([o - a for o, a in zip(observed, again, strict=True)]),
            }
            if len(first["at"]) > 1:
                start = of_seeds(by_seed, "first", "evaluated_again", scale)
                one[scale]["gain_over_initial"] = over_seeds(
                    [a - s for s, a in zip(start, again, strict=True)]
                )
            if method != "DPareto" and not method.startswith("grid"):
                common = [seed for seed in by_seed if seed in runs["DPareto"]]
                pair = [
                    of_seeds({s: runs[name][s] for s in common}, "last", "evaluated_again", scale)
                    for name in ("DPareto", method)
                ]
                one[scale]["dpareto_ahead_by"] = over_seeds(
                    [ours - theirs for ours, theirs in zip(*pair, strict=True)]
                )
        if first["trials"] > setting.trials:
            one["observed_after_as_many_trials_as_dpareto"] = first["observed_by_trial"][
                setting.trials - 1
            ]
        timed = [r for r in by_seed.values() if r["processor_seconds"]["complete"]]
        for part in ("training", "loop"):
            spent = [r["processor_seconds"][part] / r["trials"] for r in timed]
            one[f"{part}_seconds_per_trial"] = sum(spent) / len(spent) if spent else None
        summary[method] = one
    return summary


def test_of_table_2(runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any] | None:
    """Whether DPareto's front of 256 trials is ahead of all 19 draws of 256 random points."""
    ours = runs.get("DPareto", {}).get("0")
    draws = runs.get("random", {}).get("0", {}).get("random_draws")
    if ours is None or draws is None:
        return None
    volume = ours["observed_by_trial"][DRAWN - 1]
    linear = [draw["linear"] for draw in draws]
    behind = sum(volume > other for other in linear)
    leads = [volume - other for other in linear]
    return {
        "dpareto": volume,
        "draws": linear,
        "ahead_of": behind,
        "of": len(linear),
        "mean_lead": sum(leads) / len(leads),
        "largest_lead": max(leads),
    }


def report(settings: Sequence[Setting], runs: Runs, wall: float, name: str) -> dict[str, Any]:
    """Everything that is known so far, on disk."""
    summary = {
        setting.label: summarized(setting, runs[setting.label])
        for setting in settings
        if "DPareto" in runs.get(setting.label, {})
    }
    everything = [
        run["processor_seconds"]
        for methods in runs.values()
        for by_seed in methods.values()
        for run in by_seed.values()
    ]
    totals = {
        part: sum(seconds[part] for seconds in everything)
        for part in ("training", "loop", "evaluating_again")
    }
    save_results(
        name,
        {
            "settings": described(settings),
            "paper": {"largest_gap_of_table_2": PAPER_GAP},
            "summary": summary,
            "test_of_table_2": {label: test_of_table_2(runs[label]) for label in summary},
            "processor_seconds": totals,
            "wall_seconds_of_last_call": wall,
            "runs": runs,
        },
    )
    return summary


def table(summary: dict[str, Any]) -> str:
    """Hypervolumes as in the paper's Table 2, with intervals, evaluated again and as observed."""
    lines = [
        f"{'setting':12} {'method':15} {'trials':>6} {'seeds':>5} "
        f"{'evaluated again':>26} {'observed':>26} {'DPareto ahead by':>26}"
    ]
    for label, methods in summary.items():
        for method, one in methods.items():
            values = one["linear"]
            shown = []
            for key in ("evaluated_again", "observed", "dpareto_ahead_by"):
                value = values.get(key, "")
                shown.append(f"{value:.4g}" if isinstance(value, float) else str(value))
            lines.append(
                f"{label:12} {method:15} {one['trials']:6} {one['seeds']:5} "
                + " ".join(f"{text:>26}" for text in shown)
            )
    return "\n".join(lines)


def main() -> None:
    parser = BenchmarkParser(NAME, __doc__, minutes=20)
    parser.add_argument("--full", action="store_true", help="the paper's sizes")
    parser.add_argument("--settings", nargs="*", choices=[s.label for s in FULL], help="only these")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument(
        "--studies",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp" / NAME,
        help="folder of the studies; they hold measured utilities and are sensitive",
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    every = FULL if arguments.full else REDUCED
    settings = [s for s in every if not arguments.settings or s.label in arguments.settings]
    size = "_full" if arguments.full else ""
    name = NAME + size
    if arguments.full:
        hours = expected_hours(settings)
        each = ", ".join(f"{label} {value:.1f}" for label, value in hours.items())
        print(f"About {sum(hours.values()):.1f} core-hours here ({each}).", flush=True)
    folder = arguments.studies / "full" if arguments.full else arguments.studies
    folder.mkdir(parents=True, exist_ok=True)
    runs = earlier_runs(every, name)
    start = time.perf_counter()
    deadline = time.monotonic() + 60 * arguments.minutes
    for setting, method, seed in tqdm(jobs(settings), unit="study"):
        known = runs.get(setting.label, {}).get(method, {})
        if str(seed) not in known and time.monotonic() < deadline:
            done = run_study(setting, method, seed, folder, deadline)
            if done is not None:
                runs.setdefault(setting.label, {}).setdefault(method, {})[str(seed)] = done
                report(every, runs, time.perf_counter() - start, name)
    if not runs:
        print(f"No study has ended yet; what was trained is in {folder}. Run again to go on.")
        return
    print(table(report(every, runs, time.perf_counter() - start, name)))
    for label, methods in runs.items():
        test = test_of_table_2(methods)
        if test is not None:
            print(
                f"{label}: ahead of {test['ahead_of']} of {test['of']} draws of {DRAWN} points, "
                f"by {test['mean_lead']:.3f} on average and {test['largest_lead']:.3f} at most"
            )
    draw(settings, runs, folder, results_folder(), size)


if __name__ == "__main__":
    main()
