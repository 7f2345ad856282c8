"""Errors that every subpackage may raise.

A message says what was given, why it voids the guarantee and what to do instead. It never
contains a sensitive value, nor a hash of one.
"""

from __future__ import annotations


class PrivacyError(ValueError):
    """A request that would void a privacy guarantee."""


class NotPublicError(PrivacyError):
    """A model, kernel or design that may depend on sensitive values where it must not."""


class BudgetExhausted(PrivacyError):
    """A charge that exceeds the privacy budget; nothing was charged and nothing was read.

    Args:
        message: What was asked for, what is left and what to do.
        requested: The cost asked for, as ``(epsilon, delta)``.
        remaining: What the ledger could still grant, as ``(epsilon, delta)``.
    """

    def __init__(
        self, message: str, *, requested: tuple[float, float], remaining: tuple[float, float]
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_exhausted, (str(self), self.requested, self.remaining)


def _rebuild_exhausted(
    message: str, requested: tuple[float, float], remaining: tuple[float, float]
) -> BudgetExhausted:
    """Unpickle: exceptions with keyword-only arguments need help to cross process borders."""
    return BudgetExhausted(message, requested=requested, remaining=remaining)
