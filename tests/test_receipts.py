"""Whatever is released has a receipt that is complete and agrees with dp-accounting within 1%."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp import DPareto, Receipt
from botorch_dp.errors import PrivacyError
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.integrations.sklearn import PrivateSearchCV
from botorch_dp.outsourced import RandomProjectionCurator, load_dataset, save_dataset
from botorch_dp.pareto import PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import (
    DPSGD,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    Release,
    laplace_mechanism,
)
from botorch_dp.privacy.receipt_document import canonical, document_digest
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.space import Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.training.ranges import private_ranges
from botorch_dp.tuning import PrivateSelection
from tests.release.maxima import MECHANISMS
from tests.release.maxima import VALUES as MAXIMA
from tests.test_refusals import ENTRIES, VALUES, Records, data

PACKAGE = Path(__file__).resolve().parents[1] / "botorch_dp"
PLENTY = PrivacyBudget(1e3, 0.5, summed=0.5)


def of_entry(name: str, **changed: Any) -> Callable[[PrivacyLedger], Any]:
    """What a row of the table of entry points releases."""

    def release(ledger: PrivacyLedger) -> Any:
        entry = ENTRIES[name]
        return entry.call(Records(), ledger, **{**entry.good(), **changed})

    return release


def training(**changed: Any) -> Callable[[PrivacyLedger], Any]:
    def release(ledger: PrivacyLedger) -> Any:
        trainer = DPTrainer(
            lambda: logistic_regression(2), logistic_loss, data(Records()), **changed
        )
        return trainer.fit(publish=True, ledger=ledger, **ENTRIES["DPTrainer.fit"].good())

    return release


def searched(route: str) -> Callable[[PrivacyLedger], Any]:
    return of_entry(
        "PrivateSearch",
        space=SearchSpace(x=Real(0.0, 1.0), y=Real(0.0, 1.0)),
        budget=PrivacyBudget(3.0, 1e-6),
        evaluations=12,
        method=route,
    )


def search_cv(ledger: PrivacyLedger) -> Any:
    X = torch.rand(60, 2).numpy()
    Y = (X[:, 0] > 0.5).astype(int)
    search = PrivateSearchCV(
        DecisionTreeClassifier(random_state=0),
        {"max_depth": [1, 2, 3]},
        public=(X[:20], Y[:20]),
        budget=PrivacyBudget(1.0, 1e-6),
        n_iter=3,
    )
    return search.fit(X[20:], Y[20:], ledger=ledger)


def opacus_loop(ledger: PrivacyLedger) -> Any:
    engine = PrivacyEngine(ledger=ledger, delta=1e-5)
    sets = data(Records())
    inner = torch.nn.Linear(2, 2)
    model, optimizer, loader = engine.make_private(
        module=inner,
        optimizer=torch.optim.SGD(inner.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(sets.train_X, sets.train_Y), batch_size=8),
        noise_multiplier=8.0,
        max_grad_norm=1.0,
        epochs=1,
        criterion=torch.nn.CrossEntropyLoss(),
    )
    for X, Y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    return Loop(engine, model)


@dataclass
class Loop:
    """An Opacus loop that has ended."""

    engine: PrivacyEngine
    model: torch.nn.Module

    def receipt(self, **facts: Any) -> Receipt:
        return self.engine.receipt(self.model, **facts)


def anybodys_trainer(**changed: Any) -> Callable[[PrivacyLedger], Any]:
    """A selection of what trainings of somebody else's make."""

    def release(ledger: PrivacyLedger) -> Any:
        def train(config: dict[str, Any], noise_multiplier: float) -> Any:
            return {"weights": torch.ones(3)}, config["rate"]

        settings: dict[str, Any] = {
            "space": SearchSpace(rate=Real(0.0, 1.0)),
            "mechanism": lambda config: DPSGD(batch_size=50, num_records=1000, steps=40),
            "budget": PrivacyBudget(2.0, 1e-5),
            "num_scored": 1000,
            **changed,
        }
        return PrivateSelection(train, settings.pop("space"), **settings).run(ledger=ledger)

    return release


def study(ledger: PrivacyLedger) -> Any:
    def utility(config: dict[str, Any], seed: int | None) -> float:
        return 1 - config["noise"]

    problem = PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 1.0)),
        privacy=lambda config: 0.01 / config["noise"],
        utility=utility,
        training=TrainingPrivacy(1e-6, secret_noise=True),
    )
    paid = DPareto(problem, budget=PrivacyBudget(5.0, 1e-3), seed=0, acquisition="random")
    paid.run(2)
    return paid.publish(test_records_are_public=True)


def answered(name: str) -> Callable[[PrivacyLedger], Any]:
    return lambda ledger: of_entry(name)(ledger).dataset  # type: ignore[attr-defined]


