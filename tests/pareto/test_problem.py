from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_dp.pareto import Batched, DPareto, Objective, PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.pareto.problem import InvalidEpsilonError, InvalidUtilityError, Measurement
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyBudget, PrivacyUnit
from botorch_dp.privacy.losses import ApproximateLoss, GaussianLoss, PureLoss
from botorch_dp.report import study_report
from tests.pareto import toy

CONFIG = {"noise": 2.0, "epochs": 4}


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"train": None}, ValueError, "either `utility` or"),
            ({"batched": Batched(replicates=toy.utility)}, ValueError, "either `utility` or"),
            ({"ref_point": (10.0, math.nan)}, ValueError, r"`ref_point\[1\]`"),
            ({"objectives": [Objective("time", 1.0)] * 2}, ValueError, "different names"),
        ],
    )
    def test_wrong(self, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            toy.problem(**options)


class TestEpsilon:
    @pytest.mark.parametrize("value", [-1.0, math.nan, None])
    def test_nonsense(self, value: object) -> None:
        with pytest.raises(InvalidEpsilonError, match="finite epsilon >= 0"):
            toy.problem(privacy=lambda config: value).epsilon(CONFIG)

    def test_the_oracle_cannot_change_the_config(self) -> None:
        config = dict(CONFIG)
        toy.problem(privacy=lambda c: float(c.pop("epochs"))).epsilon(config)
        assert config == CONFIG

    def test_bounds(self) -> None:
        assert toy.problem().epsilon_bounds([CONFIG, CONFIG]) == [1.0, 1.0]
        batch = toy.problem(batched=Batched(epsilons=lambda cs: np.full(len(cs), 1.5)))
        assert batch.epsilon_bounds([CONFIG]) == [1.5]
        assert batch.epsilon(CONFIG) == 1.0
        for wrong in ([], [math.nan], [-1.0]):
            broken = toy.problem(batched=Batched(epsilons=lambda cs, w=wrong: w))
            with pytest.raises(InvalidEpsilonError, match=r"`batched\.epsilons`"):
                broken.epsilon_bounds([CONFIG])


class TestMeasurement:
    @pytest.mark.parametrize("answer", [math.nan, -0.01, 87.5])
    def test_out_of_range_is_not_quoted(self, answer: float) -> None:
        with pytest.raises(InvalidUtilityError, match=r"\[0, 1\]") as caught:
            toy.problem().measurement(answer)
        assert str(answer) not in str(caught.value)

    def test_measured_objectives(self) -> None:
        size = Objective("size", 100.0, function=lambda config: float(config["epochs"]))
        problem = toy.problem(objectives=[size, Objective("time", 60.0)])
        assert problem.objective_names == ("epsilon", "error", "size", "time")
        assert problem.full_ref_point == (10.0, 1.0, 100.0, 60.0)
        assert problem.measurement((0.5, {"time": 2.0})).objectives == (2.0,)
        for wrong in (0.5, (0.5, {"tim": 2.0}), (0.5, {"time": 0.0}), (0.5, {"time": math.nan})):
            with pytest.raises(InvalidUtilityError):
                problem.measurement(wrong)


class TestPromise:
    def test_pure_and_approximate(self) -> None:
        pure = toy.problem().training_guarantee(CONFIG, 1.0)
        assert pure.losses == (PureLoss(1.0),) and pure.status == "conditional"
        assert pure.protects == "one record of the training data"
        unit = PrivacyUnit("one patient", NeighboringRelation.ADD_OR_REMOVE_ONE)
        approximate = toy.problem(delta=1e-5, unit=unit).training_guarantee(CONFIG, 1.0)
        assert approximate.losses == (ApproximateLoss(1.0, 1e-5),)
        assert approximate.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        assert approximate.protects == "one patient"

    def test_the_users_own_with_the_condition_that_noise_is_secret(self) -> None:
        unit = PrivacyUnit(conditions=("a patient has one record",))
        own = Guarantee("noise", unit, (GaussianLoss(0.5),), assumptions=("the earth is round",))
        promised = toy.problem(guarantee=lambda config: own).training_guarantee(CONFIG, 1.0)
        assert promised.losses == own.losses and promised.assumptions == own.assumptions
        first, second = promised.unit.conditions
        assert first == "a patient has one record" and "secret" in second


class TestWithoutAPromise:
    """What nobody stated is not claimed: no relation, no delta, and no price."""

    problem = PrivacyUtilityProblem(toy.SPACE, privacy=toy.epsilon, utility=toy.utility)

    def test_has_no_price(self) -> None:
        study = DPareto(self.problem, seed=0, acquisition="random")
        front = study.run(3)
        for asked in (study.publication_guarantee, lambda: front.guarantee):
            with pytest.raises(StudyError, match=r"pass `training=TrainingPrivacy\(delta"):
                asked()
        with pytest.raises(StudyError, match="`training=TrainingPrivacy"):
            DPareto(self.problem, budget=PrivacyBudget(1.0, 1e-6))
        assert not {"relation", "delta"} & set(self.problem.description())

    def test_says_so_wherever_it_is_shown(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with DPareto(self.problem, seed=0, acquisition="random", storage=path) as study:
            front = study.run(3)
            page = study.report(tmp_path / "front.html").read_text()
            captions = [front.caption, str(front), study.to_frame().attrs["guarantee"]]
            captions.append(pickle.loads(pickle.dumps(front)).caption)
            captions.append(front.reevaluate(1).caption)
        captions += [page, study_report(path, tmp_path / "file.html").read_text()]
        for caption in captions:
            assert "relation and delta of its epsilon are not stated" in caption
            assert "replaced by any other" not in caption and "that costs" not in caption
        assert "relation and δ not stated" in front.plot().axes[0].get_xlabel()


def test_name_and_description_identify_the_problem(tmp_path: Path) -> None:
    problem = PrivacyUtilityProblem(toy.SPACE, privacy=toy.epsilon, utility=toy.utility)
    other = PrivacyUtilityProblem(toy.SPACE, privacy=toy.epsilon, utility=toy.Slow(0.0))
    assert problem.name == other.name == "noise and epochs", "what a reader knows of it"
    DPareto(problem, storage=tmp_path / "s").close()
    with pytest.raises(StudyError, match="`oracle` was 'utility' and is 'Slow'"):
        DPareto(other, storage=tmp_path / "s")
    assert problem.description() != toy.problem(replicates=2).description()
    assert toy.problem(secret_noise=True).description()["secret_noise"] is True


class TestTrial:
    def test_a_failure(self) -> None:
        trial = Trial(0, {}, (7,), 1.0)
        failed = trial.failed(OSError("record 17"), trainings=2)
        assert (failed.state, failed.num_trainings) == ("failed", 2)
        assert (failed.failure, failed.failure_type) == ("OSError: record 17", "OSError")
        assert "17" not in repr(failed)
        assert failed.measured({0: Measurement(0.5)}).state == "failed"
        complete = trial.measured({0: Measurement(0.5)})
        assert complete.failed(OSError(), trainings=1).state == "complete"

    def test_what_was_measured_first_stays(self) -> None:
        trial = Trial(0, {}, (7, 8), 1.0).measured({0: Measurement(0.5)})
        assert trial.missing == (1,) and trial.state == "pending"
        trial = trial.measured({0: Measurement(0.75), 1: Measurement(0.25)})
        assert trial.utilities == (0.5, 0.25) and trial.state == "complete"

    def test_fresh_measurements_are_kept_apart(self) -> None:
        trial = Trial(0, {}, (7, 8), 1.0)
        assert trial.next_replicate == 2
        again = trial.measured({0: Measurement(0.5), 1: Measurement(0.5)}).measured(
            {4: Measurement(0.75)}
        )
        assert again.fresh[4].utility == 0.75 and again.utilities == (0.5, 0.5)
        assert again.next_replicate == 5 and again.num_trainings == 3

    def test_outcome_keeps_the_order_of_objectives(self) -> None:
        problem = toy.problem(
            objectives=[
                Objective("time", 60.0),
                Objective("size", 100.0, function=lambda config: float(config["epochs"])),
                Objective("memory", 10.0),
            ]
        )
        trial = Trial(
            number=0,
            config={"noise": 1.0, "epochs": 4},
            seeds=(1, 2),
            epsilon=2.0,
            measurements=(Measurement(0.5, (1.0, 5.0)), Measurement(0.5, (3.0, 6.0))),
        )
        assert problem.values([trial])[0] == (2.0, 0.5, 2.0, 4.0, 5.5)
