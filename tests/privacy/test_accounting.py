"""The price of DP-SGD under its two ways of sampling."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

from botorch_dp.privacy.accounting import (
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_loss,
    dp_sgd_noise_multiplier,
    dp_sgd_relation,
    gaussian_delta,
    gaussian_epsilon,
)
from botorch_dp.privacy.guarantee import NeighboringRelation
from botorch_dp.privacy.losses import FixedLotSGDLoss, PoissonSGDLoss

REPLACE = dpa.NeighboringRelation.REPLACE_ONE
THEIR_ORDERS = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
ADULT = {"lot_size": 256, "num_records": 32561, "steps": 1000, "delta": 1e-5}


def their_fixed_lot_epsilon(z: float, lot: int, records: int, steps: int, delta: float) -> float:
    event = dpa.SampledWithoutReplacementDpEvent(records, lot, dpa.GaussianDpEvent(z))
    return RdpAccountant(THEIR_ORDERS, REPLACE).compose(event, steps).get_epsilon(delta)


def sampled_gaussian_delta(z: float, q: float, epsilon: float) -> float:
    """One Poisson-sampled step, exactly: (1 - q) Q + q P against Q = N(0, 1), P = N(1/z, 1)."""
    remove = q * gaussian_delta(1 / z, math.log1p(math.expm1(epsilon) / q))
    # Adding: E_Q (1 - e^eps (1 - q) - e^eps q P/Q)_+, the curve of P and Q at log(1/level).
    level = (1 - math.exp(epsilon) * (1 - q)) / (math.exp(epsilon) * q)
    if level <= 0:
        return remove
    add = math.exp(epsilon) * q * level * gaussian_delta(1 / z, -math.log(level))
    return max(remove, add)


class TestFixedLots:
    @pytest.mark.parametrize(
        ("z", "lot", "records", "steps", "delta"),
        [
            (0.5, 64, 32561, 500, 1e-5),
            (1.0, 256, 32561, 1000, 1e-5),
            (4.0, 512, 32561, 4000, 1e-6),
            (1.1, 600, 60000, 6000, 1e-5),
            (2.0, 1, 1000, 10**6, 1e-9),
            (16.0, 8, 32561, 1, 1e-5),
        ],
    )
    def test_equals_dp_accounting_and_is_never_above_it(
        self, z: float, lot: int, records: int, steps: int, delta: float
    ) -> None:
        run = {
            "noise_multiplier": z,
            "lot_size": lot,
            "num_records": records,
            "steps": steps,
            "delta": delta,
        }
        theirs = their_fixed_lot_epsilon(z, lot, records, steps, delta)
        assert dp_sgd_epsilon(**run, orders=THEIR_ORDERS) == pytest.approx(theirs, rel=1e-6)
        assert dp_sgd_epsilon(**run) <= theirs * (1 + 1e-9)

    def test_orders_that_their_list_jumps_over_matter(self) -> None:
        # The best order lies between 128 and 256, where dp-accounting's list has nothing.
        run = {"noise_multiplier": 3.0, "lot_size": 64, "num_records": 60000, "steps": 100}
        theirs = their_fixed_lot_epsilon(3.0, 64, 60000, 100, 1e-5)
        assert dp_sgd_epsilon(**run, delta=1e-5) < 0.5 * theirs

    def test_factor_two_trap_of_dp_accounting(self) -> None:
        """Under REPLACE_ONE their Rényi accountant reads z as std/2C, their other one as std/C."""
        event, delta = dpa.GaussianDpEvent(2.0), 1e-5
        one_sensitivity = gaussian_epsilon(1 / 2.0, delta)
        two_sensitivities = gaussian_epsilon(2 / 2.0, delta)
        distribution = PLDAccountant(REPLACE).compose(event).get_epsilon(delta)
        assert distribution == pytest.approx(two_sensitivities, rel=1e-3)
        renyi = RdpAccountant(THEIR_ORDERS, REPLACE).compose(event).get_epsilon(delta)
        assert one_sensitivity < renyi < 1.2 * one_sensitivity
        # Ours: z is in units of the sensitivity.
        ours = dp_sgd_epsilon(noise_multiplier=2.0, lot_size=9, num_records=9, steps=1, delta=delta)
        assert ours == one_sensitivity

    def test_full_lots_are_the_gaussian_mechanism_exactly(self) -> None:
        epsilon = dp_sgd_epsilon(
            noise_multiplier=5.0, lot_size=100, num_records=100, steps=16, delta=1e-6
        )
        assert epsilon == pytest.approx(gaussian_epsilon(4 / 5, 1e-6), rel=1e-12)

    def test_never_worse_than_without_amplification(self) -> None:
        # The bound on sampling is poor for large lots and for little noise.
        for lot, z in ((99, 5.0), (90, 1.0), (2, 0.05)):
            epsilon = dp_sgd_epsilon(
                noise_multiplier=z, lot_size=lot, num_records=100, steps=16, delta=1e-6
            )
            assert epsilon <= gaussian_epsilon(4 / z, 1e-6)

    def test_grows_with_steps_and_lots_and_falls_with_noise_and_delta(self) -> None:
        def epsilons(name: str, values: list[float]) -> np.ndarray:
            return np.array(
                [dp_sgd_epsilon(**{"noise_multiplier": 1.0, **ADULT, name: v}) for v in values]
            )

        steps = epsilons("steps", [1, 2, 3, 10, 30, 31, 100, 1000, 10**4, 10**5, 10**6])
        assert np.all(np.diff(steps) > 0)
        noise = epsilons("noise_multiplier", np.geomspace(0.05, 200, 120).tolist())
        assert np.all(np.diff(noise) <= 0)
        assert np.all(np.diff(noise[noise > 0]) < 0)
        lots = epsilons("lot_size", [1, 2, 8, 64, 256, 4096, 20000, 32560, 32561])
        assert np.all(np.diff(lots) >= 0)
        deltas = epsilons("delta", [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.9])
        assert np.all(np.diff(deltas) <= 0)

    @pytest.mark.parametrize("steps", [1, 10**6])
    @pytest.mark.parametrize("lot", [1, 500, 1000])
    @pytest.mark.parametrize("z", [1e-3, 1.0, 1e4])
    def test_extremes_are_finite_and_in_order(self, steps: int, lot: int, z: float) -> None:
        epsilon = dp_sgd_epsilon(
            noise_multiplier=z, lot_size=lot, num_records=1000, steps=steps, delta=1e-5
        )
        assert 0 <= epsilon <= gaussian_epsilon(math.sqrt(steps) / z, 1e-5)

    def test_refuses_wrong_orders(self) -> None:
        for orders in ([], [1.0], [2, math.inf], [math.nan]):
            with pytest.raises(ValueError, match="`orders`"):
                dp_sgd_epsilon(noise_multiplier=1.0, **ADULT, orders=orders)


class TestPoisson:
    @pytest.mark.parametrize(("z", "lot", "steps"), [(1.0, 256, 1000), (0.7, 64, 300)])
    def test_equals_dp_accounting(self, z: float, lot: int, steps: int) -> None:
        event = dpa.PoissonSampledDpEvent(lot / 32561, dpa.GaussianDpEvent(z))
        theirs = PLDAccountant().compose(event, steps).get_epsilon(1e-5)
        ours = dp_sgd_epsilon(
            noise_multiplier=z,
            lot_size=lot,
            num_records=32561,
            steps=steps,
            delta=1e-5,
            sampling="poisson",
        )
        assert ours == pytest.approx(theirs, rel=1e-4)

    @pytest.mark.parametrize("z", [0.6, 1.0, 4.0])
    @pytest.mark.parametrize("lot", [1, 10, 500])
    def test_one_step_is_tight_and_never_optimistic(self, z: float, lot: int) -> None:
        epsilon = dp_sgd_epsilon(
            noise_multiplier=z,
            lot_size=lot,
            num_records=1000,
            steps=1,
            delta=1e-6,
            sampling="poisson",
        )
        exact = sampled_gaussian_delta(z, lot / 1000, epsilon)
        assert exact <= 1e-6
        assert sampled_gaussian_delta(z, lot / 1000, 0.98 * epsilon) > 1e-6

    def test_full_lots_are_the_gaussian_mechanism(self) -> None:
        epsilon = dp_sgd_epsilon(
            noise_multiplier=5.0,
            lot_size=7,
            num_records=7,
            steps=16,
            delta=1e-6,
            sampling="poisson",
        )
        assert epsilon == pytest.approx(gaussian_epsilon(4 / 5, 1e-6), rel=1e-12)

    def test_grows_with_steps_and_falls_with_noise(self) -> None:
        def epsilon(z: float, steps: int) -> float:
            return dp_sgd_epsilon(
                noise_multiplier=z,
                lot_size=100,
                num_records=10000,
                steps=steps,
                delta=1e-6,
                sampling="poisson",
            )

        assert np.all(np.diff([epsilon(1.0, n) for n in (1, 50, 51, 10**6)]) > 0)
        assert np.all(np.diff([epsilon(z, 100) for z in (0.6, 0.9, 0.91, 50.0)]) < 0)

    def test_a_million_steps_of_one_record(self) -> None:
        epsilon = dp_sgd_epsilon(
            noise_multiplier=1.0,
            lot_size=1,
            num_records=10**5,
            steps=10**6,
            delta=1e-6,
            sampling="poisson",
        )
        assert 0 < epsilon < 0.2

    def test_has_no_orders(self) -> None:
        with pytest.raises(ValueError, match="`orders`"):
            dp_sgd_epsilon(noise_multiplier=1.0, **ADULT, sampling="poisson", orders=[2, 3])


class TestNoiseMultiplier:
    @pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 500.0])
    @pytest.mark.parametrize("lot", [1, 256, 32561])
    def test_never_overshoots_and_is_the_least(self, epsilon: float, lot: int) -> None:
        run = {**ADULT, "lot_size": lot}
        z = dp_sgd_noise_multiplier(epsilon=epsilon, **run)
        assert dp_sgd_epsilon(noise_multiplier=z, **run) <= epsilon
        assert dp_sgd_epsilon(noise_multiplier=z * (1 - 3e-5), **run) > epsilon

    def test_poisson(self) -> None:
        run = {**ADULT, "steps": 100, "sampling": "poisson"}
        z = dp_sgd_noise_multiplier(epsilon=1.0, **run)
        assert 0.995 < dp_sgd_epsilon(noise_multiplier=z, **run) <= 1.0

    @pytest.mark.slow
    def test_poisson_lots_so_rare_that_noise_hardly_matters(self) -> None:
        # A record that is never drawn with probability 1 - delta needs no noise for epsilon = 0.
        run = {"lot_size": 1, "num_records": 100, "steps": 1, "delta": 0.1}
        z = dp_sgd_noise_multiplier(epsilon=0.1, sampling="poisson", **run)
        assert 0 < z < 0.1
        assert dp_sgd_epsilon(noise_multiplier=z, sampling="poisson", **run) <= 0.1

    @pytest.mark.parametrize("epsilon", [1e-6, 1e6])
    def test_extreme_targets(self, epsilon: float) -> None:
        z = dp_sgd_noise_multiplier(epsilon=epsilon, **ADULT)
        assert dp_sgd_epsilon(noise_multiplier=z, **ADULT) <= epsilon
        assert dp_sgd_epsilon(noise_multiplier=0.999 * z, **ADULT) > epsilon

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_refuses_bad_targets(self, bad: float) -> None:
        with pytest.raises(ValueError, match="`epsilon`"):
            dp_sgd_noise_multiplier(epsilon=bad, **ADULT)


class TestManyAtOnce:
    def test_agrees_with_one_at_a_time_from_above(self) -> None:
        rng = np.random.default_rng(1)
        z = np.exp(rng.uniform(math.log(0.1), math.log(16), 40))
        lots, steps = rng.integers(8, 512, 40), rng.integers(1, 20000, 40)
        many = dp_sgd_epsilons(z, lots, steps, num_records=32561, delta=1e-5)
        each = [
            dp_sgd_epsilon(
                noise_multiplier=float(a),
                lot_size=int(b),
                num_records=32561,
                steps=int(c),
                delta=1e-5,
            )
            for a, b, c in zip(z, lots, steps, strict=True)
        ]
        assert np.all(many >= np.array(each) * (1 - 1e-12))
        np.testing.assert_allclose(many, each, rtol=0.01)

    def test_settings_broadcast(self) -> None:
        many = dp_sgd_epsilons([1.0, 2.0], [10], [100], num_records=100, delta=1e-5)
        assert many.shape == (2,)
        assert many[0] > many[1]

    @pytest.mark.parametrize(
        ("noise", "lots", "steps", "name"),
        [
            ([0.0], [1], [1], "noise_multipliers"),
            ([math.nan], [1], [1], "noise_multipliers"),
            ([1.0], [0], [1], "lot_sizes"),
            ([1.0], [101], [1], "lot_sizes"),
            ([1.0], [1.5], [1], "lot_sizes"),
            ([1.0], [1], [0], "steps"),
            ([[1.0]], [1], [1], "one-dimensional"),
        ],
    )
    def test_refuses_wrong_settings(
        self, noise: list[float], lots: list[int], steps: list[int], name: str
    ) -> None:
        with pytest.raises(ValueError, match=name):
            dp_sgd_epsilons(noise, lots, steps, num_records=100, delta=1e-5)


def test_relation_and_loss_of_each_sampling() -> None:
    assert dp_sgd_relation("without_replacement") is NeighboringRelation.REPLACE_ONE
    assert dp_sgd_relation("poisson") is NeighboringRelation.ADD_OR_REMOVE_ONE
    run = {"noise_multiplier": 1.5, "lot_size": 5, "num_records": 50, "steps": 7}
    assert dp_sgd_loss(**run) == FixedLotSGDLoss(1.5, 5, 50, 7)
    assert dp_sgd_loss(**run, sampling="poisson") == PoissonSGDLoss(1.5, 0.1, 7)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("noise_multiplier", 0.0, ValueError),
        ("noise_multiplier", math.inf, ValueError),
        ("noise_multiplier", math.nan, ValueError),
        ("lot_size", 0, ValueError),
        ("lot_size", 32562, ValueError),
        ("lot_size", 2.5, TypeError),
        ("num_records", 0, ValueError),
        ("steps", 0, ValueError),
        ("steps", 1.0, TypeError),
        ("delta", 0.0, ValueError),
        ("delta", 1.0, ValueError),
        ("sampling", "shuffle", ValueError),
    ],
)
@pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
def test_errors_name_the_argument(
    name: str, value: object, error: type[Exception], sampling: str
) -> None:
    arguments = {"noise_multiplier": 1.0, **ADULT, "sampling": sampling, name: value}
    with pytest.raises(error, match=f"`{name}`"):
        dp_sgd_epsilon(**arguments)
