"""Calls of a model on one record at a time, vectorized: what they need, and how one is made.

:func:`torch.func.vmap` refuses code that looks at a value to decide what to compute. Many models
look at one to save time: those of Hugging Face leave out an attention mask that masks nothing. They
do not look where a graph is traced, because what was decided for one value would hold for all. A
vectorized call is in the same position, so :func:`vectorizing` gives the answer of a traced one to
:func:`torch.compiler.is_compiling`. What a model computes is then the same for all records, which
is what the isolation of records asks for as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from botorch_dp.training.records import Inputs, each_part, outputs_of


class _Traced:
    """Makes ``torch.compiler.is_compiling`` true in the threads that are in :meth:`here`.

    Torch's own function is back in its place as soon as no thread is.
    """

    def __init__(self) -> None:
        self._lock, self._threads = threading.Lock(), dict[int, int]()
        self._original: Callable[[], bool] = torch.compiler.is_compiling

    def __call__(self) -> bool:
        return threading.get_ident() in self._threads or self._original()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Whoever asks in this thread is told that a graph is traced."""
        thread = threading.get_ident()
        with self._lock:
            if not self._threads:
                self._original, torch.compiler.is_compiling = torch.compiler.is_compiling, self
            self._threads[thread] = self._threads.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._threads[thread] -= 1
                if not self._threads[thread]:
                    del self._threads[thread]
                if not self._threads:
                    torch.compiler.is_compiling = self._original


_traced = _Traced()


@contextmanager
def values_decide_nothing() -> Iterator[None]:
    """Models that look at values only to save time do not look at them here."""
    with _traced.here():
        yield


@contextmanager
def vectorizing() -> Iterator[None]:
    """What is called here can be vectorized: no value decides, and attention is plain products.

    The other kernels of attention would be called once for each record.
    """
    with values_decide_nothing(), sdpa_kernel(SDPBackend.MATH):
        yield


def is_tied(model: nn.Module) -> bool:
    """Whether a parameter or a buffer has several names."""
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return len(named) > len({id(tensor) for _, tensor in named})


def call_alone(
    model: nn.Module, tensors: tuple[Mapping[str, Tensor], ...], x: Inputs, *, tied: bool
) -> Tensor:
    """What a model makes of a single record, as a batch of one.

    Args:
        model: Left as it is.
        tensors: What it has in place of its parameters and buffers, by name; it may write there.
        x: The inputs of one record.
        tied: Whether a tensor of the model has several names; see :func:`is_tied`.
    """
    one = each_part(lambda part: part.unsqueeze(0), x)
    given = ((), one) if isinstance(one, dict) else ((one,), None)
    found: Tensor = outputs_of(
        functional_call(model, tuple(map(dict, tensors)), *given, tie_weights=tied)
    )
    return found
