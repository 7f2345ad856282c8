"""Every printed number is on the safe side of the exact one, and close to it."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import pytest

from botorch_dp.cli import main
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyUnit,
    dp_sgd_epsilon,
    gaussian_mu,
    laplace_mechanism,
)
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.losses import ApproximateLoss, GaussianLoss, PrivacyLoss, PureLoss
from botorch_dp.privacy.rounding import rounded_down, rounded_up

NUMBER = r"[-+0-9.]+(?:e[-+]\d+)?"


def settings(count: int, seed: int = 0) -> Iterator[tuple[float, float]]:
    """Epsilons and deltas of many sizes, some of them a hair beside a short decimal."""
    generator = random.Random(seed)
    for _ in range(count):
        epsilon = generator.randrange(1, 10**5) * 10.0 ** generator.randrange(-7, -2)
        delta = generator.randrange(1, 10**4) * 10.0 ** generator.randrange(-14, -7)
        if generator.random() < 0.7:
            epsilon = math.nextafter(epsilon, generator.choice((0.0, math.inf)))
            delta = math.nextafter(delta, generator.choice((0.0, math.inf)))
        yield epsilon, delta


def promise(*losses: PrivacyLoss) -> Guarantee:
    return Guarantee("a test", PrivacyUnit(), losses)


class TestRounding:
    def test_is_safe_and_right_to_the_last_place(self) -> None:
        """As decimals: at most one unit of the last digit beside the number's own decimal."""
        generator = random.Random(1)
        for _ in range(8_000):
            digits = generator.choice((1, 2, 3, 4, 6, 12, 17))
            base = generator.randrange(10 ** min(digits, 15)) * 10.0 ** generator.randrange(
                -330, 300
            )
            value = math.nextafter(base, generator.choice((-math.inf, math.inf, base)))
            value *= generator.choice((1, -1))
            if not math.isfinite(value):
                continue
            up, down = rounded_up(value, digits), rounded_down(value, digits)
            assert float(down) <= value <= float(up)
            exact = Fraction(repr(value))
            assert Fraction(down) <= exact <= Fraction(up)
            if value:
                unit = Fraction(10) ** (math.floor(mpmath.log10(abs(mpmath.mpf(value)))) - digits)
                assert Fraction(up) - Fraction(down) <= 10 * unit
                assert len(re.sub(r"e.*|\D", "", up).strip("0")) <= digits

    @pytest.mark.parametrize(
        ("value", "up", "down"),
        [
            (0.0, "0", "0"),
            (1e-5, "1e-05", "1e-05"),
            (1 / 3e5, "3.334e-06", "3.333e-06"),
            (0.99995, "1", "0.9999"),
            (123456.7, "123500", "123400"),
            (1e22, "1e+22", "1e+22"),
            (5e-324, "5e-324", "5e-324"),
            (math.inf, "inf", "inf"),
            (-2 / 3, "-0.6666", "-0.6667"),
        ],
    )
    def test_by_hand(self, value: float, up: str, down: str) -> None:
        assert (rounded_up(value), rounded_down(value)) == (up, down)


class TestGuarantees:
    def test_epsilon_and_delta(self) -> None:
        for epsilon, delta in settings(300):
            pure, both = (
                str(promise(PureLoss(epsilon))),
                str(promise(ApproximateLoss(epsilon, delta))),
            )
            (shown,) = re.findall(rf"^({NUMBER})-differentially", pure)
            assert epsilon <= float(shown) <= epsilon * 1.002
            ((shown, theirs),) = re.findall(rf"\(({NUMBER}), ({NUMBER})\)-differ", both)
            assert epsilon <= float(shown) and delta <= float(theirs) <= delta * 1.002

    def test_gaussian_ones_against_many_digits(self) -> None:
        """At the printed mu, delta at the printed epsilon is not above the printed delta."""
        with mpmath.workdps(60):
            for epsilon, delta in settings(60, seed=2):
                if not 1e-3 < epsilon < 30:
                    continue
                mu = gaussian_mu(epsilon, delta)
                text = str(promise(GaussianLoss(mu)).quoted_at(delta))
                ((shown, e, d),) = re.findall(
                    rf"({NUMBER})-Gaussian .*\(({NUMBER}), ({NUMBER})\)-diff", text
                )
                assert mu <= float(shown) <= mu * 1.002
                a, b = (mpmath.mpf(e) / mu + sign * mpmath.mpf(mu) / 2 for sign in (-1, 1))
                true = mpmath.ncdf(-a) - mpmath.exp(mpmath.mpf(e)) * mpmath.ncdf(-b)
                assert true <= mpmath.mpf(d)


