"""The randomness of a training: from a seed (to tune) or the operating system (to publish).

Both kinds draw from the same distributions, so that the engines and the accounting need not know
which one is at work. The seeded kind keeps batches, noise and initial weights in separate streams:
runs with and without noise see the same batches.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

#: The noisy sum of a published run lies on a grid of about this many noise deviations.
GRID_EXPONENT = -24
#: How much further than its sensitivity a sum may move because of rounding, relatively. Adding up
#: ``m`` double-precision vectors of norm ``C`` rounds by at most ``m^2 2^-53 C``, for each of two
#: neighbours: 1.8e-6 of the smallest sensitivity, ``C``, at 90,000 vectors. That is more than any
#: Poisson batch of 80,000 expected records will ever hold (35 standard deviations).
ROUNDING_SLACK = 2e-6

#: Numbers for which noise is drawn at once, so that intermediate results stay in the cache.
_CHUNK = 2**14
#: Largest number of bytes of batches that are drawn together, to stay in the cache.
_BYTES_AT_ONCE = 2**18
#: Below one record in this many, drawing their numbers is faster than a coin for each record.
_FEW_OF = 32
#: So many bytes of the operating system go into each long sequence.
_STRETCHED = 32

_torch_seed_lock = threading.RLock()


class _ThisProcess:
    """Detects forks: ``mark`` is another object in each process, whose ids may be used again."""

    _watches = False
    mark = object()

    @classmethod
    def watch(cls) -> None:
        """Notice forks from now on."""
        if not cls._watches and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=cls._renew)
            cls._watches = True

    @classmethod
    def _renew(cls) -> None:
        cls.mark = object()


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Torch's global generator under a seed, and restored afterwards.

    The global generator is shared by all threads; runs in several threads take turns here.
    """
    devices = list(range(torch.cuda.device_count()))
    with _torch_seed_lock, torch.random.fork_rng(devices=devices):
        # `torch.manual_seed` would leave a note to seed accelerators that are not there yet.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[Callable[[int], None]]:
    """Torch's, NumPy's and Python's global generators under seeds, and restored afterwards.

    Args:
        seed: A non-negative integer.

    Yields:
        What seeds all of them by ``seed`` and a number.
    """

    def reseed(number: int) -> None:
        words = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(2)
        torch.default_generator.manual_seed(int(words[0]))
        np.random.seed(words)
        random.seed(int(words[1]))

    with seeded_torch(seed):
        of_numpy, of_python = np.random.get_state(), random.getstate()
        try:
            yield reseed
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


class Randomness(Protocol):
    """The source of randomness of one training."""

    def torch_seed(self) -> int:
        """A seed for code that only knows torch's global generator (initial weights, dropout)."""

    def choose(self, population: int, size: int) -> Tensor:
        """A uniform subset of ``range(population)`` of the given size, in no particular order."""

    def choose_each(self, population: int, probability: float, times: int) -> list[Tensor]:
        """Each of ``range(population)`` independently with the given probability, some times."""

    def perturb_(self, total: Tensor, *, std: float, sensitivity: float) -> None:
        """Add Gaussian noise to a sum that one record moves by ``sensitivity``, in place."""

    def state(self) -> dict[str, Any]:
        """What must be stored for the run to go on as if never interrupted (JSON-ready)."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a stored state."""


