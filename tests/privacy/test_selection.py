"""The price of publishing the best of a secret number of outcomes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import chisquare, norm

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    ApproximateLoss,
    GaussianLoss,
    NeighboringRelation,
    PureLoss,
    gaussian_delta,
    gaussian_mu,
)
from botorch_dp.privacy.losses import PoissonSGDLoss
from botorch_dp.privacy.pld.composition import composed_delta
from botorch_dp.privacy.selection import (
    BaseProfile,
    Selection,
    TrialNumber,
    selection_epsilon,
    training_noise,
)

LAWS = [
    TrialNumber(5.0, -0.5),
    TrialNumber(40.0, 0.0),
    TrialNumber(3.0, 0.5),
    TrialNumber(40.0, 1.0),
    TrialNumber(10.0, 3.0),
    TrialNumber(6.0, math.inf),
    TrialNumber(0.7, math.inf),
]
EPSILONS = np.linspace(0.0, 6.0, 61)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def generating(law: TrialNumber, x: float) -> float:
    p = law._probabilities
    return float(p @ x ** np.arange(len(p)))


def best_of(law: TrialNumber, base: np.ndarray) -> np.ndarray:
    """The exact law of the best outcome, outcomes being listed from bad to good; nothing first."""
    reached = np.concatenate([[0.0], np.cumsum(base)])
    values = np.array([generating(law, min(x, 1.0)) for x in reached])
    return np.concatenate([[values[0]], np.diff(values)])


class TestTrialNumber:
    @pytest.mark.parametrize("law", LAWS, ids=str)
    def test_probabilities_have_the_mean_and_the_slope(self, law: TrialNumber) -> None:
        p = law._probabilities
        k = np.arange(len(p))
        assert p.sum() == pytest.approx(1.0, abs=1e-9)
        assert p @ k == pytest.approx(law.mean, rel=1e-6)
        for u in (0.0, 0.01, 0.3, 0.9):
            assert law.slope(u) == pytest.approx(p[1:] @ (k[1:] * (1 - u) ** (k[1:] - 1)), rel=1e-6)

    def test_known_laws(self) -> None:
        assert TrialNumber(40).gamma == pytest.approx(1 / 40)
        assert TrialNumber(40)._probabilities[:3] == pytest.approx([0, 1 / 40, 39 / 1600])
        logarithmic = TrialNumber(3.0, 0.0)
        p = 1 - logarithmic.gamma
        assert logarithmic._probabilities[2] == pytest.approx(-(p**2) / 2 / math.log(1 - p))

    @pytest.mark.parametrize("law", [*LAWS, TrialNumber(20, -0.8)], ids=str)
    def test_draws_follow_the_law(self, law: TrialNumber) -> None:
        drawn, p = law.draws(4000), law._probabilities
        # Cells of about equal probability, the last one with all that the table leaves out.
        ends = np.unique(np.searchsorted(law._cumulative, np.linspace(0.05, 0.95, 10)))
        counts = np.bincount(np.searchsorted(ends, drawn), minlength=len(ends) + 1)
        expected = np.diff(np.concatenate([[0.0], law._cumulative[ends], [1.0]]))
        used = expected > 0
        assert chisquare(counts[used], 4000 * expected[used] / expected.sum()).pvalue > 1e-6
        assert drawn.min() >= 1 or (law.is_poisson and p[0] > 0)
        assert len({law.draw() for _ in range(200)}) > 1  # one of them, and not their mean

    def test_draws_know_no_table_that_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The law that is accounted for has no last number, and neither has the one drawn."""
        laws = (TrialNumber(20, -0.8), TrialNumber(3.0, math.inf))
        for table in ("_probabilities", "_cumulative"):
            monkeypatch.setattr(TrialNumber, table, property(lambda _: pytest.fail("looked up")))
        assert all(law.draw() >= 0 for law in laws for _ in range(100))
        # One in 10^7 draws is beyond the table of 5 million: their law is checked further down.
        monkeypatch.undo()
        few = laws[0].draws(20_000)
        tail = laws[0]._cumulative
        for end in (100, 1000, 10_000):
            expected = 20_000 * (1 - tail[end])
            assert abs((few > end).sum() - expected) < 6 * math.sqrt(expected) + 4

    def test_a_law_that_could_never_run_is_refused(self) -> None:
        with pytest.raises(ValueError, match="than could ever run"):
            TrialNumber(40, -0.9)

    @pytest.mark.parametrize(
        ("mean", "shape"), [(1.0, 1.0), (0.0, math.inf), (40, -1.0), (1e9, 1.0), (math.nan, 1.0)]
    )
    def test_nonsense_is_refused(self, mean: float, shape: float) -> None:
        with pytest.raises(ValueError, match=r"`(mean|shape)` must be"):
            TrialNumber(mean, shape)


