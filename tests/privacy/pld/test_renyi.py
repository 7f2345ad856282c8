"""Rényi divergences of sampled Gaussian mechanisms, held against dp-accounting and mpmath."""

from __future__ import annotations

import math

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy.integrate import quad
from scipy.stats import laplace

from botorch_dp.privacy import DPSGD, dp_sgd_epsilon
from botorch_dp.privacy.pld.renyi import (
    gaussian_rdp,
    laplace_rdp,
    pure_rdp,
    renyi_budget,
    renyi_epsilon,
    sampled_gaussian_rdp,
)

POPULATION = 10**6


class TestSampledPairs:
    @pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
    @pytest.mark.parametrize("fraction", [1e-5, 0.01, 0.4, 1.0])
    def test_equals_dp_accounting_at_integers(self, z: float, fraction: float) -> None:
        orders = [2, 3, 10, 64, 200]
        event = dpa.PoissonSampledDpEvent(fraction, dpa.GaussianDpEvent(z))
        theirs = RdpAccountant(orders).compose(event).rdp
        ours = [sampled_gaussian_rdp("add_or_remove", z, fraction, order) for order in orders]
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-15)

    @pytest.mark.one_in(5)
    @pytest.mark.parametrize("kind", ["add_or_remove", "replace", "fixed"])
    @pytest.mark.parametrize(
        ("z", "q", "order"),
        [(1.0, 0.01, 1.5), (8.0, 0.4, 2.3), (8.0, 1e-5, 64.0), (0.3, 1e-5, 1.5), (0.7, 0.1, 20.0)],
    )
    def test_equals_the_integral_in_high_precision_and_is_above_it(
        self, kind: str, z: float, q: float, order: float
    ) -> None:
        with mpmath.workdps(40):
            a, c, fraction = mpmath.mpf(order), 1 / mpmath.mpf(z), mpmath.mpf(q)
            c = c / 2 if kind == "replace" else c

            def ratio(y: mpmath.mpf) -> mpmath.mpf:
                return 1 - fraction + fraction * mpmath.exp(c * y - c * c / 2)

            def excess(y: mpmath.mpf) -> mpmath.mpf:
                if kind == "add_or_remove":
                    return mpmath.npdf(y) * (ratio(y) ** a - 1 - a * (ratio(y) - 1))
                if kind == "replace":
                    p, other = ratio(y), ratio(-y)
                    return mpmath.npdf(y) * (p**a * other ** (1 - a) - p)
                return mpmath.npdf(y) * (ratio(y) ** a + ratio(y) ** (1 - a) - ratio(y) - 1)

            start = c / 2 if kind == "fixed" else mpmath.mpf(-20)
            points = mpmath.linspace(start, a * c + 20, 20)
            # Of what is smooth; with tanh-sinh the same 25 digits take five times as long.
            whole = mpmath.quad(excess, points, method="gauss-legendre")
            truth = mpmath.log(1 + whole) / (a - 1)
            ours = sampled_gaussian_rdp(kind, z, q, order)
            assert 0 <= float(ours / truth - 1) < 1e-8

    @pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
    @pytest.mark.parametrize("q", [1e-5, 0.01, 0.4])
    def test_the_pair_of_fixed_batches_is_better_than_the_bound_of_the_paper(
        self, z: float, q: float
    ) -> None:
        orders = [1.5, 2.0, 10.0, 64.0, 200.0]
        accountant = RdpAccountant(orders, dpa.NeighboringRelation.REPLACE_ONE)
        noisy = dpa.GaussianDpEvent(z)
        batch = round(q * POPULATION)
        accountant.compose(dpa.SampledWithoutReplacementDpEvent(POPULATION, batch, noisy))
        for order, papers in zip(orders, accountant.rdp, strict=True):
            ours = sampled_gaussian_rdp("fixed", z, q, order)
            assert ours <= papers * (1 + 1e-6)
            assert ours >= sampled_gaussian_rdp("add_or_remove", z, q, order) * (1 - 1e-8)


class TestSimpleMechanisms:
    def test_gaussian_by_hand(self) -> None:
        assert (gaussian_rdp(0.5, 2.0), gaussian_rdp(0.5, 10.0)) == (0.25, 1.25)

    @pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 30.0, 900.0])
    def test_pure_equals_randomized_response(self, epsilon: float) -> None:
        orders = [1.1, 2.0, 17.0, 4096.0]
        with mpmath.workdps(60):
            truth = [
                float(
                    mpmath.log((mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e)))
                    / (a - 1)
                )
                for a in map(mpmath.mpf, orders)
                for e in [mpmath.mpf(epsilon)]
            ]
        np.testing.assert_allclose([pure_rdp(epsilon, a) for a in orders], truth, rtol=1e-9)

    @pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 20.0, 200.0])
    def test_laplace_equals_dp_accounting_from_above(self, epsilon: float) -> None:
        orders = [1.5, 2.0, 17.0, 256.0]
        theirs = RdpAccountant(orders).compose(dpa.LaplaceDpEvent(1 / epsilon)).rdp
        ours = np.array([laplace_rdp(epsilon, order) for order in orders])
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)
        assert np.all(ours >= theirs * (1 - 1e-9))

    def test_laplace_by_integration(self) -> None:
        epsilon, order = 0.7, 3.0
        moment, _ = quad(
            lambda x: laplace.pdf(x) ** order * laplace.pdf(x - epsilon) ** (1 - order),
            -40,
            40,
            points=[0, epsilon],
        )
        assert laplace_rdp(epsilon, order) == pytest.approx(math.log(moment) / 2, rel=1e-6)


class TestFilter:
    def test_budget_inverts_epsilon(self) -> None:
        for epsilon, delta, order in ((1.0, 1e-5, 24.0), (0.3, 1e-6, 120.0), (8.0, 1e-9, 6.0)):
            budget = renyi_budget(epsilon, delta, order)
            assert budget > 0
            assert renyi_epsilon(budget, order, delta) <= epsilon
            assert renyi_epsilon(budget * 1.001, order, delta) > epsilon

    def test_equals_dp_accounting(self) -> None:
        for order in (2, 8, 64):
            theirs = rdp_privacy_accountant.compute_epsilon([order], [0.2], 1e-5)[0]
            assert renyi_epsilon(0.2, order, 1e-5) == pytest.approx(theirs, rel=1e-12)

    def test_too_small_an_order_buys_nothing(self) -> None:
        assert renyi_budget(0.1, 1e-9, 2.0) == 0.0

    def test_trainings_add_up_to_less_than_their_epsilons(self) -> None:
        loss = DPSGD(noise_multiplier=4.0, batch_size=256, num_records=32561, steps=500).loss()
        order, count = 24.0, 10
        together = renyi_epsilon(count * loss.rdp(order), order, 1e-5)
        one = dp_sgd_epsilon(
            noise_multiplier=4.0, batch_size=256, num_records=32561, steps=500, delta=1e-6
        )
        at_once = dp_sgd_epsilon(
            noise_multiplier=4.0, batch_size=256, num_records=32561, steps=5000, delta=1e-5
        )
        assert at_once < together < 0.7 * count * one