class SeededRandomness:
    """Pseudorandom numbers from a seed, for tuning: a model trained with them guarantees nothing.

    Args:
        seed: Any non-negative integer; each bit counts.
        device: Where the noise is drawn.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        batches, noise, torch_seeds = np.random.SeedSequence(seed).spawn(3)
        self._batches = np.random.Generator(np.random.PCG64(batches))
        self._torch_seeds = np.random.Generator(np.random.PCG64(torch_seeds))
        self._noise = torch.Generator(device)
        self._noise.manual_seed(int(noise.generate_state(1, np.uint64)[0]))
        self._buffer: Tensor | None = None

    def torch_seed(self) -> int:
        return int(self._torch_seeds.integers(2**63))

    def choose(self, population: int, size: int) -> Tensor:
        # Floyd's algorithm or a tail shuffle: far below the cost of permuting the population.
        return torch.from_numpy(
            self._batches.choice(population, size, replace=False, shuffle=False)
        )

    def choose_each(self, population: int, probability: float, times: int) -> list[Tensor]:
        binomial = self._batches.binomial
        return [
            self.choose(population, int(binomial(population, probability))) for _ in range(times)
        ]

    def perturb_(self, total: Tensor, *, std: float, sensitivity: float) -> None:
        if self._buffer is None or self._buffer.shape != total.shape:
            self._buffer = torch.empty_like(total)
        self._buffer.normal_(generator=self._noise)
        total.add_(self._buffer, alpha=std)

    def state(self) -> dict[str, Any]:
        return {
            "batches": self._batches.bit_generator.state,
            "torch_seeds": self._torch_seeds.bit_generator.state,
            "noise": self._noise.get_state().numpy().tobytes().hex(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._batches.bit_generator.state = state["batches"]
        self._torch_seeds.bit_generator.state = state["torch_seeds"]
        noise = np.frombuffer(bytes.fromhex(state["noise"]), dtype=np.uint8)
        self._noise.set_state(torch.from_numpy(noise.copy()))


class SystemRandomness:
    """Randomness of the operating system, for a model that is to be published.

    Batches and noise are made of fresh bytes of the operating system: there is no seed to guess and
    no state to steal. Floating-point noise has a pattern in its low bits that depends on what it
    was added to [Mironov2012]; so the sum and the noise are both rounded to a grid of about
    ``2^-24`` noise deviations before they meet, where their addition is exact. The rounding of the
    sum raises its sensitivity by at most ``grid * sqrt(p)``, and the noise is that much larger.
    """

    def __init__(self) -> None:
        _ThisProcess.watch()
        # Draws that nobody has seen, with their process and deviation: each is used once.
        self._spare: list[tuple[object, Tensor]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return SystemRandomness, ()  # a copy draws for itself

    def torch_seed(self) -> int:
        return secrets.randbits(63)

    def choose(self, population: int, size: int) -> Tensor:
        if 2 * size > population:  # leaving out a uniform subset is the same, and shorter
            kept = np.ones(population, dtype=bool)
            kept[self.choose(population, population - size).numpy()] = False
            return torch.from_numpy(np.flatnonzero(kept))
        # The first different ones of a sequence of independent uniform numbers.
        drawn = np.empty(0, dtype=np.int64)
        while len(drawn) < size:
            more = _system_integers(size - len(drawn) + size // 8 + 4, population)
            drawn = np.concatenate([drawn, more])
            drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        return torch.from_numpy(drawn[:size])

    def choose_each(self, population: int, probability: float, times: int) -> list[Tensor]:
        if _FEW_OF * probability < 1:
            return self._choose_few(population, probability, times)
        at_once = max(1, _BYTES_AT_ONCE // population)
        if times > at_once:
            parts = [min(at_once, times - first) for first in range(0, times, at_once)]
            return [batch for n in parts for batch in self.choose_each(population, probability, n)]
        # One byte decides, except where it is the one at the border: there a fraction decides.
        border, fraction = divmod(256 * probability, 1.0)
        bytes_ = np.frombuffer(_system_bytes(times * population), dtype=np.uint8)
        chosen = (bytes_ <= int(border)).nonzero()[0]
        decided = bytes_[chosen] < int(border)
        undecided = (~decided).nonzero()[0]
        decided[undecided] = _system_uniform(len(undecided)) < fraction
        starts = population * np.arange(times)
        batches = np.split(chosen[decided], chosen[decided].searchsorted(starts[1:]))
        return [
            torch.from_numpy(batch - start) for batch, start in zip(batches, starts, strict=True)
        ]

    def _choose_few(self, population: int, probability: float, times: int) -> list[Tensor]:
        """The same by numbers: how many, and then as many different ones, in their time."""
        missing = sizes = _system_binomial(times, population, probability)
        starts = population * np.arange(times + 1)
        chosen = np.empty(0, dtype=np.int64)
        while missing.any():
            places = np.repeat(starts[:-1], missing)
            drawn = _system_integers(len(places), population)
            chosen = np.sort(np.concatenate([chosen, places[: len(drawn)] + drawn]))
            chosen = chosen[np.diff(chosen, prepend=-1) > 0]
            borders = chosen.searchsorted(starts)
            missing = sizes - np.diff(borders)
        batches = np.split(chosen, borders[1:-1]) if len(chosen) else [chosen] * times
        return [
            torch.from_numpy(batch - start) for batch, start in zip(batches, starts, strict=False)
        ]

    def perturb_(self, total: Tensor, *, std: float, sensitivity: float) -> None:
        exponent = math.floor(math.log2(std)) + GRID_EXPONENT
        grid = math.ldexp(1.0, exponent)
        widened = sensitivity * (1 + ROUNDING_SLACK) + grid * math.sqrt(total.numel())
        cells = std / sensitivity * widened / grid
        for part in total.split(_CHUNK) if total.numel() > _CHUNK else (total,):
            noise = self._draw(part.numel(), cells).to(total.device)
            part.mul_(1 / grid).round_().add_(noise).mul_(grid)

    def _draw(self, size: int, cells: float) -> Tensor:
        """Normal draws of a deviation in cells, rounded, used once; many are made at a time."""
        try:
            # Taken out before it is used, in one step: two threads never hold the same draws.
            made_for, noise = self._spare.pop()
        except IndexError:
            made_for, noise = None, torch.empty(0, dtype=torch.float64, device="cpu")
        if noise.numel() < size or made_for != (_ThisProcess.mark, cells):
            made_for, noise = (
                (_ThisProcess.mark, cells),
                _system_normal(_CHUNK).mul_(cells).round_(),
            )
        self._spare.append((made_for, noise[size:]))
        return noise[:size]

    def state(self) -> dict[str, Any]:
        """Nothing: what the operating system will draw next is unknown."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def _system_bytes(size: int) -> bytes:
    """Random bytes of the operating system; many of them stretched from 32, ten times as fast.

    OpenSSL's generator (AES-256 in counter mode, seeded by the operating system as well) takes the
    32 bytes in first, at every call: no state of the process foretells what it returns.
    """
    if size <= 64 * _STRETCHED:
        return os.urandom(size)
    ssl.RAND_add(os.urandom(_STRETCHED), _STRETCHED)
    return ssl.RAND_bytes(size)


