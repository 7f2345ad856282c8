"""Privacy-loss distributions: the exact curves of one step from above, and sums of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from botorch_dp.privacy.pld.composition import RandomizedResponses, SingleLaplace
from botorch_dp.privacy.pld.distributions import (
    Atoms,
    Losses,
    RandomizedResponse,
    SampledGaussian,
    SampledKind,
    ScalarLaplace,
    sampled_gaussian,
)
from botorch_dp.privacy.pld.fourier import FAST, Sums
from botorch_dp.privacy.pld.gaussian import gaussian_epsilon

KINDS: list[SampledKind] = ["add_or_remove", "replace", "fixed"]
SETTINGS = [(0.5, 0.01), (1.0, 0.2), (4.0, 1e-4), (0.2, 1e-3), (30.0, 0.9)]


def profile(atoms: Atoms, epsilon: float) -> float:
    """The hockey-stick divergence of the only row at any epsilon."""
    losses, probability = atoms.losses[0], atoms.probability[0]
    above = losses > epsilon
    gain = probability[above] @ -np.expm1(epsilon - losses[above])
    return float(atoms.above[0] + gain)


def one_sided_delta(c: float, q: float, epsilon: float) -> float:
    """(1 - q) N(0) + q N(c) against N(0), at any epsilon."""
    level = math.expm1(epsilon) / q + 1
    if level <= 0:  # P is at least (1 - q) Q
        return -math.expm1(epsilon)
    t = c / 2 + math.log(level) / c
    return q * float(ndtr(c - t) - level * ndtr(-t))


def density(y: float) -> float:
    """Of the standard normal distribution; SciPy's takes hundreds of times as long for a number."""
    return math.exp(-y * y / 2) / math.sqrt(2 * math.pi)


def exact_delta(kind: SampledKind, z: float, q: float, epsilon: float) -> float:
    """The profile of the dominating pair of one step, by its formula or by integration."""
    c = 1 / z
    if kind == "add_or_remove":
        return one_sided_delta(c, q, epsilon)
    if kind == "fixed":
        if epsilon >= 0:
            return one_sided_delta(c, q, epsilon)
        mirrored = one_sided_delta(c, q, -epsilon)
        return -math.expm1(epsilon) + math.exp(epsilon) * mirrored

    def difference(y: float) -> float:
        shared = (1 - q) * density(y)
        p, other = (shared + q * density(y - s * c / 2) for s in (1, -1))
        return max(0.0, p - math.exp(epsilon) * other)

    return quad(difference, -12, 12 + c, points=[0, c / 2, c], limit=500, epsabs=1e-14)[0]


def one(kind: SampledKind, z: float, q: float) -> SampledGaussian:
    return sampled_gaussian(kind, np.array([z]), np.array([q]))


def summed(losses: Losses, count: int) -> Sums:
    return Sums([losses], [np.array([float(count)])], np.zeros(1))


