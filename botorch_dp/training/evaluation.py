"""Models in evaluation mode: what a record's score is computed from, and which models are refused.

A record's score is computed from a call of the model on that record alone, as a batch of one. So
one test record cannot change what is counted for another one, whatever the model does with a
batch. :func:`torch.func.vmap` makes many such calls one computation of a fixed shape. Where made-up
records show that a model cannot be vectorized, the records are scored one after the other.

A model that mixes the records of a batch in evaluation mode is refused: it would be scored on
single records and used in another way.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import vmap

from botorch_dp.errors import PrivacyError
from botorch_dp.training.isolation import at_several_weights, batch_sizes, outputs_and_draws
from botorch_dp.training.networks import is_right
from botorch_dp.training.plain_layers import with_plain_layers
from botorch_dp.training.records import (
    Inputs,
    TrainTest,
    count,
    each_part,
    parts,
    rows,
    synthetic_records,
)
from botorch_dp.training.single_calls import call_alone, is_tied, vectorizing

#: Records are scored in blocks of this many, the last one filled up with made-up records.
BLOCK = 256
#: How far rounding may move a record's output in a batch, relative to the largest output.
_TOLERANCE = 1e-3
#: Errors of the machine, which say nothing about a record.
_OF_THE_MACHINE = (OSError, MemoryError)


def check_evaluation(model: nn.Module, data: TrainTest, *, random_weights: bool = False) -> None:
    """Raise if a model in evaluation mode mixes the records of a batch, on made-up records.

    Args:
        model: The model, at the weights in question; it is left as it is.
        data: Only its shapes, types and device are used.
        random_weights: Whether to try random weights as well.

    Raises:
        PrivacyError: If the output of a record in a batch was not its output as a batch of one.
    """
    generator = torch.Generator().manual_seed(3)
    for tried in at_several_weights(model) if random_weights else [copy.deepcopy(model)]:
        called, precise = _in_double(tried.eval(), data)
        for size in batch_sizes(data):
            made = synthetic_records(data, size, generator).train_X
            made = each_part(_as_double, made) if precise else made
            together, draws = outputs_and_draws(called, made)
            if draws:
                break  # what it draws for a batch is not what it draws for a batch of one
            alone = torch.cat(
                [outputs_and_draws(called, rows(made, [place]))[0] for place in range(size)]
            )
            scale = 1 + float(alone.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
            if not torch.allclose(
                together, alone, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True
            ):
                raise PrivacyError(
                    "The model mixes the records of a batch in evaluation mode (`model.eval()`), "
                    "or changes with each call: on random data, the result for a record in a "
                    "batch was not that for the record alone. What it says about one record would "
                    "then depend on other ones. Take out what compares the records of a batch, "
                    "such as a mean over them or the scales of dynamic quantization."
                )


def _in_double(model: nn.Module, data: TrainTest) -> tuple[nn.Module, bool]:
    """The model in double precision, where rounding cannot be taken for mixing, if it works so."""
    try:
        called = copy.deepcopy(model).double()
        made = synthetic_records(data, 1, torch.Generator().manual_seed(3)).train_X
        outputs_and_draws(called, each_part(_as_double, made))
    except (TypeError, ValueError, RuntimeError):
        return model, False
    return called, True


def _as_double(part: Tensor) -> Tensor:
    return part.double() if part.is_floating_point() else part


def right_in(
    model: nn.Module,
    X: Inputs,
    Y: Tensor,
    batches: Iterable[tuple[Inputs, Tensor, Tensor]],
) -> Tensor:
    """Whether each record is classified right by a model that sees no other record, ``n``.

    A record at which the model raises an error counts as wrong and changes nothing for others: a
    made-up record takes its place, and the same shape is computed again.

    Args:
        model: In whatever mode; a copy in evaluation mode is called.
        X: For the shapes and types of the inputs.
        Y: The same of the targets.
        batches: Inputs, targets, and which records could be read; others are classified wrong.
    """
    made = synthetic_records(TrainTest(X, Y), BLOCK, torch.Generator().manual_seed(4))
    calls = _CallsOfOne(model, made.train_X)
    size = BLOCK if calls.can_be_vectorized() else 1
    right = []
    for inputs, targets, read in batches:
        for start in range(0, len(targets), size):
            stop = min(len(targets), start + size)
            block = each_part(lambda part: part[start:stop], inputs)  # noqa: B023
            outputs = calls.outputs(block, stop - start, size)
            found = is_right(outputs, targets[start:stop])
            right.append(found & read[start:stop].view(-1, *[1] * (found.dim() - 1)))
    return torch.cat(right)


class _CallsOfOne:
    """Calls of a model in evaluation mode, each on one record.

    Args:
        model: Copied, and left as it is.
        made: A block of made-up inputs.
    """

    def __init__(self, model: nn.Module, made: Inputs) -> None:
        self._model = with_plain_layers(copy.deepcopy(model)).eval()
        self._parameters: dict[str, Tensor] = dict(self._model.named_parameters())
        self._buffers = dict(self._model.named_buffers())
        self._tied = is_tied(self._model)
        self._made = made
        self._vectorized = vmap(self._of_one, randomness="different")
        self._shape = self._call(rows(made, [0])).shape[1:]

    def can_be_vectorized(self) -> bool:
        """Whether a block of made-up records gives what each of a few gives alone."""
        try:
            together = self._call(self._made)
            alone = torch.cat([self._call(rows(self._made, [place])) for place in range(4)])
        except Exception as error:  # whatever it is, the model cannot be vectorized
            if isinstance(error, _OF_THE_MACHINE):
                raise
            return False
        return torch.allclose(alone, together[:4], rtol=1e-3, atol=1e-3, equal_nan=True)

    def outputs(self, X: Inputs, given: int, size: int) -> Tensor:
        """The outputs of the given records, in a block of that size; NaN where the model fails."""
        device = next(iter(parts(X).values())).device
        found = torch.full((given, *self._shape), torch.nan, dtype=torch.double, device=device)
        self._fill(found, X, list(range(given)), size)
        return found

    def _fill(self, found: Tensor, X: Inputs, places: list[int], size: int) -> None:
        """Find the outputs of some records; made-up ones stand at all other places."""
        block = rows(self._made, range(size))
        for into, part in zip(parts(block).values(), parts(X).values(), strict=True):
            into[places] = part[places]
        try:
            outputs = self._call(block)
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
        """Outputs of a block, or of a single record.

        Gradients are enabled: without them, torch's encoders take a path that cannot be vectorized.
        """
        with torch.enable_grad(), vectorizing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if count(X) > 1:
                return self._vectorized(X).detach()
            return self._of_one(each_part(lambda part: part[0], X)).unsqueeze(0).detach()

    def _of_one(self, x: Inputs) -> Tensor:
        # A model may write to its buffers: what it writes is forgotten.
        buffers = {name: value.clone() for name, value in self._buffers.items()}
        tensors = self._parameters, buffers
        return call_alone(self._model, tensors, x, tied=self._tied).squeeze(0)
