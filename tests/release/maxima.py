"""One setting of each private maximum, and what else the tests of releases share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_dp.privacy import PrivacyLedger
from botorch_dp.release import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateMaximum,
)

FALSE_ALARM = 1e-6


class ReadLog(TorchDispatchMode):
    """Notes how many charges a ledger holds whenever the data of a tensor are read.

    Views of it (``detach``) are no reads, but reading a view is one.
    """

    def __init__(self, tensor: Tensor, ledger: PrivacyLedger) -> None:
        super().__init__()
        self.storage = tensor.untyped_storage().data_ptr()
        self.ledger = ledger
        self.charges: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = any(
            isinstance(arg, Tensor) and arg.untyped_storage().data_ptr() == self.storage
            for arg in args
        )
        if read and func is not torch.ops.aten.detach.default:
            self.charges.append(len(self.ledger.entries()))
        return func(*args, **(kwargs or {}))


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
    "num_records": 100,
    "equal_at_zero": True,
    "lipschitz": 1.0,
    "lambda_min": 0.5,
    "lambda_max": 0.6,
}
MECHANISMS = {
    "noisy": PrivateMaximum(**NOISY),
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


def release_choice(mean, choices, *, num_records=None, ledger=None, unsafe_seed=None, **settings):
    """Of settings that do not name the number of choices."""
    return PrivateChoice(num_choices=len(choices), **settings).release(
        mean, choices, num_records=num_records, ledger=ledger, unsafe_seed=unsafe_seed
    )


def release_maximum(kind, values, *, ledger=None, unsafe_seed=None, **settings):
    """Of settings of one of the three kinds; the steps of the exact search are its values."""
    options = {"ledger": ledger, "unsafe_seed": unsafe_seed}
    if kind is not LipschitzMaximum and "num_records" in settings:
        options["num_records"] = settings.pop("num_records")
    if kind is NoiseFreeMaximum:
        settings = {"steps": len(values), **settings}
    return kind(**settings).release(values, **options)
