"""Numbers in the sentences of pages are those of the stored results.

Tables are compared by ``test_papers.py``. Here each quoted number is computed again, and put into
the exact phrase of its page.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import nbinom

from benchmarks.nothing_to_tune import EPSILONS, gaps, mean
from benchmarks.pages_of_results import generated_tasks
from benchmarks.tables import stored
from benchmarks.untuned_tasks import TASKS
from benchmarks.which_method import counts, differences, mean_regret, stored_outcomes
from botorch_dp.privacy import TrialNumber

ROOT = Path(__file__).resolve().parents[1]
RESULT_PAGES = sorted(f"docs/results/{page.name}" for page in (ROOT / "docs/results").glob("*.md"))


def text_of(page: str) -> str:
    """A page without its line breaks."""
    return " ".join((ROOT / page).read_text().split())


def trees(method: str) -> float:
    """The mean error over all cells, in per cent."""
    cells = stored("which_trees")["judged"].values()
    return 100 * statistics.mean(cell["error"][method]["mean"] for cell in cells)


def tree_gaps(rival: str) -> list[Any]:
    return [cell["differences"][rival] for cell in stored("which_trees")["judged"].values()]


def better(found: list[Any]) -> int:
    return sum(gap["high"] < 0 for gap in found)


def worse(found: list[Any]) -> list[float]:
    """Paired differences that are above zero."""
    return [gap["mean"] for gap in found if gap["low"] > 0]


def untuned(*epsilons: float) -> float:
    """How far nothing tuned is below the unpaid best, on average."""
    found = gaps(stored("nothing_to_tune")["cells"])
    return -statistics.mean(gap for (_, e), gap in found.items() if e in (epsilons or EPSILONS))


def worst_untuned() -> float:
    return -min(gaps(stored("nothing_to_tune")["cells"]).values())


def above_selection() -> float:
    cells = stored("nothing_to_tune")["cells"]
    pairs = [
        [mean(cells, t, e, row) for row in ("rule", "selection")] for t in TASKS for e in EPSILONS
    ]
    return statistics.mean(ours - theirs for ours, theirs in pairs)


def right_guesses(model: str) -> float:
    return stored("membership")["models"][model]["right guesses"]["mean"]


def wins() -> tuple[int, int, int, int]:
    found = counts(differences(stored))
    order = [found[key] for key in ("better", "worse", "not told apart")]
    return (sum(order), *order)


def paid(task: str, key: str, records: str = "sensitive test records") -> float:
    return stored("paid_tuning")[task][key][records]["accuracy"]


def below_unpaid(task: str, epsilon: str) -> float:
    return paid(task, f"unpaid {epsilon}") - paid(task, f"selection {epsilon}")


def unpaid_interval(task: str) -> tuple[float, float, float]:
    row = stored("paid_tuning")[task]["selection 1.0"]["sensitive test records"]
    return (row["below unpaid"], *row["below unpaid, interval"])


def above_composition(task: str, way: str, records: str = "sensitive test records") -> float:
    return paid(task, f"{way} 0.1", records) - paid(task, "composition 0.1", records)


def noise(way: str, epsilon: float = 1.0) -> float:
    """The noise of a way to tune over that of a training."""
    rows = {row["epsilon"]: row for row in stored("paid_selection_prices")["rows"]}
    return rows[epsilon][way] / rows[epsilon]["one training"]


def accounting(part: str, key: str, which: str) -> float:
    return stored("accounting")[part][key][which]


def speed_ratio(name: str) -> float:
    return stored("accounting")["speed"]["ratios"][name]["median"]


def trace(points: int, sets: int) -> float:
    ratios = stored("dp_gibo_speed")["ratios"]
    return ratios[f"gradient trace, N = {points}, d = 10, {sets} candidate sets"]["median"]


def step(size: str, key: str) -> float:
    return stored("dp_gibo_speed")["steps"][f"one step, {size}, simplex"][key]


SMALLEST = "N = 110, d = 10, n = 1000"


def exponents() -> list[float]:
    curves = stored("growth")["curves"]
    return [curve["exponent"] for name, curve in curves.items() if name != "its exact sum alone"]


def own_losses(published: bool, models: str = "", known: bool = False) -> list[float]:
    """Times plain SGD, of losses that the trainer knows or not; ``models`` is a pattern."""
    found = []
    for model, row in stored("trainers").items():
        for key, value in row.items():
            loss = re.fullmatch(r"own loss: (.*?)(, published)?, over plain SGD", key)
            if not loss or bool(loss[2]) != published or not re.match(models, model):
                continue
            if published or known == loss[1].startswith("`F."):
                found.append(times(value))
    return found


def times(measured: dict[str, float]) -> float:
    return next(value for key, value in measured.items() if key.startswith("times "))


NETWORKS, LOGISTIC = "(?!logistic)", "logistic"


def over_opacus(published: bool) -> float:
    """The largest ratio to either of Opacus's ways."""
    return max(
        times(value)
        for row in stored("trainers").values()
        for key, value in row.items()
        if key.startswith("own loss") and ", over Opacus" in key
        if (", published" in key) == published
    )


