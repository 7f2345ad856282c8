"""``make demo``: a private search, a model with nothing tuned, and what accuracy each epsilon buys.

Everything runs on data that comes with scikit-learn. Files and figures go to ``demo/``; a second
call continues where the first one ended, and releases nothing a second time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC
from torch import nn

from botorch_dp import (
    DPareto,
    DPTrainer,
    PrivacyBudget,
    PrivacyLedger,
    PrivateSearch,
    Real,
    SearchSpace,
    datasets,
)
from botorch_dp.objectives import per_record_scores

#: The command line of this environment, as one would type it here.
_COMMAND = os.path.relpath(Path(sys.executable).with_name("botorch-dp"))


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m examples.demo")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where files go")
    parser.add_argument("--trials", type=int, default=12, help="epsilons to train at")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        _search(options.folder)
        _train(options.folder)
        _front(options.folder, options.trials)
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Look into {options.folder}/.")
    return 0


def _heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def _search(folder: Path) -> None:
    _heading("1. Tune on records that must not leak (PrivateSearch)")
    X, y = load_digits(return_X_y=True)
    space = SearchSpace(C=Real(0.1, 100.0, log=True), gamma=Real(1e-5, 1.0, log=True))
    scores = per_record_scores(SVC(), space, (X[:600], y[:600]), (X[600:], y[600:]), "zero_one")
    search = PrivateSearch(
        scores, space, bounds=(0.0, 1.0), budget=PrivacyBudget(1.0), evaluations=20
    )
    print(
        "A support vector machine reads digits. 600 images are public and train it; the others,\n"
        "1,197, are sensitive and score 20 settings of C and gamma. The plan, before any is read:\n"
    )
    print(search.plan())
    with PrivacyLedger(folder / "ledger.sqlite", PrivacyBudget(1.0)) as ledger:
        result = search.run(progress=True, checkpoint=folder / "search.sqlite", ledger=ledger)
        result.receipt(ledger=ledger).save(folder / "receipt.json")
    print(f"\nMay be published:\n{result}")
    print(f"For a reviewer: {folder}/receipt.json (`{_COMMAND} verify {folder}/receipt.json`)")
    print(f"What was spent: `{_COMMAND} ledger show {folder}/ledger.sqlite`")


def _digits() -> DPTrainer:
    # Each image has a norm of 1 by construction, so that the norm is public.
    data = datasets.digits(seed=0)
    train_X, test_X = (nn.functional.normalize(X) for X in (data.train_X, data.test_X))
    records = data._replace(train_X=train_X, test_X=test_X)
    return DPTrainer(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, records)


def _train(folder: Path) -> None:
    _heading("2. Train and publish a model, with nothing to tune (DPTrainer)")
    trainer, epsilon = _digits(), 3.0
    trained = trainer.fit(
        target_epsilon=epsilon,
        feature_norm=1.0,
        publish=True,
        checkpoint=folder / "model.run",
    )
    print(f"One epsilon in, everything else from public numbers:\n\n{trained.plan}\n")
    print(f"May be published:\n{trained}")
    print(f"(Its accuracy on test records, which is sensitive: {trained.accuracy:.3f}.)")


def _front(folder: Path, trials: int) -> None:
    _heading("3. What accuracy does each epsilon buy? (DPareto)")
    epsilons = SearchSpace(target_epsilon=Real(0.3, 8.0, log=True))
    problem = _digits().problem(epsilons, replicates=3, feature_norm=1.0, ref_point=(8.0, 1.0))
    with (
        warnings.catch_warnings(),
        DPareto(problem, storage=folder / "study.sqlite", seed=0) as study,
    ):
        warnings.simplefilter("ignore")  # that little can be learnt at the smallest epsilons
        front = study.run(max(trials, len(study.trials)), progress=True)
        best = study.recommend(epsilon=1.0)
    front.plot(recommended=best).savefig(folder / "front.png", dpi=150)
    print("\n  epsilon   error\n" + "\n".join(f"  {e:7.3f}  {r:6.3f}" for e, r in front.points))
    print(f"\nFor epsilon = 1: {best}")
    print(f"Figure: {folder}/front.png\n{front.caption}")
    print(f"To look at every trial: `{_COMMAND} report {folder}/study.sqlite`")


if __name__ == "__main__":
    sys.exit(main())