class TestProfileBound:
    """Against the exact law of the selection from a base with few outcomes."""

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("law", LAWS, ids=str)
    def test_randomized_response_in_every_order(self, law: TrialNumber) -> None:
        """A base of three outcomes under three pairs of laws, whichever outcome is the best."""
        a, b = 0.4, 1.1
        pairs = [
            (np.array([0.5, 0.3, 0.2]), np.array([0.5 * math.exp(-a), 0.3 * math.exp(a), 0.0])),
            (np.array([0.9, 0.05, 0.05]), np.array([0.86, 0.05 * math.exp(-b), 0.0])),
            (np.array([0.3, 0.69, 0.01]), np.array([0.5, 0.49, 0.0])),
        ]
        for p, q in pairs:
            q[2] = 1 - q.sum()
            grid = np.linspace(0.02, 2.0, 60)
            deltas = [max(hockey_stick(p, q, e), hockey_stick(q, p, e)) for e in grid]
            base = BaseProfile(tuple(grid), tuple(deltas))
            bounds = [Selection(law).delta(base, epsilon) for epsilon in EPSILONS]
            for order in itertools.permutations(range(3)):
                one, other = (best_of(law, part[list(order)]) for part in (p, q))
                for epsilon, bound in zip(EPSILONS, bounds, strict=True):
                    exact = max(
                        hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon)
                    )
                    assert exact <= bound + 1e-9

    def test_pure_bases_cost_two_plus_shape(self) -> None:
        for shape in (0.0, 1.0, 2.0):
            law = TrialNumber(30.0, shape)
            bound = selection_epsilon((PureLoss(0.2),), law, 1e-12)
            assert 0.9 < bound / (0.2 * (2 + shape)) < 1.005

    @pytest.mark.parametrize("shape", [1.0, 0.0, math.inf])
    def test_is_nearly_attained(self, shape: float) -> None:
        """A Gaussian base whose best outcomes are those likelier on the neighbour."""
        law = TrialNumber(8.0 if shape == math.inf else 40.0, shape)
        mu, cells = 0.2, 40_000
        edges = np.linspace(-9, 9, cells + 1)
        p, q = np.diff(norm.cdf(edges)), np.diff(norm.cdf(edges, loc=mu))
        selection = Selection(law)
        base = selection.profile(mu, 1e-5)
        bound = selection.epsilon(base, 1e-5)
        best = 0.0
        for share in np.geomspace(0.001, 0.5, 25):
            # From bad to good: middling ones, those that betray P, those that betray the other.
            top = int(np.searchsorted(edges, norm.isf(share)))
            order = np.concatenate([np.arange(top - 1, -1, -1), np.arange(top, cells)])
            one, other = best_of_fast(law, p[order]), best_of_fast(law, q[order])
            low, high = 0.0, 20.0
            while high - low > 1e-3:
                middle = 0.5 * (low + high)
                leaks = hockey_stick(one, other, middle) > 1e-5
                low, high = (middle, high) if leaks else (low, middle)
            best = max(best, low)
        assert 0.85 * bound <= best <= bound

    def test_nothing_is_known_beyond_the_last_point(self) -> None:
        base = BaseProfile((0.5, 1.0), (0.1, 0.01))
        constant = base.expected(lambda ratios: np.ones((1, len(ratios))))
        assert constant[0] >= 1
        # An alpha that the last point does not reach.
        assert Selection(TrialNumber(1.001)).delta(base, 0.2) >= 0.15
        assert Selection(TrialNumber(1.001)).delta(base, 1.0) >= 0.01

    def test_profiles_beat_renyi(self) -> None:
        law, mu = TrialNumber(40), 0.14
        orders = [1.5, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, 128]
        accountant = RdpAccountant(orders)
        accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / mu), 40, 1))
        assert (
            selection_epsilon((GaussianLoss(mu),), law, 1e-5) < accountant.get_epsilon(1e-5) - 0.1
        )


