"""What ``make dist`` tries in a clean environment, with the built package and no test tools.

python installed.py [EXTRA]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

import botorch_dp as bdp
from botorch_dp.privacy import laplace_mechanism
from botorch_dp.space import Real

PRICE = "epsilon --noise-multiplier 1 --batch-size 256 --num-records 32561 --epochs 8 --delta 1e-5"


def bare() -> None:
    """What works without any extra."""
    assert (Path(bdp.__file__).parent / "py.typed").exists()
    assert version("botorch_dp") == bdp.__version__
    for arguments in ("--help", PRICE):
        command = [str(Path(sys.executable).parent / "botorch-dp"), *arguments.split()]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout[-300:])
    records = torch.rand(500, dtype=torch.double)
    with tempfile.TemporaryDirectory() as folder:
        ledger = bdp.PrivacyLedger(f"{folder}/study.ledger", bdp.PrivacyBudget(1.0, 1e-6))
        search = bdp.PrivateSearch(
            lambda configs: torch.stack([(records - config["x"]).abs() for config in configs]),
            bdp.SearchSpace(x=Real(0.0, 1.0)),
            bounds=(0.0, 1.0),
            budget=bdp.PrivacyBudget(0.5, 1e-7),
            evaluations=20,
            num_records=500,
        )
        print(search.run(ledger=ledger).config)
        ledger.close()
    release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=0.5)
    assert release.receipt().verify(artifact=release.value).passes


def signing() -> None:
    """A receipt is signed."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=0.5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key.pem"
        path.write_bytes(key)
        assert release.receipt().signed(path).document["signature"]


def plots() -> None:
    """A figure is drawn, also within a page."""
    from botorch_dp.plots import plot_front

    with tempfile.TemporaryDirectory() as folder, study() as trials:
        plot_front(trials.front())
        assert trials.report(f"{folder}/page.html").stat().st_size


def frames() -> None:
    """Trials become a table."""
    with study() as trials:
        assert len(trials.to_frame()) == 3


def study() -> bdp.DPareto:
    """Three trials of something."""
    problem = bdp.PrivacyUtilityProblem(
        bdp.SearchSpace(noise=Real(0.1, 10.0)),
        privacy=lambda config: 1 / config["noise"],
        utility=lambda config, seed: 1 / (1 + config["noise"]),
    )
    trials = bdp.DPareto(problem, seed=0)
    trials.run(3, progress=False)
    return trials


def sklearn() -> None:
    """A search in scikit-learn's form."""
    from sklearn.linear_model import LogisticRegression

    from botorch_dp.integrations.sklearn import PrivateSearchCV

    X = torch.randn(200, 2).numpy()
    search = PrivateSearchCV(
        LogisticRegression(),
        {"C": [0.1, 1.0]},
        public=(X[:100], X[:100, 0] > 0),
        budget=bdp.PrivacyBudget(1.0),
        n_iter=2,
    )
    assert search.fit(X[100:], X[100:, 0] > 0).best_params_


def optuna() -> None:
    """A study in Optuna."""
    import optuna

    from botorch_dp.integrations.optuna import DParetoSampler, suggest

    space = bdp.SearchSpace(noise=Real(0.1, 10.0))
    sampler = DParetoSampler(space, lambda config: 1 / config["noise"], initial=2)
    trials = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    trials.optimize(lambda trial: (1 / suggest(trial, space)["noise"], 0.5), n_trials=2)


def ax() -> None:
    """Ax knows the acquisition functions."""
    from botorch_dp.acquisition import register_with_ax

    register_with_ax()


def dask() -> None:
    """Trainings go to Dask."""
    from distributed import Client

    with Client(processes=False, dashboard_address=None) as client, study() as trials:
        trials.run(1, executor=client.get_executor(pure=False, retries=0), progress=False)


def ray() -> None:
    """Trainings go to Ray."""
    from botorch_dp.integrations.ray import RayExecutor

    with RayExecutor() as executor:
        assert executor.submit(abs, -1).result() == 1


def huggingface() -> None:
    """What users of the extra import."""
    import peft
    import transformers

    assert peft.LoraConfig and transformers.DistilBertConfig


if __name__ == "__main__":
    home = Path(bdp.__file__).parent
    assert home.is_relative_to(sys.prefix) or len(sys.argv) > 1, f"{home} is not installed here."
    (globals()[sys.argv[1]] if len(sys.argv) > 1 else bare)()
