"""Rényi divergences of sampled Gaussian mechanisms, held against dp-accounting and mpmath."""

from __future__ import annotations

import math
from functools import cache

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy.integrate import quad
from scipy.stats import laplace, norm

from botorch_dp.privacy import _renyi as renyi
from botorch_dp.privacy._renyi import (
    DENSE_ORDERS,
    fixed_batch_rdp,
    gaussian_rdp,
    laplace_rdp,
    pure_rdp,
    rdp_delta,
    rdp_epsilon,
    sampled_gaussian_rdp,
)

THEIR_ORDERS = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
POPULATION = 10**6


@cache
def their_rdp(z: float, fraction: float) -> np.ndarray:
    accountant = RdpAccountant(THEIR_ORDERS, dpa.NeighboringRelation.REPLACE_ONE)
    batch = round(fraction * POPULATION)
    event = dpa.SampledWithoutReplacementDpEvent(POPULATION, batch, dpa.GaussianDpEvent(z))
    return accountant.compose(event).rdp


class TestFixedBatches:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("z", [0.1, 0.6, 1.0, 2.0, 5.0, 16.0])
    @pytest.mark.parametrize("fraction", [1e-6, 1e-3, 0.02])
    def test_equals_dp_accounting(self, z: float, fraction: float) -> None:
        ours = fixed_batch_rdp(z, fraction, THEIR_ORDERS)
        np.testing.assert_allclose(ours, their_rdp(z, fraction), rtol=1e-6)

    @pytest.mark.parametrize(("z", "fraction"), [(16.0, 0.3), (50.0, 0.05), (5.0, 0.9)])
    def test_is_never_above_it_where_its_differences_cancel(
        self, z: float, fraction: float
    ) -> None:
        ours, theirs = fixed_batch_rdp(z, fraction, THEIR_ORDERS), their_rdp(z, fraction)
        assert np.all(ours <= theirs * (1 + 1e-8))

    @pytest.mark.one_in(4)
    @pytest.mark.parametrize(("z", "fraction"), [(16.0, 0.3), (50.0, 0.5), (1.0, 0.01), (0.4, 0.1)])
    @pytest.mark.parametrize("order", [2, 3, 5, 24, 63, 255])
    def test_is_the_bound_of_the_paper_in_high_precision(
        self, z: float, fraction: float, order: int
    ) -> None:
        with mpmath.workdps(250):
            q, rate = mpmath.mpf(fraction), 1 / (2 * mpmath.mpf(z) ** 2)
            powers = [mpmath.exp(k * (k - 1) * rate) for k in range(order + 2)]

            def divergence(even: int) -> mpmath.mpf:
                return mpmath.fsum(
                    (-1) ** (even - k) * mpmath.binomial(even, k) * powers[k]
                    for k in range(even + 1)
                )

            chi = {even: divergence(even) for even in range(2, order + 2, 2)}
            moment = mpmath.mpf(1)
            for i in range(2, order + 1):
                sharp = 4 * mpmath.sqrt(chi[2 * (i // 2)] * chi[2 * ((i + 1) // 2)])
                term = min(sharp, 2 * powers[i])
                moment += mpmath.binomial(order, i) * q**i * term
            truth = float(mpmath.log(moment) / (order - 1))
        assert fixed_batch_rdp(z, fraction, [order])[0] == pytest.approx(truth, rel=1e-10)

    def test_whole_data_set_is_the_gaussian_mechanism(self) -> None:
        np.testing.assert_allclose(fixed_batch_rdp(2.0, 1.0, (3, 7)), [3 / 8, 7 / 8])

    def test_falls_with_noise_and_grows_with_the_batch(self) -> None:
        by_noise = [fixed_batch_rdp(z, 0.01, DENSE_ORDERS) for z in np.geomspace(0.05, 500, 80)]
        by_batch = [fixed_batch_rdp(1.3, q, DENSE_ORDERS) for q in np.geomspace(1e-7, 0.99, 60)]
        assert np.all(np.diff(by_noise, axis=0) <= 0)
        assert np.all(np.diff(by_batch, axis=0) >= 0)

    def test_result_is_cached_and_cannot_be_spoilt(self) -> None:
        first = fixed_batch_rdp(1.1, 0.01, THEIR_ORDERS)
        assert fixed_batch_rdp(1.1, 0.01, list(THEIR_ORDERS)) is first
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 0.0


class TestSampledPairs:
    @pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
    @pytest.mark.parametrize("fraction", [1e-5, 0.01, 0.4, 1.0])
    def test_equals_dp_accounting_at_integers(self, z: float, fraction: float) -> None:
        orders = [2, 3, 10, 64, 200]
        event = dpa.PoissonSampledDpEvent(fraction, dpa.GaussianDpEvent(z))
        theirs = RdpAccountant(orders).compose(event).rdp
        ours = sampled_gaussian_rdp("add_or_remove", z, fraction, orders)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-15)

    @pytest.mark.one_in(3)
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
            ours = sampled_gaussian_rdp(kind, z, q, [order])[0]
            assert 0 <= float(ours / truth - 1) < 1e-8

    @pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
    @pytest.mark.parametrize("q", [1e-5, 0.01, 0.4])
    def test_the_pair_of_fixed_batches_is_better_than_the_bound_of_the_paper(
        self, z: float, q: float
    ) -> None:
        orders = [1.5, 2.0, 10.0, 64.0, 200.0]
        ours = sampled_gaussian_rdp("fixed", z, q, orders)
        assert np.all(ours <= fixed_batch_rdp(z, q, orders))
        assert np.all(ours >= sampled_gaussian_rdp("add_or_remove", z, q, orders) * (1 - 1e-8))


class TestSimpleMechanisms:
    def test_gaussian_by_hand(self) -> None:
        np.testing.assert_allclose(gaussian_rdp(0.5, [2.0, 10.0]), [0.25, 1.25])

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
        np.testing.assert_allclose(pure_rdp(epsilon, orders), truth, rtol=1e-9)

    @pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 20.0, 200.0])
    def test_laplace_equals_dp_accounting_from_above(self, epsilon: float) -> None:
        orders = [1.5, 2.0, 17.0, 256.0]
        theirs = RdpAccountant(orders).compose(dpa.LaplaceDpEvent(1 / epsilon)).rdp
        ours = laplace_rdp(epsilon, orders)
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
        assert laplace_rdp(epsilon, [order])[0] == pytest.approx(math.log(moment) / 2, rel=1e-6)

    def test_gaussian_divergences_by_integration(self) -> None:
        z = 1.7
        for index, order in enumerate([2, 4, 6]):
            truth, _ = quad(
                lambda x, k=order: norm.pdf(x) * math.expm1(x / z - 0.5 / z**2) ** k, -15, 25
            )
            assert math.exp(renyi._log_divergences(z)[index]) == pytest.approx(truth, rel=1e-8)


