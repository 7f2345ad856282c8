r"""How far a run may be from the minimum, from its traces: public numbers only.

The statements have the form of Theorems 3.2 (exact evaluations) and 3.3 (noisy ones) and Corollary
3.4 (what privacy costs) of [Sopa2025]. Their constants are ours, with the proof below, because the
constants here can be evaluated for a finished run.

*Assumptions.* On a convex set that holds the run and the minimum, the mean loss ``F`` has
curvature at most ``smoothness`` (and at least ``convexity``, where a distance is wanted). Up to a
constant, each record's loss has norm at most ``R`` in the kernel's space.

*One step.* With weights ``w`` and nugget ``v``, a derivative of a function of norm ``R`` is missed
by at most ``R (k - 2 w.k + w.Kw)^{1/2}``, and ``k - 2 w.k + w.Kw + v |w|^2`` is the posterior
variance; so a record's gradient is missed by at most ``R trace^{1/2}``. Noise of standard deviation
``s`` in the ``N`` evaluations adds at most ``|w|`` times its length, ``(s^2 N trace / v)^{1/2}`` in
root mean square, however the points were chosen. Clipping is a projection, which moves no two
vectors further apart, and shortens a gradient of length ``G`` by at most ``(G - B)_+``. So the mean
gradient is off by at most ``b_t = (R + s (N / v)^{1/2}) trace_t^{1/2} + (G - B)_+``, plus the
privacy noise.

*All steps.* A step of size ``h`` along the exact gradient brings the iterate closer to the minimum
by ``rho = max(|1 - h convexity|, |1 - h smoothness|)``, with or without projection onto a box;
the privacy noise has mean zero and is independent of everything before it. Hence, in root mean
square, ``D_{t+1}^2 <= (rho D_t + h b_t)^2 + h^2 d noise_std^2``. For ``h <= 1 / smoothness`` and
without a box, ``F(x_{t+1}) <= F(x_t) - h/2 |F'(x_t)|^2 + h/2 b_t^2 + h^2/2 smoothness d
noise_std^2`` in expectation; averaged over the steps this bounds the gradient's length.

Traces depend on the run a little. The statements are about all runs whose traces are at most
those that were seen: the mean is taken over that event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch_dp._checks import check_delta, check_nonnegative, check_positive
from botorch_dp.descent import DescentResult


@dataclass(frozen=True)
class DescentBound:
    """Bounds on where a run ended; all in root mean square over the privacy noise.

    Args:
        distance: From the minimum (over the box, if there is one); None without ``convexity``.
        gradient: Length of the gradient of the mean loss, averaged over the steps; None with a
            box, for steps above ``1 / smoothness``, or without ``start_gap``.
        start: The part of ``distance`` that is left of the start.
        bias: The part that inferring and clipping gradients add.
        privacy: The part of the privacy noise: what is left if all else is zero.
        worst: A length of the privacy noise's part that is exceeded with probability ``delta`` at
            most, as a function of ``log(steps / delta)``: its two coefficients.
        is_exact: Whether evaluations are exact.
    """

    distance: float | None
    gradient: float | None
    start: float
    bias: float
    privacy: float
    worst: tuple[float, float] = (0.0, 0.0)
    steps: int = 1
    is_exact: bool = True

    def distance_within(self, delta: float) -> float:
        """A distance that the last iterate exceeds with probability at most ``delta``.

        The smaller of Markov's ``distance / delta^{1/2}`` and, for exact evaluations, of the sum
        in which each step's noise is at most ``noise_std (d^{1/2} + (2 log(T / delta))^{1/2})``
        long.
        """
        check_delta("delta", delta)
        if self.distance is None:
            raise ValueError("`distance_within` needs the `convexity` of the mean loss.")
        markov = self.distance / math.sqrt(delta)
        if not self.is_exact:
            return markov
        fixed, spread = self.worst
        noise = fixed + spread * math.sqrt(2 * math.log(self.steps / delta))
        return min(markov, self.start + self.bias + noise)

    def __str__(self) -> str:
        sentences = []
        if self.distance is not None:
            sentences.append(
                f"The last iterate is within {self.distance:.3g} of the minimum in root mean "
                f"square ({self.start:.3g} left of the start, {self.bias:.3g} from inferred and "
                f"clipped gradients, {self.privacy:.3g} from the privacy noise)."
            )
        if self.gradient is not None:
            sentences.append(
                f"Over the steps, the gradient is at most {self.gradient:.3g} long in root mean "
                "square."
            )
        return " ".join(sentences)


def descent_bound(
    result: DescentResult,
    *,
    step_size: float,
    clip_norm: float,
    smoothness: float,
    record_norm: float,
    convexity: float | None = None,
    gradient_bound: float | None = None,
    start_distance: float | None = None,
    start_gap: float | None = None,
    evaluation_noise: float = 0.0,
    noise_variance: float = 0.0,
    has_box: bool = False,
) -> DescentBound:
    """How far from the minimum a run of plain descent may have ended, from its traces.

    Reads no record: what is known of the losses is said here, and the bound may be published like
    the run if it was known without the records.

    Args:
        result: Of the run.
        step_size: ``h`` of plain descent.
        clip_norm: ``B``.
        smoothness: Largest curvature of the mean loss.
        record_norm: Norm of a record's loss in the kernel's space, up to a constant.
        convexity: Least curvature of the mean loss, for a bound on the distance.
        gradient_bound: Longest gradient of a record along the run, where gradients are clipped.
        start_distance: At most how far from the minimum the run began.
        start_gap: At most how far above its minimum the mean loss was there, for a bound on the
            gradient.
        evaluation_noise: Standard deviation of the noise in one evaluation of one record.
        noise_variance: ``v``, the variance of a loss's noise in the model.
        has_box: Whether iterates were projected.

    Example:
        >>> print(descent_bound(result, step_size=0.1, clip_norm=1.0, smoothness=1.0,
        ...                     record_norm=2.0, convexity=1.0, gradient_bound=1.0,
        ...                     start_distance=1.0))
    """
    traces = [record.trace for record in result.history]
    dim, noise_std = len(result.location.value), result.location.scale or 0.0
    h = check_positive("step_size", step_size)
    L = check_positive("smoothness", smoothness)
    R = check_nonnegative("record_norm", record_norm)
    s = check_nonnegative("evaluation_noise", evaluation_noise)
    if gradient_bound is None and math.isfinite(clip_norm):
        raise ValueError(
            "`gradient_bound` is needed where gradients are clipped: the longest gradient of a "
            "record along the run. At most `clip_norm` if nothing was clipped."
        )
    excess = 0.0
    if gradient_bound is not None:
        check_nonnegative("gradient_bound", gradient_bound)
        excess = max(0.0, gradient_bound - clip_norm)
    if s > 0 and noise_variance == 0:
        raise ValueError("`evaluation_noise` needs a model that knows it: Design(noise_variance=).")
    if s > 0:
        evaluations = sum(record.evaluations for record in result.history)
        R += s * math.sqrt(evaluations / noise_variance)
    errors = [R * math.sqrt(trace) + excess for trace in traces]
    noise = h * math.sqrt(dim) * noise_std
    distance = gradient = None
    start = bias = privacy = fixed = spread = 0.0
    if convexity is not None:
        tau = check_positive("convexity", convexity)
        if tau > L:
            raise ValueError(f"`convexity` = {tau:g} is above `smoothness` = {L:g}.")
        if start_distance is None:
            raise ValueError("`start_distance` is needed with `convexity`.")
        rho = max(abs(1 - h * tau), abs(1 - h * L))
        if rho >= 1:
            raise ValueError(f"`step_size` = {h:g} must be below 2 / smoothness = {2 / L:g}.")
        start = distance = check_nonnegative("start_distance", start_distance)
        for error in errors:
            distance = math.hypot(rho * distance + h * error, noise)
            start, bias = rho * start, rho * bias + h * error
            privacy = math.hypot(rho * privacy, noise)
            fixed, spread = rho * fixed + noise, rho * spread + h * noise_std
    if start_gap is not None and not has_box and h * L <= 1:
        check_nonnegative("start_gap", start_gap)
        mean_square = math.fsum(error**2 for error in errors) / len(errors)
        gradient = math.sqrt(2 * start_gap / (h * len(errors)) + mean_square + L * noise**2 / h)
    if distance is None and gradient is None:
        raise ValueError(
            "Give `convexity` and `start_distance` for a distance, or `start_gap` (without a box, "
            f"and with `step_size` = {h:g} at most 1 / smoothness = {1 / L:g}) for a gradient."
        )
    return DescentBound(
        distance, gradient, start, bias, privacy, (fixed, spread), len(errors), s == 0
    )
