"""One setting of each private maximum, and what else the tests of releases share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_dp.privacy import PrivacyLedger
from botorch_dp.release import LipschitzMaximum, NoiseFreeMaximum, PrivateMaximum

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


def noisy(n, epsilon, delta, steps, correlation, std, gain) -> dict[str, float]:
    common = {"num_choices": n, "epsilon": epsilon, "delta": delta, "steps": steps}
    own = {"dataset_correlation": correlation, "noise_std": std, "information_gain": gain}
    return common | own


NOISY = noisy(1000, 1.0, 1e-4, 50, 0.99, 0.1, 30.0)
EXACT = {"num_choices": 1000, "epsilon": 1.0, "delta": 1e-4, "dataset_correlation": 0.99}
EXACT |= {"dim": 2, "amplitude": 1.0, "rate": 0.1}
LIPSCHITZ = {"epsilon": 1.0, "num_records": 100, "equal_at_zero": True, "lipschitz": 1.0}
LIPSCHITZ |= {"lambda_min": 0.5, "lambda_max": 0.6}
MECHANISMS = {
    "noisy": PrivateMaximum(**NOISY),
    "noise-free": NoiseFreeMaximum(steps=50, **EXACT),
    "Lipschitz": LipschitzMaximum(**LIPSCHITZ),
}
VALUES = torch.linspace(-1, 1, 50, dtype=torch.double)
