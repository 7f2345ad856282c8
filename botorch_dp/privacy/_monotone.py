"""The end of a range in which a monotone condition holds, never beyond it."""

from __future__ import annotations

from collections.abc import Callable

from scipy.optimize import brentq


def safe_end(
    excess: Callable[[float], float],
    unsafe: float,
    safe: float,
    *,
    tolerance: float,
    smallest: float = 0.0,
) -> float:
    """The argument nearest to ``unsafe`` at which ``excess`` is not above 0.

    The least such argument where ``unsafe`` is below ``safe``, the largest one where it is above.
    What is returned was itself evaluated, or is ``safe``: the root finder chooses where to look.

    Args:
        excess: Monotone between the two ends; finite, positive at ``unsafe`` and not at ``safe``.
        unsafe: Where the condition fails.
        safe: Where it holds.
        tolerance: How far from the end the result may be, relatively.
        smallest: The same, absolutely; for ends near 0.
    """
    low, high = min(unsafe, safe), max(unsafe, safe)
    # SciPy asks for at least four rounding errors, and for some absolute tolerance.
    end = brentq(excess, low, high, xtol=max(smallest, 5e-324), rtol=max(tolerance, 4e-15))
    step = max(tolerance * abs(end), smallest, 2e-16 * abs(end))
    while excess(end) > 0:
        end = min(end + step, high) if safe > unsafe else max(end - step, low)
        if end == safe:
            break
        step *= 2
    return float(end)
