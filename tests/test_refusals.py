"""Whatever charges a budget or reads records refuses wrong input before it does either.

One table for all such entry points: each is called once as it should be (it must charge, or read),
and then with one argument at a time that cannot be. A refusal is a ``TypeError`` or a
``ValueError`` that names the argument; nothing has been charged by then, and no record was asked
for.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.descent import DPGIBO, private_start
from botorch_dp.integrations.estimators import DPClassifier, DPRegressor
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.objectives import PrivateObjective
from botorch_dp.outsourced import GaussianNoiseCurator
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import (
    DPSGD,
    PrivacyBudget,
    PrivacyLedger,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_mechanism,
    sparse_vector,
)
from botorch_dp.release import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateGPUCB,
    PrivateMaximum,
)
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    OutputPerturbedLogisticRegression,
    TrainTest,
    logistic_loss,
    logistic_regression,
    private_ranges,
)
from botorch_dp.tuning import PrivateFit, PrivateSearch, PrivateSelection
from tools.names import public_names, source_of

SUBPACKAGES = [
    *("privacy", "objectives", "release", "descent", "outsourced", "pareto", "training"),
    *("tuning", "report"),
]

NAN, INF = math.nan, math.inf
POSITIVE = [0.0, -1.0, NAN, INF, "one"]
COUNT = [0, -1, 2.5]
BOUNDS = [(1.0, 0.0), (0.0, INF), (NAN, 1.0), (0.0,), 3.0]

#: What arguments of these names refuse wherever they stand; types are mypy's.
KINDS: list[tuple[str, list[Any]]] = [
    ("sensitivity epsilon mu noise_scale noise_std noise_multiplier clip_norm", POSITIVE),
    ("max_grad_norm learning_rate feature_norm target_epsilon regularization", POSITIVE),
    ("row_distance information_gain lipschitz lambda_min amplitude rate step_size", POSITIVE),
    ("steps epochs evaluations num_records num_points num_choices num_scored", COUNT),
    ("pieces dim max_positives", COUNT),
    ("bounds target_bounds", BOUNDS),
    ("record_losses record_scores draw objective evaluate kernel", [None]),
    ("delta", [-0.1, 0.0, 1.0, NAN]),
    ("batch_size", [41, *COUNT]),
    ("dataset_correlation", [-0.1, 1.5, NAN]),
    ("ledger", ["ledger.sqlite"]),
    ("unsafe_seed", [0, -1, 1.5]),  # none of them can be charged
]
BAD = {name: values for names, values in KINDS for name in names.split()}


class Records:
    """Scores of 40 records at points or configurations, and whether anybody asked for them."""

    num_records = 40

    def __init__(self) -> None:
        self.asked = 0
        self.values = torch.linspace(0, 1, 40, dtype=torch.double)

    def __call__(self, X: Tensor | Sequence[dict[str, float]]) -> Tensor:
        self.asked += 1
        if not isinstance(X, Tensor):
            X = torch.tensor([[config["x"]] for config in X], dtype=torch.double)
        return (X.mean(-1, keepdim=True) - self.values).abs().clamp(0, 1)


def data(records: Records) -> TrainTest:
    X = torch.stack([records.values, 1 - records.values], -1).float()
    Y = (records.values > 0.5).long()
    return TrainTest(X, Y, X[:10], Y[:10])


@dataclass(frozen=True)
class Entry:
    """One way to charge a ledger or to read records: how it is called, and what it must refuse."""

    call: Callable[..., object]
    good: Callable[[], dict[str, Any]]
    #: Arguments that refuse what ``BAD`` has for their names, and what others refuse.
    names: str
    bad: dict[str, list[Any]] = field(default_factory=dict)
    charges: bool = True
    #: What names an argument in a message, where it is not the argument itself.
    named: dict[str, str] = field(default_factory=dict)


def choices() -> Tensor:
    return torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)


PRICE = gaussian_guarantee(sensitivity=1.0, mu=0.1)
PRIOR = "epsilon delta num_choices steps dataset_correlation"


def objective(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    X = given.pop("X")
    return PrivateObjective(given.pop("record_losses", records), ledger=ledger, **given)(X)


def for_budget(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    made = PrivateObjective.for_budget(given.pop("record_losses", records), ledger=ledger, **given)
    return made(torch.zeros(1, 2, dtype=torch.double))


def private_search(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    run = given.pop("run")
    given = {"record_scores": records, "space": SearchSpace(x=Real(0.0, 1.0)), **given}
    return PrivateSearch(given.pop("record_scores"), given.pop("space"), **given).run(
        **{"ledger": ledger, **run}
    )


def descent(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    losses, initial = given.pop("record_losses", records), given.pop("initial")
    return DPGIBO(losses, initial, **{"ledger": ledger, **given}).step()


def start(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    return private_start(given.pop("record_losses", records), ledger=ledger, **given)


def ucb(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    function = given.pop("objective", lambda x: float(records(x).mean()))
    return PrivateGPUCB(given.pop("choices"), **given).release(function, ledger=ledger)


def training(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    trainer = DPTrainer(lambda: logistic_regression(2), logistic_loss, data(records))
    return trainer.fit(**{"publish": True, "ledger": ledger, **given})


def opacus_loop(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    engine = PrivacyEngine(ledger=given.pop("ledger", ledger), delta=given.pop("delta"))
    X, Y, _, _ = data(records)
    model = torch.nn.Linear(2, 2)
    return engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=8),
        **given,
    )


def selection(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    run, trainer = given.pop("run"), given.pop("trainer", None)
    if trainer is None:
        trainer = DPTrainer(lambda: logistic_regression(2), logistic_loss, data(records))
    return PrivateFit(trainer, given.pop("space"), **given).run(**{"ledger": ledger, **run})


def own_selection(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    def train(config: dict[str, Any], noise_multiplier: float) -> tuple[float, float]:
        return 0.5, float(records([config]).mean())

    run, train = given.pop("run"), given.pop("train", train)
    return PrivateSelection(train, given.pop("space"), **given).run(**{"ledger": ledger, **run})


def estimator_search(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    from sklearn.linear_model import LogisticRegression

    from botorch_dp.integrations.sklearn import PrivateSearchCV

    X, y = torch.stack([records.values, 1 - records.values], -1).numpy(), np.arange(40) % 2
    public = (X[:20] / 2, y[:20].copy()) if given.pop("public", "some") == "some" else None
    search = PrivateSearchCV(
        LogisticRegression(), given.pop("param_distributions"), public=public,
        **{"budget": PrivacyBudget(3.0, 1e-5), "n_iter": 4, **given},
    )  # fmt: skip
    return search.fit(X, y, ledger=ledger)


def output_perturbation(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    trainer = OutputPerturbedLogisticRegression(data(records), delta=given.pop("of_delta"))
    return trainer.fit(**{"publish": True, "ledger": ledger, **given})


def study(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    def utility(config: dict[str, Any], seed: int | None) -> float:
        return 1 - float(records([{"x": config["noise"]}]).mean())

    problem = PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 1.0)),
        privacy=lambda config: 0.01 / config["noise"],
        utility=utility,
        training=TrainingPrivacy(1e-6, secret_noise=True),
    )
    run = given.pop("run")
    study = DPareto(problem, **{"budget": PrivacyBudget(5.0, 1e-3), "seed": 0, **given})
    return study.run(**run)


def estimator(kind: Any) -> Callable[..., object]:
    def fit(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
        sets = data(records)
        X, y = given.pop("X", sets.train_X.numpy()), given.pop("y", sets.train_Y.numpy())
        ledger = given.pop("ledger", ledger)
        return kind(**given).fit(X, y, ledger=ledger)

    return fit


def curator(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    function = given.pop("evaluate", lambda i: float(records.values[i]))
    X = given.pop("X", data(records).train_X)
    return GaussianNoiseCurator(X, function, **{"ledger": ledger, **given})


def charge(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    return ledger.charge(given.pop("guarantee"), **given)


def released(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
    return ledger.release(given.pop("price"), given.pop("draw"), **given)


def mechanism(function: Callable[..., object], value: str) -> Callable[..., object]:
    def call(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
        return function(given.pop(value), **{"ledger": ledger, **given})

    return call


def rule(kind: Any, *released: object) -> Callable[..., object]:
    def call(records: Records, ledger: PrivacyLedger, **given: Any) -> object:
        return kind(**given).release(*released, ledger=ledger)

    return call


VALUES = torch.linspace(-1, 1, 8, dtype=torch.double)

ENTRIES: dict[str, Entry] = {
    "laplace_mechanism": Entry(
        mechanism(laplace_mechanism, "value"),
        lambda: {"value": 0.5, "sensitivity": 1.0, "epsilon": 0.1},
        "sensitivity epsilon ledger unsafe_seed", {"value": [None]},
    ),
    "gaussian_mechanism": Entry(
        mechanism(gaussian_mechanism, "value"),
        lambda: {"value": 0.5, "sensitivity": 1.0, "mu": 0.1},
        "sensitivity mu ledger unsafe_seed", {"value": [None]},
    ),
    "private_ranges": Entry(
        mechanism(private_ranges, "X"),
        lambda: {"X": VALUES.view(-1, 1), "mu": 0.1, "pieces": 2},
        "mu pieces ledger unsafe_seed", {"X": [None, VALUES, VALUES.view(-1, 1)[:0]]},
    ),
    "exponential_mechanism": Entry(
        mechanism(exponential_mechanism, "utilities"),
        lambda: {"utilities": VALUES, "sensitivity": 1.0, "epsilon": 0.1},
        "sensitivity epsilon ledger unsafe_seed",
        {"utilities": [None, VALUES[:0], VALUES.reshape(2, 4)], "method": ["flip"]},
    ),
    "sparse_vector": Entry(
        mechanism(sparse_vector, "answers"),
        lambda: {"answers": VALUES, "threshold": 0.5, "noise_scale": 40.0, "max_positives": 2},
        "sensitivity noise_scale max_positives ledger unsafe_seed",
        {"answers": [None, VALUES.reshape(2, 4)], "threshold": [NAN, INF]},
    ),
    "PrivacyLedger.charge": Entry(
        charge, lambda: {"guarantee": PRICE}, "", {"delta": [2.0, NAN]},
    ),
    "PrivacyLedger.release": Entry(
        released, lambda: {"price": PRICE, "draw": lambda: 1.0}, "draw", {"read": [3]},
    ),
    "PrivateObjective": Entry(
        objective,
        lambda: {"X": torch.zeros(1, 2, dtype=torch.double), "bounds": (0.0, 1.0), "mu": 0.1},
        "record_losses bounds mu num_records",
        {"X": [torch.zeros(2, dtype=torch.double), torch.full((1, 2), NAN), torch.zeros(0, 2)]},
    ),
    "PrivateObjective.for_budget": Entry(
        for_budget,
        lambda: {"bounds": (0.0, 1.0), "evaluations": 5},
        "record_losses bounds evaluations num_records",
    ),
    "PrivateSearch": Entry(
        private_search,
        lambda: {"bounds": (0.0, 1.0), "budget": PrivacyBudget(1.0), "evaluations": 8, "run": {}},
        "record_scores bounds evaluations num_records",
        {"unsafe_seed": [-1, 1.5], "method": ["gradient"], "run": [{"ledger": 3}]},
        named={"run": "ledger"},
    ),
    "DPGIBO": Entry(
        descent,
        lambda: {"initial": torch.full((2,), 0.5, dtype=torch.double), "kernel": RBFKernel(),
                 "mu": 0.5, "steps": 4, "clip_norm": 1.0},
        "record_losses kernel mu steps clip_norm step_size ledger unsafe_seed",
        {"initial": [torch.zeros(0), torch.zeros(2, 2), torch.full((2,), NAN)],
         "box": [torch.zeros(2, 3), torch.tensor([[1.0, 1.0], [0.0, 0.0]])], "design": ["simplx"]},
        named={"mu": "(mu|ledger)"},
    ),
    "private_start": Entry(
        start,
        lambda: {"box": torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double),
                 "bounds": (0.0, 1.0), "mu": 0.2, "num_points": 8},
        "record_losses bounds mu num_points",
        {"box": [None, torch.zeros(3, 2), torch.full((2, 2), NAN)]},
    ),
    "PrivateGPUCB": Entry(
        ucb,
        lambda: {"choices": choices(), "kernel": RBFKernel(), "noise_std": 0.1, "steps": 3,
                 "epsilon": 0.5, "delta": 1e-3, "dataset_correlation": 0.99},
        "objective noise_std steps epsilon delta dataset_correlation",
        {"choices": [None, choices()[0], torch.full((3, 1), NAN)]},
    ),
    "PrivateChoice": Entry(
        rule(PrivateChoice, VALUES, choices()),
        lambda: {"epsilon": 0.5, "delta": 1e-3, "num_choices": 8, "steps": 4,
                 "dataset_correlation": 0.99},
        PRIOR, {"method": ["argmax"]},
    ),
    "PrivateMaximum": Entry(
        rule(PrivateMaximum, VALUES),
        lambda: {"epsilon": 0.5, "delta": 1e-3, "num_choices": 8, "steps": 8, "noise_std": 0.1,
                 "information_gain": 20.0, "dataset_correlation": 0.99},
        f"{PRIOR} noise_std information_gain", {"edition": ["nips2014"]},
    ),
    "NoiseFreeMaximum": Entry(
        rule(NoiseFreeMaximum, VALUES),
        lambda: {"epsilon": 0.5, "delta": 1e-3, "num_choices": 8, "steps": 8, "dim": 2,
                 "amplitude": 1.0, "rate": 0.1, "dataset_correlation": 0.99},
        f"{PRIOR} dim amplitude rate",
    ),
    "LipschitzMaximum": Entry(
        rule(LipschitzMaximum, VALUES),
        lambda: {"epsilon": 0.5, "num_records": 100, "equal_at_zero": True, "lipschitz": 1.0,
                 "lambda_min": 0.5, "lambda_max": 0.6},
        "epsilon num_records lipschitz lambda_min",
        {"lambda_max": [0.4], "max_loss": [0.0], "equal_at_zero": [False], "edition": ["2014"]},
        named={"equal_at_zero": "max_loss"},
    ),
    "DPTrainer.fit": Entry(
        training,
        lambda: {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 8.0, "batch_size": 8,
                 "epochs": 1, "delta": 1e-5},
        "learning_rate clip_norm noise_multiplier batch_size epochs delta ledger",
        named={"noise_multiplier": "(noise_multiplier|target_epsilon)"},
    ),
    "DPTrainer.fit, nothing tuned": Entry(
        training,
        lambda: {"target_epsilon": 3.0, "feature_norm": 1.4, "delta": 1e-5},
        "target_epsilon feature_norm delta batch_size epochs",
        named={"target_epsilon": "(target_epsilon|noise_multiplier)"},
    ),
    "PrivacyEngine.make_private": Entry(
        opacus_loop,
        lambda: {"noise_multiplier": 8.0, "max_grad_norm": 1.0, "epochs": 1, "delta": 1e-5,
                 "criterion": torch.nn.CrossEntropyLoss()},
        "noise_multiplier max_grad_norm epochs delta ledger",
        {"grad_sample_mode": ["ghost"], "poisson_sampling": [False], "clipping": ["per_layer"],
         "loss_reduction": ["sum"], "criterion": [None]},
    ),
    "PrivateFit": Entry(
        selection,
        lambda: {
            "space": SearchSpace(learning_rate=Real(0.1, 1.0), clip_norm=Real(0.5, 1.0),
                                 batch_size=Integer(8, 16), epochs=Integer(1, 2)),
            "budget": PrivacyBudget(3.0, 1e-5), "trials": 2, "run": {},
        },
        "", {"budget": [PrivacyBudget(1.0)], "trials": [0, -1, NAN], "run": [{"ledger": 3}]},
        named={"run": "ledger", "trials": "mean"},
    ),
    "PrivateSelection": Entry(
        own_selection,
        lambda: {
            "space": SearchSpace(x=Real(0.1, 1.0)),
            "mechanism": lambda config: DPSGD(batch_size=8, num_records=40, steps=5),
            "budget": PrivacyBudget(3.0, 1e-5), "trials": 2, "num_scored": 40, "run": {},
        },
        "num_scored",
        {"train": [None, 3], "space": [[], {"noise_multiplier": 1.0}],
         "budget": [PrivacyBudget(1.0)], "trials": [0, -1, NAN], "scored_on": ["all"],
         "run": [{"ledger": 3}]},
        named={"run": "ledger", "trials": "mean"},
    ),
    "PrivateSearchCV": Entry(
        estimator_search,
        lambda: {"param_distributions": {"C": [0.5, 1.0, 2.0]}},
        "",
        {"param_distributions": [{}, {"C": 3}], "public": [None], "budget": [None, 1.0],
         "scoring": ["roundness"], "n_iter": [0, 1, 2.5], "bounds": [(1.0, 0.0)]},
        named={"n_iter": "evaluations", "scoring": "(scoring|loss)"},
    ),
    "OutputPerturbedLogisticRegression": Entry(
        output_perturbation,
        lambda: {"of_delta": 1e-5, "regularization": 0.1, "noise_std": 50.0},
        "regularization noise_std ledger", {"of_delta": [0.0, 1.0, NAN]},
        named={"of_delta": "delta"},
    ),
    "DPareto": Entry(
        study,
        lambda: {"run": {"trials": 2}},
        "",
        {"seed": [-1, 1.5],
         "run": [{"trials": 2, name: bad} for name in ("trials", "initial", "q")
                 for bad in COUNT]},
        charges=False,
        named={"run": "(trials|initial|q)"},
    ),
    "DPClassifier": Entry(
        estimator(DPClassifier),
        lambda: {"epsilon": 3.0, "classes": (0, 1), "bounds": (0.0, 1.0)},
        "epsilon delta bounds ledger",
        {"X": [np.zeros((40, 0)), np.zeros(40)], "y": [np.zeros(39)]},
        named={"X": "(X|feature|array)", "y": "(y|sample|inconsistent)"},
    ),
    "DPRegressor": Entry(
        estimator(DPRegressor),
        lambda: {"epsilon": 3.0, "target_bounds": (0.0, 1.0), "bounds": (0.0, 1.0)},
        "epsilon delta bounds target_bounds ledger",
    ),
    "GaussianNoiseCurator": Entry(
        curator,
        lambda: {"epsilon": 0.5, "delta": 1e-6, "row_distance": 1.0},
        "evaluate epsilon delta row_distance ledger unsafe_seed",
        {"X": [torch.zeros(3), torch.zeros(0, 2), torch.full((3, 2), NAN)],
         "projection_dim": [0, 9]},
    ),
}  # fmt: skip


def cases() -> Iterator[Any]:
    for name, entry in ENTRIES.items():
        for argument, bad in (
            {name: BAD[name] for name in entry.names.split()} | entry.bad
        ).items():
            for value in bad:
                shown = f"{value.shape}" if isinstance(value, Tensor | np.ndarray) else f"{value}"
                shown = "a function" if " at 0x" in shown else shown  # equal in all processes
                yield pytest.param(name, argument, value, id=f"{name}-{argument}-{shown}")


#: What takes a ledger and has no row of its own, with the reason.
ELSEWHERE = {
    "Curator": "the base class of GaussianNoiseCurator",
    "BranchAndBoundUCB": "its `release` is that of PrivateGPUCB",
    "LaplaceMaximum": "the base class of PrivateMaximum",
    "ModeledChoice": "the base class of PrivateChoice",
    "PrivateAnswers": "charged by the curator that it is given to",
    "make_release": "hands its arguments to PrivacyLedger.release",
    "study_report": "reads a ledger, and charges nothing",
    "RandomProjectionCurator": "its rows promise nothing; answers are checked as the other's",
}


def found(function: Callable[..., object], name: str) -> object:
    """The annotation of an argument, if there is one of this name."""
    return getattr(inspect.signature(function).parameters.get(name), "annotation", None)


def test_whatever_takes_a_ledger_has_a_row() -> None:
    taking = set()
    for subpackage in SUBPACKAGES:
        module = importlib.import_module(f"botorch_dp.{subpackage}")
        for name in public_names(source_of(subpackage)):
            thing = getattr(module, name)
            functions = [thing] if inspect.isfunction(thing) else []
            if inspect.isclass(thing):
                functions = [f for _, f in inspect.getmembers(thing, inspect.isfunction)]
            if any("PrivacyLedger" in str(found(f, "ledger")) for f in functions):
                taking.add(name)
    covered = {name.partition(".")[0] for name in ENTRIES} | set(ELSEWHERE)
    assert taking - covered == set()
    assert len(taking) > 15


def fresh() -> tuple[Records, PrivacyLedger]:
    return Records(), PrivacyLedger(budget=PrivacyBudget(100.0, 1e-2, summed=0.5))


#: What takes a label for its charges.
LABELLED = (
    *("laplace_mechanism", "gaussian_mechanism", "exponential_mechanism", "sparse_vector"),
    *("PrivateObjective", "PrivateObjective.for_budget", "DPGIBO", "private_start"),
    *("DPTrainer.fit", "PrivateFit", "PrivateSelection", "PrivateSearch"),
    *("OutputPerturbedLogisticRegression", "GaussianNoiseCurator"),
)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_good_call_charges_under_its_label(name: str) -> None:
    (records, ledger), entry = fresh(), ENTRIES[name]
    given = entry.good()
    if name in LABELLED:
        given.get("run", given)["label"] = "for the board"
    entry.call(records, ledger, **given)
    assert bool(ledger.entries()) == entry.charges
    if name in LABELLED:
        assert {each.label for each in ledger.entries()} == {"for the board"}


@pytest.mark.parametrize(("name", "argument", "value"), list(cases()))
def test_refused_before_it_reads_or_charges(name: str, argument: str, value: Any) -> None:
    entry = ENTRIES[name]
    records, ledger = fresh()
    with pytest.raises((TypeError, ValueError)) as caught:
        entry.call(records, ledger, **{**entry.good(), argument: value})
    caught.match(f"(?i).*{entry.named.get(argument, argument)}")
    assert ledger.entries() == []
    assert records.asked == 0