class TestOneStep:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("z", "q"), SETTINGS)
    @pytest.mark.parametrize("tilt", [None, 0.5, 20.0])
    def test_discretization_is_above_the_profile_and_close(
        self, kind: SampledKind, z: float, q: float, tilt: float | None
    ) -> None:
        order = None if tilt is None else np.array([tilt])
        atoms = one(kind, z, q).atoms(np.array([-30.0]), 300, order)
        spread = q * math.sqrt(math.expm1(min(z**-2, 4.0)))
        for epsilon in np.array([-3.0, -1.0, -0.2, 0.0, 0.2, 1.0, 3.0, 10.0]) * spread:
            exact = exact_delta(kind, z, q, epsilon)
            assert profile(atoms, epsilon) >= exact * (1 - 1e-9) - 1e-13
            assert profile(atoms, epsilon) <= exact * 1.02 + 3e-3 * spread

    @pytest.mark.parametrize(("z", "q"), SETTINGS)
    def test_the_other_direction(self, z: float, q: float) -> None:
        forward = one("add_or_remove", z, q).atoms(np.array([-30.0]), 300)
        for epsilon in (-0.3 * q, 0.0, 0.3 * q, 0.9 * -math.log1p(-q)):
            # H(Q || P) at epsilon is 1 - e^eps + e^eps H(P || Q) at -epsilon.
            exact = -math.expm1(epsilon) + math.exp(epsilon) * one_sided_delta(1 / z, q, -epsilon)
            assert profile(forward.reversed(), epsilon) >= exact * (1 - 1e-9) - 1e-13
            assert profile(forward.reversed(), epsilon) <= exact * 1.02 + 0.01 * q

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("z", "q"), SETTINGS)
    def test_probabilities_of_both_data_sets_add_up(
        self, kind: SampledKind, z: float, q: float
    ) -> None:
        atoms = one(kind, z, q).atoms(np.array([-30.0]), 100)
        assert np.all(atoms.probability >= 0) and np.all(atoms.above >= 0)
        assert atoms.probability.sum() + atoms.above[0] == pytest.approx(1, abs=1e-12)
        under_q = atoms.reversed().probability.sum() + atoms.below[0]
        # What rounding moves upwards is taken from the other data set.
        assert 1 - 1e-9 / z < under_q <= 1 + 1e-12

    @pytest.mark.parametrize(("z", "q"), SETTINGS)
    def test_the_two_sided_profile_is_one(self, z: float, q: float) -> None:
        """Convex, decreasing and at least (1 - alpha)_+ in alpha = e^epsilon."""
        alpha = np.concatenate([np.linspace(0.01, 0.99, 60), [1.0], np.geomspace(1.01, 50, 60)])
        values = np.array([exact_delta("fixed", z, q, math.log(a)) for a in alpha])
        slopes = np.diff(values) / np.diff(alpha)
        assert np.all(slopes <= 1e-12) and np.all(slopes >= -1 - 1e-9)
        assert np.all(np.diff(slopes) >= -1e-9)
        assert np.all(values >= np.maximum(1 - alpha, 0) - 1e-12)
        # ... and above the one-sided pair, in both directions, which a data set attains.
        for a, value in zip(alpha, values, strict=True):
            epsilon = math.log(a)
            assert value >= one_sided_delta(1 / z, q, epsilon) - 1e-12
            other = 1 - a + a * one_sided_delta(1 / z, q, -epsilon)
            assert value >= other - 1e-12

    def test_its_atom_at_zero(self) -> None:
        z, q = 2.0, 0.1
        atoms = one("fixed", z, q).atoms(np.array([-30.0]), 100)
        at_zero = atoms.probability[np.abs(atoms.losses) < 1e-12].sum()
        assert at_zero >= (1 - q) * (1 - 2 * ndtr(-0.25)) > 0.17

    def test_a_smaller_mixture_would_be_unsound(self) -> None:
        """Fixed batches: data sets exist that the Poisson pair under replace-one does not cover."""
        z, q, epsilon = 1.0, 0.05, 0.5
        assert exact_delta("replace", z, q, epsilon) < 0.5 * one_sided_delta(1 / z, q, epsilon)

    def test_half_lines_are_the_best_events_for_poisson_batches(self) -> None:
        """No other gradients are worse than opposite ones at the clipping norm."""
        q, c, rng = 0.3, 1.2, np.random.default_rng(0)
        y = np.linspace(-9, 9, 4001)
        for epsilon in (-0.4, 0.0, 0.1, 0.5):
            worst = exact_delta("replace", 1 / (2 * c), q, epsilon)
            for g, other in rng.uniform(-c, c, (50, 2)):
                p, r = ((1 - q) * norm.pdf(y) + q * norm.pdf(y - s) for s in (g, other))
                value = np.maximum(p - math.exp(epsilon) * r, 0).sum() * (y[1] - y[0])
                assert value <= worst + 1e-6