class TestConversion:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("steps", [1, 100, 10**6])
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
    def test_equals_dp_accounting(self, steps: int, delta: float) -> None:
        rdp = steps * fixed_batch_rdp(2.0, 1e-3, THEIR_ORDERS)
        theirs = rdp_privacy_accountant.compute_epsilon(THEIR_ORDERS, rdp, delta)[0]
        assert rdp_epsilon(THEIR_ORDERS, rdp, delta) == pytest.approx(theirs, rel=1e-12)

    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 3.0])
    def test_delta_equals_dp_accounting(self, epsilon: float) -> None:
        rdp = 50 * fixed_batch_rdp(2.0, 1e-3, THEIR_ORDERS)
        theirs = rdp_privacy_accountant.compute_delta(THEIR_ORDERS, rdp, epsilon)[0]
        assert rdp_delta(THEIR_ORDERS, rdp, epsilon) == pytest.approx(theirs, rel=1e-12)

    def test_nothing_revealed(self) -> None:
        zeros = np.zeros(len(DENSE_ORDERS))
        assert rdp_epsilon(DENSE_ORDERS, zeros, 1e-9) == 0.0
        assert rdp_delta(DENSE_ORDERS, zeros, 0.5) == 0.0


def test_orders_contain_those_of_dp_accounting_and_fill_its_gaps() -> None:
    assert set(THEIR_ORDERS) <= set(DENSE_ORDERS)
    assert list(DENSE_ORDERS) == sorted(set(DENSE_ORDERS))
    above = np.array([order for order in DENSE_ORDERS if order >= 60])
    assert np.max(above[1:] / above[:-1]) <= 1.5
