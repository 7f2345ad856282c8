"""Rounding to the safe side: exact fractions to floats, and floats to printed decimals.

What is spent, noise and failure probabilities are rounded up; what is left and lower bounds are
rounded down. Nothing here is nearly right: sums and roots are fractions and integers, decimals are
cut by exact decimal arithmetic.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from botorch_dp._checks import check_integer


def float_above(exact: Fraction) -> float:
    """The smallest float that is at least ``exact``."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def float_below(exact: Fraction) -> float:
    """The largest float that is at most ``exact``."""
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)


def sqrt_above(square: Fraction) -> float:
    """A float whose square is at least ``square``; the root itself where that is a float."""
    below, above = _root_bounds(square)
    return float_above(below if below**2 == square else above)


def sqrt_below(square: Fraction) -> float:
    """A float whose square is at most ``square``; the root itself where that is a float."""
    return float_below(_root_bounds(square)[0])


def _root_bounds(square: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds on the root, tight to 64 bits; the lower one is exact for the square of a float."""
    numerator, denominator = square.numerator, square.denominator
    bits = max(0, 128 + denominator.bit_length() - numerator.bit_length())
    half = (bits + 1) // 2
    root = math.isqrt((numerator << (2 * half)) // denominator)
    return Fraction(root, 1 << half), Fraction(root + 1, 1 << half)


def rounded_up(value: float, digits: int = 4) -> str:
    """``value`` with at most ``digits`` significant digits, never smaller when read as a float.

    Example:
        >>> rounded_up(1 / 3), rounded_up(1e-5), rounded_up(-1 / 3, 2)
        ('0.3334', '1e-05', '-0.33')
    """
    return _cut(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """``value`` with at most ``digits`` significant digits, never larger when read as a float.

    Example:
        >>> rounded_down(2 / 3), rounded_down(1e-5), rounded_down(-1 / 3, 2)
        ('0.6666', '1e-05', '-0.34')
    """
    return _cut(value, digits, ROUND_FLOOR)


def _cut(value: float, digits: int, direction: str) -> str:
    # `repr` is the shortest decimal that is read as this float. Reading decimals is monotone, so a
    # decimal that is not smaller is read as a float that is not smaller.
    check_integer("digits", digits, at_most=17)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    shown = Context(digits, direction).plus(Decimal(repr(float(value)))).normalize()
    exponent = shown.adjusted()
    if -5 < exponent < max(digits, 6):
        return f"{shown:f}"
    return f"{shown.scaleb(-exponent):f}e{exponent:+03d}"


def all_digits(value: float) -> str:
    """A number with as many digits as it takes to read it back exactly."""
    return rounded_up(value, 17)