@pytest.mark.parametrize("mu", [0.1, 1.0, 10.0, 20.0])
def test_tradeoffs_of_tiny_alphas(mu: float) -> None:
    with mpmath.workdps(60):
        for alpha in (0.3, 1e-3, 1e-14, 1e-15, 1.2e-16, 5e-17, 1e-20, 1e-30, 1e-300):
            start = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(alpha)))
            z = mpmath.findroot(lambda t, a=alpha: mpmath.log(mpmath.ncdf(-t) / a), start)
            true = mpmath.ncdf(z - mu)
            assert promise(GaussianLoss(mu)).tradeoff(alpha) == pytest.approx(float(true), rel=1e-9)


def test_tradeoffs_of_enormous_epsilons_promise_nothing() -> None:
    for epsilon in (600.0, 800.0, 1e4):
        for alpha in (1e-300, 1e-20, 0.5):
            exact = max(0.0, 1 - math.exp(min(epsilon + math.log(alpha), 700)))
            exact = max(exact, math.exp(-epsilon) * (1 - alpha))
            assert promise(PureLoss(epsilon)).tradeoff(alpha) <= exact * (1 + 1e-9)


class TestCommandLine:
    def test_printed_noise_is_enough(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What is given to Opacus reaches the (epsilon, delta) in the line above."""
        for epsilon, records, batch, epochs in ((8.0, 60_000, 256, 1),):
            arguments = ["--epsilon", epsilon, "--delta", 1e-6, "--num-records", records]
            arguments += ["--batch-size", batch, "--epochs", epochs]
            assert main(["epsilon", *map(str, arguments)]) == 0
            out = capsys.readouterr().out
            rows = re.findall(rf"^(\w+) +(REPLACE|ADD).*ONE +({NUMBER})$", out, re.MULTILINE)
            assert len(rows) == 3
            for kind, relation, noise in rows:
                added = relation == "ADD"
                reached = dp_sgd_epsilon(
                    noise_multiplier=float(noise),
                    batch_size=batch,
                    num_records=records,
                    steps=epochs * (records // batch),
                    delta=1e-6,
                    sampling=kind,
                    relation=NeighboringRelation["ADD_OR_REMOVE_ONE" if added else "REPLACE_ONE"],
                )
                assert 0.99 * epsilon < reached <= epsilon

    def test_printed_epsilons_are_not_below(self, capsys: pytest.CaptureFixture[str]) -> None:
        for noise in (0.7, 1.13, 3.0):
            run = "--num-records 1000 --batch-size 100 --epochs 3"
            assert main(["epsilon", "--noise-multiplier", str(noise), *run.split()]) == 0
            out = capsys.readouterr().out
            exact = dp_sgd_epsilon(
                noise_multiplier=noise, batch_size=100, num_records=1000, steps=30, delta=1e-5
            )
            shown = float(re.findall(rf"REPLACE_ONE +({NUMBER})$", out, re.MULTILINE)[0])
            assert exact <= shown <= 1.002 * exact


def test_a_delta_of_one_record_in_all_warns_where_it_was_asked_for() -> None:
    run = {"noise_multiplier": 1.0, "batch_size": 10, "num_records": 500, "steps": 10}
    with pytest.warns(UserWarning, match=r"`delta` = 0\.1 is not below 1 / 500") as told:
        dp_sgd_epsilon(**run, delta=0.1)
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dp_sgd_epsilon(**run, delta=1e-3)
        warn_large_delta(1e-9, 10**6)
        with pytest.raises(UserWarning):
            warn_large_delta(1 / 500, 500)


class TestReleasesAreShort:
    def test_value_noise_and_promise(self) -> None:
        release = laplace_mechanism(3.0, sensitivity=1.0, epsilon=0.3)
        value, noise, promise = str(release).split("\n", 2)
        assert float(value) == release.value
        assert noise == "Scale of the noise: 3.334."  # rounded up
        assert promise == str(release.guarantee)
