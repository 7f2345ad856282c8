"""Arguments that work, by the names of parameters, and objects of the classes that need more."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from gpytorch.kernels import RBFKernel
from sklearn.linear_model import LogisticRegression

import botorch_dp as bdp
from botorch_dp import (
    acquisition,
    datasets,
    models,
    objectives,
    outsourced,
    pareto,
    privacy,
    release,
    training,
)
from botorch_dp.descent import Design
from botorch_dp.models.gradient import GradientBelief
from botorch_dp.pareto import Integer, Real
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.report import StudyView
from botorch_dp.training import estimators
from tests.pareto import toy

matplotlib.use("Agg")
torch.set_num_threads(1)
URL = "http://127.0.0.1:9"


def rows(n: int = 6, d: int = 2) -> torch.Tensor:
    return torch.rand(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def losses(X: torch.Tensor) -> torch.Tensor:
    """Of ten records at each row."""
    return (X.sum(dim=-1, keepdim=True) - torch.linspace(0, 1, 10, dtype=X.dtype)).abs()


def kernel() -> RBFKernel:
    made = RBFKernel().double()
    made.lengthscale = 0.5
    return made.requires_grad_(False)


def gp(m: int = 1) -> SingleTaskGP:
    model = SingleTaskGP(
        rows(),
        rows(6, m),
        0.01 * torch.ones(6, m).double(),
        covar_module=kernel(),
        outcome_transform=None,
    )
    return model.eval()


def guarantee(epsilon: float = 0.1) -> bdp.Guarantee:
    return privacy.laplace_guarantee(sensitivity=1.0, epsilon=epsilon)


def ledger() -> bdp.PrivacyLedger:
    return bdp.PrivacyLedger(budget=bdp.PrivacyBudget(1e3, 1e-2))


def data() -> training.TrainTest:
    X, Y = rows(12, 3), torch.arange(12) % 2
    return training.TrainTest(X, Y, X, Y)


def trainer() -> training.DPTrainer:
    return training.DPTrainer(
        lambda: training.logistic_regression(3, dtype=torch.double), training.logistic_loss, data()
    )


SETTINGS: dict[str, Callable[[], Any]] = {
    "learning_rate": lambda: 0.1,
    "clip_norm": lambda: 1.0,
    "noise_multiplier": lambda: 1.0,
    "lot_size": lambda: 4,
    "epochs": lambda: 1,
}


@cache
def trained() -> training.Trained:
    return trainer().fit(seed=0, **{name: make() for name, make in SETTINGS.items()})


@cache
def finished_front() -> pareto.ParetoFront:
    study = pareto.DPareto(toy.problem(replicates=2), acquisition="random", seed=0)
    return study.run(3, initial=3)


def study() -> pareto.DPareto:
    made = pareto.DPareto(toy.problem(), acquisition="random", seed=0)
    made.run(3, initial=3)
    made.ask()
    return made


def curator() -> outsourced.GaussianNoiseCurator:
    return outsourced.GaussianNoiseCurator(rows(), float, epsilon=1.0, delta=1e-6)


def dataset() -> privacy.Release[torch.Tensor]:
    return curator().dataset


def search_space() -> bdp.SearchSpace:
    return bdp.SearchSpace(x=Real(0.1, 1.0, log=True), k=Integer(1, 5))


def record_scores(configs: list[dict[str, Any]]) -> torch.Tensor:
    return losses(torch.tensor([[c["x"], c["k"] / 5] for c in configs], dtype=torch.double)).clamp(
        0, 1
    )


def private_search() -> bdp.PrivateSearch:
    return bdp.PrivateSearch(
        record_scores,
        search_space(),
        bounds=(0.0, 1.0),
        budget=bdp.PrivacyBudget(1.0, 1e-6),
        evaluations=8,
        num_records=10,
    )


def descent() -> bdp.DPGIBO:
    return bdp.DPGIBO(
        losses,
        rows()[0],
        kernel=kernel(),
        mu=1.0,
        steps=2,
        clip_norm=1.0,
        box=box(),
    )


def _descent_plan() -> Any:
    space = bdp.SearchSpace(**{f"x{i}": Real(0.0, 1.0) for i in range(12)})
    return bdp.PrivateSearch(
        lambda configs: torch.zeros(len(configs), 100_000),
        space,
        bounds=(0.0, 1.0),
        budget=bdp.PrivacyBudget(3.0, 1e-6),
        evaluations=400,
        num_records=100_000,
    ).plan()


def box() -> torch.Tensor:
    return torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


def belief() -> GradientBelief:
    return models.GradientPosterior(gp(), rows()[0]).belief


def tables() -> tuple[Any, Any]:
    return rows(12, 3).numpy(), np.arange(12) % 2


def estimator_scores() -> objectives.EstimatorScores:
    space = bdp.SearchSpace(C=Real(0.1, 10.0))
    return objectives.per_record_scores(LogisticRegression(), space, tables(), tables())


def exact_gp() -> models.FiniteSetGP:
    return models.FiniteSetGP(rows(), kernel=kernel(), noise_variance=0.0)


def figure() -> Any:
    return matplotlib.figure.Figure()


def partitioning() -> FastNondominatedPartitioning:
    return FastNondominatedPartitioning(torch.zeros(2).double(), rows())


def linear_choice() -> bdp.LinearChoice:
    return bdp.LinearChoice(
        rows(),
        design=release.SobolDesign(box(), 4),
        kernel=kernel(),
        noise_variance=0.1,
        bounds=(0.0, 1.0),
        num_records=10,
        epsilon=1.0,
    )


def output_perturbed() -> training.OutputPerturbedLogisticRegression:
    return training.OutputPerturbedLogisticRegression(data(), epochs=1)


def settings_space() -> bdp.SearchSpace:
    return bdp.SearchSpace(
        learning_rate=Real(0.1, 1.0),
        clip_norm=Real(0.5, 1.0),
        lot_size=Integer(2, 4),
        epochs=Integer(1, 2),
    )


def private_fit() -> bdp.PrivateFit:
    return bdp.PrivateFit(
        trainer(),
        settings_space(),
        budget=bdp.PrivacyBudget(8.0, 1e-2),
        trials=privacy.TrialNumber(2, shape=1),
    )


@cache
def fit_plan() -> Any:
    return private_fit().plan()


@cache
def classifier() -> Any:
    return estimators.DPClassifier(8.0, epochs=1, unsafe_seed=0).fit(*tables())


@cache
def regressor() -> Any:
    return estimators.DPRegressor(8.0, epochs=1, unsafe_seed=0).fit(*tables())


@cache
def perturbed_classifier() -> Any:
    return estimators.OutputPerturbedClassifier(8.0, epochs=1, unsafe_seed=0).fit(*tables())


def curve_study() -> pareto.DPareto:
    made = pareto.DPareto(toy.curve_problem(), acquisition="random", seed=0)
    made.run(3, initial=3)
    made.ask()
    return made


#: By "Class.method.parameter", "function.parameter" or "parameter", in this order.
VALUES: dict[str, Callable[[], Any]] = {
    "record_losses": lambda: losses,
    "values.trials": lambda: list(finished_front().front_trials),
    "Batched.utilities": lambda: lambda configs, seeds: [toy.utility(c, seeds[0]) for c in configs],
    "DPTrainer.utility.model": lambda: training.logistic_regression(3, dtype=torch.double),
    "DescentResult.bound.gradient_bound": lambda: 1.0,
    "DescentResult.bound.convexity": lambda: 0.5,
    "DescentResult.bound.start_distance": lambda: 1.0,
    "RegretBound.distortion": lambda: 0.1,
    "RegretBound.search": lambda: 0.1,
    "twin": data,
    "PrivateFit.noise_multiplier.config": lambda: dict(
        learning_rate=0.5, clip_norm=1.0, lot_size=4, epochs=1
    ),
    "DPareto.add_trial.config": lambda: {"noise": 1.0, "epochs": 2},
    "PrivateFit.trainer_or_problem": trainer,
    "PrivateFit.space": lambda: settings_space(),
    "PrivateFit.trials": lambda: 2,
    "PrivateFit.budget": lambda: bdp.PrivacyBudget(8.0, 1e-2),
    "DescentBound.privacy": lambda: 0.1,
    "distance": lambda: 0.5,
    "facts": lambda: _descended().facts,
    "labels": lambda: np.arange(10) % 2,
    "predictions": lambda: torch.linspace(0, 1, 10),
    "F1.labels_are_public": lambda: True,
    "projection_dim_for.distortion": lambda: 0.5,
    "distortion": lambda: outsourced.Distortion(1.0, 1.0, 0.0),
    "regret_bound.answers": lambda: [0.1, 0.2],
    "given_epsilon.noise": lambda: "noise",
    "expected.psi": lambda: lambda ratios: np.maximum(1 - ratios, 0)[None],
    "Spending.spent": lambda: (0.5, 1e-6),
    "Spending.remaining": lambda: (0.5, 0.0),
    "Spending.of.ledger": lambda: charged_ledger(),
    "view": lambda: StudyView.of_file(study_file()),
    "trials_csv.path": lambda: "trials.csv",
    "layer": lambda: torch.nn.Linear(3, 2),
    "rank": lambda: 1,
    "LowRankLinear.forward.X": lambda: torch.rand(4, 3),
    "LowRankLinear.forward.inputs": lambda: torch.rand(4, 3),
    "add_adapters.model": lambda: torch.nn.Sequential(torch.nn.Linear(3, 2)),
    "FitPlan.method": lambda: "random",
    "FitPlan.number": lambda: privacy.TrialNumber(2),
    "FitPlan.noise_multipliers": lambda: {"this": 1.0},
    "FitResult.model": lambda: privacy.Release(torch.nn.Linear(3, 2), guarantee()),
    "FitResult.config": lambda: privacy.Release({"learning_rate": 0.1}, guarantee()),
    "tell_point.trial": lambda: 3,
    "tell_point.checkpoint": lambda: 1,
    "at.checkpoint": lambda: 2,
    "DPClassifier.X": lambda: tables()[0],
    "fit.X": lambda: tables()[0],
    "fit.y": lambda: tables()[1],
    "score.X": lambda: tables()[0],
    "score.y": lambda: tables()[1],
    "predict.X": lambda: tables()[0],
    "predict_proba.X": lambda: tables()[0],
    "decision_function.X": lambda: tables()[0],
    "configurations": lambda: [{name: make() for name, make in SETTINGS.items()}],
    "fit_configurations.seeds": lambda: [0],
    "curves.seeds": lambda: [0],
    "DPareto.add_trial.utilities": lambda: {1: 0.5, 2: 0.5},
    "report.path": lambda: "report.html",
    "study_report.path": lambda: "report.html",
    "ledger_report.path": lambda: "report.html",
    "ledger_report.ledger": lambda: charged_ledger(),
    "of_file.path": lambda: study_file(),
    "study_report.study": lambda: study_file(),
    "dashboard_app.path": lambda: study_file(),
    "serve_dashboard.path": lambda: study_file(),
    "checkpoint": lambda: 1,
    "tell_point.utility": lambda: 0.5,
    "points.trial": lambda: finished_front().front_trials[0],
    "StudyView.trials": lambda: list(finished_front().front_trials),
    "of_problem.trials": lambda: list(finished_front().front_trials),
    "of_problem.proposer": lambda: study()._proposer,
    "columns": lambda: [Real(0.0, 1.0), Integer(0, 3)],
    "public_twin.num_records": lambda: 60,
    "num_test": lambda: 20,
    "Resource.name": lambda: "epochs",
    "within.space": lambda: toy.SPACE,
    "ahead.replicates": lambda: [0],
    "parameter": lambda: "kind",
    "When.values": lambda: ("a",),
    "When.__call__.config": lambda: {"kind": "a"},
    "epsilons": lambda: (0.5, 1.0),
    "deltas": lambda: (1e-3, 1e-5),
    "psi": lambda: np.abs,
    "of.losses": lambda: [privacy.GaussianLoss(1.0)],
    "selection_epsilon.losses": lambda: [privacy.GaussianLoss(1.0)],
    "smallest_delta": lambda: 1e-6,
    "BaseProfile.other.u": lambda: np.array([0.2]),
    "slope.u": lambda: 0.5,
    "Selection.number": lambda: privacy.TrialNumber(10),
    "selection_epsilon.number": lambda: privacy.TrialNumber(10),
    "selection_rdp.number": lambda: privacy.TrialNumber(10),
    "TrialNumber.mean": lambda: 10.0,
    "base": lambda: privacy.BaseProfile.of_mu(1.0, 1e-6),
    "rdp": lambda: np.array([0.1, 0.2]),
    "stored": dict,
    "given": dict,
    "release_linear_choice.record_losses": lambda: losses,
    "LinearChoice.release.record_losses": lambda: losses,
    "initial": lambda: rows()[0],
    "ask.initial": lambda: 1,
    "kernel": kernel,
    "mu": lambda: 1.0,
    "steps": lambda: 2,
    "clip_norm": lambda: 1.0,
    "model_factory": lambda: lambda: training.logistic_regression(3, dtype=torch.double),
    "loss": lambda: training.logistic_loss,
    "EstimatorScores.loss": lambda: "zero_one",
    "data": data,
    "audit_epsilon.data": lambda: 0.0,
    "neighbor": lambda: 1.0,
    "audit_epsilon.mechanism": lambda: lambda _: float(np.random.default_rng().laplace()),
    "samples": lambda: 1000,
    "indices": lambda: torch.arange(4),
    "SearchDiagnostics.indices": lambda: (0, 1),
    "checkpoints": lambda: [1],
    "seeds": lambda: [0, 1],
    "curve.seeds": lambda: [0, 1],
    "fit.seed": lambda: 0,
    "DPTrainer.fit.seed": lambda: 0,
    "DPTrainer.curve.checkpoints": lambda: [1],
    "DPTrainer.curves.checkpoints": lambda: [[1]],
    "problem": toy.problem,
    "space": search_space,
    "per_record_scores.space": lambda: bdp.SearchSpace(C=Real(0.1, 10.0)),
    "EstimatorScores.space": lambda: bdp.SearchSpace(C=Real(0.1, 10.0)),
    "PrivacyUtilityProblem.space": lambda: toy.SPACE,
    "privacy": lambda: toy.epsilon,
    "utility": lambda: toy.utility,
    "PrivacyUtilityProblem.utility": lambda: toy.utility,
    "epsilon": lambda: 1.0,
    "delta": lambda: 1e-5,
    "trial": lambda: 3,
    "tell.utilities": lambda: 0.5,
    "DPareto.tell.utilities": lambda: {1: 0.5},
    "outcome.trial": lambda: finished_front().front_trials[0],
    "trials": lambda: 4,
    "DPareto.run.trials": lambda: 4,
    "ParetoFront.trials": lambda: list(finished_front().front_trials),
    "level": lambda: 0.9,
    "X": rows,
    "Z": rows,
    "PrivateMaximum.release.values": lambda: rows(2, 1).flatten(),
    "NoiseFreeMaximum.release.values": lambda: rows(2, 1).flatten(),
    "for_budget.ledger": ledger,
    "PrivateObjective.for_budget.ledger": ledger,
    "PrivateObjective.plan.evaluations": lambda: 4,
    "DPGIBO.plan.num_records": lambda: 10,
    "PrivateSearch.num_records": lambda: 10,
    "noise_to_clip.plan": lambda: _descent_plan(),
    "args": lambda: (),
    "acqf": lambda: acquisition.GradientTrace(gp(), rows()[0]),
    "load_arrays.expected": lambda: datasets.fingerprint({"a": np.zeros(2)}),
    "EstimatorScores.__call__.configs": lambda: [{"C": 1.0}],
    "PrivateAnswers.sensitivity": lambda: 1.0,
    "choose_projection_dim.X": lambda: 1e4 * rows(50, 3),
    "choose_projection_dim.epsilon": lambda: 10.0,
    "Objective.known.config": lambda: {"noise": 1.0, "epochs": 2},
    "Real.check.value": lambda: 2.0,
    "BranchAndBound.gp": lambda: exact_gp(),
    "release_linear_choice.num_records": lambda: 10,
    "SparseVectorUtility.__call__.config": lambda: {"noise": 1.0, "max_positives": 2},
    "fit_many.seeds": lambda: [0],
    "cross_entropy_loss.outputs": lambda: rows(6, 3),
    "LinearChoice.posterior_mean.scores": lambda: rows(4, 10),
    "PrivateObjective.__call__.X": rows,
    "EstimatorScores.__call__.X": lambda: rows(6, 1),
    "GradientTrace.forward.X": lambda: rows(6, 2).unsqueeze(1),
    "forward.X": lambda: rows(6, 2).unsqueeze(1),
    "scaled.X": lambda: rows(),
    "clipped_gradient_sum.model": lambda: training.logistic_regression(3, dtype=torch.double),
    "evaluate": lambda: float,
    "index": lambda: 1,
    "mechanism": lambda: "a mechanism",
    "unit": privacy.PrivacyUnit,
    "losses": lambda: (privacy.PureLoss(1.0),),
    "size": lambda: 2,
    "state": lambda: guarantee().to_dict(),
    "alpha": lambda: 0.1,
    "choices": rows,
    "design": lambda: release.SobolDesign(box(), 4),
    "noise_variance": lambda: 0.1,
    "bounds": lambda: (0.0, 1.0),
    "gen_gradient_trace_initial_conditions.bounds": box,
    "num_records": lambda: 10,
    "scores": lambda: rows(4, 10),
    "EstimatorScores.train": tables,
    "train": tables,
    "validation": tables,
    "estimator": LogisticRegression,
    "num_choices": lambda: 6,
    "dataset_correlation": lambda: 0.99,
    "mean": lambda: rows(6, 1).flatten(),
    "TruncatedNormal.mean": lambda: 0.5,
    "std": lambda: 0.5,
    "Modeler.mean": lambda: 0.0,
    "noise_std": lambda: 0.5,
    "Modeler.kernel": kernel,
    "Modeler.noise_std": lambda: 0.5,
    "query": lambda: float,
    "y": lambda: 0.5,
    "resume.checkpoint": lambda: f"run {np.random.default_rng().integers(2**60)}",
    "path": lambda: f"file {np.random.default_rng().integers(2**60)}",
    "load_dataset.path": lambda: _saved(),
    "save_figure.path": lambda: "figure.png",
    "PrivacyLedger.budget": lambda: bdp.PrivacyBudget(1e3, 1e-2),
    "budget": lambda: bdp.PrivacyBudget(1.0, 1e-6),
    "guarantee": guarantee,
    "price": guarantee,
    "draw": lambda: lambda *_: 1.0,
    "config": lambda: {"noise": 1.0, "epochs": 2},
    "check.config": lambda: {"x": 0.5, "k": 2},
    "satisfies.config": lambda: {"x": 0.5, "k": 2},
    "SparseVectorProblem.epsilon.config": lambda: {"noise": 1.0, "max_positives": 2},
    "sparse_vector_epsilon.config": lambda: {"noise": 1.0, "max_positives": 2},
    "SparseVectorProblem.epsilon_bounds.configs": lambda: [{"noise": 1.0, "max_positives": 2}],
    "configs": lambda: [{"noise": 1.0, "epochs": 2}],
    "encode.configs": lambda: [{"x": 0.5, "k": 2}],
    "answer": lambda: 0.5,
    "values": lambda: rows(6, 1).flatten(),
    "Choice.values": lambda: ("a", "b"),
    "encode.values": lambda: [1, 2],
    "Choice.decode.codes": lambda: np.array([[1.0, 0.0]]),
    "Choice.encode.values": lambda: ["a", "b"],
    "SearchDiagnostics.values": lambda: rows(2, 1).flatten(),
    "information_gain": lambda: 1.0,
    "record_scores": lambda: record_scores,
    "evaluations": lambda: 8,
    "SearchPlan.evaluations": lambda: {"selection": 8},
    "plan": lambda: private_search().plan(),
    "Trained.plan": lambda: trained().plan,
    "value": lambda: 0.5,
    "Choice.check.value": lambda: "a",
    "Integer.check.value": lambda: 2,
    "name": lambda: "name",
    "codes": lambda: rows(3, 2),
    "uniforms": lambda: rows(3, 2).numpy(),
    "levels": lambda: 2,
    "count": lambda: 3,
    "tried": lambda: 3,
    "model": gp,
    "check_public.model": lambda: models.public_gp(
        rows(), rows(6, 1), kernel=kernel(), noise_variance=0.1
    ),
    "PerturbedModel.model": lambda: training.logistic_regression(3),
    "Trained.model": lambda: training.logistic_regression(3),
    "location": lambda: rows()[0],
    "DescentResult.location": dataset,
    "average": dataset,
    "trajectory": dataset,
    "HypervolumeProbabilityOfImprovement.model": lambda: gp(2),
    "LogHypervolumeProbabilityOfImprovement.model": lambda: gp(2),
    "ref_point": lambda: (0.0, 0.0),
    "Objective.ref_point": lambda: 10.0,
    "SparseVectorProblem.ref_point": lambda: (100.0, 1.0),
    "partitioning": partitioning,
    "schedule": lambda: acquisition.UCBSchedule(6, delta=0.1),
    "step": lambda: 1,
    "acq_function": lambda: acquisition.GradientTrace(gp(), rows()[0]),
    "q": lambda: 1,
    "num_restarts": lambda: 2,
    "raw_samples": lambda: 4,
    "file": lambda: "file",
    "fetch": lambda: lambda: {"a": np.zeros(2)},
    "expected": lambda: "digest",
    "arrays": lambda: {"a": np.zeros(2)},
    "num_parameters": lambda: 2,
    "table_bytes": lambda: 100,
    "history": lambda: (),
    "planned_steps": lambda: 2,
    "diagnostics": lambda: trained().diagnostics,
    "PrivateOptimum.diagnostics": lambda: _optimum().diagnostics,
    "DescentResult.diagnostics": lambda: _diagnostics(),
    "belief": belief,
    "params": lambda: [torch.zeros(2, requires_grad=True)],
    "points": lambda: 3,
    "radius": lambda: 0.5,
    "trace": lambda: 0.5,
    "box": box,
    "num_points": lambda: 4,
    "gp": lambda: models.FiniteSetGP(rows(), kernel=kernel(), noise_variance=0.1),
    "beta": lambda: 2.0,
    "num_observations": lambda: 3,
    "train_X": rows,
    "train_Y": lambda: rows(6, 1),
    "test_X": rows,
    "test_Y": lambda: rows(6, 1),
    "Y": lambda: rows(6, 1),
    "Yvar": lambda: rows(6, 1),
    "make_scores": lambda: lambda records: lambda X: losses(X)[:, : len(records)],
    "records": lambda: rows(5, 2),
    "replaced": lambda: 1,
    "replacements": lambda: 1,
    "dataset": dataset,
    "url": lambda: URL,
    "token": lambda: "a-long-enough-shared-secret",
    "curator_app.token": lambda: "a-long-enough-shared-secret",
    "serve.token": lambda: "a-long-enough-shared-secret",
    "TLS.certfile": lambda: _certificate(),
    "CuratorClient.patience": lambda: 0.2,
    "CuratorClient.timeout": lambda: 0.2,
    "FileCurator.timeout": lambda: 0.05,
    "FileCurator.interval": lambda: 0.01,
    "questions": lambda: _questions(),
    "answers": lambda: "answers",
    "sparse_vector.answers": lambda: rows(6, 1).flatten(),
    "curator": curator,
    "projection_dim": lambda: 2,
    "lengthscale": lambda: 0.5,
    "x1": rows,
    "x2": rows,
    "low": lambda: 1,
    "high": lambda: 5,
    "u": lambda: np.array([0.2, 0.7]),
    "positions": lambda: np.array([0.2, 0.7]),
    "rate": lambda: 1.0,
    "number": lambda: 0,
    "Trial.config": lambda: {"noise": 1.0, "epochs": 2},
    "Trial.seeds": lambda: (0,),
    "interval": lambda: (0.1, 0.2),
    "error": lambda: 0.2,
    "tried_before": lambda: True,
    "OperatingPoint.tried": lambda: True,
    "fronts": lambda: (finished_front(),),
    "guarantees": lambda: (guarantee(),),
    "figure": figure,
    "label": lambda: "a label",
    "replicates": lambda: 1,
    "lower_bound": lambda: 0.5,
    "event": lambda: "an event",
    "likelier_on": lambda: "data",
    "hits": lambda: (5, 3),
    "tested": lambda: 10,
    "confidence": lambda: 0.9,
    "summed_limit": lambda: (1.0, 0.0),
    "summed_spent": lambda: (0.5, 0.0),
    "mu_limit": lambda: 1.0,
    "mu_spent": lambda: 0.5,
    "charged_at": lambda: "today",
    "key": lambda: "key",
    "noise_multiplier": lambda: 1.0,
    "sampling_probability": lambda: 0.1,
    "lot_size": lambda: 4,
    "relation": lambda: NeighboringRelation.REPLACE_ONE,
    "conditions": lambda: ("a condition",),
    "given.conditions": lambda: ("a condition",),
    "allowed": lambda: (NeighboringRelation.REPLACE_ONE,),
    "orders": lambda: (2.0, 4.0),
    "purely_gaussian": lambda: False,
    "mus": lambda: [0.5, 0.5],
    "noise_multipliers": lambda: [1.0, 2.0],
    "lot_sizes": lambda: [2, 4],
    "dp_sgd_epsilons.steps": lambda: [10, 10],
    "sensitivity": lambda: 1.0,
    "utilities": lambda: rows(6, 1).flatten(),
    "order": lambda: 2.0,
    "divergence": lambda: 0.5,
    "noise": lambda: 1.0,
    "SearchPlan.noise": lambda: "some",
    "max_positives": lambda: 2,
    "gaussian_guarantee.mu": lambda: 1.0,
    "privacy.gaussian_guarantee.mu": lambda: 1.0,
    "privacy.gaussian_mechanism.mu": lambda: 1.0,
    "lipschitz": lambda: 1.0,
    "lambda_min": lambda: 0.5,
    "lambda_max": lambda: 1.0,
    "LipschitzMaximum.max_loss": lambda: 1.0,
    "release.LipschitzMaximum.max_loss": lambda: 1.0,
    "dim": lambda: 2,
    "amplitude": lambda: 1.0,
    "objective": lambda: lambda x: float(x.sum()),
    "choice": dataset,
    "maximum": dataset,
    "variance": lambda: rows(6, 1).flatten(),
    "implausible": lambda: 0,
    "chosen": rows,
    "origin": lambda: "chosen without the records",
    "subject": lambda: "the value",
    "model_gap": lambda: 0.1,
    "UtilityBound.model": lambda: 0.1,
    "probability": lambda: 0.9,
    "spread": lambda: 1.0,
    "num_queries": lambda: 20,
    "num_positives": lambda: 3,
    "simulations": lambda: 2,
    "num_noises": lambda: 5,
    "noises": lambda: np.array([0.5, 1.0]),
    "regularization": lambda: 0.1,
    "fit_many.settings": lambda: [(0.1, 0.5)],
    "canaries": lambda: 200,
    "guesses": lambda: 5,
    "correct": lambda: 4,
    "claim": lambda: 1.0,
    "accuracy.outputs": lambda: rows(6, 3),
    "outputs": lambda: rows(6, 1),
    "targets": lambda: torch.tensor([0, 1, 0, 1, 0, 1]),
    "accuracy": lambda: 0.5,
    "test_accuracy": lambda: 0.5,
    "unusable_records": lambda: 0,
    "dropped_gradients": lambda: 0,
    "num_features": lambda: 3,
    "num_classes": lambda: 2,
    "hidden": lambda: (4,),
    "make_trainer": lambda: _trainer_for,
    "audit_training.data": data,
    "audit_training.canaries": lambda: 6,
    "learning_rate": lambda: 0.1,
    "epochs": lambda: 1,
    "EpochReport.utility": lambda: 0.5,
    "CurvePoint.utility": lambda: 0.5,
    "EpochReport.loss": lambda: 0.5,
    "randomness": lambda: _randomness(),
    "route": lambda: "selection",
    "reason": lambda: "a reason",
    "shares": lambda: {"selection": 1.0},
    "batch_size": lambda: 1,
    "SearchResult.config": dataset,
    "score": lambda: None,
    "function": lambda: None,
    "digits": lambda: 4,
    "difference": lambda: 0.1,
    "closure": lambda: None,
    "plot_guarantee.guarantees": lambda: (guarantee(), guarantee(1.0)),
    "spent": lambda: 1.0,
    "DescentDiagnostics.add.mean": lambda: _clipped_mean(),
    "seconds": lambda: 1.0,
}

#: What goes into ``**settings`` and the like, by the name of the callable.
MORE: dict[str, dict[str, Callable[[], Any]]] = {
    **dict.fromkeys(("fit", "fit_replicates", "plan", "curve", "audit_training"), SETTINGS),
    "release_choice": {
        "epsilon": lambda: 1.0,
        "delta": lambda: 0.1,
        "steps": lambda: 3,
        "dataset_correlation": lambda: 0.99,
    },
    "release_linear_choice": {
        "design": lambda: release.SobolDesign(box(), 4),
        "kernel": kernel,
        "noise_variance": lambda: 0.1,
        "bounds": lambda: (0.0, 1.0),
        "epsilon": lambda: 1.0,
    },
    "release_lipschitz_maximum": {
        "epsilon": lambda: 1.0,
        "num_records": lambda: 10,
        "lipschitz": lambda: 1.0,
        "lambda_min": lambda: 0.5,
        "lambda_max": lambda: 1.0,
        "max_loss": lambda: 1.0,
    },
    "release_maximum": {
        "epsilon": lambda: 1.0,
        "delta": lambda: 0.1,
        "steps": lambda: 6,
        "num_choices": lambda: 6,
        "dataset_correlation": lambda: 0.99,
        "noise_std": lambda: 1.0,
        "information_gain": lambda: 1.0,
    },
    "release_noise_free_maximum": {
        "epsilon": lambda: 1.0,
        "delta": lambda: 0.1,
        "num_choices": lambda: 6,
        "dataset_correlation": lambda: 0.99,
        "dim": lambda: 2,
        "amplitude": lambda: 1.0,
        "rate": lambda: 1.0,
    },
    "SearchSpace": {"x": lambda: Real(0.0, 1.0)},
    "given": {},
}


def _questions() -> str:
    with open("questions", "w") as file:
        file.write('{"request_id": "a", "index": 1}\n')
    return "questions"


def study_file() -> str:
    path = f"study {np.random.default_rng().integers(2**60)}"
    with pareto.DPareto(toy.problem(), acquisition="random", storage=path, seed=0) as made:
        made.run(2, initial=2)
    return path


def ledger_file() -> str:
    path = f"ledger {np.random.default_rng().integers(2**60)}"
    with bdp.PrivacyLedger(path, bdp.PrivacyBudget(1.0)) as made:
        made.charge(guarantee())
    return path


def table_file() -> str:
    np.save("table.npy", rows(6, 2).numpy())
    return "table.npy"


def _saved() -> str:
    outsourced.save_dataset("dataset.npz", dataset())
    return "dataset.npz"


@cache
def _optimum() -> release.PrivateOptimum:
    return private_gp_ucb().release(lambda x: float(x.sum()))


def private_gp_ucb() -> bdp.PrivateGPUCB:
    return bdp.PrivateGPUCB(
        rows(),
        kernel=kernel(),
        noise_std=0.1,
        steps=3,
        epsilon=1.0,
        delta=0.1,
        dataset_correlation=0.99,
    )


@cache
def _descended() -> Any:
    return descent().run()


def _diagnostics() -> Any:
    return _descended().diagnostics


def _clipped_mean() -> Any:
    from botorch_dp.descent.clipping import ClippedMean

    return ClippedMean(2, 10, 1.0)


def _trainer_for(records: training.TrainTest) -> training.DPTrainer:
    return training.DPTrainer(
        lambda: training.logistic_regression(3, dtype=torch.double), training.logistic_loss, records
    )


def _randomness() -> Any:
    from botorch_dp.training.randomness import SeededRandomness

    return SeededRandomness(0, torch.device("cpu"))


@cache
def _modeler_rows() -> torch.Tensor:
    return rows()


def modeler() -> outsourced.Modeler:
    return outsourced.Modeler(rows(), kernel=kernel(), noise_std=0.1, delta=0.1)


def private_objective() -> bdp.PrivateObjective:
    return bdp.PrivateObjective(losses, bounds=(0.0, 1.0), mu=0.1, num_records=10)


def charged_ledger() -> bdp.PrivacyLedger:
    made = ledger()
    made.charge(guarantee())
    return made


#: Objects of classes whose constructors' examples are not enough.
OBJECTS: dict[str, Callable[[], Any]] = {
    "PrivateFit": private_fit,
    "FitPlan": fit_plan,
    "DPClassifier": classifier,
    "DPRegressor": regressor,
    "OutputPerturbedClassifier": perturbed_classifier,
    "DPTrainer": trainer,
    "DPareto": curve_study,
    "GaussianNoiseCurator": curator,
    "Curator": lambda: outsourced.Curator(float, dataset()),
    "DPGIBO": descent,
    "DescentResult": _descended,
    "DescentDiagnostics": _diagnostics,
    "LinearChoice": linear_choice,
    "Modeler": modeler,
    "PrivacyLedger": charged_ledger,
    "PrivateObjective": private_objective,
    "PrivateSearch": private_search,
    "ParetoFront": finished_front,
    "Trial": lambda: finished_front().front_trials[0],
    "Trained": trained,
    "TrainingDiagnostics": lambda: trained().diagnostics,
    "TrainingPlan": lambda: trained().plan,
    "SearchSpace": search_space,
    "PrivacyUtilityProblem": toy.curve_problem,
    "OutputPerturbedLogisticRegression": output_perturbed,
    "EstimatorScores": estimator_scores,
    "PrivateGPUCB": private_gp_ucb,
    "Guarantee": guarantee,
    "BranchAndBound": lambda: release.BranchAndBound(
        exact_gp(), schedule=acquisition.UCBSchedule(6, delta=0.1)
    ),
    "Resource": lambda: pareto.Resource("epochs"),
    "Objective": lambda: pareto.Objective("size", 10.0, lambda config: 1.0),
    "NoiseAwareAdagrad": lambda: _adagrad(),
    "CuratorClient": lambda: outsourced.CuratorClient(
        URL, token="a-long-enough-shared-secret", timeout=0.2, patience=0.2
    ),
    "TLS": lambda: outsourced.TLS(_certificate()),
    "FileCurator": lambda: outsourced.FileCurator("q", "a", timeout=0.05, interval=0.01),
    "Design": Design,
}


def _certificate() -> Path:
    """A certificate and its key in one file."""
    from tests.outsourced.certificates import certificate

    made = certificate(Path(), "service")
    with made.certfile.open("ab") as file:
        file.write(made.keyfile.read_bytes())
    return made.certfile


def _adagrad() -> Any:
    from botorch_dp.descent import NoiseAwareAdagrad

    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    return NoiseAwareAdagrad([parameter], noise_std=0.1)
