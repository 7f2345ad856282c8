"""Guarantees are data that compare, travel and never say more than is true."""

from __future__ import annotations

import json
import math
import pickle
import random
import warnings
from fractions import Fraction

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyUnit,
    compose,
    gaussian_guarantee,
)
from botorch_dp.privacy.guarantee import check_unit
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    LaplaceLoss,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
)

REPLACE = NeighboringRelation.REPLACE_ONE
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE

ONE_OF_EACH: list[PrivacyLoss] = [
    PureLoss(0.3),
    LaplaceLoss(0.3),
    GaussianLoss(0.4),
    ApproximateLoss(0.2, 1e-7),
    PoissonSGDLoss(1.1, 0.01, 100),
    FixedBatchSGDLoss(1.1, 10, 1000, 100),
]


def promise(*losses: PrivacyLoss, **kwargs: object) -> Guarantee:
    relations = [loss.relation for loss in losses if loss.relation is not None]
    unit = PrivacyUnit(relation=relations[0]) if relations else PrivacyUnit()
    settings = {"mechanism": "Test mechanism", "unit": unit, **kwargs}
    return Guarantee(losses=losses, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
class TestEveryLoss:
    def test_travels_through_json_and_pickle(self, loss: PrivacyLoss) -> None:
        unit = PrivacyUnit("one row", loss.relation or ADD, ("rows are independent",))
        g = promise(loss, unit=unit, assumptions=("the sun rises",), quoted_delta=1e-7)
        assert Guarantee.from_dict(json.loads(json.dumps(g.to_dict()))) == g
        assert pickle.loads(pickle.dumps(g)) == g
        assert hash(g) == hash(pickle.loads(pickle.dumps(g)))

    def test_epsilon_and_delta_agree_on_the_safe_side(self, loss: PrivacyLoss) -> None:
        g = promise(loss)
        epsilon = g.epsilon(1e-5)
        assert 0 < epsilon < math.inf
        # An epsilon that holds at delta must not need more than (about) delta.
        assert g.delta(epsilon) <= 1e-5 * (1 + 1e-3) + 1e-12
        assert g.delta(epsilon * 1.5) <= g.delta(epsilon)
        assert g.epsilon(1e-9) >= epsilon

    def test_nothing_is_promised_once_simulated(self, loss: PrivacyLoss) -> None:
        g = promise(loss)
        simulated = g.simulated()
        assert simulated.status == "none"
        assert simulated.epsilon(1e-5) == math.inf
        assert simulated.delta(3.0) == 1.0
        assert simulated.mu is None
        assert simulated.summed is None
        assert "simulated noise: nothing is guaranteed" in str(simulated)
        assert simulated.simulated() == simulated
        assert simulated.nominal == g


def test_mu_only_for_gaussian_losses() -> None:
    assert promise(GaussianLoss(3.0), GaussianLoss(4.0)).mu == pytest.approx(5.0)
    assert promise(GaussianLoss(3.0), PureLoss(1.0)).mu is None


def test_summed() -> None:
    g = promise(PureLoss(1.0), LaplaceLoss(0.5), ApproximateLoss(0.25, 1e-6))
    assert g.summed == (1.75, 1e-6)
    assert promise(GaussianLoss(1.0)).summed is None
    assert promise(ApproximateLoss(1.0, 0.7), ApproximateLoss(1.0, 0.7)).summed == (2.0, 1.0)


def test_status_follows_from_what_is_stated() -> None:
    caller = PrivacyUnit(conditions=("a record's score depends on that record only",))
    assert promise(PureLoss(1.0), unit=caller).status == "proven"
    assert promise(PureLoss(1.0), unit=caller, assumptions=("A",)).status == "conditional"
    assert promise(void="the rows can be read off").status == "none"


def test_the_callers_part_is_printed() -> None:
    unit = PrivacyUnit(conditions=("a patient has one record",))
    assert "It holds if:\n1. a patient has one record" in str(promise(PureLoss(1.0), unit=unit))
    both = str(promise(PureLoss(1.0), unit=unit, assumptions=("A",)))
    assert "1. a patient has one record\nAssumed, not proven:\n2. A" in both
    assert unit.given("a patient has one record", "B").conditions == (*unit.conditions, "B")


def test_the_delta_asked_for_is_the_delta_quoted() -> None:
    asked = gaussian_guarantee(sensitivity=1.0, epsilon=1.0, delta=1e-5)
    assert "(1, 1e-05)-differentially private" in str(asked)
    assert "(1, 1e-05)" in str(compose(asked))
    assert compose(asked, asked).quoted_delta == 1e-5
    assert compose(asked, promise(GaussianLoss(1.0))).quoted_delta is None


class TestCompose:
    def test_refuses_mixed_relations(self) -> None:
        with pytest.raises(PrivacyError, match=r"ADD_OR_REMOVE_ONE.*REPLACE_ONE"):
            compose(promise(PureLoss(1.0)), promise(PureLoss(1.0), unit=PrivacyUnit(relation=ADD)))

    def test_carries_all_conditions_and_the_weakest_status(self) -> None:
        proven = promise(PureLoss(1.0))
        first = promise(PureLoss(1.0), assumptions=("A", "B"))
        second = promise(PureLoss(1.0), unit=PrivacyUnit(conditions=("D",)), assumptions=("B", "C"))
        assert compose(proven, proven).status == "proven"
        assert compose(first, proven, second).conditions == ("D", "A", "B", "C")
        assert compose(proven, first).status == "conditional"
        broken = compose(first, proven.simulated())
        assert broken.status == "none"
        assert broken.epsilon(0.1) == math.inf


class TestWrongArguments:
    def test_a_proof_under_one_relation_is_none_under_another(self) -> None:
        with pytest.raises(PrivacyError, match=r"ADD_OR_REMOVE_ONE.*REPLACE_ONE only"):
            check_unit(PrivacyUnit(relation=ADD), REPLACE)
        assert check_unit(PrivacyUnit(), REPLACE) == PrivacyUnit()

    def test_a_loss_under_another_relation_is_no_guarantee(self) -> None:
        with pytest.raises(PrivacyError, match="says nothing about REPLACE_ONE"):
            promise(PoissonSGDLoss(1.1, 0.01, 100), unit=PrivacyUnit(relation=REPLACE))

    def test_no_losses(self) -> None:
        with pytest.raises(ValueError, match="`losses`"):
            promise()
        assert promise(void="no reason").epsilon(0.5) == math.inf


class TestTradeoff:
    def test_gaussian_by_hand(self) -> None:
        g = promise(GaussianLoss(1.0))
        assert g.tradeoff(0.5) == pytest.approx(norm.cdf(-1.0), rel=1e-12)
        assert (g.tradeoff(0.0), g.tradeoff(1.0)) == (1.0, 0.0)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
    def test_is_a_tradeoff_function_that_agrees_with_the_curve(self, loss: PrivacyLoss) -> None:
        g = promise(loss)
        alphas = np.linspace(0, 1, 41)
        missed = np.array([g.tradeoff(alpha) for alpha in alphas])
        assert np.all((missed >= 0) & (missed <= 1 - alphas + 1e-12))
        assert np.all(np.diff(missed) <= 1e-12)
        assert np.all(np.diff(missed, 2) >= -1e-9)
        # Both lines of each (epsilon, delta) lie below what is true, and f reaches the best.
        for epsilon in (0.0, 0.1, 0.3):
            lines = 1 - g.delta(epsilon) - math.exp(epsilon) * alphas
            assert np.all(missed >= lines - 5e-3)

    def test_pure_by_hand(self) -> None:
        g = promise(PureLoss(1.0))
        assert g.tradeoff(0.1) == pytest.approx(1 - 0.1 * math.e, abs=1e-3)
        assert g.tradeoff(0.1) <= 1 - 0.1 * math.e
        assert g.tradeoff(0.9) == pytest.approx(0.1 / math.e, abs=1e-3)

    def test_never_above_the_gaussian_function_it_is_compared_with(self) -> None:
        # A pure part next to nothing takes the general path.
        exact, general = promise(GaussianLoss(1.0)), promise(GaussianLoss(1.0), PureLoss(1e-9))
        for alpha in (0.001, 0.05, 0.3, 0.8):
            assert general.tradeoff(alpha) <= exact.tradeoff(alpha)
            assert general.tradeoff(alpha) == pytest.approx(exact.tradeoff(alpha), abs=5e-3)

    def test_nothing_promised_nothing_missed(self) -> None:
        assert promise(PureLoss(1.0)).simulated().tradeoff(0.5) == 0.0


class TestGroups:
    @pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
    def test_a_group_of_one_and_of_more(self, loss: PrivacyLoss) -> None:
        g = promise(loss)
        assert g.for_group(1) is g
        three = g.for_group(3)
        assert three.protects == "a group of 3, each of them one record of the data set"
        assert three.relation is g.relation
        epsilon, delta = g.quoted
        factor = 1 + math.exp(epsilon) + math.exp(2 * epsilon)
        assert three.delta(3 * epsilon) <= delta * factor * (1 + 1e-6)

    def test_by_hand(self) -> None:
        assert promise(PureLoss(0.3)).for_group(4).losses == (PureLoss(1.2),)
        assert promise(GaussianLoss(0.3), GaussianLoss(0.4)).for_group(2).mu == 1.0
        (approximate,) = promise(ApproximateLoss(math.log(2), 0.01)).for_group(3).losses
        assert approximate.epsilon == pytest.approx(3 * math.log(2))
        assert approximate.delta == pytest.approx(0.07)

    def test_a_group_moves_a_training_by_as_many_steps(self) -> None:
        """A step of a group of two is a mixture of no, one and two shifts."""
        q, c = 0.2, 0.7
        pair = promise(PoissonSGDLoss(1 / c, q, 1), quoted_delta=1e-3).for_group(2)
        y = np.linspace(-9, 11, 8001)
        p = sum(
            weight * norm.pdf(y - shift * c)
            for shift, weight in enumerate([(1 - q) ** 2, 2 * q * (1 - q), q**2])
        )
        for epsilon in (0.1, 0.5, 1.0):
            exact = np.maximum(p - math.exp(epsilon) * norm.pdf(y), 0).sum() * (y[1] - y[0])
            assert exact <= pair.delta(epsilon)

    def test_refuses_what_promises_nothing(self) -> None:
        with pytest.raises(PrivacyError, match="says nothing about a group of 40"):
            promise(ApproximateLoss(1.0, 1e-6)).for_group(40)
        with pytest.raises(ValueError, match="`size`"):
            promise(PureLoss(1.0)).for_group(0)


class TestEvents:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        ("losses", "relation"),
        [
            ((GaussianLoss(0.5),), REPLACE),
            ((GaussianLoss(0.5),), ADD),
            ((GaussianLoss(0.5), PureLoss(0.3)), REPLACE),
            ((GaussianLoss(0.5), LaplaceLoss(0.3)), ADD),
            ((PoissonSGDLoss(1.1, 0.05, 50),), ADD),
            ((PoissonSGDLoss(1.1, 0.05, 50, REPLACE), GaussianLoss(0.2)), REPLACE),
        ],
    )
    def test_their_accountant_says_the_same(
        self, losses: tuple[PrivacyLoss, ...], relation: NeighboringRelation
    ) -> None:
        g = promise(*losses, unit=PrivacyUnit(relation=relation))
        accountant = PLDAccountant(dpa.NeighboringRelation[relation.name])
        theirs = accountant.compose(g.to_event()).get_epsilon(1e-5)
        assert theirs == pytest.approx(g.epsilon(1e-5), rel=2e-3)

    def test_fixed_batches_are_for_their_renyi_accountant(self) -> None:
        g = promise(FixedBatchSGDLoss(1.1, 10, 1000, 100))
        accountant = RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE)
        theirs = accountant.compose(g.to_event()).get_epsilon(1e-5)
        # In our units: with half of the noise it would be below ours.
        assert g.epsilon(1e-5) < theirs < 2 * g.epsilon(1e-5)

    def test_what_has_no_event(self) -> None:
        with pytest.raises(PrivacyError, match="no event that bounds a ApproximateLoss"):
            promise(ApproximateLoss(1.0, 1e-6)).to_event()
        with pytest.raises(PrivacyError, match="no event that bounds a PureLoss"):
            promise(PureLoss(1.0), unit=PrivacyUnit(relation=ADD)).to_event()
        with pytest.raises(PrivacyError, match="one by one"):
            promise(FixedBatchSGDLoss(1.1, 10, 1000, 100), GaussianLoss(1.0)).to_event()
        nothing = promise(PureLoss(1.0)).simulated().to_event()
        assert isinstance(nothing, dpa.NonPrivateDpEvent)


def test_pure_epsilons_add_up_to_no_less_than_their_sum() -> None:
    draw = random.Random(0)
    for _ in range(300):
        count, epsilon = draw.choice([3, 5, 7, 10, 40]), 10 ** draw.uniform(-5, 1)
        together = Guarantee("counts", PrivacyUnit(), (PureLoss(epsilon),) * count)
        assert Fraction(together.epsilon()) >= count * Fraction(epsilon)


def test_a_budget_above_10_is_warned_of_once_with_its_odds() -> None:
    with pytest.warns(UserWarning, match=r"`epsilon` = 20.5 guarantees next to nothing: .* 8e\+08"):
        PrivacyBudget(20.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivacyBudget(20.5), PrivacyBudget(10.0)