def poisson() -> list[float]:
    rows = stored("trainers").values()
    return [times(v) for row in rows for k, v in row.items() if "Poisson against" in k]


def opacus_times() -> list[float]:
    cases = stored("opacus_fronts")["cases"].values()
    return [c["engines"]["opacus"]["seconds"] / c["engines"]["auto"]["seconds"] for c in cases]


def spreads() -> list[float]:
    return [c["spread_between_seeds"] for c in stored("opacus_fronts")["cases"].values()]


def descent_ahead(*shapes: str, most: int = 100) -> tuple[int, int]:
    """In how many cells DP-GIBO's gap is the smaller one in the table, and of how many."""
    rows = stored("dp_gibo_where")["comparison"]
    rows = [row for row in rows if row["shape"] in shapes and row["d"] <= most]
    return sum(round(r["DP-GIBO"], 4) < round(r["TuRBO"], 4) for r in rows), len(rows)


ALL_SHAPES = ("smooth", "rippled", "plateau")


def proposal_wins(*rivals: str, problem: int | None = None) -> int:
    """The fewest seeds in which the default is ahead, in epsilon."""
    found = list(stored("pareto_quality")["problems"].values())
    chosen = found if problem is None else [found[problem]]
    return min(
        one["summary"][rival]["linear"]["reference_wins"] for one in chosen for rival in rivals
    )


def share_of_steps(curves: int) -> float:
    steps = {(r["method"], r["trials"]): r["steps"] for r in stored("dpareto_curves_adult")["rows"]}
    return steps["curves", curves] / steps["ordinary", 64]


def ordinary(key: str) -> float:
    rows = stored("dpareto_curves_adult")["rows"]
    return next(r[key]["mean"] for r in rows if (r["method"], r["trials"]) == ("ordinary", 64))


def tries() -> int:
    return sum(row["tried"] for row in stored("faults")["rows"])


def kinds_of_faults() -> int:
    return len({row["fault"] for row in stored("faults")["rows"]})


def regret(method: str, file: str = "which_method_fresh") -> list[float]:
    found = stored_outcomes(stored(file))
    return [mean_regret(found, method, e).mean for e in ("0.3", "1", "3")]


def far_off(method: str) -> int:
    rows = stored("which_unseen_300")["cases"]["plateau, d = 6, n = 300, epsilon = 1"]
    return sum(row[method] > 0.5 for row in rows.values())


def few_records(task: str, rival: str) -> list[float]:
    """Differences of regrets in the cells of a task."""
    found = stored("which_small")["judged"]
    regrets = [cell["regret"] for name, cell in found.items() if name.startswith(task)]
    return [one["PrivateSearch"]["mean"] - one[rival]["mean"] for one in regrets]