def best_of_fast(law: TrialNumber, base: np.ndarray) -> np.ndarray:
    """:func:`best_of` for many small cells, by the density at the middle of each."""
    better = 1 - np.cumsum(base) + base / 2
    return base * law.slope(np.clip(better, 0, 1))


@pytest.mark.parametrize("delta", [-1e-9, 0.0, 1.0, math.nan])
def test_a_profile_names_the_delta_that_it_refuses(delta: float) -> None:
    with pytest.raises(ValueError, match="`smallest_delta` must lie in"):
        BaseProfile.of_mu(1.0, delta)


class TestLevel:
    @pytest.mark.parametrize(
        "law", [TrialNumber(40), TrialNumber(12, 0.0), TrialNumber(5, math.inf)]
    )
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
    def test_the_largest_mu_meets_the_budget_and_a_larger_one_does_not(
        self, law: TrialNumber, epsilon: float
    ) -> None:
        selection = Selection(law)
        mu = selection.mu(epsilon, 1e-5)
        assert selection.delta(selection.profile(mu, 1e-5), epsilon) <= 1e-5
        more = mu * 1.001
        assert selection.delta(selection.profile(more, 1e-5), epsilon) > 1e-5
        assert mu < gaussian_mu(epsilon, 1e-5)

    @pytest.mark.parametrize("epsilon", [279.0, 1e4])
    @pytest.mark.filterwarnings("error")
    def test_no_epsilon_is_too_large(self, epsilon: float) -> None:
        assert 14 < Selection(TrialNumber(10)).mu(epsilon, 1e-6) < 17

    def test_a_base_without_a_finite_epsilon_is_refused(self) -> None:
        with pytest.raises(PrivacyError, match="no finite epsilon"):
            selection_epsilon((ApproximateLoss(0.1, 1e-6),), TrialNumber(40), 1e-5)


class TestTrainingNoise:
    BASE = Selection(TrialNumber(40)).profile(0.14, 1e-5)

    @pytest.mark.parametrize("beside", [0.0, 0.05])
    @pytest.mark.parametrize("batch", [64, 1024, 5000])
    def test_keeps_to_all_points_and_hardly_more(self, batch: int, beside: float) -> None:
        n, steps = 5000, 200
        (noise,) = training_noise(self.BASE, [batch], [steps], num_records=n, beside_mu=beside)

        def excess(z: float) -> float:
            if batch == n:
                mu = math.hypot(2 * math.sqrt(steps) / z, beside)
                found = [gaussian_delta(mu, e) for e in self.BASE.epsilons]
            else:
                losses = (PoissonSGDLoss(z, batch / n, steps, NeighboringRelation.REPLACE_ONE),)
                losses += (GaussianLoss(beside),) if beside else ()
                found = [composed_delta(losses, e) for e in self.BASE.epsilons]
            return max(a - b for a, b in zip(np.log(found), np.log(self.BASE.deltas), strict=True))

        assert excess(noise) <= 1e-9
        assert excess(0.98 * noise) > 0

    def test_several_at_once(self) -> None:
        batches, steps = [32, 5000], [100, 10]
        together = training_noise(self.BASE, batches, steps, num_records=5000)
        alone = [
            training_noise(self.BASE, [m], [s], num_records=5000)[0]
            for m, s in zip(batches, steps, strict=True)
        ]
        assert together == pytest.approx(alone, rel=3e-3)

    def test_a_score_that_takes_everything_is_refused(self) -> None:
        with pytest.raises(PrivacyError, match=r"`beside_mu` = 0\.2"):
            training_noise(self.BASE, [64], [10], num_records=5000, beside_mu=0.2)
