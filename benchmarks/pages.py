"""Fill the tables of the papers' pages with the stored results: ``python -m benchmarks.pages``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``. Numbers come from
``benchmarks/results`` only; where a result is missing, the cell says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import REPRODUCTIONS, RESULTS

PAGES = sorted((Path(__file__).parents[1] / "docs" / "papers").glob("*.md"))
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def shown(value: Any) -> str:
    """A number, or a mean with its interval."""
    if isinstance(value, dict):
        if value["count"] < 2 or abs(value["low"]) == float("inf"):
            return f"{value['mean']:.3g}"
        return f"{value['mean']:.3g} [{value['low']:.3g}, {value['high']:.3g}]"
    return "" if value is None else f"{value:.3g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def how(script: str, item: str) -> list[str]:
    """The minutes and the command of a reproduction."""
    found = next(e for e in REPRODUCTIONS if e.script == script and e.item.startswith(item))
    return [f"{found.minutes:g}", f"`{found.command}`"]


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


def outsourced() -> str:
    found = load("outsourced")
    if found is None or "tables" not in found:
        return "Not run yet.\n"
    rows = []
    for number, entry in sorted(found["tables"].items(), key=lambda item: int(item[0])):
        record = entry["record"]
        name = f"{number}: {record['data']}, log ε = {record['log_epsilon']}"
        for r, cell in entry["random projection"].items():
            theirs = "" if cell["printed"] is None else f"{cell['printed']:.3f}"
            rows.append([name, f"projection, r = {r}", theirs, shown(cell["final"])])
            name = ""
        size = f"{entry['rows']:,} rows, T = {record['steps']}"
        noise = f"Gaussian noise, ({record['epsilon']:.1f}, {record['delta']:g})-DP"
        rows.append([size, noise, "", shown(entry["Gaussian noise"]["final"])])
        length = f"length-scale {entry['effective length-scale']:.3g}"
        rows.append([length, "without privacy", "", shown(entry["without privacy"]["final"])])
        rows.append(["", "random choice", "", shown(entry["random choice"]["final"])])
    text = table(["table", "rows sent", "theirs", "ours"], rows)
    batches = [[size, shown(value)] for size, value in found["batches"].items()]
    certified = [
        [name, shown(value["certified"]), shown(value["regret"])]
        for name, value in found["certificates"].items()
    ]
    return (
        f"{text}\nAll tables took {found['minutes']:.0f} minutes on a shared core. With the "
        "printed length-scale of 1.25 the search without privacy ends at "
        f"{shown(found['printed length-scale 1.25, without privacy']['final'])}.\n\n"
        "Several rows may be asked for at once (table 1 without privacy):\n\n"
        f"{table(['rows at once', 'regret'], batches)}\n"
        "The curator can certify a regret (90%, table 1):\n\n"
        f"{table(['rows sent', 'certified', 'true'], certified)}"
    )


def dp_gibo() -> str:
    rows = []
    first, second = load("dp_gibo_41"), load("dp_gibo_42")
    if first:
        size = f"n = 50, T = {first['steps']}, {first['seeds']} seeds"
        run = how("dp_gibo_examples", "Example 4.1")
        for name, value in first["final distance from the mean"].items():
            bound = first["bound on the distance (root mean square)"]
            key = name if name in bound else f"{name}, B = 1"
            rows.append(
                ["4.1: distance from the mean, " + name, "figure", shown(value),
                 f"bound {bound[key]:.2g}; {size}", *run]
            )  # fmt: skip
    if second:
        size = f"n = 100, T = {second['steps']}, {second['seeds']} seeds"
        run = how("dp_gibo_examples", "Example 4.2")
        for name, value in second["final distance from the minimum"].items():
            rows.append(
                ["4.2: distance from the minimum, " + name, "figure", shown(value), size, *run]
            )
        paired = second["DP-GIBO minus noisy gradient descent, distance"]
        rows.append(
            ["4.2: DP-GIBO minus noisy descent, paired", "level", shown(paired), size, *run]
        )
    labels = {
        "43": ("4.3", "Example 4.3"),
        "C5": ("C.5", "Appendix C.5"),
        "44": ("4.4 (stand-in data)", "Example 4.4"),
        "friedman": ("Friedman (variant)", "Friedman"),
        "cancer": ("breast cancer (variant)", "Breast cancer"),
    }
    for name, (label, item) in labels.items():
        found = load(f"dp_gibo_{name}")
        if found is None:
            continue
        sizes = found["sizes"]
        size = f"n = {sizes['validation']}, T = {sizes['steps']}, {sizes['draws']} draws"
        run = how("dp_gibo_tuning", item)
        theirs = "" if "variant" in label else "figure"
        rows.append([f"{label}: mean loss at the start", "", shown(found["start"]), size, *run])
        for method, value in found["final mean loss"].items():
            rows.append([f"{label}: final mean loss, {method}", theirs, shown(value), size, *run])
        paired_key = next(key for key in found if key.endswith("paired"))
        reference = paired_key.split(" minus")[0]
        for method, value in found[paired_key].items():
            rows.append([f"{label}: {reference} minus {method}", "", shown(value), size, *run])
        ratio_key = next(key for key in found if "geometric" in key)
        for method, value in found[ratio_key].items():
            rows.append([f"{label}: {reference} over {method}", "", shown(value), size, *run])
    return table(["item", "theirs", "ours", "size", "minutes", "command"], rows)


def dpareto() -> str:
    rows = []
    found = load("dpareto_illustrations")
    for key in ("logistic", "sparse_vector") if found else ():
        entry = found[key]  # type: ignore[index]
        rows.append(
            [f"Figures 1 to 4: {entry['problem']}, hypervolume", "figure",
             f"{entry['hypervolume found']:.4g} of {entry['hypervolume of the true front']:.4g}",
             f"{entry['trials']} trials", *how("pareto_quality", "Figures 1")]
        )  # fmt: skip
    paper = load("dpareto_paper") or {"summary": {}, "settings": {}}
    for setting, methods in paper["summary"].items():
        sizes = paper["settings"][setting]
        size = f"{sizes['trials']} trials, {sizes['max_epochs']} epochs, {sizes['seeds']} seeds"
        for method, entry in methods.items():
            if method in ("DPareto", "random"):
                item = f"Table 2, {setting}: hypervolume trained again, {method}"
                again = shown(entry["linear"]["evaluated_again"])
                run = how("dpareto_paper", "Tables 2")
                rows.append([item, "lead of up to .158", again, size, *run])
    full = load("dpareto_paper_full") or {"summary": {}}
    run = how("dpareto_paper", "Table 2 and")
    for setting, methods in full["summary"].items():
        for method, entry in methods.items():
            values = entry["linear"]
            item = f"Table 2 at its size, {setting}: observed (trained again), {method}"
            both = f"{values['observed']:.4g} ({values['evaluated_again']:.4g})"
            rows.append([item, "figure", both, f"{entry['trials']} trials, 1 seed", *run])
        test = full["test_of_table_2"][setting]
        if test is not None:
            item = f"Table 2, {setting}: random draws of 256 points that DPareto is ahead of"
            rows.append([item, "ahead", f"{test['ahead_of']} of {test['of']}", "1 seed", *run])
    if load("dpareto_records"):
        rows.append(
            ["ε of the authors' result files", "32 values", "24 equal to 1e-6, 8 at large orders",
             "32 records", *how("accounting", "Result")]
        )  # fmt: skip
    return table(["item", "theirs", "ours", "size", "minutes", "command"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "kusner": kusner,
    "outsourced": outsourced,
    "dp_gibo": dp_gibo,
    "dpareto": dpareto,
}


def filled(text: str) -> str:
    """A page with its tables as the results are now."""
    return MARK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n{m[3]}", text)


def main() -> None:
    import argparse

    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
