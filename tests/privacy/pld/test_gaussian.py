"""Exact Gaussian differential privacy, held against sixty-digit arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

from botorch_dp.privacy.pld.gaussian import (
    compose_gdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    pure_dp_epsilon,
    pure_dp_mu,
)

MUS = [1e-6, 1e-4, 1e-2, 0.3, 0.999, 1.0, 1.001, 2.0, 5.0, 20.0, 100.0]
DELTAS = [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9]


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        return mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-b)


class TestDelta:
    @pytest.mark.parametrize("mu", MUS)
    @pytest.mark.parametrize("standard_deviations", [0, 0.1, 1, 2, 4, 8, 12])
    def test_is_exact_and_never_below(self, mu: float, standard_deviations: float) -> None:
        for epsilon in (
            standard_deviations * mu,
            mu * (standard_deviations + mu / 2),
            abs(mu * (standard_deviations - mu / 2)),
        ):
            truth = exact_delta(mu, epsilon)
            error = float((mpmath.mpf(gaussian_delta(mu, epsilon)) - truth) / truth)
            assert 0 <= error <= 3e-12

    def test_by_hand(self) -> None:
        # At epsilon = 0 it is the total variation distance 2 Phi(mu/2) - 1.
        assert gaussian_delta(2.0, 0.0) == pytest.approx(0.6826894921370859, rel=1e-11)

    def test_underflow_is_not_zero(self) -> None:
        assert 0 < gaussian_delta(1e-6, 1.0) < 1e-300
        assert 0 < gaussian_delta(1.0, 1e6) < 1e-300

    def test_limits(self) -> None:
        assert gaussian_delta(0.0, 0.0) == 0.0
        assert gaussian_delta(math.inf, 5.0) == 1.0
        assert gaussian_delta(1e3, 0.0) == 1.0


class TestEpsilon:
    @pytest.mark.parametrize("mu", MUS)
    @pytest.mark.parametrize("delta", DELTAS)
    def test_meets_delta_from_below(self, mu: float, delta: float) -> None:
        epsilon = gaussian_epsilon(mu, delta)
        reached = float(exact_delta(mu, epsilon) / mpmath.mpf(delta))
        assert reached <= 1
        if epsilon > 0:
            assert reached >= 1 - 1e-11

    def test_agrees_with_dp_accounting(self) -> None:
        for mu in (0.01, 0.5, 1.0, 10.0):
            theirs = gaussian_mechanism.get_epsilon_gaussian(1 / mu, 1e-6)
            assert gaussian_epsilon(mu, 1e-6) == pytest.approx(theirs, rel=1e-9)

    def test_is_monotone(self) -> None:
        by_mu = [gaussian_epsilon(mu, 1e-6) for mu in np.geomspace(1e-6, 100, 60)]
        by_delta = [gaussian_epsilon(1.0, delta) for delta in np.geomspace(1e-12, 0.3, 60)]
        assert all(np.diff(by_mu) >= 0)
        assert all(np.diff(by_delta) < 0)

    def test_limits(self) -> None:
        assert gaussian_epsilon(0.0, 1e-6) == 0.0
        assert gaussian_epsilon(math.inf, 1e-6) == math.inf
        assert gaussian_epsilon(1e-6, 0.01) == 0.0
        assert 0 < gaussian_epsilon(1e-3, 1e-300) < 1


class TestMu:
    @pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-3, 0.5, 1.0, 10.0, 1000.0])
    @pytest.mark.parametrize("delta", DELTAS)
    def test_meets_delta_from_below(self, epsilon: float, delta: float) -> None:
        reached = float(exact_delta(gaussian_mu(epsilon, delta), epsilon) / mpmath.mpf(delta))
        assert 1 - 1e-11 <= reached <= 1

    @pytest.mark.parametrize("mu", MUS)
    def test_inverts_epsilon(self, mu: float) -> None:
        epsilon = gaussian_epsilon(mu, 1e-12)
        assert gaussian_mu(epsilon, 1e-12) == pytest.approx(mu, rel=1e-11)

    def test_agrees_with_dp_accounting(self) -> None:
        for epsilon in (0.1, 1.0, 8.0):
            theirs = 1 / gaussian_mechanism.get_sigma_gaussian(epsilon, 1e-5)
            assert gaussian_mu(epsilon, 1e-5) == pytest.approx(theirs, rel=1e-9)


class TestCompose:
    def test_root_of_squares(self) -> None:
        assert compose_gdp([3.0, 4.0]) == 5.0
        assert compose_gdp([]) == 0.0
        assert compose_gdp(0.1 for _ in range(100)) == pytest.approx(1.0, rel=1e-14)
        assert compose_gdp([1.0, math.inf]) == math.inf

    def test_extreme_values_neither_overflow_nor_vanish(self) -> None:
        assert compose_gdp([1e-200, 1e-200]) == pytest.approx(math.sqrt(2) * 1e-200)
        assert compose_gdp([1e200, 1e200]) == pytest.approx(math.sqrt(2) * 1e200)


class TestPure:
    @pytest.mark.parametrize("epsilon", [1e-10, 1e-5, 0.3, 0.999, 1.0, 3.0, 30.0, 700.0, 1e4])
    def test_corner_lies_on_the_tradeoff_curve(self, epsilon: float) -> None:
        # Randomized response errs both ways with probability 1/(1 + e^eps): Phi(-mu/2) there.
        with mpmath.workdps(60):
            corner = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
            error = float(mpmath.ncdf(-mpmath.mpf(pure_dp_mu(epsilon)) / 2) / corner - 1)
        assert -1e-8 <= error <= 0  # a larger mu errs less: safe

    @pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
    def test_dominates_randomized_response_everywhere_and_tightly(self, epsilon: float) -> None:
        truth = 1 / (1 + math.exp(-epsilon))
        mu = pure_dp_mu(epsilon)

        def falls_short(candidate: float) -> bool:
            return any(
                gaussian_delta(candidate, e) < truth - math.exp(e) * (1 - truth) - 1e-13
                for e in np.linspace(0, epsilon, 200)
            )

        assert not falls_short(mu)
        assert falls_short(0.99 * mu), "a smaller mu would do: not tight"

    @pytest.mark.parametrize("mu", [1e-8, 1e-3, 0.5, 0.999, 1.0, 5.0, 30.0, 350.0])
    def test_inverse_spends_no_more_than_mu(self, mu: float) -> None:
        epsilon = pure_dp_epsilon(mu)
        assert pure_dp_mu(epsilon) == pytest.approx(mu, rel=1e-12)
        with mpmath.workdps(60):
            corner = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
            assert mpmath.ncdf(-mpmath.mpf(mu) / 2) <= corner


def test_refuses_what_has_no_meaning() -> None:
    for name, call in (
        ("mu", lambda: gaussian_delta(-1.0, 0.5)),
        ("mus", lambda: compose_gdp([1.0, math.nan])),
        ("delta", lambda: gaussian_epsilon(1.0, 0.0)),
        ("delta", lambda: gaussian_mu(1.0, math.nan)),
        ("epsilon", lambda: gaussian_mu(math.inf, 1e-6)),
        ("epsilon", lambda: pure_dp_mu(-1.0)),
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            call()


@pytest.mark.parametrize("delta", [0.99999, 0.9999999997, 1 - 1e-12, 1 - 2**-53])
def test_a_delta_near_1_has_a_mu(delta: float) -> None:
    mu = gaussian_mu(1e-6, delta)
    assert mu > 0 and gaussian_delta(mu, 1e-6) <= delta