def received(ledger: PrivacyLedger) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        save_dataset(Path(folder) / "rows.npz", answered("GaussianNoiseCurator")(ledger))
        return load_dataset(Path(folder) / "rows.npz")


ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
SUBJECTS: dict[str, Callable[[PrivacyLedger], Any]] = {
    **{
        name: of_entry(name)
        for name in (
            *("laplace_mechanism", "gaussian_mechanism", "exponential_mechanism", "sparse_vector"),
            *("PrivateSearch", "DPGIBO", "private_start", "PrivateGPUCB", "PrivateChoice"),
            *("PrivateMaximum", "OutputPerturbedLogisticRegression", "PrivateFit"),
            *("DPClassifier", "DPRegressor"),
        )
    },
    "laplace_mechanism, a vector": of_entry("laplace_mechanism", value=VALUES),
    "permute-and-flip": of_entry("exponential_mechanism", method="permute_and_flip"),
    **{f"PrivateSearch, {route}": searched(route) for route in ("descent", "slope")},
    "PrivateSearchCV": search_cv,
    "private_ranges": lambda ledger: private_ranges(
        torch.arange(600.0).reshape(200, 3), mu=0.1, ledger=ledger
    ),
    "PrivateFit, nothing tuned": of_entry("PrivateFit", space=None),
    "PrivateSelection": anybodys_trainer(),
    "PrivateSelection, one training": anybodys_trainer(space={"rate": 0.5}),
    "PrivacyEngine of Opacus": opacus_loop,
    **{
        name: lambda ledger, m=m: m.release(MAXIMA, ledger=ledger) for name, m in MECHANISMS.items()
    },
    "DPTrainer, Poisson": training(),
    "DPTrainer, added or removed": training(relation=ADDED),
    "DPTrainer, fixed batches": training(sampling="without_replacement"),
    "DPTrainer, normalized": training(clipping="normalized"),
    "DPareto": study,
    "GaussianNoiseCurator": answered("GaussianNoiseCurator"),
    "received rows": received,
}
#: Where the package makes releases, and the subjects above that come out there.
PLACES = {
    "descent/dp_gibo.py": ["DPGIBO"],
    "outsourced/curator.py": ["GaussianNoiseCurator"],  # and one that promises nothing, below
    "outsourced/exchange.py": ["received rows"],
    "pareto/study.py": ["DPareto"],
    "privacy/ledger.py": [
        *("exponential_mechanism", "sparse_vector", "private_start"),
        *("PrivateChoice", "PrivateMaximum", "noise-free", "Lipschitz"),
    ],
    "privacy/mechanisms.py": ["laplace_mechanism", "gaussian_mechanism"],
    "release/private_ucb.py": ["PrivateGPUCB"],
    "integrations/estimators.py": ["DPClassifier", "DPRegressor"],
    "training/ranges.py": ["private_ranges"],
    "training/output_perturbation.py": ["OutputPerturbedLogisticRegression"],
    "training/trainer.py": ["DPTrainer, Poisson", "DPTrainer, fixed batches"],
    "integrations/opacus_loop.py": ["PrivacyEngine of Opacus"],
    "tuning/private_selection.py": ["PrivateFit", "PrivateSelection"],
    "tuning/private_search.py": ["PrivateSearch", "PrivateSearch, descent"],
}


@pytest.fixture(autouse=True)
def one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialNumber, "draw", lambda self: 1)


@cache
def made(name: str) -> tuple[Any, Receipt]:
    ledger = PrivacyLedger(budget=PLENTY)
    released = SUBJECTS[name](ledger)
    charged = bool(ledger.entries())  # a study has a ledger of its own
    return released, released.receipt(ledger=ledger if charged else None)


def test_no_place_that_makes_a_release_is_missing() -> None:
    kinds = {"Release", *(kind.__name__ for kind in Release.__subclasses__())}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in kinds
    }
    assert found == set(PLACES)
    assert {name for names in PLACES.values() for name in names} <= set(SUBJECTS)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_receipt_is_complete_and_recomputed_within_1_percent(name: str) -> None:
    _, receipt = made(name)
    verification = receipt.verify()
    assert verification.passes, str(verification)
    outcomes = {f.outcome for f in verification.findings if f.subject in ("epsilon", "selection")}
    assert "agrees" in outcomes, str(verification)
    document = receipt.document
    assert document["released"]["digest"].startswith("sha256:")
    assert document["released"]["kind"] not in ("not stated", "")
    for section in ("promise", "mechanism", "accounting", "settings"):
        empty = [k for k, v in document[section].items() if v in ("", None, [], {})]
        assert set(empty) <= {"conditions", "assumptions", "note"}, empty
    assert document["software"]["dp-accounting"] and document["software"]["botorch_dp"]
    assert document["settings"]["origin"] != "fixed beforehand"  # nobody said so
    assert len(receipt.text) < 20_000
    if name != "DPareto":
        assert document["ledger"]["epsilon"] == PLENTY.epsilon
        in_parts = "PrivateSearch" in name or name in ("DPGIBO", "PrivateGPUCB")
        assert in_parts or document["ledger"]["charge"]["number"] == 1
    trained = name.startswith("DPTrainer") or name in ("DPClassifier", "DPRegressor", "PrivateFit")
    if trained or "Opacus" in name:
        assert document["training"]["clip_norm"] > 0
    if trained or "Opacus" in name or "PrivateSelection" in name:
        assert any(f.subject == "training" and f.outcome == "agrees" for f in verification.findings)