class TestSimpleLosses:
    def test_randomized_response_is_exact(self) -> None:
        atoms = RandomizedResponse(np.array([0.7])).atoms(np.array([-30.0]), 10)
        for epsilon in (-1.0, 0.0, 0.3, 0.69):
            lies = [1 / (1 + math.exp(0.7)), 1 / (1 + math.exp(-0.7))]
            exact = sum(max(0.0, p - math.exp(epsilon) * (1 - p)) for p in lies)
            assert profile(atoms, epsilon) == pytest.approx(exact, rel=1e-12)

    def test_laplace_is_just_above_its_curve(self) -> None:
        atoms = ScalarLaplace(np.array([0.8])).atoms(np.array([-30.0]), 200)
        assert atoms.probability.sum() == pytest.approx(1, rel=1e-12)
        assert atoms.reversed().probability.sum() == pytest.approx(1, rel=1e-12)
        for epsilon in (0.0, 0.3, 0.79):
            exact = SingleLaplace(0.8).delta_at(epsilon)
            assert exact * (1 - 1e-9) <= profile(atoms, epsilon) <= exact * 1.001 + 1e-5


class TestSums:
    @pytest.mark.parametrize("mu", [0.01, 1.0, 12.0])
    @pytest.mark.parametrize("log_delta", [-0.5, -11.5, -60.0, -500.0])
    def test_gaussian_alone(self, mu: float, log_delta: float) -> None:
        sums = Sums([], [], np.array([mu]))
        epsilon = float(sums.epsilons(np.array([log_delta]))[0])
        exact = gaussian_epsilon(mu, math.exp(log_delta))
        assert exact * (1 - 1e-12) <= epsilon <= exact * (1 + 1e-4) + 1e-9

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_few_steps_by_enumeration(self, kind: SampledKind, count: int) -> None:
        losses = one(kind, 0.8, 0.1)
        coarse = losses.atoms(np.array([-40.0]), 24)
        directions = [coarse] if losses.symmetric else [coarse, coarse.reversed()]
        exact_losses = [
            np.add.reduce(list(itertools.product(d.losses[0], repeat=count)), axis=1)
            for d in directions
        ]
        weights = [
            np.multiply.reduce(list(itertools.product(d.probability[0], repeat=count)), axis=1)
            for d in directions
        ]

        class Coarse(Losses):
            symmetric = losses.symmetric

            def rows(self, rows: slice) -> Losses:
                return self

            def atoms(self, *unused: object) -> Atoms:
                return coarse

        sums = summed(Coarse(), count)
        for epsilon in (0.05, 0.3, 1.0, 2.0):
            exact = max(
                float(w[x > epsilon] @ -np.expm1(epsilon - x[x > epsilon]))
                + 1
                - (1 - d.above[0]) ** count
                for x, w, d in zip(exact_losses, weights, directions, strict=True)
            )
            found = float(np.exp(sums.log_deltas(np.array([epsilon]))[0]))
            assert exact * (1 - 1e-9) <= found <= exact * 1.1
            at = float(sums.epsilons(np.array([math.log(exact)]))[0])
            assert epsilon * (1 - 1e-9) <= at <= epsilon * 1.01

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("z", "q"), SETTINGS)
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
    def test_one_step_against_its_formula(
        self, kind: SampledKind, z: float, q: float, delta: float
    ) -> None:
        epsilon = float(summed(one(kind, z, q), 1).epsilons(np.log([delta]))[0])

        def exact(at: float) -> float:
            value = exact_delta(kind, z, q, at)
            if kind == "add_or_remove" and at < -math.log1p(-q):
                other = one_sided_delta(1 / z, q, -at)
                value = max(value, -math.expm1(at) + math.exp(at) * other)
            return value

        accuracy = 1e-13 if kind == "replace" else 1e-15
        assert exact(epsilon) <= delta * (1 + 1e-9) + accuracy
        if epsilon > 1e-3 * q and delta > 1e3 * accuracy:
            assert exact(0.998 * epsilon) > delta

    def test_many_at_once_are_as_one_at_a_time_but_coarser(self) -> None:
        rng = np.random.default_rng(0)
        z, q = np.exp(rng.uniform(-1.5, 2, 300)), np.exp(rng.uniform(-9, -0.1, 300))
        steps = np.round(np.exp(rng.uniform(0, 9, 300)))
        for kind in KINDS:
            many = Sums([sampled_gaussian(kind, z, q)], [steps], np.zeros(300))
            found = many.epsilons(np.full(300, -11.5), FAST)
            for index in range(0, 300, 30):
                exact = summed(one(kind, z[index], q[index]), int(steps[index]))
                epsilon = float(exact.epsilons(np.array([-11.5]))[0])
                assert epsilon * (1 - 1e-9) <= found[index] <= epsilon * 1.02 + 1e-9

    def test_deltas_too_small_for_ordinary_transforms(self) -> None:
        steps = summed(one("fixed", 1.0, 0.01), 100)
        deltas = np.array([-30.0, -100.0, -300.0, -600.0])
        epsilons = [float(steps.epsilons(np.array([value]))[0]) for value in deltas]
        assert np.all(np.diff(epsilons) > 0)
        # Whoever is in one batch at least has the Gaussian mechanism's tail: a lower bound.
        for log_delta, epsilon in zip(deltas, epsilons, strict=True):
            once = float(log_ndtr(0.5 - epsilon - math.log(100)) + math.log(0.01))
            assert once <= log_delta + 1
            back = float(steps.log_deltas(np.array([epsilon]))[0])
            assert back == pytest.approx(log_delta, abs=0.05)

    def test_a_narrow_window_or_too_few_frequencies_only_cost_tightness(self) -> None:
        steps = summed(one("replace", 1.0, 0.01), 200)
        exact = float(steps.epsilons(np.array([-11.5]))[0])
        for frequencies in (8, 16, 64):
            poor = float(
                steps.epsilons(np.array([-11.5]), FAST.__class__(64, 1e-3, frequencies, 30, 1e-6))[
                    0
                ]
            )
            assert exact * (1 - 1e-6) <= poor < 1.3 * exact


