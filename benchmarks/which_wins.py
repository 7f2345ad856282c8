"""Where PrivateSearch wins and where it only ties: a figure of what the other benchmarks stored.

    python -m benchmarks.which_wins

Left: the regret of PrivateSearch minus that of the best single method on the same seeds, which
nobody looked at while the search was made, with 95% intervals; below 0 PrivateSearch is better.
Right: regret on the task "ripples" at epsilon = 1 with d and n varied separately.
"""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib as mpl

from benchmarks.common import RESULTS, Interval

mpl.use("Agg")
from matplotlib import pyplot as plt

COLORS = {"0.3": "C0", "1": "C1", "3": "C2"}
STYLES = {"PrivateSearch": "o-", "DPGIBO": "s--", "permute-and-flip": ":"}
#: Task and n to epsilon to the difference and the single method.
Differences = dict[str, dict[str, tuple[Interval, str]]]


def read(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def differences() -> Differences:
    found: Differences = {}
    for task in read("which_method_fresh").get("tasks", {}).values():
        label = task["title"].rsplit(",", 1)[0]
        for epsilon, (rival, gap) in task["PrivateSearch minus the best single method"].items():
            found.setdefault(label, {})[epsilon] = (Interval(**gap), rival)
    for records in (2000, 300):
        for case, judged in read(f"which_unseen_{records}").get("judged", {}).items():
            label, epsilon = case.rsplit(", epsilon = ", 1)
            gap = Interval(**judged["difference to it"])
            found.setdefault(label, {})[epsilon] = (gap, judged["best single method"])
    return found


def counts(found: Differences) -> dict[str, int]:
    gaps = [gap for row in found.values() for gap, _ in row.values()]
    wins, losses = sum(gap.high < 0 for gap in gaps), sum(gap.low > 0 for gap in gaps)
    return {"better": wins, "not told apart": len(gaps) - wins - losses, "worse": losses}


def plot(found: Differences) -> None:
    grid = read("which_unseen_grid").get("judged", {})
    figure, axes = plt.subplots(
        1,
        2 if grid else 1,
        figsize=(13 if grid else 9, 0.42 * len(found) + 2.2),
        width_ratios=(1.5, 1) if grid else (1,),
        layout="constrained",
        squeeze=False,
    )
    plot_differences(found, axes[0][0])
    if grid:
        plot_grid(grid, axes[0][1])
    figure.supxlabel(
        "Replace-one, (epsilon, 1e-6), or (epsilon, 0) for permute-and-flip; regret in units of a "
        "random choice's;\n95% intervals of paired differences, fresh seeds. Linear within 0.05. "
        "Simulated noise: nothing is promised for the figure.",
        fontsize=8,
    )
    figure.savefig(RESULTS / "which_wins.png", dpi=100)
    plt.close(figure)


def plot_differences(found: Differences, axis: Any) -> None:
    for row, levels in enumerate(found.values()):
        for shift, (epsilon, (gap, _)) in zip((-0.22, 0, 0.22), levels.items(), strict=False):
            bars = [[gap.mean - gap.low], [gap.high - gap.mean]]
            style = {"color": COLORS[epsilon], "markersize": 5, "elinewidth": 1.6}
            label = f"epsilon = {epsilon}" if row == 0 else None
            axis.errorbar(gap.mean, row + shift, xerr=bars, fmt="o", label=label, **style)
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set_yticks(range(len(found)), list(found), fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("symlog", linthresh=0.05)
    ticks = [-0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlim(-0.9, 0.9)
    axis.set_xlabel("regret of PrivateSearch minus that of the best single method")
    axis.legend(fontsize=8, loc="upper right")
    axis.grid(alpha=0.3)


def plot_grid(grid: dict[str, Any], axis: Any) -> None:
    levels_of: dict[int, list[tuple[int, str]]] = {}
    for case in grid:
        d, n = (int(number) for number in re.findall(r"\b[dn] = (\d+)", case))
        levels_of.setdefault(d, []).append((n, case))
    for color, (d, cases) in zip(("C3", "C4", "C5", "C6"), sorted(levels_of.items()), strict=False):
        for method, style in (
            ("PrivateSearch", "o-"),
            ("DPGIBO", "s--"),
            ("permute-and-flip", ":"),
        ):
            means = [grid[case]["regret"][method]["mean"] for _, case in sorted(cases)]
            numbers = [n for n, _ in sorted(cases)]
            label = f"{method}, d = {d}"
            axis.plot(numbers, means, style, color=color, label=label, markersize=4)
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=0.05)
    axis.set_yticks([0, 0.05, 0.1, 0.2, 0.5, 1], ["0", ".05", ".1", ".2", ".5", "1"])
    axis.set_xlabel("number of records n")
    axis.set_ylabel("regret / regret of a random choice")
    axis.set_title("ripples, epsilon = 1", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, ncol=2)


def main() -> None:
    found = differences()
    for label, levels in found.items():
        cells = [
            f"{epsilon}: {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] against {rival}"
            for epsilon, (gap, rival) in levels.items()
        ]
        print(label, *cells, sep="\n  ")
    print(counts(found))
    plot(found)


if __name__ == "__main__":
    main()
