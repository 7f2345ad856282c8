"""Every promised public name can be imported from its room, and each room lists its exports."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "privacy": """NeighboringRelation Guarantee compose Release PrivacyBudget BudgetExhausted
        PrivacyLedger laplace_mechanism gaussian_mechanism exponential_mechanism sparse_vector
        laplace_guarantee gaussian_guarantee exponential_guarantee sparse_vector_guarantee
        gaussian_epsilon gaussian_delta gaussian_mu compose_gdp dp_sgd_epsilon
        dp_sgd_noise_multiplier audit_epsilon PrivacyError NotPublicError""",
    "models": "public_gp check_public FiniteSetGP GradientPosterior max_information_gain",
    "acquisition": """UCBSchedule PrivateUpperConfidenceBound GradientTrace
        HypervolumeProbabilityOfImprovement LogHypervolumeProbabilityOfImprovement""",
    "objectives": "PerRecordLosses PrivateObjective per_record_scores check_per_record",
    "release": """PrivateChoice LinearChoice PrivateMaximum NoiseFreeMaximum LipschitzMaximum
        PrivateGPUCB BranchAndBoundUCB""",
    "descent": "DPGIBO private_start",
    "outsourced": "RandomProjectionCurator GaussianNoiseCurator Modeler",
    "pareto": "Real Integer SearchSpace PrivacyUtilityProblem DPareto ParetoFront",
    "training": "TrainTest DPTrainer OutputPerturbedLogisticRegression",
    "tuning": "PrivateSearch",
    "tasks": """adult_logistic_sgd adult_logistic_adam adult_svm_sgd mnist_mlp1_sgd
        mnist_mlp2_sgd private_logistic_regression sparse_vector""",
}


@pytest.mark.parametrize("room", NAMES)
def test_names_exist(room: str) -> None:
    module = importlib.import_module(f"botorch_dp.{room}")
    missing = [name for name in NAMES[room].split() if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("room", NAMES)
def test_all_lists_what_is_exported(room: str) -> None:
    module = importlib.import_module(f"botorch_dp.{room}")
    listed = getattr(module, "__all__", dir(module))
    assert set(NAMES[room].split()) <= set(listed)
    assert all(hasattr(module, name) for name in listed)
    assert all(getattr(module, name).__doc__ for name in NAMES[room].split())


def test_top_level_names_are_those_of_their_rooms() -> None:
    import botorch_dp

    assert set(botorch_dp.__all__) == set(botorch_dp._ROOMS) <= set(dir(botorch_dp))
    for name, room in botorch_dp._ROOMS.items():
        module = importlib.import_module(f"botorch_dp.{room}")
        assert getattr(botorch_dp, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="no attribute 'PrivateSerach'"):
        _ = botorch_dp.PrivateSerach
