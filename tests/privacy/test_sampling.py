"""Samplers have the distributions they claim; calibrated scales satisfy OpenDP's own maps."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import threading
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from botorch_dp.privacy import mechanisms as sampling
from botorch_dp.privacy.mechanisms import ExactNoise, SimulatedNoise, noise_source

#: Every statistical test below fails a correct sampler with this probability.
FALSE_ALARM = 1e-6

SOURCES = [ExactNoise(), SimulatedNoise(2**127 + 5)]
SOURCE_NAMES = ["exact", "simulated"]


def exponential_probabilities(utilities, scale):
    weights = np.exp((utilities - utilities.max()) / scale)
    return weights / weights.sum()


def permute_and_flip_probabilities(utilities, scale):
    """By enumerating all orders in which the indices can be visited."""
    accept = np.exp((utilities - utilities.max()) / scale)
    probabilities = np.zeros(len(utilities))
    orders = list(itertools.permutations(range(len(utilities))))
    for order in orders:
        reached = 1.0
        for index in order:
            probabilities[index] += reached * accept[index] / len(orders)
            reached *= 1 - accept[index]
    return probabilities


@pytest.mark.parametrize("source", SOURCES, ids=SOURCE_NAMES)
@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_continuous_noise_has_its_distribution(source, name):
    add, law = {
        "laplace": (source.add_laplace, stats.laplace),
        "gaussian": (source.add_gaussian, stats.norm),
    }[name]
    center, scale = 3.25, 0.4
    draws = add(np.full(20_000, center), scale)
    assert stats.kstest(draws, law(center, scale).cdf).pvalue > FALSE_ALARM
    # The same sample must reject what we must not confuse it with.
    assert stats.kstest(draws, law(center, 0.85 * scale).cdf).pvalue < FALSE_ALARM
    assert stats.kstest(draws, law(center + 0.1 * scale, scale).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("source", SOURCES, ids=SOURCE_NAMES)
def test_coordinates_get_independent_noise(source):
    for add in (source.add_laplace, source.add_gaussian):
        noise = add(np.zeros(20_000), 1.0)
        lags = [stats.spearmanr(noise[:-lag], noise[lag:]).pvalue for lag in (1, 2, 10)]
        assert min(lags) > FALSE_ALARM / 3
        assert len(np.unique(noise)) == len(noise)


@pytest.mark.parametrize("source", SOURCES, ids=SOURCE_NAMES)
@pytest.mark.parametrize("scale", [0.7, 6.0])
def test_integer_laplace_has_its_distribution(source, scale):
    draws = source.integer_laplace((5000, 4), scale)
    assert draws.shape == (5000, 4) and draws.dtype == np.int64
    edge = int(scale * 6)
    values = np.arange(-edge, edge + 1)
    decay = math.exp(-1 / scale)
    probabilities = (1 - decay) / (1 + decay) * decay ** np.abs(values)
    counts = np.array([(draws == value).sum() for value in values])
    observed = np.append(counts, draws.size - counts.sum())
    expected = draws.size * np.append(probabilities, 1 - probabilities.sum())
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


@pytest.mark.one_in(2)
@pytest.mark.parametrize("source", SOURCES, ids=SOURCE_NAMES)
@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
def test_selection_has_its_distribution(source, method):
    utilities, scale, draws = np.array([0.3, -1.0, 0.9, 0.9, 0.0]), 0.8, 20_000
    law = {
        "exponential": exponential_probabilities,
        "permute_and_flip": permute_and_flip_probabilities,
    }
    counts = np.bincount(source.select(utilities, scale, method, draws), minlength=5)
    assert counts.sum() == draws
    expected = draws * law[method](utilities, scale)
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
    for wrong in (
        law[method](utilities, 0.8 * scale),
        law["permute_and_flip" if method == "exponential" else "exponential"](utilities, scale),
    ):
        assert stats.chisquare(counts, draws * wrong).pvalue < FALSE_ALARM


@pytest.mark.parametrize("source", SOURCES, ids=SOURCE_NAMES)
def test_one_draw_has_the_distribution_of_many(source):
    utilities = np.array([0.0, 1.0])
    singles = [int(source.select(utilities, 1.0, "exponential")[0]) for _ in range(2000)]
    probability = 1 / (1 + math.exp(-1))
    assert stats.binomtest(sum(singles), 2000, probability).pvalue > FALSE_ALARM


def test_all_bits_of_the_seed_count():
    def noise(seed):
        return SimulatedNoise(seed).add_laplace(np.zeros(3), 1.0).tolist()

    seeds = [0, 1, 2**32, 2**64, 2**127, 2**127 + 1]
    assert len({tuple(noise(seed)) for seed in seeds}) == len(seeds)
    assert noise(2**127) == noise(2**127)


def test_only_the_argument_turns_simulation_on(monkeypatch):
    for name in ("BOTORCH_DP_UNSAFE_SEED", "UNSAFE_SEED", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "0")
    np.random.seed(0)
    first = noise_source(None)
    assert isinstance(first, ExactNoise)
    draws = [first.add_laplace(np.zeros(2), 1.0).tolist() for _ in range(2)]
    assert draws[0] != draws[1]


def _first_noise(queue):
    source = ExactNoise()
    queue.put(
        [
            *source.add_laplace(np.zeros(3), 1.0).tolist(),
            *source.integer_laplace((3,), 1e15).tolist(),
            tuple(int(source.select(np.zeros(1000), 1.0, "exponential")[0]) for _ in range(10)),
        ]
    )


def test_forked_processes_and_threads_share_no_noise():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    _first_noise(queue)  # whatever state there is exists before the fork
    workers = [context.Process(target=_first_noise, args=(queue,)) for _ in range(3)]
    workers += [threading.Thread(target=_first_noise, args=(queue,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    noise = [value for _ in range(1 + len(workers)) for value in queue.get()]
    assert len(set(noise)) == len(noise) == 49


def random_parameters(count):
    generator = np.random.default_rng(7)
    for _ in range(count):
        yield tuple((10 ** generator.uniform((-12, -6), (12, 3))).tolist())


def test_opendp_confirms_the_laplace_scale():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    naive_failures = 0
    for sensitivity, epsilon in random_parameters(300):
        scale = sampling.laplace_scale(sensitivity, epsilon)
        assert dp.m.make_laplace(*space, scale=scale).map(sensitivity) <= epsilon
        assert scale == pytest.approx(sensitivity / epsilon, rel=1e-14)
        naive = dp.m.make_laplace(*space, scale=sensitivity / epsilon)
        naive_failures += naive.map(sensitivity) > epsilon
    assert naive_failures > 0  # else this test could not fail


def test_opendp_confirms_the_gaussian_scale():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    naive_failures = 0
    for sensitivity, mu in random_parameters(300):
        scale = sampling.gaussian_scale(sensitivity, mu)
        rho = Fraction(mu) ** 2 / 2
        assert Fraction(dp.m.make_gaussian(*space, scale=scale).map(sensitivity)) <= rho
        assert scale == pytest.approx(sensitivity / mu, rel=1e-14)
        naive = dp.m.make_gaussian(*space, scale=sensitivity / mu)
        naive_failures += Fraction(naive.map(sensitivity)) > rho
    assert naive_failures > 0


def test_rounding_many_values_to_the_lattice_widens_the_noise():
    """n values move by up to n steps (sqrt(n) in l2): here enough of them to see it."""
    for scale_of, root in ((sampling.laplace_scale, 1.0), (sampling.gaussian_scale, 0.5)):
        # Little noise is asked for, so that a step of the lattice counts.
        sensitivity, level, count = 2.0**-50, 2.0**-50, 2**16
        needed = sensitivity / level
        moved = count**root * 2.0**-sampling.LATTICE_BITS
        widened = scale_of(sensitivity, level, count)
        assert widened >= needed * (1 + moved / sensitivity / 2)
        assert widened <= needed * (1 + 8 * moved / sensitivity) + 1e-14
    with pytest.raises(ValueError, match="`sensitivity`"):
        sampling.gaussian_scale(2.0**-90, 2.0**-90, 2**16)


def test_noise_comes_on_its_lattice_and_not_on_that_of_the_value(monkeypatch):
    """Near zero a double could tell the low bits of the value; the noise leaves none of them."""
    assert sampling._lattice(1.0) == sampling._lattice(1.99) == -sampling.LATTICE_BITS
    assert sampling._lattice(2.0**-30) == -30 - sampling.LATTICE_BITS
    # On a coarse lattice and with hardly any noise, what is left of the value shows.
    monkeypatch.setattr(sampling, "_lattice", lambda scale: -20)
    for add in (ExactNoise().add_laplace, ExactNoise().add_gaussian):
        values = np.array([math.pi * 1e-3, -math.e, 2.0**-30, 1e5 / 3])
        noisy = add(values, 2.0**-61.25)
        assert np.all(noisy * 2.0**20 == np.round(noisy * 2.0**20))
        assert np.all(np.abs(noisy - values) <= 2.0**-20)


def test_opendp_confirms_the_selection_scale():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = (
        dp.vector_domain(dp.atom_domain(T=float, nan=False)),
        dp.linf_distance(T=float, monotonic=False),
    )
    for sensitivity, epsilon in random_parameters(200):
        ideal = 2 * sensitivity / epsilon
        scale = sampling.selection_scale(sensitivity, epsilon, "permute_and_flip")
        noisy_max = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=scale)
        assert noisy_max.map(sensitivity) <= epsilon
        assert scale == pytest.approx(ideal, rel=1e-14)

        scale = sampling.selection_scale(sensitivity, epsilon, "exponential")
        noisy_max = dp.m.make_noisy_max(*space, dp.zero_concentrated_divergence(), scale=scale)
        assert Fraction(noisy_max.map(sensitivity)) <= Fraction(epsilon) ** 2 / 8
        assert scale == pytest.approx(ideal, rel=1e-14)


def test_discrete_gaussian_is_a_rounded_gaussian_up_to_the_stated_error():
    """The lemma behind the Gaussian mechanism's guarantee, on a lattice coarse enough to see it."""
    for lattice in (0.2, 0.05, 0.0125):
        steps = np.arange(-round(6 / lattice), round(6 / lattice) + 1)
        centers = steps * lattice
        discrete = np.exp(-(centers**2) / 2)
        discrete /= discrete.sum()
        rounded = stats.norm.cdf(centers + lattice / 2) - stats.norm.cdf(centers - lattice / 2)
        tail = np.maximum(np.abs(centers), 1)
        assert np.all(np.abs(discrete / rounded - 1) <= (tail * lattice) ** 2)
        assert np.max(np.abs(discrete / rounded - 1)) > lattice**2 / 100
