"""Compositions: exact where a formula exists, never optimistic anywhere."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, laplace

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    LaplaceLoss,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
)
from botorch_dp.privacy.pld.composition import composed_delta, composed_epsilon
from botorch_dp.privacy.pld.gaussian import gaussian_delta, gaussian_epsilon

DELTAS = [1e-12, 1e-9, 1e-6, 1e-3, 0.1]

ONE_OF_EACH: list[PrivacyLoss] = [
    PureLoss(0.3),
    LaplaceLoss(0.3),
    GaussianLoss(0.4),
    ApproximateLoss(0.2, 1e-8),
    PoissonSGDLoss(1.1, 0.01, 100),
    FixedBatchSGDLoss(1.1, 10, 1000, 100),
]
MIXTURES: list[list[PrivacyLoss]] = [
    [GaussianLoss(0.5), PureLoss(0.4)],
    [GaussianLoss(0.5), LaplaceLoss(0.4)],
    [PureLoss(0.1), PureLoss(0.35), LaplaceLoss(0.2)],
    [GaussianLoss(0.5), PureLoss(0.4), LaplaceLoss(0.2), ApproximateLoss(0.1, 1e-9)],
    [PoissonSGDLoss(1.1, 0.01, 200), PureLoss(0.3)],
    [PoissonSGDLoss(1.1, 0.01, 200), PoissonSGDLoss(2.0, 0.05, 50), GaussianLoss(0.2)],
    [FixedBatchSGDLoss(1.1, 10, 1000, 100), PureLoss(0.3)],
    [FixedBatchSGDLoss(1.1, 10, 1000, 100), GaussianLoss(0.3), LaplaceLoss(0.2)],
]


def names(losses: PrivacyLoss | list[PrivacyLoss]) -> str:
    losses = losses if isinstance(losses, list) else [losses]
    return "+".join(type(loss).__name__.removesuffix("Loss") for loss in losses)


def gaussian_curve(mu: float, epsilon: float) -> float:
    """The hockey-stick divergence of N(mu, 1) and N(0, 1), at negative epsilons too."""
    if epsilon >= 0:
        return gaussian_delta(mu, epsilon)
    return 1 - math.exp(epsilon) + math.exp(epsilon) * gaussian_delta(mu, -epsilon)


class TestExactCurves:
    @pytest.mark.parametrize("delta", DELTAS)
    def test_gaussians(self, delta: float) -> None:
        losses = [GaussianLoss(0.3), GaussianLoss(0.4), GaussianLoss(0.0)]
        assert composed_epsilon(losses, delta) == gaussian_epsilon(0.5, delta)
        assert composed_delta(losses, 0.7) == gaussian_delta(0.5, 0.7)

    @pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.499, 0.5, 3.0])
    def test_one_pure_loss(self, epsilon: float) -> None:
        # Randomized response tells the truth with probability 1/(1 + e^-1/2).
        truth = 1 / (1 + math.exp(-0.5))
        exact = max(0.0, truth - math.exp(epsilon) * (1 - truth))
        assert composed_delta([PureLoss(0.5)], epsilon) == pytest.approx(exact, rel=1e-9)

    @pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.499, 0.5, 3.0])
    def test_one_laplace_loss_by_integration(self, epsilon: float) -> None:
        # The likelihood ratio exceeds e^eps left of 0.25 - eps/2.
        end = 0.25 - epsilon / 2
        exact = laplace.cdf(end) - math.exp(epsilon) * laplace.cdf(end - 0.5)
        exact = max(0.0, exact) if epsilon < 0.5 else 0.0
        assert composed_delta([LaplaceLoss(0.5)], epsilon) == pytest.approx(exact, abs=1e-14)

    @pytest.mark.parametrize("count", [2, 7, 61, 1000])
    @pytest.mark.parametrize("delta", DELTAS)
    def test_equal_pure_losses(self, count: int, delta: float) -> None:
        def exact(epsilon: float) -> float:
            lies = np.arange(count + 1)
            losses = (count - 2 * lies) * 0.1
            gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
            return float(binom.pmf(lies, count, 1 / (1 + math.exp(0.1))) @ gains)

        epsilon = composed_epsilon([PureLoss(0.1)] * count, delta)
        assert exact(epsilon) <= delta
        if 0 < epsilon < 0.1 * count * (1 - 1e-9):
            assert exact(epsilon * (1 - 1e-6)) > delta

    @pytest.mark.parametrize("loss", [PureLoss(0.7), LaplaceLoss(0.7)], ids=names)
    def test_pure_losses_add_up_at_delta_zero(self, loss: PrivacyLoss) -> None:
        assert composed_epsilon([loss]) == 0.7
        assert composed_epsilon([loss] * 10) == pytest.approx(7.0)
        assert composed_epsilon([loss, PureLoss(0.2), LaplaceLoss(0.1)]) == pytest.approx(1.0)
        assert composed_delta([loss, PureLoss(0.2)], 0.91) == 0.0

    def test_approximate_losses(self) -> None:
        loss = ApproximateLoss(0.5, 1e-6)
        assert composed_epsilon([loss], 1e-6) == 0.5
        assert composed_epsilon([loss], 0.9999e-6) == math.inf
        assert composed_epsilon([loss], 1e-5) < 0.5
        assert composed_delta([loss], 0.5) == 1e-6
        together = 1 - (1 - 1e-6) ** 3
        assert composed_delta([loss] * 3, 1.5) == pytest.approx(together, rel=1e-9)
        assert composed_epsilon([loss] * 3, 3e-6) == pytest.approx(1.5)

    def test_an_approximate_loss_is_worst_case(self) -> None:
        # P = delta + (1 - delta) e^eps/(1 + e^eps) on the event that gives the record away.
        delta, epsilon = 0.01, 0.5
        truth = 1 / (1 + math.exp(-0.5))
        exact = 0.01 + 0.99 * (truth - math.exp(0.2) * (1 - truth))
        assert composed_delta([ApproximateLoss(epsilon, delta)], 0.2) == pytest.approx(exact)


class TestMixtures:
    """Two-part mixtures have curves that can be computed in another way."""

    @pytest.mark.parametrize("delta", DELTAS)
    @pytest.mark.parametrize(("mu", "pure"), [(0.5, 0.4), (0.05, 0.02), (3.0, 2.0), (1.0, 1e-3)])
    def test_gaussian_and_pure(self, mu: float, pure: float, delta: float) -> None:
        truth = 1 / (1 + math.exp(-pure))

        def exact(epsilon: float) -> float:
            tells, lies = gaussian_curve(mu, epsilon - pure), gaussian_curve(mu, epsilon + pure)
            return truth * tells + (1 - truth) * lies

        epsilon = composed_epsilon([GaussianLoss(mu), PureLoss(pure)], delta)
        assert exact(epsilon) <= delta
        if epsilon > 0:
            assert exact(0.997 * epsilon) > delta, "not tight"
        assert composed_delta([GaussianLoss(mu), PureLoss(pure)], 1.0) >= exact(1.0)

    @pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
    def test_gaussian_and_laplace(self, delta: float) -> None:
        mu, pure = 0.5, 0.4

        def exact(epsilon: float) -> float:
            # Laplace noise: loss +-pure with atoms 1/2 and e^-pure/2, density between them.
            inner, _ = quad(
                lambda loss: (
                    0.25 * math.exp((loss - pure) / 2) * gaussian_curve(mu, epsilon - loss)
                ),
                -pure,
                pure,
                epsabs=1e-16,
            )
            ends = gaussian_curve(mu, epsilon - pure)
            ends += math.exp(-pure) * gaussian_curve(mu, epsilon + pure)
            return inner + 0.5 * ends

        epsilon = composed_epsilon([GaussianLoss(mu), LaplaceLoss(pure)], delta)
        assert exact(epsilon) <= delta * (1 + 1e-9)
        assert exact(0.999 * epsilon) > delta, "not tight"

    @pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
    def test_different_pure_losses(self, delta: float) -> None:
        parts = [0.1, 0.17, 0.29, 0.31, 0.5, 0.7]

        def exact(epsilon: float) -> float:
            total = 0.0
            for signs in itertools.product((1, -1), repeat=len(parts)):
                loss = sum(s * e for s, e in zip(signs, parts, strict=True))
                probability = math.prod(
                    1 / (1 + math.exp(-s * e)) for s, e in zip(signs, parts, strict=True)
                )
                total += probability * max(0.0, -math.expm1(epsilon - loss))
            return total

        epsilon = composed_epsilon([PureLoss(e) for e in parts], delta)
        assert exact(epsilon) <= delta
        assert epsilon == sum(parts) or exact(0.999 * epsilon) > delta

    def test_fixed_batches_with_others_are_worth_less_than_apart(self) -> None:
        batches = FixedBatchSGDLoss(1.1, 10, 1000, 100)
        for other in (PureLoss(0.3), GaussianLoss(0.4)):
            alone = composed_epsilon([batches], 1e-6)
            together = composed_epsilon([batches, other], 1e-6)
            apart = composed_epsilon([batches], 5e-7) + composed_epsilon([other], 5e-7)
            assert alone < together < apart

    @pytest.mark.parametrize(
        "losses",
        [
            [FixedBatchSGDLoss(1.1, 10, 1000, 100), PureLoss(9.0)],
            [FixedBatchSGDLoss(0.05, 10, 1000, 10), PureLoss(1.0)],
        ],
        ids=["much-pure", "little-noise"],
    )
    def test_the_best_bound_is_taken(self, losses: list[PrivacyLoss]) -> None:
        batches, pure = losses
        total = composed_epsilon(losses, 1e-6)
        assert total <= composed_epsilon([batches], 1e-6) + composed_epsilon([pure])
        # ... and delta knows of it, too.
        assert composed_delta(losses, total) <= 1e-6 * (1 + 3e-3)


class TestLaws:
    @pytest.mark.parametrize("loss", ONE_OF_EACH, ids=names)
    @pytest.mark.parametrize("count", [2, 7])
    def test_one_by_one_equals_all_at_once(self, loss: PrivacyLoss, count: int) -> None:
        """Losses that differ in the last digits only are composed one by one."""
        number = "mu" if isinstance(loss, GaussianLoss) else "epsilon"
        number = "noise_multiplier" if hasattr(loss, "noise_multiplier") else number
        value = getattr(loss, number)
        nearly = [replace(loss, **{number: value * (1 + i * 1e-9)}) for i in range(count)]
        assert len(set(nearly)) == count
        for delta in (1e-6, 1e-3):
            at_once = composed_epsilon([loss] * count, delta)
            one_by_one = composed_epsilon(nearly, delta)
            assert one_by_one == pytest.approx(at_once, rel=2e-4)

    @pytest.mark.parametrize("loss", ONE_OF_EACH[4:], ids=names)
    def test_steps_are_self_composition(self, loss: PrivacyLoss) -> None:
        one = replace(loss, steps=1)
        assert composed_epsilon([one] * 100, 1e-6) == composed_epsilon([loss], 1e-6)

    @pytest.mark.parametrize("losses", MIXTURES, ids=names)
    def test_order_does_not_matter(self, losses: list[PrivacyLoss]) -> None:
        assert composed_epsilon(losses, 1e-6) == composed_epsilon(losses[::-1], 1e-6)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("losses", [[loss] for loss in ONE_OF_EACH] + MIXTURES, ids=names)
    def test_curve_is_monotone_and_consistent(self, losses: list[PrivacyLoss]) -> None:
        deltas = [1e-10, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 0.5]
        epsilons = [composed_epsilon(losses, delta) for delta in deltas]
        assert all(np.diff(np.minimum(epsilons, 1e300)) <= 0)
        curve = [composed_delta(losses, epsilon) for epsilon in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)]
        assert all(0 <= delta <= 1 for delta in curve)
        assert all(np.diff(curve) <= 0)
        for delta, epsilon in zip(deltas, epsilons, strict=True):
            if 0 < epsilon < math.inf:
                # Both are upper bounds, and each is widened a little on its own account.
                assert composed_delta(losses, epsilon) <= delta * (1 + 3e-3)

    @pytest.mark.parametrize("losses", MIXTURES, ids=names)
    def test_more_losses_never_cost_less(self, losses: list[PrivacyLoss]) -> None:
        total = composed_epsilon(losses, 1e-6)
        for left_out in range(len(losses)):
            rest = losses[:left_out] + losses[left_out + 1 :]
            assert composed_epsilon(rest, 1e-6) <= total * (1 + 1e-6)

    @pytest.mark.parametrize("zero", [PureLoss(0.0), LaplaceLoss(0.0), GaussianLoss(0.0)])
    def test_nothing_costs_nothing(self, zero: PrivacyLoss) -> None:
        assert composed_epsilon([zero]) == 0.0
        assert composed_delta([zero], 0.0) == 0.0
        assert composed_epsilon([zero, PureLoss(0.5)]) == 0.5
        assert composed_epsilon([zero, GaussianLoss(0.5)], 1e-6) == gaussian_epsilon(0.5, 1e-6)

    @pytest.mark.parametrize("loss", ONE_OF_EACH, ids=names)
    def test_not_better_than_a_weaker_mechanism(self, loss: PrivacyLoss) -> None:
        """An epsilon that is too small would be noticed: half the noise costs clearly more."""
        worse = {"epsilon": 2.0, "mu": 2.0, "noise_multiplier": 0.5}
        numbers = {key: getattr(loss, key) * worse[key] for key in worse if hasattr(loss, key)}
        other = replace(loss, **numbers)
        assert composed_epsilon([other], 1e-6) > 1.5 * composed_epsilon([loss], 1e-6)


class TestSizes:
    @pytest.mark.parametrize("loss", ONE_OF_EACH, ids=names)
    def test_ten_thousand_equal_parts(self, loss: PrivacyLoss) -> None:
        start = time.process_time()
        epsilon = composed_epsilon([loss] * 10_000, 1e-3)
        assert time.process_time() - start < 60  # one by one they would take many minutes
        assert 0 < epsilon < math.inf

    @pytest.mark.one_in(5)
    @pytest.mark.parametrize(
        "losses",
        [
            [PureLoss(1000.0), GaussianLoss(100.0)],
            [PureLoss(800.0)] * 3,
            [LaplaceLoss(300.0), LaplaceLoss(500.0)],
            [PureLoss(1e-6), GaussianLoss(5.0)],
            [PureLoss(1e-6), GaussianLoss(1e-6)],
            [PoissonSGDLoss(0.01, 0.5, 1000)],
            [PoissonSGDLoss(0.01, 1e-7, 1)],
            [PoissonSGDLoss(1e-3, 0.1, 10**6)],
            [PoissonSGDLoss(1e4, 1e-6, 10**6)],
            [FixedBatchSGDLoss(0.01, 999, 1000, 10**6), PureLoss(1e-9)],
        ],
        ids=lambda losses: f"{names(losses)}-{len(losses)}",
    )
    def test_extremes(self, losses: list[PrivacyLoss]) -> None:
        start = time.process_time()
        epsilons = [composed_epsilon(losses, delta) for delta in (1e-12, 1e-6, 0.5)]
        assert time.process_time() - start < 60
        assert all(0 <= epsilon < math.inf for epsilon in epsilons)
        assert epsilons == sorted(epsilons, reverse=True)
        dearest = max(composed_epsilon([loss], 1e-6) for loss in losses)
        assert epsilons[1] >= dearest * (1 - 1e-6)

    def test_delta_too_small_for_any_grid_falls_back(self) -> None:
        losses = [GaussianLoss(0.5), PureLoss(0.4)]
        assert composed_epsilon(losses, 1e-12) < composed_epsilon(losses, 1e-200) < math.inf


class TestEdges:
    def test_no_losses(self) -> None:
        assert composed_epsilon([]) == 0.0
        assert composed_delta([], 0.0) == 0.0

    def test_delta_zero_needs_pure_losses(self) -> None:
        for loss in (ONE_OF_EACH[2], *ONE_OF_EACH[4:]):
            assert composed_epsilon([loss]) == math.inf
            assert 0 < composed_delta([loss], 20.0) < 1
        assert composed_epsilon([ApproximateLoss(0.5, 0.0), PureLoss(0.5)]) == 1.0

    def test_hopeless_deltas(self) -> None:
        hopeless = [ApproximateLoss(0.1, 0.5)] * 200
        assert composed_delta(hopeless, 5.0) == 1.0
        assert composed_epsilon(hopeless, 0.999999) == math.inf

    def test_refuses_what_has_no_meaning(self) -> None:
        with pytest.raises(ValueError, match="`delta`"):
            composed_epsilon([PureLoss(1.0)], 1.0)
        with pytest.raises(ValueError, match="`epsilon`"):
            composed_delta([PureLoss(1.0)], math.nan)

    def test_refuses_a_mixture_of_relations(self) -> None:
        with pytest.raises(PrivacyError, match="no common epsilon"):
            composed_epsilon(ONE_OF_EACH[4:], 1e-6)
        with pytest.raises(PrivacyError, match="no common epsilon"):
            composed_delta(ONE_OF_EACH[4:], 1.0)
