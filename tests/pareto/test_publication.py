"""What publishing costs: every training counts, by a filter, and the caption says so."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.problem import SEEDED
from botorch_dp.pareto.publication import _filter_composition, priced_caption
from botorch_dp.privacy import (
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    LaplaceLoss,
    PrivacyUnit,
    PureLoss,
    compose,
    gaussian_epsilon,
    gaussian_guarantee,
)
from botorch_dp.privacy.losses import FixedBatchSGDLoss, PoissonSGDLoss
from tests.pareto import toy


def study(problem: PrivacyUtilityProblem | None = None, **options: Any) -> DPareto:
    options = {"acquisition": "random", "seed": 0} | options
    return DPareto(toy.problem() if problem is None else problem, **options)


def one_gaussian(config: dict[str, Any]) -> Guarantee:
    return gaussian_guarantee(sensitivity=1.0, mu=1 / config["noise"])


class TestFilter:
    """Trials are chosen by the results of earlier ones: no bound may be picked after the fact."""

    def test_a_tree_that_is_worse_than_each_of_its_paths(self) -> None:
        """Randomized response; then another one after a yes, and a rare disclosure after a no."""
        first, second = math.log(18 / 7), math.log(73 / 23)
        disclosure = 0.375

        def guarantee(*losses: PureLoss | ApproximateLoss) -> Guarantee:
            return Guarantee("tree", PrivacyUnit(), losses)

        paths = [
            guarantee(PureLoss(first), PureLoss(second)),
            guarantee(PureLoss(first), ApproximateLoss(0.0, disclosure)),
        ]

        def tree_delta(epsilon: float) -> float:
            """Largest P(S) - e^epsilon Q(S) over all outcomes of the whole tree."""
            yes, other = 18 / 25, 73 / 96
            outcomes = [
                (yes * other, (1 - yes) * (1 - other)),
                (yes * (1 - other), (1 - yes) * other),
                ((1 - yes) * disclosure, 0.0),
                ((1 - yes) * (1 - disclosure), yes * (1 - disclosure)),
            ]
            return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in outcomes)

        assert tree_delta(first) == pytest.approx(0.48)
        for path in paths:
            # What composition makes of the losses that occurred understates the tree.
            assert path.delta(first) == pytest.approx(0.375)
        budget = guarantee(ApproximateLoss(first + second, disclosure))
        for path in paths:
            (loss,) = _filter_composition([path], 1e-6).losses
            assert loss.epsilon <= first + second + 1e-12
            assert getattr(loss, "delta", 0.0) <= disclosure
        for epsilon in (0.0, 0.5, first, 2.0, first + second):
            assert tree_delta(epsilon) <= budget.delta(epsilon) + 1e-12

    @pytest.mark.parametrize(
        ("losses", "expected"),
        [
            ([PureLoss(1.0), LaplaceLoss(0.5), PureLoss(1.0)], PureLoss(2.5)),
            ([PureLoss(1.0), ApproximateLoss(0.5, 1e-5)], ApproximateLoss(1.5, 1e-5)),
            ([ApproximateLoss(1.0, 0.0)], PureLoss(1.0)),
            ([GaussianLoss(3.0), GaussianLoss(4.0)], GaussianLoss(5.0)),
        ],
    )
    def test_the_form_follows_from_the_kinds(self, losses: Any, expected: Any) -> None:
        parts = [Guarantee("a part", PrivacyUnit(), (loss,)) for loss in losses]
        assert _filter_composition(parts, 1e-6).losses == (expected,)

    @pytest.mark.parametrize(
        "loss",
        [
            FixedBatchSGDLoss(1.5, 64, 1000, 50),
            FixedBatchSGDLoss(2.0, 1000, 1000, 5),
            PoissonSGDLoss(1.5, 0.05, 50),
        ],
    )
    def test_one_order_for_dp_sgd(self, loss: Any) -> None:
        """Never below the best bound for fixed losses, and growing by equal steps."""
        part = Guarantee("training", PrivacyUnit(relation=loss.relation), (loss,))
        costs = [_filter_composition([part] * count, 1e-5).losses[0] for count in (10, 20, 30)]
        assert all(cost.delta == 1e-5 for cost in costs)
        assert costs[0].epsilon >= compose(*[part] * 10).epsilon(1e-5)
        first, second = (b.epsilon - a.epsilon for a, b in itertools.pairwise(costs))
        assert first == pytest.approx(second)

    def test_several_kinds(self) -> None:
        losses = (GaussianLoss(0.5), PureLoss(0.2), LaplaceLoss(0.3), PureLoss(0.0))
        parts = [Guarantee("a part", PrivacyUnit(), (loss,)) for loss in losses]
        (smooth,) = _filter_composition(parts, 1e-5).losses
        rough = Guarantee("a part", PrivacyUnit(), (ApproximateLoss(0.4, 1e-3),))
        (both,) = _filter_composition([*parts, rough], 1e-5).losses
        assert smooth.delta == 1e-5 and both.delta == pytest.approx(1e-5 + 1e-3)
        assert both.epsilon == pytest.approx(smooth.epsilon + 0.4)

    def test_all_conditions_and_assumptions_are_kept(self) -> None:
        parts = [
            Guarantee(
                f"part {i}",
                PrivacyUnit(conditions=(f"condition {i}",)),
                (GaussianLoss(1.0),),
                assumptions=(f"assumption {i}",),
            )
            for i in range(2)
        ]
        whole = _filter_composition(parts, 0.0)
        for i in range(2):
            assert f"condition {i}" in whole.conditions and f"assumption {i}" in whole.conditions


class TestPublicationGuarantee:
    def test_counts_every_training(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError
            return toy.utility(config, seed)

        tried = study(toy.problem(train, replicates=2, secret_noise=True))
        front = tried.run(12)
        assert any(trial.state == "failed" for trial in tried.trials)
        again = front.reevaluate(3)
        total = sum(trial.epsilon * trial.num_trainings for trial in tried.trials)
        assert tried.publication_guarantee().epsilon() == pytest.approx(total)
        assert again.guarantee.epsilon() == pytest.approx(total)
        assert front.guarantee.epsilon() < total
        complete = [trial for trial in tried.trials if trial.state == "complete"]
        assert front.guarantee.epsilon() > sum(2 * trial.epsilon for trial in complete)

    def test_seeded_trainings_promise_nothing(self) -> None:
        tried = study()
        front = tried.run(2)
        guarantee = tried.publication_guarantee()
        assert guarantee.status == "none" and guarantee.epsilon(0.5) == math.inf
        assert "seeds" in str(guarantee)
        assert "rerun all trainings with secret noise; that costs" in str(front)

    def test_a_study_cannot_become_secret_later(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        study(storage=path).close()
        with pytest.raises(StudyError, match="`secret_noise` was False and is True"):
            study(toy.problem(secret_noise=True), storage=path)

    def test_deltas_add_up(self) -> None:
        tried = study(toy.problem(delta=1e-5, secret_noise=True))
        tried.run(2)
        (loss,) = tried.publication_guarantee().losses
        total = sum(trial.epsilon for trial in tried.trials)
        assert (loss.epsilon, loss.delta) == pytest.approx((total, 2e-5))
        assert "δ = 2e-05" in tried.front().caption
        one = study(toy.problem(delta=0.5, secret_noise=True))
        assert "deltas" in str(one.run(2).guarantee.void)

    def test_joint_accounting_where_more_is_known(self) -> None:
        problem = toy.problem(guarantee=one_gaussian, secret_noise=True)
        tried = study(problem)
        tried.run(4)
        mu = math.hypot(*(1 / trial.config["noise"] for trial in tried.trials))
        guarantee = tried.publication_guarantee()
        assert guarantee.mu == pytest.approx(mu)
        assert guarantee.epsilon(1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-6)
        assert guarantee.status == "conditional"

    def test_no_guarantee_stays_none(self) -> None:
        nothing = Guarantee("none", PrivacyUnit(), (), void="a guess")
        tried = study(toy.problem(guarantee=lambda config: nothing))
        assert tried.run(2).guarantee.status == "none"
        assert "nothing is guaranteed" in tried.front().caption

    def test_test_data(self) -> None:
        tried = study()
        tried.run(3)
        assert tried.publication_guarantee("test").epsilon() == math.inf
        with pytest.raises(ValueError, match="`data`"):
            tried.publication_guarantee("validation")  # type: ignore[arg-type]

    def test_nothing_to_publish(self) -> None:
        with pytest.raises(StudyError, match="Nothing was trained"):
            study().publication_guarantee()
        with pytest.raises(StudyError, match="No trial has finished"):
            study().front()


class TestCaption:
    @pytest.mark.parametrize(
        ("losses", "expected"),
        [
            ((PureLoss(1.00004),), "costs ε = 1.001 for"),
            ((ApproximateLoss(1.0, 1e-5),) * 2, "costs (ε = 2, δ = 2e-05) for"),
            ((ApproximateLoss(1.0, 0.6),) * 2, "Do not publish"),
        ],
    )
    def test_never_less_than_the_truth(self, losses: tuple[Any, ...], expected: str) -> None:
        caption = priced_caption(Guarantee("toy", PrivacyUnit(), losses))
        assert expected in caption

    def test_seeded_trainings_are_priced_as_if_repeated_only(self) -> None:
        guarantee = Guarantee("toy", PrivacyUnit(), (PureLoss(12.0),), void=SEEDED)
        caption = priced_caption(guarantee)
        assert caption.startswith("Do not publish:")
        nothing = caption.index("the trainings used known seeds, so nothing is guaranteed")
        what_if = caption.index("rerun all trainings with secret noise; that costs ε = 12")
        assert nothing < what_if
        simulated = Guarantee("toy", PrivacyUnit(), (PureLoss(12.0),)).simulated()
        assert "12" not in priced_caption(simulated)
