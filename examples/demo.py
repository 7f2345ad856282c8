"""``make demo``: a Pareto front, a private tuning run with its release, and an audit.

Everything runs on data sets that come with scikit-learn. Figures and files go to ``demo/``; a
second call continues where the first one ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.figure import Figure
from torch import Tensor
from tqdm.auto import trange

from botorch_dp import tasks
from botorch_dp.objectives import Evaluations, PrivateObjective
from botorch_dp.pareto import DPareto
from botorch_dp.plots import save_figure
from botorch_dp.privacy import (
    BudgetExhausted,
    PrivacyBudget,
    PrivacyLedger,
    audit_epsilon,
    gaussian_epsilon,
    gaussian_mechanism,
    gaussian_mu,
)

#: The command line of this environment, as one would type it here.
_COMMAND = os.path.relpath(Path(sys.executable).with_name("botorch-dp"))
#: Trainings that a study draws at random before its models choose; the first figure shows them.
_RANDOM = 16
#: Private evaluations in all, and how many of them are Sobol points.
_EVALUATIONS, _SOBOL = 16, 6


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m examples.demo")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where files go")
    parser.add_argument("--trials", type=int, default=60, help="trials of the Pareto study")
    parser.add_argument("--draws", type=int, default=40_000, help="draws of the audit")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        _pareto_front(options.folder, options.trials)
        _private_tuning(options.folder)
        _audit(options.draws)
    except KeyboardInterrupt:
        print("\nInterrupted; the study and the ledger keep what was finished.", file=sys.stderr)
        return 130
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Look into {options.folder}/.")
    return 0


def _heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def _pareto_front(folder: Path, trials: int) -> None:
    _heading("1. Which accuracy does each epsilon buy? (DPareto)")
    print(
        "Logistic regression on 398 patients, trained with DP-SGD. Five hyper-parameters,\n"
        f"{trials} trainings chosen by the model of epsilon and error."
    )
    problem = tasks.adult_logistic_sgd(data="breast_cancer", replicates=5)
    with DPareto(problem, storage=folder / "study.sqlite", seed=0) as study:
        known = len(study.trials)
        if known:
            print(f"The study in {folder}/study.sqlite has {known} trials already; it continues.")
        else:
            drawn = study.run(min(trials, _RANDOM), progress=True)
            save_figure(drawn.plot(), folder / "front.png")
            print(f"First figure, of random trainings: {folder}/front.png. Chosen ones follow.")
        front = study.run(max(trials, known), progress=True)
        best = study.recommend(epsilon=1.0)
    figure = front.plot(recommended=best)
    save_figure(figure, folder / "front.png")
    print("\n  epsilon   error\n" + "\n".join(f"  {e:7.3f}  {r:6.3f}" for e, r in front.points))
    print(f"\nFor epsilon = 1: {best}")
    print(f"Figure: {folder}/front.png\n{front.caption}")
    print(f"To look at every trial: `{_COMMAND} report {folder}/study.sqlite`")


def _private_tuning(folder: Path) -> None:
    from botorch.utils.sampling import draw_sobol_samples

    _heading("2. Tune on records that may not leak (PrivateObjective, any BoTorch loop)")
    scores = ValidationScores()
    budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    path = folder / "ledger.sqlite"
    ledger = PrivacyLedger(path, budget)
    objective = PrivateObjective(
        scores,
        bounds=(0.0, 1.0),
        # Equal shares of the budget, less a little, so that rounding cannot refuse the last one.
        mu=gaussian_mu(budget.epsilon, budget.delta) / _EVALUATIONS**0.5 * (1 - 1e-9),
        num_records=scores.num_records,
        ledger=ledger,
        label="validation score",
    )
    print(
        f"A support vector machine on digits: C and gamma, scored on {scores.num_records} "
        f"validation records.\nBudget ({budget.epsilon:g}, {budget.delta:g}), shared by "
        f"{_EVALUATIONS} evaluations, each with noise of {objective.noise_std:.3f}."
    )
    unit_square = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    try:
        objective(draw_sobol_samples(unit_square, n=_SOBOL, q=1, seed=1).squeeze(-2))
    except BudgetExhausted:
        print(
            f"An earlier run spent this budget: {path} remembers, and refuses a second one.\n"
            "(Delete it for another demonstration. With records that matter, do not.)"
        )
        return
    for _ in trange(_EVALUATIONS - _SOBOL, desc="private evaluations"):
        objective(_next_point(objective.history, unit_square))
    X, Y, Yvar = objective.history
    mean = _surrogate(objective.history).posterior(X).mean.squeeze(-1)
    winner = int(mean.argmax())
    C, gamma = _svm_parameters(X[winner])
    truth = scores(X[winner : winner + 1]).mean().item()
    print(
        f"Released winner: C = {C:.3g}, gamma = {gamma:.3g}, estimated score "
        f"{mean[winner].clamp(0, 1).item():.3f}.\nIts guarantee: {ledger.guarantee}\n"
        f"(Its true score, which is sensitive: {truth:.3f}.)\n"
        f"Ledger: {path} (`{_COMMAND} ledger show {path}`)"
    )
    figure = _tuning_figure(X, Y, Yvar, winner, str(ledger.guarantee))
    save_figure(figure, folder / "tuning.png")
    print(f"Figure: {folder}/tuning.png")


def _surrogate(history: Evaluations) -> SingleTaskGP:
    """An ordinary BoTorch model: everything it sees is released already."""
    X, Y, Yvar = history
    model = SingleTaskGP(X, Y, train_Yvar=Yvar)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _next_point(history: Evaluations, bounds: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        acquisition = qLogExpectedImprovement(
            _surrogate(history),
            best_f=history.Y.max(),
            sampler=SobolQMCNormalSampler(torch.Size([128])),
        )
        X, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
    return X


def _svm_parameters(x: Tensor) -> tuple[float, float]:
    return float(10 ** (4 * x[0] - 2)), float(10 ** (4 * x[1] - 4))


class ValidationScores:
    """Per-record scores: 1 where the classifier is right, one column a validation record."""

    def __init__(self) -> None:
        from botorch_dp.datasets import digits

        self._data = digits(seed=0)
        self.num_records = len(self._data.test_Y)

    def __call__(self, X: Tensor, /) -> Tensor:
        """Scores in {0, 1}: ``b x 2`` points to ``b x n``."""
        from sklearn.svm import SVC

        rows = []
        for x in X:
            C, gamma = _svm_parameters(x)
            machine = SVC(C=C, gamma=gamma).fit(
                self._data.train_X.numpy(), self._data.train_Y.numpy()
            )
            right = machine.predict(self._data.test_X.numpy()) == self._data.test_Y.numpy()
            rows.append(torch.from_numpy(right).double())
        return torch.stack(rows)


def _tuning_figure(X: Tensor, Y: Tensor, Yvar: Tensor, winner: int, guarantee: str) -> Figure:
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    steps = torch.arange(1, len(Y) + 1)
    axes.errorbar(steps, Y[:, 0], 2 * Yvar[:, 0].sqrt(), fmt="o", capsize=3, label="released score")
    axes.plot([winner + 1], [Y[winner, 0]], "*", ms=16, color="C1", mec="k", label="winner")
    axes.axvline(_SOBOL + 0.5, color="0.7", ls=":")
    axes.set_xlabel("evaluation (left of the line: Sobol points)")
    axes.set_ylabel("mean score, ± 2 deviations of its noise")
    axes.set_title("Private tuning of a support vector machine")
    axes.legend(loc="lower right")
    figure.supxlabel(textwrap.fill(f"Released: {guarantee}", 100), fontsize=7)
    return figure


def _audit(draws: int) -> None:
    _heading("3. Check the noise yourself (audit)")

    def gaussian(value: float, size: int, *, sensitivity: float) -> Tensor:
        values = torch.full((size,), value, dtype=torch.double)
        return gaussian_mechanism(values, sensitivity=sensitivity, mu=1.0).value

    delta = 0.05
    claim = gaussian_epsilon(1.0, delta)
    for name, sensitivity in (
        ("Gaussian mechanism", 1.0),
        ("The same with half the noise", 0.5),
    ):
        report = audit_epsilon(
            partial(gaussian, sensitivity=sensitivity),
            0.0,
            1.0,
            samples=draws,
            delta=delta,
            claim=claim,
            batched=True,
        )
        verdict = "not refuted" if report.passes else "REFUTED, as it should be"
        print(
            f"{name}: claimed epsilon {claim:.3f} at delta {delta}, proven from {draws:,} draws "
            f"a side: at least {report.lower_bound:.3f}. {verdict}."
        )


if __name__ == "__main__":
    sys.exit(main())
