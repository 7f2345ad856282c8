"""Argument checks: each names the argument, what it was given and the fix.

They check what a type hint cannot say: ranges, shapes, paths, words. Whatever charges a budget or
reads records calls them before it does so. Types are mypy's task; a check of a number refuses other
types all the same, since it has to look.

Only public parameters pass through here; the values of a sensitive tensor never reach a message.
NumPy and torch are imported late: the ledger does without torch, a wrong command line without both.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING

from botorch_dp.errors import PrivacyError

if TYPE_CHECKING:
    from torch import Tensor

#: The most that a number alone may ask for; what the caller holds in memory may be larger.
LARGEST_BYTES = 2**33
LARGEST_COUNT = 10**9


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that called into it."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("botorch_dp."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_begins_once(executor: object) -> None:
    """Refuse an executor that may begin a training twice, which would be charged once."""
    if type(executor).__module__.partition(".")[0] == "distributed":
        raise PrivacyError(
            "`executor` is a Dask client's. When a worker dies, Dask repeats its task, whatever "
            "`retries` is, so a training would draw its noise twice for one charge. Use "
            "threads, processes, or Ray by botorch_dp.integrations.ray.RayExecutor; in a "
            "simulation, Dask will do."
        )


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Around an import that only some users need: an error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {error.name}, which is not installed: "
            f"run `pip install '.[{extra}]'` in a clone of botorch_dp.",
            name=error.name,
        ) from error


def did_you_mean(word: object, choices: Iterable[object]) -> str:
    """`` Did you mean 'pareto'?``, or nothing where no choice is near.

    Example:
        >>> did_you_mean("pareot", ["tasks", "pareto"])
        " Did you mean 'pareto'?"
    """
    near = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_choice(name: str, value: object, choices: tuple[str, ...], *, otherwise: str = "") -> str:
    """Return ``value``, or raise if it is none of the choices.

    Args:
        name: The argument's name, for the message.
        value: What the caller was given.
        choices: The names that are allowed.
        otherwise: What else is allowed, in words.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}{otherwise}, got {value!r}."
            f"{did_you_mean(value, choices)}"
        )
    return value


def check_callable(name: str, value: object, *, otherwise: str = "") -> None:
    """Raise if ``value`` cannot be called; ``otherwise`` says what to pass instead."""
    if not callable(value):
        raise TypeError(f"`{name}` must be callable, got {type(value).__name__}{otherwise}.")


def check_real(name: str, value: object) -> float:
    """Return ``value`` as a float, which may be infinite or NaN, or raise if it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a real number, got {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be at most 1.8e308 in size, got more.") from None


def check_finite(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise if it is not a finite real number."""
    number = check_real(name, value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}.")
    return number


def check_positive(name: str, value: object, *, allow_inf: bool = False) -> float:
    """Return ``value`` as a float, or raise if it is not positive (and finite unless allowed)."""
    number = check_real(name, value)
    if not number > 0 or (math.isinf(number) and not allow_inf):
        kind = "positive" if allow_inf else "positive and finite"
        raise ValueError(f"`{name}` must be {kind}, got {number}.")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise if it is negative or not finite."""
    number = check_finite(name, value)
    if number < 0:
        raise ValueError(f"`{name}` must be at least 0, got {number}.")
    return number


def check_delta(name: str, value: object, *, allow_zero: bool = False) -> float:
    """Return ``value`` as a float, or raise if it is not a failure probability in (0, 1)."""
    number = check_real(name, value)
    if not (0 < number < 1 or (allow_zero and number == 0)):
        bracket = "[0, 1)" if allow_zero else "(0, 1)"
        raise ValueError(f"`{name}` must lie in {bracket}, got {number}.")
    return number


def check_integer(
    name: str, value: object, *, at_least: int = 1, at_most: int | None = None
) -> int:
    """Return ``value`` as an int, or raise if it is not an integer within the limits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {type(value).__name__}.")
    number = int(value)
    if number < at_least or (at_most is not None and number > at_most):
        limits = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise ValueError(f"`{name}` must be {limits}, got {shown(number)}.")
    return number


def shown(number: int) -> str:
    """An integer for a message: Python refuses to write down very long ones."""
    return str(number) if abs(number) < 10**24 else f"one of {number.bit_length()} bits"


def printable(text: object) -> str:
    """What somebody else wrote, for a terminal: without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def check_count(name: str, value: object, *, at_least: int = 1) -> int:
    """As :func:`check_integer`, for what is done one after the other: at most a billion."""
    number = check_integer(name, value, at_least=at_least)
    if number > LARGEST_COUNT:
        raise ValueError(
            f"`{name}` = {shown(number)} would never end: ask for at most {LARGEST_COUNT:,}."
        )
    return number


def check_size(name: str, value: int, size: int) -> None:
    """Raise if an argument asks for arrays of ``size`` bytes that no machine would hold."""
    if size > LARGEST_BYTES:
        raise ValueError(
            f"`{name}` = {shown(value)} asks for arrays of {size / 2**30:.3g} GiB, more than "
            f"{LARGEST_BYTES / 2**30:g} GiB: ask for less."
        )


def check_interval(name: str, value: object) -> tuple[float, float]:
    """Return ``value`` as ``(low, high)``, or raise if it is no finite interval with low < high."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"`{name}` must be a pair (low, high), got {value!r}.")
    low, high = (check_finite(name, end) for end in value)
    if not low < high:
        raise ValueError(f"`{name}` needs low < high, got ({low}, {high}).")
    return low, high


def check_path(name: str, value: object) -> str | os.PathLike[str]:
    """Return ``value``, or raise if no file can have it as its path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"`{name}` must be a path, got {type(value).__name__}.")
    try:
        written = os.fsencode(value)
    except UnicodeError:
        written = b"\0"
    if not written or b"\0" in written:
        raise ValueError(f"`{name}` must be a path without null characters, got {value!r}.")
    return value


def check_tensor(
    name: str, value: object, *, shape: tuple[int | str, ...] | None = None, finite: bool = True
) -> Tensor:
    """Return ``value``, or raise if it is not a floating-point tensor of the given shape.

    Args:
        name: The argument's name, for the message.
        value: What the caller was given.
        shape: Expected sizes; a name such as ``"d"`` stands for any size of at least 1.
        finite: Whether to refuse NaN and infinities. Only for public tensors and for inputs of a
            mechanism as a whole: an error must never depend on a single record.
    """
    import torch  # imported late: the ledger and the accountant do without it

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}.")
    if not value.is_floating_point():
        raise TypeError(
            f"`{name}` must be a floating-point tensor, got {value.dtype}; call `.double()` on it."
        )
    if value.layout != torch.strided:
        raise TypeError(f"`{name}` must be a dense tensor, got {value.layout}; call `.to_dense()`.")
    if shape is not None:
        matches = value.dim() == len(shape) and all(
            size == want if isinstance(want, int) else size >= 1
            for size, want in zip(value.shape, shape, strict=True)
        )
        if not matches:
            wanted = " x ".join(map(str, shape))
            raise ValueError(f"`{name}` must have shape {wanted}, got {tuple(value.shape)}.")
    if finite and not bool(torch.isfinite(value).all()):
        raise ValueError(f"`{name}` must be finite, but holds NaN or infinite entries.")
    return value