def weak_spot() -> tuple[float, float]:
    gap = generated_tasks()["plateau, d = 6, n = 300"]["1"]["difference to it"]
    return gap["mean"], gap["high"] - gap["mean"]


def scorecard() -> float:
    """The mean regret of a selection."""
    tasks = stored("which_method_fresh")["tasks"]
    return tasks["scorecard"]["regret"]["permute-and-flip, no model"]["1"]["mean"]


def two_trainings() -> float:
    """How likely the default law has one or two trainings."""
    law = nbinom(3.0, TrialNumber(20, 3.0).gamma)
    return (law.pmf(1) + law.pmf(2)) / (1 - law.pmf(0))


def service(where: str, key: str) -> Any:
    return stored("service_load")[where][key]


def milliseconds(percent: str) -> float:
    return service("in memory", "milliseconds")[percent]


def bulk(batches: str) -> float:
    return stored("accounting")["speed"]["2048 candidates"][batches]["seconds"]


def selection_seconds(method: str) -> list[float]:
    rows = stored("mechanisms")["selection"]
    return [row["time"]["baseline_seconds"] for row in rows if row["method"] == method]


def own_seconds() -> list[float]:
    sizes = stored("pareto_overhead")["sizes"]
    return [size["seconds"]["ehvi, exact epsilon (default)"]["median"] for size in sizes]


def limit_of_64() -> float:
    by = stored("many_trials")["results"]["sparse vector technique (10 of 100), hypervolume, log"]
    return -by["some - all"]["mean"] / by["all"]["mean"]


def added(where: str) -> float:
    return stored("paid_selection_time")["milliseconds for each training"][where]["mean"]


#: Page, its phrase with placeholders, and the numbers in them.
Quote = tuple[str, str, Callable[[], Any]]

BENCHMARKS: list[Quote] = [
    ("docs/benchmarks.md", phrase, numbers)
    for phrase, numbers in (
        ("in {} cells of trees and boosting", lambda: len(tree_gaps("selection"))),
        ("errs in {:.1f}% with `PrivateSearch`, in {:.1f}% with Optuna on released scores, and in "
         "{:.1f}% with Optuna without privacy",
         lambda: [trees(m) for m in ("PrivateSearch", "Optuna on released scores",
                                     "Optuna, not private")]),
        ("on twenty tasks {:.3f} less accuracy, on average, than the best of 40", untuned),
        ("({:.3f} at ε = 0.1, {:.3f} at ε = 3; {:.2f} in the worst cell)",
         lambda: (untuned(0.1), untuned(3.0), worst_untuned())),
        ("and {:.2f} more than a paid selection", above_selection),
        ("of a random forest, for {:.0%} of the people; of a network at ε = 1 for {:.0%}",
         lambda: (right_guesses("random forest, no protection"),
                  right_guesses("network, epsilon = 1"))),
        ("On {} combinations of task and ε it is better than the best single method in {}, worse "
         "in {}, and not significantly different in {}", wins),
        ("at ε = 1, {:.3f} of accuracy on Adult and {:.3f} on MNIST; at ε = 0.1, {:.3f} and {:.3f}",
         lambda: [below_unpaid(t, e) for e in ("1.0", "0.1") for t in ("adult", "mnist")]),
        ("at most {:.1%} above dp-accounting's",
         lambda: accounting("agreement", "ours over dp-accounting's", "largest") - 1),
        ("epsilons take 1/{:.0f} to 1/{:.0f} of dp-accounting's time",
         lambda: [speed_ratio(f"Poisson batches, {way}") for way in ("replace", "add")]),
        ("a search over 36,000 choices 1/{:.0f} of BoTorch's",
         lambda: stored("finite_set_gp")["ratio_36000x50"]["median"]),
        ("one small set of `GradientTrace` takes {:.1f} times as long as a lean recomputation",
         lambda: 1 / trace(20, 1)),
        ("(exponents from {:.1f} to {:.1f})", lambda: (min(exponents()), max(exponents()))),
        ("{:.1f} to {:.1f} times the time of plain SGD for networks and transformers",
         lambda: (min(own_losses(False, NETWORKS)), max(own_losses(False, NETWORKS)))),
        ("and {:.1f} to {:.1f} times for a logistic regression",
         lambda: (min(own_losses(False, LOGISTIC)), max(own_losses(False, LOGISTIC)))),
        ("{:.1f} to {:.1f} times where torch's own loss is passed as it is",
         lambda: (min(own_losses(False, known=True)), max(own_losses(False, known=True)))),
        ("Published, {:.1f} to {:.1f} times",
         lambda: (min(own_losses(True)), max(own_losses(True)))),
        ("seeded trainings take at most {:.2f} times its time on all models tried, and published "
         "ones at most {:.2f} times", lambda: (over_opacus(False), over_opacus(True))),
        ("no, and it takes {:.1f} to {:.1f} times as long",
         lambda: (min(opacus_times()), max(opacus_times()))),
        ("in {} of {} cells of synthetic losses", lambda: descent_ahead(*ALL_SHAPES)),
        ("ahead of random points and grids with as many trials in {} of 10 seeds",
         lambda: proposal_wins("random", "grid")),
        ("the front of 64 ordinary trials with {:.0%} of their steps", lambda: share_of_steps(32)),
        ("nothing, in {:,} tries of {} kinds", lambda: (tries(), kinds_of_faults())),
    )
]  # fmt: skip

