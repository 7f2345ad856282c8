"""Fill the tables of pages with the stored results: ``python -m benchmarks.pages``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``. Numbers come from
``benchmarks/results`` only; where a result is missing, the cell says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import REPRODUCTIONS, mean_interval
from benchmarks.pages_of_results import TABLES_OF_RESULTS
from benchmarks.tables import load, shown, table

DOCS = Path(__file__).parents[1] / "docs"
#: A page of results that is no paper's.
UNTUNED = DOCS / "nothing_to_tune.md"
PAPERS = sorted((DOCS / "papers").glob("*.md"))
PAGES = [
    *PAPERS,
    *sorted((DOCS / "results").glob("*.md")),
    DOCS / "epsilon.md",
    DOCS / "methods.md",
    DOCS / "tuning.md",
    UNTUNED,
    DOCS.parent / "README.md",
]
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def command(script: str, item: str) -> str:
    """What a reproduction departs in, its command and the minutes it takes."""
    found = next(e for e in REPRODUCTIONS if e.script == script and e.item.startswith(item))
    unit = "minute" if found.minutes == 1 else "minutes"
    return f"`{found.command}` ({found.minutes:g} {unit}). {found.departures}\n"


def kusner() -> str:
    found = load("kusner_noise")
    if found is None:
        return "Not run yet.\n"
    chosen = [row for row in found["rows"] if row["records"] == 10_000]
    rows = []
    for name in dict.fromkeys(row["release"] for row in chosen):
        mine = [row for row in chosen if row["release"] == name]
        cells = [f"{r['noise, 95%']:.3g}{' **drowned**' if r['drowned'] else ''}" for r in mine]
        rows.append([name, *cells, mine[0]["status"]])
    return table(["release", "ε = 1", "ε = 3", "ε = 10", "status"], rows)


def kusner_regret() -> str:
    """The lowest and the highest mean over tasks of each release."""
    found = load("which_release")
    if found is None:
        return "Not run yet.\n"
    rows = []
    for name in next(iter(found["regret"].values())):
        cells = []
        for epsilon in ("1", "10"):
            means = [by[name][epsilon]["mean"] for by in found["regret"].values()]
            cells.append(f"{min(means):.3f} to {max(means):.3f}")
        rows.append([name, *cells])
    return table(["release", "ε = 1", "ε = 10"], rows)


def outsourced() -> str:
    found = load("outsourced")
    if found is None or "tables" not in found:
        return "Not run yet.\n"
    parts = []
    for number, entry in sorted(found["tables"].items(), key=lambda item: int(item[0])):
        parts.append(_outsourced_table(number, entry, found.get("variants", {}).get(number)))
    batches = [[size, shown(value)] for size, value in found["batches"].items()]
    certified = [
        [name, shown(value["certified"]), shown(value["regret"])]
        for name, value in found["certificates"].items()
    ]
    return (
        "\n".join(parts)
        + "\nWith the printed length-scale of 1.25 the search without privacy ends at "
        f"{shown(found['printed length-scale 1.25, without privacy']['final'])}.\n\n"
        "Several rows may be asked for at once (table 1 without privacy):\n\n"
        f"{table(['rows at once', 'regret'], batches)}\n"
        "The curator can certify a regret (97.5%, the rows and ε of table 1):\n\n"
        f"{table(['rows sent', 'certified', 'true'], certified)}\n"
        + command("outsourced", "Tables")
    )


def _outsourced_table(number: str, entry: dict[str, Any], variant: dict[str, Any] | None) -> str:
    record, cells = entry["record"], entry["random projection"]
    stand_in = "" if record["data"] == "synthetic" else " (stand-in data)"
    without, noise = entry["without privacy"]["final"], entry["Gaussian noise"]["final"]
    text = (
        f"**Table {number}**: {record['data']}{stand_in}, ln ε = {record['log_epsilon']}. Without "
        f"privacy {shown(without)}; Gaussian noise at the same (ε, δ) {shown(noise)}.\n\n"
    )
    head = ["r", *cells]
    rows = [
        ["printed", *(f"{cell['printed']:.3f}" for cell in cells.values())],
        ["ours", *(shown(cell["final"]) for cell in cells.values())],
    ]
    if variant is not None:
        ours, ln = variant["random projection"], variant["record"]["log_epsilon"]
        label = f"ours at ln ε = {ln:.2f} (no lifting up to r = {variant['record']['threshold']})"
        rows.append([label, *(shown(cell["final"]) for cell in ours.values())])
    return text + table(head, rows)


def outsourced_figure_2() -> str:
    found = load("outsourced")
    if found is None or "figure 2" not in found:
        return "Not run yet.\n"
    rows = []
    for data, panel in found["figure 2"].items():
        name = f"2{panel['panel']}: {data}{'' if data == 'synthetic' else ' (stand-in data)'}"
        for ln, cell in panel["by ln"].items():
            stretched, printed = cell["C' of theorem 2"], cell["printed excess"]
            ours = [f"{printed:.3f}", shown(cell["excess"]), f"{stretched:.3g}"]
            rows.append([name, str(panel["r"]), ln, *ours])
    return table(["panel", "r", "ln ε", "excess, printed", "excess, ours", "C' of Theorem 2"], rows)


def outsourced_dominance() -> str:
    found = load("outsourced")
    if found is None or "right side of definition 3" not in found:
        return "Not run yet.\n"
    rows = [
        [length, f"{value['all rows']:.3g}", shown(value["different rows that a search asked for"])]
        for length, value in found["right side of definition 3"].items()
    ]
    return table(["length-scale", "all 10,000 rows", "rows that a search asked for"], rows)


def dp_gibo_theorems() -> str:
    found = load("dp_gibo_41")
    if found is None:
        return "Not run yet.\n"
    rows = []
    for name, each in found[
        "theorems as printed, delta = 0.05, and the largest of all seeds"
    ].items():
        printed = each["printed"]
        pairs = [
            (each["mean squared gradient"], printed["mean_square"]),
            (each["gap"], printed["gap"]),
            (each["distance"], printed["distance"]),
        ]
        rows.append([name, f"{printed['V']:.3g}", *(f"{a:.3g} ≤ {b:.3g}" for a, b in pairs)])
    V = found["V of the examples"].items()
    return (
        table(["run of 4.1", "V", "Theorem 3.2, Ψ_T", "Theorem 3.3, F_T", "Corollary 3.4"], rows)
        + f"\nV in all examples: {'; '.join(f'{name}: {value:.3g}' for name, value in V)}.\n"
    )


def dp_gibo() -> str:
    return "\n".join(_dp_gibo_parts())


def _dp_gibo_parts() -> Iterator[str]:
    first, second = load("dp_gibo_41"), load("dp_gibo_42")
    if first:
        bounds = first["bound on the distance (root mean square)"]
        rows = [
            [name, shown(value), f"{bounds[name]:.2g}"]
            for name, value in first["final distance from the mean"].items()
        ]
        yield (
            "**Section 4.1** (figure; no number is printed): distance from the mean, n = 50, "
            f"T = {first['steps']}, B = 1, {first['seeds']} seeds.\n\n"
            + table(["run", "ours", "our bound (root mean square)"], rows)
            + "\n" + command("dp_gibo_examples", "Example 4.1")
        )  # fmt: skip
    if second:
        rows = [[n, shown(v)] for n, v in second["final distance from the minimum"].items()]
        rows += [
            [f"DP-GIBO minus noisy gradient descent, {name}, paired", shown(paired)]
            for name, paired in second["DP-GIBO minus noisy gradient descent, distance"].items()
        ]
        yield (
            "**Section 4.2** (figure): distance from the minimum, n = 100, "
            f"T = {second['steps']}, mu = 1, {second['seeds']} seeds.\n\n"
            + table(["run", "ours"], rows)
            + "\n" + command("dp_gibo_examples", "Example 4.2")
        )  # fmt: skip
    for name, label, item in (
        ("43_printed", "Section 4.3 as printed, and two more levels of μ", "Example 4.3 as pr"),
        ("43", "Section 4.3 as we would run it", "Example 4.3 as we"),
        ("C5", "Appendix C.5", "Appendix C.5"),
        (
            "44",
            "Section 4.4 on stand-in data, ranges of the authors' code",
            "Example 4.4 with the r",
        ),
        (
            "44_printed",
            "Section 4.4 on stand-in data, ranges and sizes as printed",
            "Example 4.4 with the p",
        ),
        ("friedman", "A variant of ours: Friedman's first function", "Friedman"),
        ("cancer", "A variant of ours: breast cancer", "Breast cancer"),
    ):
        found = load(f"dp_gibo_{name}")
        if found is not None:
            yield _tuning(label, found) + "\n" + command("dp_gibo_tuning", item)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _tuning(label: str, found: dict[str, Any]) -> str:
    sizes = found["sizes"]
    ratios = found[next(key for key in found if "geometric" in key)]
    reference = next(iter(found["final mean loss"]))
    figure = "" if label.startswith("A variant") else " (figure)"
    note = f" {found['note'][0].upper()}{found['note'][1:]}." if "note" in found else ""
    rows = [
        [method, shown(value), shown(ratios.get(method))]
        for method, value in found["final mean loss"].items()
    ]
    return (
        f"**{label}**{figure}: final mean loss, n = {sizes['validation']:,}, T = "
        f"{sizes['steps']}, b = {sizes['batch']}, {_count(sizes['draws'], 'draw')}; "
        f"{shown(found['start'])} at the start.{note}\n\n"
        + table(["run", "final mean loss", f"{reference} over it, paired, geometric"], rows)
    )


def dp_gibo_placement() -> str:
    found = load("dp_gibo_placement")
    if found is None:
        return "Not run yet.\n"
    rows = [
        [name, *(f"{r['mean']:.3f} (at most {r['largest']:.3f})" for r in by.values())]
        for name, by in found["trace over the least one found"].items()
    ]
    return (
        table(["data and noise", "a simplex (the default)", '`"optimize"`'], rows)
        + "\n" + command("dp_gibo_examples", "Line 4")
    )  # fmt: skip


def dpareto_illustrations() -> str:
    found = load("dpareto_illustrations")
    if found is None:
        return "Not run yet.\n"
    rows = [
        [entry["problem"], f"{entry['hypervolume found']:.4g}",
         f"{entry['hypervolume of the true front']:.4g}", str(entry["trials"])]
        for entry in (found["logistic"], found["sparse_vector"])
    ]  # fmt: skip
    head = ["problem", "hypervolume found", "of the true front", "trials"]
    return table(head, rows) + "\n" + command("pareto_quality", "Figures 1")


def dpareto_reduced() -> str:
    paper = load("dpareto_paper")
    if paper is None:
        return "Not run yet.\n"
    rows = []
    table_2: dict[str, Any] = paper["paper"]["table_2"]
    luck: list[float] = []
    for setting, methods in paper["summary"].items():
        of_paper = table_2.get(setting)
        printed = "{} [{}, {}]".format(*of_paper) if of_paper else "not in the table"
        sizes = paper["settings"][setting]
        ours = [
            shown_or_number(methods[m]["linear"]["evaluated_again"]) for m in ("DPareto", "random")
        ]
        lead = shown_or_number(methods["random"]["linear"]["dpareto_ahead_by"])
        seeds = _count(sizes["seeds"], "seed")
        size = f"{sizes['trials']} trials, {sizes['max_epochs']} epochs, {seeds}"
        rows.append([setting, printed, lead, *ours, size])
        for run in (
            run for m in ("DPareto", "random") for run in paper["runs"][setting][m].values()
        ):
            end = run["at"][str(run["trials"])]
            luck.append(end["observed"]["linear"] - end["evaluated_again"]["linear"])
    head = ["setting", "lead, Table 2", "our lead", "DPareto", "random", "size of ours"]
    return (
        table(head, rows)
        + f"\nWhat was observed minus what came out when a front was trained again lies between "
        f"{min(luck):.3f} and {max(luck):.3f} for the {len(luck)} fronts behind this table.\n\n"
        + command("dpareto_paper", "Table 2 and figure 5 at a r")
    )


#: Learning rates of studies, and of runs that were stored before they said so.
_STUDIED = (5e-4, 5e-2)


def dpareto_full() -> str:
    full = load("dpareto_paper_full")
    if full is None:
        return "Not run yet.\n"
    rows = []
    for setting, methods in full["summary"].items():
        for method, entry in methods.items():
            cells = [entry["linear"]["observed"], entry["linear"]["evaluated_again"]]
            cells.append(entry["log"]["evaluated_again"])
            run = full["runs"][setting][method]["0"]
            low, high = run.get("learning_rate", _STUDIED)
            rate = f"{low:g} to {high:g}"
            numbers = (f"{v:.3f}" for v in cells)
            rows.append([setting, method, rate, str(entry["trials"]), *numbers])
    head = [
        "setting",
        "method",
        "learning rates",
        "trials",
        "observed",
        "trained again",
        "in ln(ε/0.05), trained again",
    ]
    return table(head, rows) + "\n" + command("dpareto_paper", "Table 2 and figure 5 at the")


def dpareto_table_2() -> str:
    """Printed leads beside ours: the mean over the seeds of each kind of study."""
    found = load("dpareto_lead")
    if found is None or "leads" not in found:
        return "Not run yet.\n"
    rows = []
    for setting, printed in found["printed in table 2"].items():
        label = f"{setting} (printed: {{}} [{{}}, {{}}])".format(*printed)
        kinds: dict[str, list[dict[str, Any]]] = {}
        for study, measures in _most_trained(found["leads"].get(setting, {})).items():
            kind = study.partition(", seed")[0] if ", seed" in study else study.rpartition(", ")[0]
            kinds.setdefault(kind, []).append(measures)
        for kind, seeds in sorted(kinds.items(), key=lambda item: _ORDER.index(item[0])):
            cells = []
            for name in _LEADS.values():
                entries = [measures[name] for measures in seeds if name in measures]
                leads = ", ".join(f"{each['lead']['mean']:.4f}" for each in entries)
                ahead = ", ".join(str(each["ahead of"]) for each in entries)
                cells.append(f"{leads} ({ahead})" if entries else "")
            rows.append([label, kind, *cells])
            label = ""
    head = ["setting", "study", *_LEADS]
    return table(head, rows) + "\n" + command("dpareto_lead", "Table 2:")


_ORDER = [
    "default settings, nothing tuned", "DPareto", "DPareto, linear epsilon",
    "DPareto, the paper's way",
]  # fmt: skip


_LEADS = {
    "in ε": "hypervolume to (10, 1); epsilon by dominating pairs",
    "in ln ε": "hypervolume in ln(epsilon / .05); epsilon by dominating pairs",
    "in ε, Rényi": "hypervolume to (10, 1); epsilon by Rényi divergences",
    "in ln ε, Rényi": "hypervolume in ln(epsilon / .05); epsilon by Rényi divergences",
}


def _trainings(study: str) -> int:
    return int(study.rpartition(", ")[2].split()[0])


def _most_trained(studies: dict[str, Any]) -> dict[str, Any]:
    """The studies whose points were trained most often."""
    most = max(map(_trainings, studies), default=0)
    return {name: study for name, study in studies.items() if _trainings(name) == most}


def _ahead(entry: dict[str, Any]) -> str:
    return f"ahead of {entry['ahead of']} of 19"


def dpareto_lead() -> str:
    """The leads of LogReg+SGD by all measures, and pools of random points."""
    found = load("dpareto_lead")
    if found is None or "leads" not in found:
        return "Not run yet.\n"
    parts = []
    leads = found["leads"]["LogReg+SGD"]
    often = {_trainings(study) for study in leads}
    for study, measures in leads.items():
        if "DPareto, seed 0, " not in study or _trainings(study) not in (min(often), max(often)):
            continue
        rows = []
        for name, entry in measures.items():
            measure, axis = name.split("; epsilon by ")
            deviation = f"{entry['standard deviation of a draw']:.2g}"
            rows.append([measure, axis, shown(entry["lead"]), _ahead(entry), deviation])
        head = ["measure", "ε by", "mean lead over 19 draws", "", "deviation of a draw"]
        parts.append(f"{study}, and as many of each random point:\n\n{table(head, rows)}")
    for trainings, pools in found["pools compared"].items():
        pools = dict(pools)
        size = pools.pop("points of a draw")
        compared = [[pool, _three(value)] for pool, value in pools.items()]
        parts.append(
            f"Random points alone, {trainings} each, hypervolume to (10, 1) of a draw of {size}:"
            f"\n\n{table(['random points', 'a draw'], compared)}"
        )
    return "\n".join(parts)


def dpareto_own_time() -> str:
    found = load("dpareto_lead")
    if found is None or "studies" not in found:
        return "Not run yet.\n"
    rows = [["the paper's, on its machine (section 4)", "45"]]
    for setting, studies in found["studies"].items():
        for name, study in _most_trained(studies).items():
            if (seconds := study.get("own seconds of a processor")) is not None:
                rows.append([f"{setting}, {name}, here", f"{seconds:.0f}"])
    return table(["16 + 256 trials without their trainings", "seconds"], rows)


def shown_or_number(value: Any) -> str:
    """A mean with its interval, or a number that has none."""
    return f"{value:.3f}" if isinstance(value, float) else _three(value)


def _three(value: dict[str, Any]) -> str:
    if value["count"] < 3:
        return f"{value['mean']:.3f}"
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def membership() -> str:
    found = load("membership")
    if found is None:
        return "Not run yet.\n"
    names = {"epsilon = 8": "ε = 8", "epsilon = 1": "ε = 1", "no protection": "no protection"}
    rows = []
    for name, row in found["models"].items():
        model, _, protection = name.partition(", ")
        limit = found["no attack exceeds"].get(
            f"{float(protection[10:]):.1f}" if protection[:7] == "epsilon" else ""
        )
        rows.append([
            f"{model}, {names[protection]}",
            *(_percent(row[column]) for column in ("accuracy", "right guesses", "named")),
            "100%" if limit is None else f"{100 * limit['right guesses']:.4g}%",
        ])  # fmt: skip
    head = [
        "model of 1,000 people",
        "accuracy",
        "attacker is right",
        "named",
        "no attack is right more than",
    ]
    return table(head, rows)


def _percent(found: dict[str, Any]) -> str:
    mean, low, high = (100 * found[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f}% [{low:.1f}, {high:.1f}]"


def trainers() -> str:
    """First the loss that a user writes, then what our own ways to train cost."""
    found = load("trainers")
    if found is None:
        return "Not run yet.\n"
    found.pop("machine")
    others = ("plain SGD", "Opacus hooks", "Opacus ghost clipping")
    rows, raised = [], {}
    for model, row in found.items():
        for key in row:
            if key.startswith("own loss: ") and key.endswith(", published"):
                seeded = key.removesuffix(", published")
                cells = [
                    _times(row, f"{how}, over {other}", other)
                    for other in others
                    for how in (seeded, key)
                ]
                rows.append([model, seeded.removeprefix("own loss: "), *cells])
        for other in others[1:]:
            if "raises" in row.get(other, {}):
                raised[model] = row[other]["raises"]
    head = [f"over {other}, {how}" for other in others for how in ("seeded", "published")]
    ways = [
        [model, *(_times(row, key) for key in _WAYS)]
        for model, row in found.items()
        if "DPTrainer" in row
    ]
    return (
        table(["model", "own loss", *head], rows)
        + "\nWhat Opacus raises, by hooks and by ghost clipping:\n\n"
        + table(["model", "error"], ([model, f"`{error}`"] for model, error in raised.items()))
        + "\nWith a loss of this package:\n\n"
        + table(["model", *_WAYS.values()], ways)
    )


#: Keys of results, and what the table calls them.
_WAYS = {
    "DPTrainer, over plain SGD": "`DPTrainer` over plain SGD",
    "DPTrainer, published": "`publish=True` over seeded",
    "DPTrainer, by Opacus": '`engine="opacus"` over our own',
    "10 replicates": "one of ten replicates over a run alone",
}


def _times(row: dict[str, Any], key: str, other: str = "") -> str:
    """A ratio with its range over turns, or why there is none."""
    if "raises" in row.get(other, {}):
        return "raises"
    if key not in row:
        return "–"
    ratio = next(value for name, value in row[key].items() if name.startswith("times "))
    low, high = row[key]["range"]
    wrong = row.get(f"{other}, distance from single records", 0.0) > 1e-4
    return f"{ratio:.2f} ({low:.2f} to {high:.2f}){', wrong sums' if wrong else ''}"


def obvious_alternatives() -> str:
    """What README compares with, at epsilon = 1."""
    found = load("which_trees")
    if found is None:
        return "Not run yet.\n"
    tasks, sizes = ("decision tree, d = 4", "LightGBM, d = 4"), (300, 3_000, 30_000)
    cells = [found["judged"].get(f"{task}, n = {n}, epsilon = 1") for task in tasks for n in sizes]
    rows = []
    for method, name in {
        "middle of the space": "default: middle of the space",
        "Optuna on released scores": "Optuna on noisy scores (composition), ε = 1",
        "PrivateSearch": "`PrivateSearch`, ε = 1",
        "Optuna, not private": "Optuna, no privacy",
    }.items():
        errors = [cell and cell["error"].get(method) for cell in cells]
        rows.append([name, *(_three_digits(error) if error else "–" for error in errors)])
    return table(
        ["error", *(f"{task.split(',')[0]}, n = {n:,}" for task in tasks for n in sizes)], rows
    )


def _three_digits(found: dict[str, Any]) -> str:
    return f"{found['mean']:.3f} ± {(found['high'] - found['low']) / 2:.3f}"


def untuned() -> str:
    """The gap to the best of 40 over all epsilons: mean and worst, of all tasks and each group."""
    from benchmarks.nothing_to_tune import gaps
    from benchmarks.untuned_tasks import TASKS

    stored = load("nothing_to_tune")
    if stored is None:
        return "Not run yet.\n"
    cells, rows = stored["cells"], []
    for name in ("all", "design", "checked later", "held out"):
        chosen = {k: gap for k, gap in gaps(cells).items() if name in ("all", TASKS[k[0]].group)}
        tasks = dict.fromkeys(task for task, _ in chosen)
        means = [
            sum(g for (t, _), g in chosen.items() if t == task) / sum(t == task for t, _ in chosen)
            for task in tasks
        ]
        (task, epsilon), worst = min(chosen.items(), key=lambda item: item[1])
        found = mean_interval(means)
        level = sum(
            sum(cells[f"{t} {e:g} rule"]["values"]) >= sum(cells[f"{t} {e:g} unpaid"]["values"])
            for t, e in chosen
        )
        rows.append(
            [name, f"{len(tasks)}",
             f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]",
             f"{worst:+.3f} ({task.replace('_', ' ')}, ε = {epsilon:g})",
             f"{level} of {len(chosen)}"]
        )  # fmt: skip
    head = ["tasks", "how many", "mean gap, with a 95% interval over tasks", "worst"]
    return table([*head, "not below the best of 40, trained again"], rows)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        kusner, kusner_regret, outsourced, outsourced_figure_2, outsourced_dominance, dp_gibo,
        dp_gibo_theorems, dp_gibo_placement,
        dpareto_illustrations, dpareto_reduced, dpareto_full, dpareto_table_2, dpareto_lead,
        dpareto_own_time,
        membership, obvious_alternatives, untuned, trainers,
        *TABLES_OF_RESULTS,
    )
}  # fmt: skip


def filled(text: str) -> str:
    """A page with its tables as the results are now; decimals get a leading zero."""

    def made(match: re.Match[str]) -> str:
        body = re.sub(r"(?<![\w.])\.(?=\d)", "0.", TABLES[match[2]]())
        return f"{match[1]}\n{body}\n{match[3]}"

    return MARK.sub(made, text)


def main() -> None:
    import argparse

    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