def test_a_selection_has_a_receipt_for_its_test_records(tmp_path: Path) -> None:
    released, receipt = made("PrivateFit")
    test = released.for_tests.receipt()
    assert test.verify(released.model.value).passes
    assert test.document["promise"]["protects"] == "one test record"
    assert receipt.document["promise"]["protects"] == "one training record"
    assert receipt.document["settings"]["origin"] == "private selection"
    one, _ = made("PrivateSelection, one training")
    assert one.receipt().document["settings"]["origin"] == "not stated"
    (line,) = (f for f in one.receipt().verify().findings if f.subject == "settings")
    assert "choosing settings on the same records is not covered by epsilon" in line.text
    said = one.receipt(settings="fixed beforehand").document
    assert said["settings"]["origin"] == "fixed beforehand"
    public = anybodys_trainer(scored_on="public", num_scored=None)(PrivacyLedger(budget=PLENTY))
    assert public.for_tests is None


@pytest.mark.parametrize(("name", "value"), [("noise_multiplier", 0.3), ("steps", 10**6)])
def test_a_training_that_costs_more_than_the_selection_is_refused(name: str, value: Any) -> None:
    document = made("PrivateFit")[1].document
    document["training"][name] = value
    document["digest"] = document_digest(document)
    found = {f.subject for f in Receipt(canonical(document)).verify().contradictions}
    assert found == {"training"}


@pytest.mark.parametrize("name", ["DPTrainer, Poisson", "PrivateSearch"])
def test_it_is_of_this_artifact_and_of_no_other(name: str, tmp_path: Path) -> None:
    released, receipt = made(name)
    if name == "PrivateSearch":
        artifact, other = released.config.value, {**released.config.value, "x": 2.0}
        file = tmp_path / "config.json"
        file.write_text(json.dumps(artifact, indent=2))
    else:
        artifact = released.model.state_dict()
        other = {key: value + 1e-7 for key, value in artifact.items()}
        file = tmp_path / "model.pt"
        torch.save(artifact, file)
    for same in (artifact, file):
        assert receipt.verify(same).findings[0].outcome == "agrees"
    with pytest.raises(ValueError, match="for another artifact"):
        receipt.verify(other)


def test_nothing_is_said_of_what_promises_nothing() -> None:
    simulated = laplace_mechanism(0.5, sensitivity=1.0, epsilon=1.0, unsafe_seed=0)
    with pytest.raises(PrivacyError, match="secret noise"):
        simulated.receipt()
    trainer = DPTrainer(lambda: logistic_regression(2), logistic_loss, data(Records()))
    settings = {"learning_rate": 0.1, "clip_norm": 1.0, "batch_size": 8, "epochs": 1}
    with pytest.raises(PrivacyError, match="secret noise"):
        trainer.fit(seed=0, noise_multiplier=1.0, **settings).receipt()
    rows = torch.rand(6, 3)
    projected = RandomProjectionCurator(
        rows, lambda i: 0.0, epsilon=1.0, delta=1e-3, projection_dim=2
    )
    with pytest.raises(PrivacyError):
        projected.dataset.receipt()


def of_neighbours(change: bool) -> tuple[Any, dict[str, Any]]:
    """A training on one of two neighbouring data sets, with the weights of the same model."""
    X = torch.linspace(-1, 1, 40).reshape(20, 2)
    Y = torch.arange(20) % 2
    if change:
        X = X.clone()
        X[3] = torch.tensor([float("nan"), 1e30])
    made = DPTrainer(lambda: logistic_regression(2), logistic_loss, TrainTest(X, Y, X[:4], Y[:4]))
    trained = made.fit(publish=True, **ENTRIES["DPTrainer.fit"].good())
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.fill_(0.25)
    trained = replace(trained, digest=None)
    return trained, trained.receipt().document


def test_neighbouring_runs_with_the_same_model_have_the_same_receipt() -> None:
    (one, receipt), (other, neighbour) = of_neighbours(False), of_neighbours(True)
    assert one.diagnostics.unusable_records != other.diagnostics.unusable_records
    for document in (receipt, neighbour):
        del document["digest"], document["released"]["date"]
    assert receipt == neighbour


def test_no_score_is_in_it_that_was_not_released() -> None:
    trained, receipt = made("DPTrainer, Poisson")
    sensitive = replace(trained.diagnostics, accuracy=0.123456789)
    text = replace(trained, diagnostics=sensitive).receipt().text
    assert "0.123456789" not in text
    assert "accuracy" not in text and "unusable" not in text
    assert "accuracy" not in receipt.text