OTHERS: list[Quote] = [
    ("docs/methods.md", "on {} combinations of task and ε, with new seeds (`which_method --part "
     "figures`). It was better in {}, worse in none, and not significantly different in {}",
     lambda: [wins()[i] for i in (0, 1, 3)]),
    ("docs/methods.md", "the difference is {:.2f} ± {:.2f}", weak_spot),
    ("docs/methods.md", "It has {:.2f} to {:.2f} more regret than `route=\"descent\"` on ripples",
     lambda: sorted(few_records("ripples", "descent only"))),
    ("docs/methods.md", "Over these {} cells the mean is {:.2f}% for the middle of the space, "
     "{:.2f}% for Optuna on released scores, {:.2f}% for `PrivateSearch`, which is a selection in "
     "all of them, and {:.2f}% without privacy",
     lambda: [len(tree_gaps("selection")),
              *map(trees, ("middle of the space", "Optuna on released scores", "PrivateSearch",
                           "Optuna, not private"))]),
    ("docs/methods.md", "better than Optuna on released scores in {} cells and worse in {}, all "
     "with n = 30,000, by at most {:.1%}",
     lambda: (better(tree_gaps("Optuna on released scores")),
              len(worse(tree_gaps("Optuna on released scores"))),
              max(worse(tree_gaps("Optuna on released scores"))))),
    ("docs/methods.md", "on these six it has {:.2f} / {:.2f} / {:.2f}",
     lambda: regret("PrivateSearch", "which_method")),
    ("docs/methods.md", "on twenty tasks {:.3f} less accuracy, on average", untuned),
    ("docs/methods.md", "{:.1f} times the noise of a single training at ε = 1, and {:.1f} times at "
     "ε = 0.1", lambda: [noise("selection, shape 3", epsilon) for epsilon in (1.0, 0.1)]),
    ("docs/results/which_method.md", "on {} combinations of task and ε with new seeds, it is "
     "better in {}, worse in none, and not significantly different in {}",
     lambda: [wins()[i] for i in (0, 1, 3)]),
    ("docs/results/which_method.md", "in {} of 10 seeds the regret of `PrivateSearch` is above "
     "0.5", lambda: far_off("PrivateSearch")),
    ("docs/results/which_method.md", "of DP-GIBO it is in {}", lambda: far_off("DPGIBO")),
    ("docs/results/accounting.md", "Our epsilons of DP-SGD are at most {:.1%} above",
     lambda: accounting("agreement", "ours over dp-accounting's", "largest") - 1),
    ("docs/results/accounting.md", "at most {:.1%} above the exact value, and {:.1%} in the middle",
     lambda: [accounting("agreement", "bulk over one at a time", which) - 1
              for which in ("largest", "median")]),
    ("docs/results/accounting.md", "compares epsilons of {} settings",
     lambda: stored("accounting")["agreement"]["settings"]),
    ("docs/results/accounting.md", "our epsilon is {:.1f} to {:.1f} times lower than the papers' "
     "Rényi bound over the ranges of DPareto's experiments, and {:.1f} times in the middle",
     lambda: [accounting("ranges", "Rényi over distribution, fixed batches", which)
              for which in ("least", "largest", "median")]),
    ("docs/results/curves.md", "with about half of their steps (32 curves on Adult, {:.0%} of "
     "the steps)", lambda: share_of_steps(32)),
    ("docs/results/curves.md", "after 64 ordinary trials its hypervolume is {:.3f}, and that of "
     "the observed one {:.3f}", lambda: (ordinary("linear, expected front"), ordinary("linear"))),
    ("docs/results/curves.md", "contain about {:.0%} of what they had not seen",
     lambda: statistics.mean(row["in the 90% interval"]["mean"]
                             for row in stored("dpareto_models")["rows"]
                             if row["model"] == "as they are")),
    ("docs/results/descent.md", "It is in {} of {} cells of smooth losses",
     lambda: descent_ahead("smooth")),
    ("docs/results/descent.md", "in {} of {} of rippled ones", lambda: descent_ahead("rippled")),
    ("docs/results/descent.md", "in {} of {} of the plateau with up to 5 parameters",
     lambda: descent_ahead("plateau", most=5)),
    ("docs/results/faults.md", "Nothing was lost in {:,} tries of {} kinds",
     lambda: (tries(), kinds_of_faults())),
    ("docs/results/opacus.md", "and takes {:.1f} to {:.1f} times as long",
     lambda: (min(opacus_times()), max(opacus_times()))),
    ("docs/results/opacus.md", "Another seed changes the accuracies by {:.3f} to {:.3f}",
     lambda: (min(spreads()), max(spreads()))),
    ("docs/results/paid_tuning.md", "costs {:.3f} of accuracy on Adult and {:.3f} on MNIST",
     lambda: [below_unpaid(task, "1.0") for task in ("adult", "mnist")]),
    ("docs/results/paid_tuning.md", "At ε = 0.1 it costs {:.3f} and {:.3f}",
     lambda: [below_unpaid(task, "0.1") for task in ("adult", "mnist")]),
    ("docs/results/paid_tuning.md", "private selection is {:.4f} [{:.4f}, {:.4f}] below unpaid "
     "tuning on Adult and {:.4f} [{:.4f}, {:.4f}] on MNIST",
     lambda: (*unpaid_interval("adult"), *unpaid_interval("mnist"))),
    ("docs/results/paid_tuning.md", "ahead of composition by {:.2f} on MNIST and by {:.3f} on "
     "Adult ({:.3f} with 10 expected trainings)",
     lambda: (above_composition("mnist", "selection"),
              *(above_composition("adult", way) for way in ("selection", "few")))),
    ("docs/results/paid_tuning.md", "the last two leads are {:.3f} and {:.3f}",
     lambda: [above_composition("adult", way, "public test records")
              for way in ("selection", "few")]),
    ("docs/results/paid_tuning.md", "published models of {:.3f}, {:.3f}, {:.3f} and {:.3f}, which "
     "agrees with the drawn ones ({:.4f})",
     lambda: (*(r["accuracy"] for r in stored("paid_tuning")["adult"]["end to end 1.0"]),
              paid("adult", "selection 1.0"))),
    ("docs/results/paid_tuning.md", "a selection gains {:.2f} at ε = 1 and {:.2f} at ε = 3",
     lambda: [paid("mnist", f"selection {e}") - paid("mnist", f"default {e}")
              for e in ("1.0", "3.0")]),
    ("docs/results/paid_tuning.md", "have {} (Opacus), {} (JAX), {} (Hugging Face with peft) and "
     "{} (scikit-learn) new or changed lines",
     lambda: list(stored("paid_selection_lines")["changed"].values())),
    ("docs/results/paid_tuning.md", "a run adds {:.1f} ms to a training that returns 1 MB of "
     "weights, and {:.0f} ms with a checkpoint",
     lambda: (added("in memory"), added("with a checkpoint"))),
    ("docs/results/paid_tuning.md", "Solving for the noise of a configuration takes {:.0f} ms",
     lambda: stored("paid_selection_time")["noise"]),
    ("docs/results/proposals.md", "with four times as many trials in {} of 10 seeds on the first "
     "problem, and in {} of 10 on the second",
     lambda: [proposal_wins("random, 4x", problem=problem) for problem in (0, 1)]),
    ("docs/results/speed.md", "epsilons of DP-SGD take 1/{:.0f} to 1/{:.0f} of dp-accounting's "
     "time", lambda: [speed_ratio(f"Poisson batches, {way}") for way in ("replace", "add")]),
    ("docs/results/speed.md", "is {:.0f} times as fast as a lean recomputation with many points, "
     "and {:.2f} times as fast with few", lambda: (trace(300, 16), trace(20, 1))),
    ("docs/results/speed.md", "A DP-GIBO step takes {:.1f} to {:.1f} times as long",
     lambda: [step(size, "step over lean step and release")
              for size in ("N = 850, d = 33, n = 5000", SMALLEST)]),
    ("docs/results/speed.md", "exponents from {:.1f} to {:.1f}",
     lambda: (min(exponents()), max(exponents()))),
    ("docs/results/speed.md", "DPareto takes {:.2f} to {:.2f} s of a processor for a trial",
     lambda: (min(own_seconds()), max(own_seconds()))),
    ("docs/results/speed.md", "on a million choices take {:.1f} s and {:.2f} GiB",
     lambda: [stored("finite_set_gp")["million_x_50"][key] for key in ("seconds", "peak_gib")]),
    ("docs/results/speed.md", "the products take {:.2f} ms, the exact sums {:.2f} ms, the noise "
     "{:.2f} ms, one release {:.2f} ms ({:.1f} ms in a file), the lean step {:.2f} ms and ours "
     "{:.2f} ms",
     lambda: [step(SMALLEST, f"{key}, ms")
              for key in ("products", "exact sums", "noise", "release in memory",
                          "release in a file", "lean step", "step")]),
    ("docs/results/speed.md", "take {:.2f} s for Poisson batches and a replaced record, {:.2f} s "
     "for an added one, and {:.2f} s for batches of a fixed size",
     lambda: [bulk(b) for b in ("Poisson batches, replace", "Poisson batches, add",
                                "fixed batches")]),
    ("docs/results/speed.md", "answers {:.0f} requests a second from four clients with its files "
     "in memory (half of them within {:.0f} ms, 99% within {:.0f} ms). With the files on the disk "
     "it was {:.0f} a second",
     lambda: (service("in memory", "requests per second"), milliseconds("50"), milliseconds("99"),
              service("on the disk", "requests per second"))),
    ("docs/results/speed.md", "by permute-and-flip takes {:.1f} to {:.1f} s, by the exponential "
     "mechanism {:.1f} to {:.1f} s",
     lambda: [least(selection_seconds(m)) for m in ("permute_and_flip", "exponential")
              for least in (min, max)]),
    ("docs/results/speed.md", "and {:.0f} MB (`speed --part choices`)",
     lambda: max(row["megabytes"] for row in stored("mechanisms")["selection"])),
    ("docs/results/speed.md", "a limit of only 64 lose {:.0%} in ln ε", limit_of_64),
    ("docs/results/trainers.md", "takes {:.1f} to {:.1f} times as long as plain SGD for networks "
     "and transformers, and {:.1f} to {:.1f} times for a logistic regression",
     lambda: [least(own_losses(False, m)) for m in (NETWORKS, LOGISTIC) for least in (min, max)]),
    ("docs/results/trainers.md", "A published training takes {:.1f} to {:.1f} times as long",
     lambda: (min(own_losses(True)), max(own_losses(True)))),
    ("docs/results/trainers.md", "Poisson batches take {:.2f} to {:.2f} times as long",
     lambda: (min(poisson()), max(poisson()))),
    ("docs/tuning.md", "20 expected trainings need {:.1f} times the noise of a single one, and the "
     "composition of 20 needs {:.1f} times",
     lambda: (noise("selection, shape 3"), noise("composition"))),
    ("docs/tuning.md", "A selection has a regret of {:.2f} on [that task]", scorecard),
    ("docs/tuning.md", "a run with one or two trainings in {:.1%} of all cases", two_trainings),
    ("README.md", "for {:.0%} of the 2,000 correctly",
     lambda: right_guesses("random forest, no protection")),
    ("README.md", "at ε = 1 it is right for {:.0%}", lambda: right_guesses("network, epsilon = 1")),
    ("README.md", "{:.3f} below the best of 40 trainings on average", untuned),
]  # fmt: skip


