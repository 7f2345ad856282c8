"""Tables of the pages on speed and on trainers, and of Opacus's gradients beside ours."""

from __future__ import annotations

from benchmarks.tables import fixed, markdown, ratio, span, stored, two_digits


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
        for n in (20, 300)
    ]  # fmt: skip
    rows.append([
        "`FiniteSetGP`, 50 steps", "36,000 choices",
        "`optimize_acqf_discrete` on a fresh `SingleTaskGP` each step",
        ratio(stored("finite_set_gp")["ratio_36000x50"]), "`search_speed --part finite_sets`",
    ])  # fmt: skip
    for many, size in ((False, "2 and 3 objectives"), (True, "4 objectives")):
        for key, name in (("hvpoi", "HVPoI"), ("log_hvpoi", "logarithm of HVPoI")):
            medians = [
                row[key]["median"]
                for row in hvpoi
                if row["without_model"] and (row["objectives"] == 4) == many
            ]
            rows.append([
                f"{name}, value and gradient", size, "BoTorch's analytic EHVI on the same front",
                span(medians), "`search_speed --part hvpoi`",
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
    for size in ("N = 850, d = 33, n = 5000", "N = 110, d = 10, n = 1000"):
        step = steps[f"one step, {size}, simplex"]
        low, high = step["step over lean step and release, range"]
        times = ratio({"median": step["step over lean step and release"], "low": low, "high": high})
        rows.append([
            "one DP-GIBO step without the objective", size.replace("000", ",000"),
            "the same in torch for one kernel and one design, without checks, copies and records",
            times, "`dp_gibo_speed`",
        ])  # fmt: skip
    for row in stored("finite_set_gp")["against_memory_traffic"]:
        if row["steps"] != 50:
            continue
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
        "twelve steps of a training": "logistic regression, 12 steps of a twelfth of the records",
        "ten steps of a network": "network 784-h-10, 10 steps of 64 records",
        "the same, published": "the same, published",
        "private search": "`PrivateSearch` over 5 numbers, 200 evaluations, without the scores",
        "two steps of DP-GIBO": "two steps of DP-GIBO, 1,000 records, without the losses",
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
