"""Arguments of other types are refused by name, before anything is done with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from typing_extensions import Unpack

from botorch_dp._checks import OutOfRange, checked, checked_but
from botorch_dp.outsourced import Modeler

if TYPE_CHECKING:
    from decimal import Decimal


class Settings(TypedDict, total=False):
    steps: int


@checked
def called(
    number: float = 1.0,
    count: int = 1,
    *words: str,
    flag: bool = False,
    path: str | os.PathLike[str] | None = None,
    way: Literal["a", "b"] = "a",
    pair: tuple[float, float] = (0.0, 1.0),
    numbers: Sequence[float] = (),
    table: np.ndarray | float = 0.0,
    by_name: Mapping[str, Any] | None = None,
    function: Callable[[], Any] | None = None,
    late: Decimal | None = None,
    **settings: Unpack[Settings],
) -> str:
    return "called"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("number", "1", TypeError),
        ("number", True, TypeError),
        ("number", 10**400, ValueError),
        ("count", 1.0, TypeError),
        ("flag", 1, TypeError),
        ("path", 3, TypeError),
        ("path", "a\0b", ValueError),
        ("way", 3, ValueError),
        ("pair", (1.0,), ValueError),
        ("pair", 1.0, TypeError),
        ("pair", (1.0, "2"), TypeError),
        ("numbers", [1.0, None], TypeError),
        ("numbers", "12", TypeError),
        ("numbers", torch.zeros(2, 2), TypeError),
        ("numbers", np.array([True]), TypeError),
        ("table", ["a"], TypeError),
        ("by_name", [1], TypeError),
        ("function", 3, TypeError),
        ("late", 3, TypeError),
        ("steps", "three", TypeError),
    ],
)
def test_refused_by_name(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"`{name}`"):
        called(**{name: value})  # type: ignore[arg-type]


def test_refused_by_position() -> None:
    with pytest.raises(TypeError, match="`count`"):
        called(1.0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`words`"):
        called(1.0, 2, "a", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`words` must be valid Unicode"):
        called(1.0, 2, "\ud800")


def test_accepted() -> None:
    from decimal import Decimal

    call: Any = called
    assert call(np.float32(1), np.int64(2), "a", path="x", pair=[1, 2], numbers=range(3))
    assert call(numbers=torch.ones(2), table=[1, 2], by_name={}, function=len) == "called"
    assert call(numbers=np.ones(3), table=3, late=Decimal(1), steps=2, way="c") == "called"


@checked_but("second")
class Thing:
    def __init__(self, first: int, second: int = 0) -> None:
        self.first = first

    @staticmethod
    def doubled(number: float) -> float:
        return 2 * number

    @classmethod
    def of(cls, first: int) -> Thing:
        return cls(first, "anything")  # type: ignore[arg-type]

    def per(self, number: float, function: Callable[[], float] = lambda: 1.0) -> float:
        return function() / number

    def _internal(self, first: int) -> int:
        return first


def test_methods() -> None:
    assert Thing.of(1).first == 1 and Thing.doubled(2) == 4
    assert Thing(1)._internal("x") == "x"  # type: ignore[arg-type, comparison-overlap]
    for call in (Thing, Thing.of, lambda first: Thing(1).per(first), Thing.doubled):
        with pytest.raises(TypeError, match=r"`(first|number)`"):
            call("x")  # type: ignore[arg-type]


def test_arithmetic_that_fails_names_the_arguments() -> None:
    """Of this package: the error of a function that was passed is the caller's own."""
    with pytest.raises(OutOfRange, match="`noise_std`"):
        Modeler(torch.rand(4, 2), kernel=RBFKernel(), noise_std=1e221, delta=0.1)
    with pytest.raises(ZeroDivisionError):
        Thing(1).per(1.0, lambda: 1 / 0)