def _system_bits(size: int) -> np.ndarray:
    return np.frombuffer(_system_bytes(8 * size), dtype=np.uint64)


def _system_integers(size: int, bound: int) -> np.ndarray:
    """Uniform on ``range(bound)``: at most ``size`` of them, for some may have to be rejected."""
    bits = _system_bits(size)
    # Above the largest multiple of the bound, remainders would not be uniform.
    fair = bits[bits < np.uint64(2**64 // bound * bound)] if bound & (bound - 1) else bits
    return (fair % np.uint64(bound)).astype(np.int64)


def _system_binomial(size: int, trials: int, probability: float) -> np.ndarray:
    """Binomial numbers, by comparing a uniform one with the distribution function.

    A number's probability is right to ``2^-64`` and to a relative ``2^-45`` (with long doubles of
    64 bits, for up to 100,000 records in a batch); what lies beyond ten deviations (and 40) is less
    likely than ``2^-64``.
    """
    mean, width = trials * probability, 10 * math.sqrt(trials * probability)
    first, last = max(0, int(mean - width)), min(trials, int(mean + width) + 40)
    before = np.arange(first, last, dtype=np.longdouble)
    odds = np.longdouble(probability) / (1 - np.longdouble(probability))
    weights = np.cumprod(np.append(np.longdouble(1), (trials - before) / (before + 1) * odds))
    below = np.cumsum(weights)
    shares = np.minimum(below[:-1] / below[-1] * 2.0**64, 2.0**64 - 2**11).astype(np.uint64)
    return first + shares.searchsorted(_system_bits(size), side="right")


def _system_uniform(size: int) -> np.ndarray:
    """Uniform on the multiples of ``2^-53`` in [0, 1)."""
    return (_system_bits(size) >> np.uint64(11)) * 2.0**-53


def _system_normal(size: int) -> Tensor:
    """Standard normal draws in double precision, by Box and Muller (up to 8.6 deviations)."""
    pairs = (size + 1) // 2
    uniform = torch.from_numpy(_system_uniform(2 * pairs))
    radius = uniform[:pairs].add_(2.0**-54).log_().mul_(-2).sqrt_()
    angle = uniform[pairs:].mul_(2 * math.pi)
    drawn = torch.empty(2 * pairs, dtype=torch.float64, device="cpu")
    torch.cos(angle, out=drawn[:pairs]).mul_(radius)
    torch.sin(angle, out=drawn[pairs:]).mul_(radius)
    return drawn[:size]
