"""Calls of a model: on a batch, on one record, and on many records one by one by ``vmap``.

:func:`torch.func.vmap` refuses code that looks at a value to decide what to compute. Many models
look at one to save time: those of Hugging Face leave out an attention mask that masks nothing. They
do not look where a graph is traced, because what was decided for one value would hold for all. A
vectorized call is in the same position, so :func:`vectorized_calls` gives the answer of a traced
one to :func:`torch.compiler.is_compiling`. What a model computes is then the same for all records,
which is what the isolation of records asks for as well.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from botorch_dp.training.inputs import Inputs, arguments, count, each_part, parts, rows
from botorch_dp.training.networks import is_correct
from botorch_dp.training.plain_layers import with_plain_layers
from botorch_dp.training.records import Records, TrainTest, synthetic_records

#: Number of calls in which records are scored together, the last ones on synthetic records.
_TOGETHER = 256
#: Errors of the machine, which say nothing about a record.
_OF_THE_MACHINE = (OSError, MemoryError)


def call(model: nn.Module, X: Inputs) -> Any:
    """The outputs of a model for a batch."""
    args, kwargs = arguments(X)
    return outputs_of(model(*args, **kwargs))


def outputs_of(found: Any) -> Any:
    """What a model returns, or the ``logits`` among it (Hugging Face)."""
    return getattr(found, "logits", found)


class _Traced:
    """A reentrant patch of ``torch.compiler.is_compiling``, true in the threads that ask for it.

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


def traced_calls() -> AbstractContextManager[None]:
    """Calls as in a traced graph: models that look at values only to save time do not do so."""
    return _traced.here()


@contextmanager
def vectorized_calls() -> Iterator[None]:
    """Calls that ``vmap`` can take: as in a traced graph, and with attention as plain products.

    The other kernels of attention would be called once for each record.
    """
    with _traced.here(), sdpa_kernel(SDPBackend.MATH):
        yield


class SingleCall:
    """A model as a function of one record, which it gets as a batch of one, and of its tensors.

    Args:
        model: Left as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        #: Whether a tensor has several names.
        self._tied = len(named) > len({id(tensor) for _, tensor in named})

    def __call__(self, x: Inputs, *tensors: Mapping[str, Tensor]) -> Tensor:
        """The outputs for one record, ``1 x ...``.

        Args:
            x: The inputs of the record.
            tensors: What the model has in place of its parameters and buffers, by name; it may
                write there.
        """
        given = arguments(each_part(lambda part: part.unsqueeze(0), x))
        found: Tensor = outputs_of(
            functional_call(self._model, tuple(map(dict, tensors)), *given, tie_weights=self._tied)
        )
        return found


def correct_alone(model: nn.Module, records: Records) -> Tensor:
    """Whether each record is classified correctly by a model that sees no other record, ``n``.

    The outputs for a record come from a call of the model on that record alone, so that one record
    cannot change what is counted for another one, whatever the model does with a batch.
    :func:`torch.func.vmap` makes many such calls one computation of a fixed shape. Where synthetic
    records show that a model cannot be vectorized, the calls are made one after the other.

    A record that cannot be read, or at which the model raises an error, counts as wrong and changes
    nothing for others: a synthetic record takes its place, and the same shape is computed again.

    Args:
        model: In whatever mode; a copy in evaluation mode is called.
        records: To be classified.
    """
    generator = torch.Generator().manual_seed(4)
    made = synthetic_records(TrainTest(*records.form()), _TOGETHER, generator)
    calls = _EvaluationCalls(model, made.train_X)
    size = _TOGETHER if calls.can_be_vectorized() else 1
    correct = []
    for inputs, targets, read in records.batches():
        for start in range(0, len(targets), size):
            stop = min(len(targets), start + size)
            some = each_part(lambda part: part[start:stop], inputs)  # noqa: B023
            outputs = calls.outputs(some, stop - start, size)
            found = is_correct(outputs, targets[start:stop])
            correct.append(found & read[start:stop].view(-1, *[1] * (found.dim() - 1)))
    return torch.cat(correct)


class _EvaluationCalls:
    """Calls of a model in evaluation mode, each on one record.

    Args:
        model: Copied, and left as it is.
        made: As many synthetic inputs as are taken together.
    """

    def __init__(self, model: nn.Module, made: Inputs) -> None:
        self._model = with_plain_layers(copy.deepcopy(model)).eval()
        self._parameters: dict[str, Tensor] = dict(self._model.named_parameters())
        self._buffers = dict(self._model.named_buffers())
        self._one = SingleCall(self._model)
        self._made = made
        self._vectorized = vmap(self._of_one, randomness="different")
        self._shape = self._call(rows(made, [0])).shape[1:]

    def can_be_vectorized(self) -> bool:
        """Whether synthetic records give together what each of a few gives alone."""
        try:
            together = self._call(self._made)
            alone = torch.cat([self._call(rows(self._made, [place])) for place in range(4)])
        except Exception as error:  # whatever it is, the model cannot be vectorized
            if isinstance(error, _OF_THE_MACHINE):
                raise
            return False
        return torch.allclose(alone, together[:4], rtol=1e-3, atol=1e-3, equal_nan=True)

    def outputs(self, X: Inputs, given: int, size: int) -> Tensor:
        """The outputs of the given records, that many together; NaN where the model fails."""
        device = next(iter(parts(X).values())).device
        found = torch.full((given, *self._shape), torch.nan, dtype=torch.double, device=device)
        self._fill(found, X, list(range(given)), size)
        return found

    def _fill(self, found: Tensor, X: Inputs, places: list[int], size: int) -> None:
        """Find the outputs of some records; synthetic ones stand at all other places."""
        together = rows(self._made, range(size))
        for into, part in zip(parts(together).values(), parts(X).values(), strict=True):
            into[places] = part[places]
        try:
            outputs = self._call(together)
            if outputs.shape[1:] != self._shape:
                raise ValueError("The outputs of one record have another shape.")
        except Exception as error:
            if isinstance(error, _OF_THE_MACHINE):
                raise
            half = len(places) // 2
            for some in (places[:half], places[half:]) if half else ():
                self._fill(found, X, some, size)
            return
        found[places] = outputs[places].to(found)

    def _call(self, X: Inputs) -> Tensor:
        """Outputs of several records, or of a single one.

        Gradients are enabled: without them, torch's encoders take a path that cannot be vectorized.
        """
        with torch.enable_grad(), vectorized_calls(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if count(X) > 1:
                return self._vectorized(X).detach()
            return self._of_one(each_part(lambda part: part[0], X)).unsqueeze(0).detach()

    def _of_one(self, x: Inputs) -> Tensor:
        # A model may write to its buffers: what it writes is forgotten.
        buffers = {name: value.clone() for name, value in self._buffers.items()}
        return self._one(x, self._parameters, buffers).squeeze(0)
