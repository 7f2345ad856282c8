"""One setting of each private maximum, shared by the tests of its parts."""

from __future__ import annotations

import torch

from botorch_dp.release import LipschitzMaximum, NoiseFreeMaximum, NoisyMaximum

FALSE_ALARM = 1e-6

NOISY = {
    "epsilon": 1.0,
    "delta": 1e-4,
    "steps": 50,
    "num_choices": 1000,
    "dataset_correlation": 0.99,
    "noise_std": 0.1,
    "information_gain": 30.0,
}
EXACT = {
    "epsilon": 1.0,
    "delta": 1e-4,
    "num_choices": 1000,
    "dim": 2,
    "dataset_correlation": 0.99,
    "amplitude": 1.0,
    "rate": 0.1,
}
LIPSCHITZ = {
    "epsilon": 1.0,
    "num_validation": 100,
    "lipschitz": 1.0,
    "lambda_min": 0.5,
    "lambda_max": 0.6,
}
MECHANISMS = {
    "noisy": NoisyMaximum(**NOISY),
    "noise-free": NoiseFreeMaximum(steps=50, **EXACT),
    "Lipschitz": LipschitzMaximum(**LIPSCHITZ),
}
VALUES = torch.linspace(-1, 1, 50, dtype=torch.double)


def noisy(n, epsilon, delta, steps, correlation, std, gain) -> dict[str, float]:
    return {
        "num_choices": n,
        "epsilon": epsilon,
        "delta": delta,
        "steps": steps,
        "dataset_correlation": correlation,
        "noise_std": std,
        "information_gain": gain,
    }
