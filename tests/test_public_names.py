"""Every promised public name can be imported from where it is promised."""

from __future__ import annotations

import ast
import importlib
import inspect

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


def seen_by_type_checkers(folder: str) -> dict[str, str]:
    """The names that a package imports for type checkers only, and from where."""
    source = (PACKAGE / folder / "__init__.py").read_text()
    (block,) = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_names_that_are_loaded_late_are_those_that_type_checkers_see() -> None:
    import botorch_dp
    from botorch_dp import privacy

    homes = {name: f"botorch_dp.{home}" for name, home in botorch_dp._HOME.items()}
    assert seen_by_type_checkers("") == homes
    stated = {name: module for module, names in privacy._LATE.items() for name in names}
    late = {name: f"botorch_dp.privacy.{module}" for name, module in stated.items()}
    assert seen_by_type_checkers("privacy") == late and set(stated) < set(privacy.__all__)
    for name, module in stated.items():
        home = importlib.import_module(f"botorch_dp.privacy.{module}")
        assert getattr(privacy, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="no attribute 'Recipt'"):
        _ = privacy.Recipt


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
