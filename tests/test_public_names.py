"""Every promised public name can be imported from where it is promised."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

from tools.names import PACKAGE, public_names, source_of

NAMES = {
    "privacy": """NeighboringRelation Guarantee compose Release PrivacyBudget BudgetExhausted
        PrivacyLedger laplace_mechanism gaussian_mechanism exponential_mechanism sparse_vector
        laplace_guarantee gaussian_guarantee exponential_guarantee sparse_vector_guarantee
        gaussian_epsilon gaussian_delta gaussian_mu compose_gdp dp_sgd_epsilon
        dp_sgd_noise_multiplier audit_epsilon PrivacyError NotPublicError""",
    "models": "public_gp check_public FiniteSetGP GradientPosterior max_information_gain",
    "acquisition": """UCBSchedule PrivateUpperConfidenceBound GradientTrace
        HypervolumeProbabilityOfImprovement LogHypervolumeProbabilityOfImprovement""",
    "objectives": "PrivateObjective per_record_scores check_per_record",
    "release": """PrivateChoice PrivateMaximum NoiseFreeMaximum LipschitzMaximum
        PrivateGPUCB BranchAndBoundUCB""",
    "descent": "DPGIBO private_start",
    "outsourced": "RandomProjectionCurator GaussianNoiseCurator Modeler",
    "pareto": "PrivacyUtilityProblem DPareto ParetoFront",
    "training": "TrainTest DPTrainer OutputPerturbedLogisticRegression",
    "tuning": "PrivateSearch",
    "tasks": """adult_logistic_sgd adult_logistic_adam adult_svm_sgd mnist_mlp1_sgd
        mnist_mlp2_sgd sparse_vector""",
}


@pytest.mark.parametrize("where", NAMES)
def test_names_exist_and_say_what_they_are(where: str) -> None:
    module = importlib.import_module(f"botorch_dp.{where}")
    stated = public_names(source_of(where))
    assert set(NAMES[where].split()) <= set(stated)
    assert all(hasattr(module, name) for name in stated)
    assert all(getattr(module, name).__doc__ for name in NAMES[where].split())


def test_top_level_names_are_those_of_their_subpackages() -> None:
    import botorch_dp

    for name, where in botorch_dp._HOME.items():
        module = importlib.import_module(f"botorch_dp.{where}")
        assert getattr(botorch_dp, name) is getattr(module, name)
    assert set(botorch_dp.__all__) <= set(dir(botorch_dp))
    with pytest.raises(AttributeError, match="no attribute 'PrivateSerach'"):
        _ = botorch_dp.PrivateSerach


def test_names_of_privacy_that_need_torch_are_loaded_late() -> None:
    """A budget, a ledger and a price need it not, and are there in a third of a second."""
    from botorch_dp import privacy

    stated = {
        name: module for module, names in privacy._LATE.items() for name in names
    }  # fmt: skip
    source = (PACKAGE / "privacy" / "__init__.py").read_text()
    (block,) = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imported = {
        alias.name: (node.module or "").rpartition(".")[2]
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == stated and set(stated) < set(privacy.__all__)
    for name, module in stated.items():
        home = importlib.import_module(f"botorch_dp.privacy.{module}")
        assert getattr(privacy, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="no attribute 'Recipt'"):
        _ = privacy.Recipt
    script = (
        "import sys; from botorch_dp import PrivacyBudget, PrivacyLedger\n"
        "from botorch_dp.privacy import dp_sgd_epsilon\n"
        "PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))\n"
        "assert not {'torch', 'scipy.stats', 'dp_accounting'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_type_checkers_see_the_names_that_are_loaded_late() -> None:
    import botorch_dp

    (block,) = [
        node
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.If)
    ]
    seen = {
        alias.name: str(node.module).removeprefix("botorch_dp.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == botorch_dp._HOME


def test_whatever_takes_a_ledger_to_charge_takes_a_label() -> None:
    found = 0
    for where in NAMES:
        module = importlib.import_module(f"botorch_dp.{where}")
        for name in public_names(source_of(where)):
            value = getattr(module, name)
            methods = vars(value).items() if inspect.isclass(value) else ()
            for each, call in ((name, value), *((f"{name}.{m}", f) for m, f in methods)):
                if callable(call) and "._" not in each and each != "Receipt.of":
                    try:
                        parameters = inspect.signature(call).parameters
                    except ValueError:
                        continue
                    ledger = parameters.get("ledger")
                    charges = ledger is not None and "PrivacyLedger" in str(ledger.annotation)
                    assert not charges or "label" in parameters, each
                    found += charges
    assert found > 12
