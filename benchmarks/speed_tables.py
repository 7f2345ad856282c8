"""Tables of the pages on speed and on trainers, and of Opacus's gradients beside ours."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import fixed, markdown, ratio, span, stored, two_digits


def table_trainers() -> str:
    """First the loss that a user writes, then what our own ways to train cost."""
    found = stored("trainers")
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
        markdown(["model", "own loss", *head], rows)
        + "\nWhat Opacus raises, by hooks and by ghost clipping:\n\n"
        + markdown(["model", "error"], ([model, f"`{error}`"] for model, error in raised.items()))
        + "\nWith a loss of this package:\n\n"
        + markdown(["model", *_WAYS.values()], ways)
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


def table_trainer_memory() -> str:
    engines = ("ghost", "per_record", "Opacus hooks", "Opacus ghost", "plain SGD")
    rows = [
        [model, *(f"{by[e]['megabytes']:,.0f} MB, {by[e]['milliseconds a step']:,.0f} ms"
                  for e in engines)]
        for model, by in stored("clipping").items()
        if model not in ("machine", "turns")
    ]  # fmt: skip
    return markdown(["", *engines], rows)


def table_faster() -> str:
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
    return markdown(["what", "size", "baseline", "times as fast", "script"], rows)


def table_longer() -> str:
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
    return markdown(["what", "size", "compared with", "times its time", "script"], rows)


def table_growth() -> str:
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
    return markdown(["what", "sizes", "milliseconds", "exponent"], rows)


def table_engines() -> str:
    """Right on a model, refused, or wrong: what is stored is a distance or a refusal's words."""
    models = stored("engines")["models"].values()
    rows = []
    for engine in ("per_record", "ghost", "opacus", "fused"):
        cells = [model[engine] for model in models]
        refused = sum(isinstance(cell, str) for cell in cells)
        right = sum(isinstance(cell, float) and cell < 1e-5 for cell in cells)
        counts = (right, refused, len(cells) - right - refused)
        rows.append([f"`{engine}`", *map(str, counts)])
    return markdown(["engine", "right", "refused", "wrong"], rows)


def table_mixing_models() -> str:
    names = ("per_record", "ghost", "opacus")
    rows = [
        [model, *(fixed(by[name]["move"], 1) for name in names),
         "yes" if any(by[name]["refused"] for name in names) else "no"]
        for model, by in stored("engines")["hostile"].items()
    ]  # fmt: skip
    return markdown(["model", *(f"`{name}`" for name in names), "refused by the checks"], rows)