class TestExactCurves:
    def test_epsilon_inverts_delta(self) -> None:
        for curve in (RandomizedResponses(((0.2, 40),)), SingleLaplace(0.9)):
            for delta in (1e-12, 1e-6, 0.05):
                epsilon = curve.epsilon_at(delta)
                assert curve.delta_at(epsilon) <= delta * (1 + 1e-9)
                assert curve.delta_at(0.999 * epsilon) > delta
            assert curve.epsilon_at(0.9999) == 0.0

    def test_different_randomized_responses_by_hand(self) -> None:
        # They lie with probabilities 1/4 and 1/3, and the losses are +-log 3 +- log 2.
        responses = RandomizedResponses(((math.log(3), 1), (math.log(2), 1)))
        losses, probability, _ = responses.atoms()
        np.testing.assert_allclose(np.exp(losses), [6, 3 / 2, 2 / 3, 1 / 6], rtol=1e-14)
        np.testing.assert_allclose(probability, [6 / 12, 3 / 12, 2 / 12, 1 / 12], rtol=1e-14)
        assert responses.delta_at(math.log(3 / 2)) == pytest.approx(3 / 8, rel=1e-9)
        assert responses.epsilon_at(3 / 8) == pytest.approx(math.log(3 / 2), rel=1e-9)

    @pytest.mark.parametrize(("epsilon", "count"), [(0.1, 1), (0.1, 500), (2.0, 3), (0.001, 10**6)])
    def test_sums_are_just_above_the_curve_of_randomized_responses(
        self, epsilon: float, count: int
    ) -> None:
        responses = RandomizedResponses(((epsilon, count),))
        sums = summed(RandomizedResponse(np.array([epsilon])), count)
        for delta in (1e-10, 1e-6, 1e-2):
            exact = responses.epsilon_at(delta)
            found = float(sums.epsilons(np.log([delta]))[0])
            assert exact * (1 - 1e-9) <= found <= 1.005 * exact + 1e-9

    def test_what_is_left_out_of_a_long_list_is_counted(self) -> None:
        losses, probability, omitted = RandomizedResponses(((0.1, 100_000),)).atoms()
        assert len(losses) < 5_000
        assert 0 < omitted <= 1e-16
        assert probability.sum() + omitted == pytest.approx(1.0, rel=1e-10)
        assert losses[0] < 0.1 * 100_000  # the largest losses are those that were left out
        # A delta that the omitted losses may exceed is promised at their sum only.
        assert RandomizedResponses(((0.1, 100_000),)).epsilon_at(omitted / 2) == 0.1 * 100_000
