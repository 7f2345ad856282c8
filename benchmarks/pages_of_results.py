"""The tables of ``docs/results`` and ``docs/methods.md``, from the stored results.

``python -m benchmarks.pages`` writes them into the pages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.common import mean_interval
from benchmarks.private_tables import score_name
from benchmarks.tables import stored, table


def fixed(value: float, digits: int = 3) -> str:
    """So many decimals; no minus in front of a zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def interval(found: Any, digits: int = 3) -> str:
    mean, low, high = (fixed(found[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def half_width(found: Any, digits: int = 2) -> str:
    return f"{fixed(found['mean'], digits)} ± {fixed(found['high'] - found['mean'], digits)}"


def two_digits(value: float) -> str:
    """Two significant digits, or all in front of the point."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:#.2g}"


def ratio(found: Any) -> str:
    """The median of a ratio and its range over repetitions."""
    return "{} ({} to {})".format(*(two_digits(found[key]) for key in ("median", "low", "high")))


def span(values: Iterable[float]) -> str:
    values = list(values)
    return f"{two_digits(min(values))} to {two_digits(max(values))}"


def accounting_fronts() -> str:
    rows = []
    for name, found in stored("accounting_fronts").items():
        if name != "machine":
            cells = [
                cell
                for scale in ("epsilon", "ln epsilon")
                for cell in (
                    f"{found[f'before, in {scale}']['mean']:.3f} → "
                    f"{found[f'after, in {scale}']['mean']:.3f}",
                    interval(found[f"gain, in {scale}"]),
                )
            ]
            longest = "one epoch" if found["longest"] == 1 else f"{found['longest']} epochs"
            size = f"{found['trials']} trainings, at most {longest}"
            rows.append([f"{name}: {size}, {found['seeds']} seeds", *cells])
    return table(["", "in ε", "gain", "in ln(ε/0.05)", "gain"], rows)


def descent() -> str:
    """Median gaps of DP-GIBO and of TuRBO on released scores; bold where DP-GIBO's is smaller."""
    found = stored("dp_gibo_where")["comparison"]
    levels = list(dict.fromkeys(row["n mu"] for row in found))
    rows = []
    for shape, d in dict.fromkeys((row["shape"], row["d"]) for row in found):
        mine = [row for row in found if (row["shape"], row["d"]) == (shape, d)]
        rows.append([f"{shape}, d = {d}", *map(_gaps, mine)])
    return table(["losses", *(f"nμ = {level:,.0f}" for level in levels)], rows)


def _gaps(row: dict[str, Any]) -> str:
    ours, theirs = (fixed(row[name], 4) for name in ("DP-GIBO", "TuRBO"))
    return f"**{ours}** / {theirs}" if float(ours) < float(theirs) else f"{ours} / {theirs}"


def faults() -> str:
    found = stored("faults")["rows"]
    rows = []
    for fault in dict.fromkeys(row["fault"] for row in found):
        mine = [row for row in found if row["fault"] == fault]
        sums = [sum(row[key] for row in mine) for key in ("tried", "lost")]
        rows.append([fault, str(len(mine)), *(f"{value:,}" for value in sums)])
    return table(["fault", "kinds", "tried", "lost"], rows)


def opacus_fronts() -> str:
    found = stored("opacus_fronts")
    rows = [["always the more frequent class", fixed(found["majority"], 4), *[""] * 7]]
    for name, case in found["cases"].items():
        engines = [case["engines"][engine] for engine in ("auto", "opacus")]
        rows.append(
            [name]
            + [fixed(e["mean_accuracy"], 4) for e in engines]
            + [fixed(e["hypervolume"], 4) for e in engines]
            + [fixed(e["seconds"], 1) for e in engines]
            + [fixed(case[key], 4) for key in ("largest_paired_gap", "spread_between_seeds")]
        )
    head = ["model", "accuracy, ours", "by Opacus", "hypervolume, ours", "by Opacus"]
    head += ["seconds, ours", "by Opacus", "largest difference", "deviation between seeds"]
    return table(head, rows)


def engines() -> str:
    """Right on a model, refused, or wrong: what is stored is a distance or a refusal's words."""
    models = stored("engines")["models"].values()
    rows = []
    for engine in ("per_record", "ghost", "opacus", "fused"):
        cells = [model[engine] for model in models]
        refused = sum(isinstance(cell, str) for cell in cells)
        right = sum(isinstance(cell, float) and cell < 1e-5 for cell in cells)
        counts = (right, refused, len(cells) - right - refused)
        rows.append([f"`{engine}`", *map(str, counts)])
    return table(["engine", "right", "refused", "wrong"], rows)


def mixing_models() -> str:
    names = ("per_record", "ghost", "opacus")
    rows = [
        [model, *(fixed(by[name]["move"], 1) for name in names),
         "yes" if any(by[name]["refused"] for name in names) else "no"]
        for model, by in stored("engines")["hostile"].items()
    ]  # fmt: skip
    return table(["model", *(f"`{name}`" for name in names), "refused by the checks"], rows)


#: Ways to pay for tuning, as the tables call them.
WAYS = {
    "unpaid": "not counted in ε: the best of 40 at the winner's own ε (a ceiling)",
    "selection": "private selection, 20 expected (`PrivateFit`)",
    "forty": "40 expected, geometric",
    "few": "10 expected",
    "default": "one training in the middle of the space",
    "composition": "40 trainings, each of them charged",
}


def _paid(task: str, epsilons: Sequence[str]) -> str:
    found = stored("paid_tuning")[task]
    rows = [
        [label] + [fixed(found[f"{way} {e}"]["sensitive test records"]["accuracy"], 4)
                   for e in epsilons]
        for way, label in WAYS.items()
        if f"{way} {epsilons[0]}" in found
    ]  # fmt: skip
    name = {"adult": "Adult", "mnist": "MNIST"}[task]
    return table([name, *(f"ε = {float(e):g}" for e in epsilons)], rows)


def paid_adult() -> str:
    return _paid("adult", ("0.1", "0.3", "1.0", "3.0"))


def paid_mnist() -> str:
    return _paid("mnist", ("0.1", "1.0", "3.0"))


def paid_studies() -> str:
    found = stored("paid_tuning")["adult"]
    one, three = found["budgeted 0.3"]["accuracy"], found["budgeted 1.0"]["accuracy"]
    rows = [["a budgeted study, its best model", f"{fixed(one, 4)} (one study)",
             f"{interval(three, 4)} ({three['count']} studies)"]]  # fmt: skip
    for way in ("selection", "composition", "default"):
        cells = [found[f"{way} {e}"]["public test records"]["accuracy"] for e in ("0.3", "1.0")]
        rows.append([WAYS[way], *(fixed(cell, 4) for cell in cells)])
    return table(["", "ε = 0.3", "ε = 1"], rows)


def paid_prices() -> str:
    names = {
        "one training": "one training, tuning ignored",
        "selection, shape 1": "20 expected, geometric: `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 1": "20 expected, geometric: `RepeatAndSelectDpEvent`",
        "selection, shape 3": "20 expected, shape 3 (the default): `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 3": "20 expected, shape 3: `RepeatAndSelectDpEvent`",
        "composition": "20 trainings, all published",
    }
    found = stored("paid_selection_prices")["rows"]
    rows = [[label, *(f"{row[way]:#.3g}" for row in found)] for way, label in names.items()]
    return table(["", *(f"ε = {row['epsilon']:g}" for row in found)], rows)


def paid_optuna() -> str:
    names = {
        "random": "random",
        "Optuna's TPE": "Optuna's `TPESampler`",
        "DPareto.run": "`DPareto.run`",
        "DParetoSampler, one process": "`DParetoSampler`, one process",
        "DParetoSampler, two processes": "`DParetoSampler`, two processes on a journal",
    }
    rows = []
    for way, row in stored("paid_selection_optuna")["rows"].items():
        against = "" if way == "DPareto.run" else interval(row["against DPareto.run"])
        rows.append([names[way], interval(row["hypervolume"]), against])
    return table(["", "hypervolume", "against `DPareto.run`"], rows)


def proposals() -> str:
    """Hypervolume that is missing from the exact front, in per cent."""
    names = {
        "`ehvi` in ln ε, ε known exactly (default)": ["ehvi in log epsilon"],
        '`ehvi`, `epsilon_scale="linear"`': ["ehvi"],
        "the same, ε modelled": ["ehvi, gp epsilon"],
        "`hvpoi`, ε modelled (the paper's)": ["hvpoi, gp epsilon (the paper's)"],
        "random, same trials / four times as many": ["random", "random, 4x"],
        "grid, same trials / four times as many": ["grid", "grid, 4x"],
    }
    found = stored("pareto_quality")["problems"].values()
    rows = []
    for label, methods in names.items():
        cells = []
        for digits, problem in zip((1, 2), found, strict=True):
            for scale in ("linear", "log"):
                exact = problem["exact_volume"][scale]
                gaps = [problem["summary"][m][scale]["gap_to_exact_front"] for m in methods]
                cells.append(" / ".join(fixed(100 * gap["mean"] / exact, digits) for gap in gaps))
        rows.append([label, *cells])
    head = ["", "sparse vector, in ε", "in ln ε", "logistic regression (Adult), in ε", "in ln ε"]
    return table(head, rows)


def faster() -> str:
    """How many times as fast as a baseline."""
    traces = stored("dp_gibo_speed")["ratios"]
    hvpoi = stored("hvpoi")["ratios"]
    accounting = stored("accounting")["speed"]["ratios"]
    lattice = "10,000 released numbers, OpenDP at its finest lattice over ours"
    trace, script = "`GradientTrace`, value and gradient, {} candidate sets", "`dp_gibo_speed`"
    recomputed = "a lean dense recomputation in closed form, without conditioning"
    rows = [
        [trace.format(sets).replace("1 candidate sets", "1 candidate set"), f"N = {n}", recomputed,
         ratio(traces[f"gradient trace, N = {n}, d = 10, {sets} candidate sets"]), script]
        for sets in (16, 1)
        for n in (20, 100, 300)
    ]  # fmt: skip
    rows.append([
        "`FiniteSetGP`, 50 steps", "36,000 choices",
        "`optimize_acqf_discrete` on a fresh `SingleTaskGP` each step",
        ratio(stored("finite_set_gp")["ratio_36000x50"]), "`search_speed --part finite_sets`",
    ])  # fmt: skip
    for many, size in ((False, "2 and 3 objectives"), (True, "4 objectives")):
        for key, name in (("hvpoi", "HVPoI"), ("log_hvpoi", "logarithm of HVPoI")):
            for alone, what in ((True, ""), (False, " with its model's posterior")):
                medians = [
                    row[key]["median"]
                    for row in hvpoi
                    if row["without_model"] == alone and (row["objectives"] == 4) == many
                ]
                rows.append([
                    f"{name}, value and gradient{what}", size,
                    "BoTorch's analytic EHVI on the same front", span(medians),
                    "`search_speed --part hvpoi`",
                ])  # fmt: skip
    privacy_loss = "dp-accounting's privacy-loss distributions"
    rows += [
        ["`dp_sgd_epsilon`, Poisson batches", "a record replaced", privacy_loss,
         ratio(accounting["Poisson batches, replace"]), "`accounting`"],
        ["`dp_sgd_epsilon`, Poisson batches", "a record added", privacy_loss,
         ratio(accounting["Poisson batches, add"]), "`accounting`"],
        ["`dp_sgd_noise_multiplier`", "Poisson batches", "dp-accounting's calibration",
         ratio(accounting["calibration, Poisson batches, replace"]), "`accounting`"],
        ["noise for released vectors", "10,000 Gaussian numbers", "OpenDP at its finest lattice",
         ratio(stored("growth")["ratios"][lattice]), "`speed --part growth`"],
    ]  # fmt: skip
    return table(["what", "size", "baseline", "times as fast", "script"], rows)


def longer() -> str:
    """How many times the time of what something is compared with."""
    steps = stored("dp_gibo_speed")["steps"]
    rows = []
    for key, other in (
        ("step over products", "the matrix products that it cannot avoid"),
        ("step over lean step and release",
         "a lean step: the same one written in torch for one kernel and one design, without "
         "checks, copies and records; and one release in memory"),
    ):  # fmt: skip
        for size in ("N = 850, d = 33, n = 5000", "N = 340, d = 33, n = 5000",
                     "N = 110, d = 10, n = 1000"):  # fmt: skip
            step = steps[f"one step, {size}, simplex"]
            low, high = step[f"{key}, range"]
            times = ratio({"median": step[key], "low": low, "high": high})
            name = "one DP-GIBO step without the objective"
            rows.append([name, size.replace("000", ",000"), other, times, "`dp_gibo_speed`"])
    for row in stored("finite_set_gp")["against_memory_traffic"]:
        times = ratio(row | {"median": row["times"]})
        rows.append([
            f"`FiniteSetGP`, {row['steps']} steps", f"{row['choices']:,} choices",
            "the memory traffic that it cannot avoid", times, "`search_speed --part finite_sets`",
        ])  # fmt: skip
    sizes = stored("pareto_overhead")["sizes"]
    for loop, other in (
        ("tutorial", "a BoTorch qLogEHVI loop with the same models and its tutorial's settings"),
        ("light", "the same loop with fewer restarts and samples"),
    ):
        times = span(
            size["of_baseline"][f"ehvi, exact epsilon (default) / {loop}"]["median"]
            for size in sizes
        )
        trials = f"{sizes[0]['trials']} to {sizes[-1]['trials']} trials"
        script = "`search_speed --part dpareto`"
        rows.append(["DPareto's own time for a trial", trials, other, times, script])
    summed = "private evaluation over its exact sum, 1,000,000 records"
    charges = {k: v for k, v in stored("ledger").items() if " after " in k}
    imports = stored("import_time")
    rows += [
        ["`PrivateObjective`", "1,000,000 records",
         "one exact sum in plain torch (clip, scale, round, add)",
         ratio(stored("growth")["ratios"][summed]), "`speed --part growth`"],
        ["one ledger charge", "after 0 to 10,000 charges", "a bare durable SQLite insert",
         span(by["EXTRA"]["median"] for by in charges.values()), "`speed --part ledger`"],
        ["`import botorch_dp`", "", "`import botorch` and OpenDP",
         fixed(imports["botorch_dp"]["of botorch + OpenDP"], 2), "`speed --part imports`"],
        ["import of every subpackage", "", "`import botorch` and OpenDP",
         fixed(imports["every subpackage"]["of botorch + OpenDP"], 2), "`speed --part imports`"],
    ]  # fmt: skip
    return table(["what", "size", "compared with", "times its time", "script"], rows)


def growth() -> str:
    names = {
        "private evaluation": "a private evaluation (`PrivateObjective`)",
        "its exact sum alone": "for comparison: the sum alone in plain torch",
        "released vector": "a released vector",
        "GradientTrace": "`GradientTrace`, value and gradient, 16 sets",
        "20 steps of FiniteSetGP": "20 steps of `FiniteSetGP`, in chunks",
        "opening a ledger": "opening and verifying a ledger",
        "front of a study": "the front of a study",
        "proposal of a study": "a proposal, two parameters",
        "epsilons": "epsilons of DP-SGD at once, one batch size",
    }
    rows = []
    for name, curve in stored("growth")["curves"].items():
        sizes = " / ".join(f"{int(size):,}" for size in curve["seconds"])
        times = " / ".join(two_digits(1000 * spent) for spent in curve["seconds"].values())
        rows.append([names[name], f"{sizes} {curve['size']}", times, fixed(curve["exponent"], 1)])
    return table(["what", "sizes", "milliseconds", "exponent"], rows)


def trainer_memory() -> str:
    engines = ("ghost", "per_record", "Opacus hooks", "Opacus ghost", "plain SGD")
    rows = [
        [model, *(f"{by[e]['megabytes']:,.0f} MB, {by[e]['milliseconds a step']:,.0f} ms"
                  for e in engines)]
        for model, by in stored("clipping").items()
        if model not in ("machine", "turns")
    ]  # fmt: skip
    return table(["", *engines], rows)


LEVELS = ("0.3", "1", "3")


def all_methods() -> str:
    """Mean regret over the four tuning tasks, of every method that publishes something."""
    from benchmarks.which_method import RANDOM, mean_regret, stored_outcomes

    seen, fresh = (stored_outcomes(stored(file)) for file in ("which_method", "which_method_fresh"))
    rows = [
        [label, *(half_width(vars(mean_regret(outcomes, name, e))) for e in LEVELS)]
        for label, outcomes, name in (
            ("one random configuration, on average", seen, RANDOM),
            ("the middle of the space", seen, "middle of the box"),
            ("permute-and-flip on public points", fresh, "permute-and-flip, no model"),
            ("`PrivateSearch`", fresh, "PrivateSearch"),
            ("`DPGIBO`", fresh, "DPGIBO"),
            ("private random search (Papernot & Steinke), geometric", seen,
             "private random search, geometric"),
            ("`PrivateObjective` + TuRBO", seen, "PrivateObjective + TuRBO"),
            ("`PrivateObjective` + qLogEI", seen, "PrivateObjective + qLogEI"),
            ("`PrivateObjective` + GP-UCB", seen, "PrivateObjective + GP-UCB"),
            ("`PrivateChoice` (conditional)", seen, "PrivateChoice (conditional)"),
        )
    ]  # fmt: skip
    return table(["", *(f"ε = {e}" for e in LEVELS)], rows)


def generated_tasks() -> dict[str, dict[str, Any]]:
    """What is known of each generated task, by epsilon."""
    found: dict[str, dict[str, Any]] = {}
    for records in (2000, 300):
        for case, judged in stored(f"which_unseen_{records}")["judged"].items():
            task, level = case.rsplit(", epsilon = ", 1)
            found.setdefault(task.replace("000", ",000"), {})[level] = judged
    return found


def generated_differences() -> str:
    rows = []
    for task, by in generated_tasks().items():
        gaps = [by[level]["difference to it"] for level in LEVELS]
        cells = [f"**{half_width(g)}**" if g["high"] < 0 else half_width(g) for g in gaps]
        rows.append([task, *cells])
    return table(["task", *(f"ε = {e}" for e in LEVELS)], rows)


def records_and_dimensions() -> str:
    judged = stored("which_unseen_grid")["judged"]
    sizes, methods = (300, 1000, 3000, 10_000), ("PrivateSearch", "DPGIBO", "permute-and-flip")
    rows = []
    for d in (5, 10, 20, 40):
        cases = [judged[f"ripples, d = {d}, n = {n}, epsilon = 1"]["regret"] for n in sizes]
        cells = [" / ".join(fixed(case[m]["mean"], 2) for m in methods) for case in cases]
        rows.append([f"d = {d}", *cells])
    return table(["", *(f"n = {n:,}" for n in sizes)], rows)


def few_evaluations() -> str:
    found = stored("which_few")["regret"]
    columns = [
        (method, count) for count in (13, 39) for method in ("PrivateSearch", "permute-and-flip")
    ]
    rows = [
        [task]
        + [fixed(found[f"{task}, d = 12, n = 2000, epsilon = 1, {n} evaluations: {m}"]["mean"], 2)
           for m, n in columns]
        for task in ("ripples", "heavy tails", "plateau")
    ]  # fmt: skip
    return table(["task", *(f"{method}, {count}" for method, count in columns)], rows)


def few_records() -> str:
    """Regret where the noise is large; a task's column is the mean of its two cells."""
    found = stored("which_small")
    tasks = list(dict.fromkeys(case.rsplit(", n = ", 1)[0] for case in found["judged"]))
    rows = [["one random configuration, on average", *["1.00"] * (len(tasks) + 1), "–"]]
    for method, label in {
        "middle of the space": "middle of the space",
        "permute-and-flip": "permute-and-flip",
        "DPGIBO": "`DPGIBO`",
        "descent only": '`PrivateSearch` with `method="descent"`',
        "PrivateSearch": "`PrivateSearch`",
    }.items():
        means = [
            statistics.mean(
                judged["regret"][method]["mean"]
                for case, judged in found["judged"].items()
                if case.startswith(f"{task}, ")
            )
            for task in tasks
        ]
        rows.append([
            label,
            *(fixed(mean, 2) for mean in means),
            half_width(found["mean of the cells"][method]),
            f"{found['beyond 0.6'][method]} of {found['runs']}",
        ])  # fmt: skip
    return table(["", *tasks, "mean", "seeds beyond 0.6"], rows)


TREES = ("decision tree, d = 2", "decision tree, d = 4", "decision tree, d = 6", "LightGBM, d = 4")
TREE_METHODS = {
    "middle of the space": "middle of the space",
    "one random configuration": "one random configuration, on average",
    "Optuna on released scores": "Optuna on released scores",
    "PrivateSearch": "`PrivateSearch` (a selection)",
    "Optuna, not private": "Optuna, not private",
}


def not_tuning() -> str:
    """Losses of searches and of what is not tuned, in hundredths, with paired differences."""
    middle, usual = "middle of the space", "the library's defaults"
    ways = {"no delta": "δ = 0", "delta = 1e-6": "δ = 1e-6"}
    routes = {"slope": '`method="slope"`', "descent": '`method="descent"`'}
    rows = []
    for data, models in stored("which_trees")["defaults"].items():
        for model, found in models.items():
            losses, differences = found["losses"], found["differences"]
            row = [f"{model}, {data}", *(f"{100 * losses[k]['mean']:.2f}" for k in (middle, usual))]
            for way in (*ways, *routes):
                gaps = [differences.get(f"{way} - {other}") for other in (middle, usual)]
                row.append("; ".join(_hundredths(gap) for gap in gaps if gap) or "–")
            rows.append(row)
    head = ["loss, in hundredths", middle, usual, *ways.values(), *routes.values()]
    return table(head, rows)


def _hundredths(gap: dict[str, Any]) -> str:
    return f"{100 * gap['mean']:+.2f} ± {50 * (gap['high'] - gap['low']):.2f}"


def people() -> str:
    """Accuracies, and for other ways than the default the paired difference from it."""
    found = stored("people")
    names = [name for name in found if isinstance(found[name], dict) and "people" in found[name]]
    head = [
        f"{name}: {found[name]['people']:,} with {found[name]['records']:,} records, at most "
        f"{found[name]['most records']:,}"
        for name in names
    ]
    rows = []
    for way in found[names[0]]["accuracy"]:
        label = way.replace("groups, k", "`groups=`, k").replace("epsilon", "ε")
        cells = []
        for name in names:
            above = found[name]["above the default"].get(way)
            cell = interval(found[name]["accuracy"][way])
            cells.append(cell if above is None else f"{cell}; {interval(above)}")
        rows.append([label, *cells])
    majority = [fixed(found[name]["majority"]) for name in names]
    return table(["", *head], [*rows, ["always the more frequent label", *majority]])


#: How rows of ``private_tables`` are called on the page.
_TABLE_ROWS = {
    "additive": "additive (default)",
    "linear": "linear",
    "network": "network",
    "guessed 3 times too wide": "bounds 3 times too wide",
    "guessed 10 times too wide": "10 times",
    "DP-EBM, ranges stated": "DP-EBM, 3 times too wide",
    "DP-EBM, ranges read": "DP-EBM, read (leak)",
    "diffprivlib": "diffprivlib (leak)",
    "standardized": "standardized (leak)",
    "additive, exact quantiles": "additive, exact quantiles (leak)",
    "logistic or linear": "no privacy: linear",
    "boosting": "no privacy: boosting",
}


def private_tables() -> str:
    """Means at epsilon 1; bold is the best of those that neither leak nor go without privacy."""
    found = stored("private_tables")
    rows = []
    for name, scores in found["scores"].items():
        n, d = found["sizes"][name]
        values = {}
        for row in _TABLE_ROWS:
            by = scores.get(row, {})
            each = by.get("1") or by.get("inf") or []
            values[row] = [one[score_name(name, scores)] for one in each]
        honest = [row for row in list(_TABLE_ROWS)[:6] if values[row]]
        best = max(honest, key=lambda row: statistics.mean(values[row]))
        cells = []
        for row, each in values.items():
            text = fixed(statistics.mean(each)) if each else ""
            if row in ("additive", "DP-EBM, ranges read"):
                found_interval = mean_interval(each)
                text += f" ± {fixed(found_interval.high - found_interval.mean)}"
            cells.append(f"**{text}**" if row == best else text)
        what = {"r2": "R²", "auc": "AUROC", "accuracy": "accuracy"}[score_name(name, scores)]
        rows.append([f"{name}, {n:,} x {d}, {what}", *cells])
    return table(["", *_TABLE_ROWS.values()], rows)


def _over_tables(other: str, enough: float = 0.0) -> list[list[str]]:
    """How far the default is ahead of another row, at each epsilon, over all tables."""
    found = stored("private_tables")
    rows = []
    for epsilon in ("0.3", "1", "3"):
        gaps = {}
        for name, scores in found["scores"].items():
            n, d = found["sizes"][name]
            ours, theirs = (scores.get(row, {}).get(epsilon) for row in ("additive", other))
            if ours and theirs and n / d >= enough:
                what = score_name(name, scores)
                pairs = zip(ours, theirs, strict=False)
                gaps[name] = statistics.mean(
                    max(a[what], 0.0) - max(b[what], 0.0) for a, b in pairs
                )
        if gaps:
            worst = min(gaps, key=lambda name: gaps[name])
            rows.append(
                [
                    f"ε = {epsilon}",
                    f"{sum(gap > 0 for gap in gaps.values())} of {len(gaps)}",
                    fixed(statistics.mean(gaps.values())),
                    f"{fixed(gaps[worst])} ({worst})",
                ]
            )
    return rows


def private_tables_lead() -> str:
    head = ["", "tables on which it is ahead", "mean lead", "smallest lead"]
    return table(head, _over_tables("DP-EBM, ranges read"))


def private_tables_gap() -> str:
    head = ["", "tables on which it is ahead", "mean difference", "worst"]
    return table(head, _over_tables("additive, exact quantiles", enough=150))


def private_ranges() -> str:
    found = stored("private_ranges")
    rows = [
        [f"{100 * row[name]:.1f}%" for name in ("stated", "ours", "OpenDP")]
        for row in found["rows"]
    ]
    return table(["stated by `plan`", "ours", "OpenDP's quantiles"], rows)


TABLES_OF_RESULTS = (
    accounting_fronts, descent, faults, people,
    opacus_fronts, engines, mixing_models, paid_adult, paid_mnist, paid_studies, paid_prices,
    paid_optuna, proposals, faster, longer, growth, 
    trainer_memory, all_methods, generated_differences,
    records_and_dimensions, few_evaluations, few_records, not_tuning,
    private_tables, private_tables_lead, private_tables_gap, private_ranges,
)  # fmt: skip