def filled(phrase: str, numbers: Any) -> str:
    return phrase.format(*(numbers if isinstance(numbers, list | tuple) else (numbers,)))


@pytest.mark.parametrize(
    ("page", "phrase", "numbers"),
    [pytest.param(*row, id=f"{row[0]}: {row[1][:40]}") for row in (*BENCHMARKS, *OTHERS)],
)
def test_a_quoted_number_is_that_of_the_results(
    page: str, phrase: str, numbers: Callable[[], Any]
) -> None:
    assert filled(phrase, numbers()) in text_of(page)


def unquoted() -> Iterator[str]:
    """Answers of the short page, without what is quoted."""
    text = text_of("docs/benchmarks.md")
    for _, phrase, numbers in BENCHMARKS:
        text = text.replace(filled(phrase, numbers()), "")
    yield from re.findall(r"\| [^|]* \| (\[[^|]*) \|", text)


def test_the_short_page_has_no_number_that_is_not_computed_again() -> None:
    answers = list(unquoted())
    assert len(answers) == 14
    for answer in answers:
        assert not re.search(r"\d", re.sub(r"\(\S*\)|ε = \d", "", answer)), answer


#: Numbers of a setting, which nothing measured.
SETTING = re.compile(r"ε = [\d.]+|ε/0\.05|error 0\.3|below 0\.2|above 0\.[56]|not at 0\.3")


@pytest.mark.parametrize("page", ["docs/methods.md", *RESULT_PAGES])
def test_sentences_have_no_decimal_that_is_neither_quoted_nor_measured_by_hand(page: str) -> None:
    text = re.sub(r"<!-- table.*?<!-- end -->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    text = " ".join(text.split())
    for _, phrase, numbers in OTHERS:
        text = text.replace(filled(phrase, numbers()), "")
    for sentence in re.split(r"(?<=[.:|]) ", SETTING.sub("", text)):
        assert not re.search(r"\d\.\d", sentence) or "measured by hand" in sentence, sentence


def test_a_number_that_changes_is_noticed() -> None:
    for page, phrase, numbers in [*BENCHMARKS, *OTHERS]:
        found = numbers()
        changed = [2 * n for n in (found if isinstance(found, list | tuple) else (found,))]
        assert filled(phrase, changed) not in text_of(page), phrase
