"""Inputs of a model as a tree of tensors: a single one, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

#: One tensor, ``n x ...``; or several by name, which a model takes as keyword arguments. Those with
#: the names ``"0"``, ``"1"``, ... it takes in this order.
Inputs = Tensor | dict[str, Tensor]


def parts(X: Inputs) -> dict[str, Tensor]:
    """The tensors by name; a single tensor has an empty one."""
    return X if isinstance(X, dict) else {"": X}


def arguments(X: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a model is called with: ``model(*args, **kwargs)``."""
    named = isinstance(X, dict) and not next(iter(X)).isdigit()
    return ((), dict(parts(X))) if named else (tuple(parts(X).values()), {})


def each_part(function: Callable[[Tensor], Tensor], X: Inputs) -> Inputs:
    """The inputs with every tensor replaced."""
    if isinstance(X, dict):
        return {name: function(part) for name, part in X.items()}
    return function(X)


def rows(X: Inputs, places: Sequence[int]) -> Inputs:
    """The records at some places, as new tensors."""
    return each_part(lambda part: part[list(places)], X)


def count(X: Inputs) -> int:
    """How many records there are."""
    return len(next(iter(parts(X).values())))
