"""Which models and losses are refused: those that mix the records of a batch, or store any.

The engines call a model on one record at a time, so that no gradient can depend on two records (but
for :mod:`.engines.opacus`, which calls it on whole batches, and is held against them).
Three things are left that could break this: vectorization rules that a model brings along
(``torch.autograd.Function``), a state that a model keeps from one call to the next, and errors of
ours. Besides, a model that mixes records could be trained on single ones, but would be tested and
used on batches. So a model, its loss and its engine are tried on synthetic records: at initial and
random weights before anything is trained (:func:`examine`, :func:`check_contributions`), and at the
final ones before a model is published. No record is read for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from botorch_dp.errors import PrivacyError
from botorch_dp.training.calls import call
from botorch_dp.training.engines.base import Batches, Engine, trainable
from botorch_dp.training.inputs import Inputs, count, each_part, parts, rows
from botorch_dp.training.networks import Loss
from botorch_dp.training.plain_layers import is_constant
from botorch_dp.training.randomness import Randomness, SeededRandomness, seeded_torch
from botorch_dp.training.records import TrainingRecords, TrainTest, synthetic_records

#: Makes the engine of one model on some records.
EngineMaker = Callable[[nn.Module, TrainingRecords, Randomness], Engine]

_BATCH = 6
#: Models are tried on batches of these sizes and, at one set of weights, of the sizes of a record's
#: own dimensions: one that takes the wrong dimension for the batch shows it where they are equal.
_BATCH_SIZES = (1, 2, 5)
_LARGEST_BATCH = 64
#: Largest number of outputs for which all classes of a sequence are tried.
_MOST_NUMBERS = 2**25
#: How far rounding may move what must not move, in clipping norms.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
#: How far rounding may move a record's output in a batch, relative to the largest output.
_SAME_OUTPUT = 1e-3


@dataclass(frozen=True)
class Traits:
    """Facts about a model and its loss, found on synthetic records."""

    num_classes: int | None
    """The number of classes if the targets are classes."""
    draws: bool
    """Whether the model draws random numbers in training (dropout)."""
    outputs: Tensor
    """What the model makes of a few synthetic records."""
    targets: Tensor
    """The targets of these."""


def check_model(model: object, data: TrainTest) -> None:
    """Raise unless a factory returned a model that can be trained on such data."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model_factory` must return a Module, got {type(model).__name__}.")
    for module in model.modules():
        if any(map(is_lazy, (*module.parameters(False), *module.buffers(False)))):
            raise ValueError(
                f"{type(module).__name__} has no weights yet: it would take their sizes from "
                "the first records that it sees. Give its sizes, for instance nn.Linear(20, 5) "
                "in place of nn.LazyLinear(5)."
            )
        if getattr(module, "gradient_checkpointing", False):
            raise ValueError(
                f"{type(module).__name__} computes its activations a second time in the backward "
                "pass (gradient checkpointing), which torch.func.vmap cannot do. Turn it off with "
                "model.gradient_checkpointing_disable(); large batches are taken in parts anyway."
            )
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.dtype in (torch.bfloat16, torch.float16):
            raise TypeError(
                f"{name} is of type {value.dtype}, whose rounding is coarser than the clipping of "
                "single records allows: all weights must be float32 or float64, frozen ones too. "
                "Let the factory return model.float(), or load it with dtype=torch.float32."
            )
    parameters = trainable(model)
    if not parameters:
        raise ValueError("The model has no trainable parameter; nothing is left to train.")
    device = data.train_Y.device
    types = {X.dtype for X in parts(data.train_X).values() if X.is_floating_point()}
    for parameter in parameters:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"Parameters must be float32 or float64, got {parameter.dtype}.")
        if types - {parameter.dtype}:
            raise TypeError(
                f"The model has parameters of type {parameter.dtype} but the inputs are "
                f"{(types - {parameter.dtype}).pop()}; convert one of them."
            )
        if parameter.device != device:
            raise ValueError(
                f"The model is on {parameter.device} but the data on {device}; move one."
            )


@seeded_torch(0)
@torch.no_grad()
def examine(model: nn.Module, loss: Loss, data: TrainTest) -> Traits:
    """Learn the form of a model and its loss, or raise if one mixes the records of a batch.

    Only the shapes, types and device of ``data`` are used.

    Raises:
        PrivacyError: If, at initial or random weights, the loss of a record in a batch is not its
            loss as a batch of one, or a forward pass leaves something of the records in a buffer.
        ValueError: If the loss returns neither one number per record nor their mean.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_constant(module):
            channels = module.num_features
            groups = next(size for size in (32, 16, 8, 4, 2, 1) if channels % size == 0)
            raise PrivacyError(
                f"{type(module).__name__}({channels}) mixes the records of a batch: each is "
                "normalized by a mean over all. Replace it by "
                f"nn.GroupNorm({min(groups, channels)}, {channels}). Or freeze it, if its running "
                "statistics come from public data: let the factory return the layer in evaluation "
                "mode (layer.eval()), as a nn.BatchNorm1d, 2d or 3d with track_running_stats. It "
                "then stays as it is."
            )
    generator = torch.Generator().manual_seed(0)
    _check_no_memory(model, data, generator)
    batch = synthetic_records(data, _BATCH, generator)
    outputs, draws = _outputs_and_draws(copy.deepcopy(model), batch.train_X)
    _check_loss(loss, outputs, batch.train_Y)
    for tried, sizes in _at_several_weights(model, data):
        quiet = _without_dropout(tried)
        found, still_draws = _outputs_and_draws(quiet, batch.train_X)
        _check_every_target(loss, found, batch.train_Y, generator)
        if still_draws:
            break  # what it draws for a batch is not what it draws for a batch of one
        for size in sizes:
            _check_no_mixing(quiet, loss, synthetic_records(data, size, generator))
    classes = outputs.shape[1] if _are_classes(loss, outputs, batch.train_Y) else None
    return Traits(classes, draws, outputs, batch.train_Y)


def check_contributions(
    model: nn.Module,
    data: TrainTest,
    make_engine: EngineMaker,
    num_classes: int | None,
    *,
    random_weights: bool = False,
) -> None:
    """Raise unless an engine's sum takes from each record that record's clipped gradient alone.

    On synthetic records, in batches of several sizes: a record at a place that does not count can
    be exchanged without any effect on the sum; what was computed before has no effect; and a single
    record's part is at most the clipping norm. All that is compared has the same shapes and the
    same random numbers, so that rounding cannot be taken for an effect.

    Args:
        model: The model, at the weights in question; it is left as it is.
        data: Only its shapes, types and device are used.
        make_engine: The engine of one model on some records, as it is used in training.
        num_classes: As for :class:`TrainingRecords`.
        random_weights: Whether to try random weights as well.

    Raises:
        PrivacyError: If a record reached beyond its own clipped gradient.
        ValueError: If the gradients cannot be computed.
    """
    device = data.train_Y.device
    for tried, sizes in _at_several_weights(model, data, random_weights):
        records = random_records(data, max(sizes) + 1, num_classes)
        limit = _TOLERANCE[trainable(tried)[0].dtype]
        engine = make_engine(tried, records, _SameSeed())

        def clipped_sum(batch: Tensor, filled: Tensor, engine: Engine = engine) -> Tensor:
            try:
                batches = Batches(batch.unsqueeze(0), filled.unsqueeze(0))
                (found,) = engine.clipped_sums(batches, clip_norm=1.0).sums
            except RuntimeError as error:
                raise ValueError(
                    "The gradients of single records cannot be computed together: "
                    f"torch.func.vmap refuses the model or its loss ({error}). Write it without "
                    "data-dependent control flow (if, item, nonzero), without "
                    "torch.utils.checkpoint, and with layers that vmap supports."
                ) from error
            return found.double()

        for size in sizes:
            batch = torch.arange(size, device=device)
            exchanged = batch.clone()
            exchanged[size // 2] = max(sizes)
            others = batch != size // 2
            first = clipped_sum(batch, others).clone()
            moved = clipped_sum(exchanged, others).sub_(first).norm()
            repeated = clipped_sum(batch, others).sub_(first).norm()
            alone = clipped_sum(exchanged, ~others).norm()
            if float(moved) > limit or float(alone) > 1 + limit:
                raise PrivacyError(
                    f"In a batch of {size} random records, one record reached beyond its own "
                    "clipped gradient: the model or its loss mixes records in a way that training "
                    "on single records does not prevent, for instance in the vectorization rule of "
                    "an autograd function. Remove that."
                )
            if float(repeated) > limit:
                raise PrivacyError(
                    "The same random records gave another gradient after others were seen: the "
                    "model or its loss keeps something from one call to the next. Remove that."
                )


def agree(
    model: nn.Module,
    data: TrainTest,
    makers: Sequence[EngineMaker],
    num_classes: int | None,
    *,
    random_weights: bool = True,
    dropout: bool = True,
) -> bool:
    """Whether two engines give the same sums on synthetic records.

    Arguments as for :func:`check_contributions`, with the makers of both engines.

    Args:
        dropout: False for engines that draw in another order.
    """
    batch = torch.arange(_BATCH, device=data.train_Y.device).unsqueeze(0)
    records = random_records(data, _BATCH, num_classes)
    for tried, _ in _at_several_weights(model, data, random_weights):
        same = tried if dropout else _without_dropout(tried)
        try:
            one, other = (
                make(same, records, _SameSeed()).clipped_sums(Batches(batch), clip_norm=1.0).sums
                for make in makers
            )
        except (
            RuntimeError,
            ValueError,
            TypeError,
            NotImplementedError,
            IndexError,
            AttributeError,
        ):
            return False
        if not float((one - other).norm()) <= _TOLERANCE[one.dtype] * float(other.norm()):
            return False
    return True


@seeded_torch(0)
@torch.no_grad()
def check_evaluation(model: nn.Module, data: TrainTest, *, random_weights: bool = False) -> None:
    """Raise if a model in evaluation mode mixes the records of a batch, on synthetic records.

    Such a model would be scored on single records and used in another way.

    Args:
        model: The model, at the weights in question; it is left as it is.
        data: Only its shapes, types and device are used.
        random_weights: Whether to try random weights as well.

    Raises:
        PrivacyError: If the output of a record in a batch was not its output as a batch of one.
    """
    generator = torch.Generator().manual_seed(3)
    for tried, sizes in _at_several_weights(model, data, random_weights):
        called, precise = _in_double(tried.eval(), data)
        for size in sizes:
            made = synthetic_records(data, size, generator).train_X
            made = each_part(_as_double, made) if precise else made
            together, alone, draws = _together_and_alone(called, made)
            if draws:
                break  # what it draws for a batch is not what it draws for a batch of one
            scale = 1 + float(alone.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
            if not torch.allclose(
                together, alone, rtol=0.0, atol=_SAME_OUTPUT * scale, equal_nan=True
            ):
                raise PrivacyError(
                    "The model mixes the records of a batch in evaluation mode (`model.eval()`), "
                    "or changes with each call: on random data, the result for a record in a batch "
                    "was not that for the record alone. Its output for one record would then "
                    "depend on other records. Remove what compares the records of a batch, such as "
                    "a mean over them or the scales of dynamic quantization."
                )


def _in_double(model: nn.Module, data: TrainTest) -> tuple[nn.Module, bool]:
    """The model in double precision, where rounding cannot be taken for mixing, if it works so."""
    try:
        called = copy.deepcopy(model).double()
        made = synthetic_records(data, 1, torch.Generator().manual_seed(3)).train_X
        _outputs_and_draws(called, each_part(_as_double, made))
    except (TypeError, ValueError, RuntimeError):
        return model, False
    return called, True


def _as_double(part: Tensor) -> Tensor:
    return part.double() if part.is_floating_point() else part


def random_records(data: TrainTest, size: int, num_classes: int | None) -> TrainingRecords:
    """Synthetic records as an engine takes them."""
    made = synthetic_records(data, size, torch.Generator().manual_seed(1))
    return TrainingRecords(made.train_X, made.train_Y, num_classes)


class _SameSeed(SeededRandomness):
    """Randomness whose seeds for torch are all the same."""

    def __init__(self) -> None:
        super().__init__(0, torch.device("cpu"))

    def torch_seed(self) -> int:
        return 0


def _at_several_weights(
    model: nn.Module, data: TrainTest, random_weights: bool = True
) -> Iterator[tuple[nn.Module, list[int]]]:
    """Copies at the model's own weights, and at random ones so that no layer is zero in all.

    With sizes of batches to try: the last copy with those of a record's own dimensions, too.
    """
    own = (size for part in parts(data.train_X).values() for size in part.shape[1:])
    every = sorted({*_BATCH_SIZES, *(size for size in own if 0 < size <= _LARGEST_BATCH)})
    yield copy.deepcopy(model), list(_BATCH_SIZES) if random_weights else every
    generator = torch.Generator().manual_seed(2)
    for sizes in (list(_BATCH_SIZES), every) if random_weights else ():
        moved = copy.deepcopy(model)
        for parameter in trainable(moved):
            shape = parameter.shape
            draws = torch.randn(shape, generator=generator, dtype=parameter.dtype, device="cpu")
            inputs = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
            parameter.data.copy_(draws.div_(inputs**0.5))
        yield moved, sizes


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "dropout" in name:  # attention_dropout and the like
                setattr(module, name, 0.0)
    return model


def _outputs_and_draws(model: nn.Module, X: Inputs) -> tuple[Tensor, bool]:
    """One row for each record, and whether random numbers were drawn."""
    before = torch.get_rng_state()
    try:
        outputs = call(model, X)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(
            f"{name and name + ': '}{tuple(part.shape)} {part.dtype}"
            for name, part in parts(X).items()
        )
        raise ValueError(f"The model cannot take inputs of {shapes}: {error}") from error
    draws = not torch.equal(before, torch.get_rng_state())
    if not isinstance(outputs, Tensor) or outputs.dim() == 0 or len(outputs) != count(X):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"The model must return one row for each record, got shape {shape} for {count(X)} "
            "records."
        )
    return outputs, draws


def _together_and_alone(model: nn.Module, X: Inputs) -> tuple[Tensor, Tensor, bool]:
    """The outputs for a batch, those for its records as batches of one, and whether it draws."""
    together, draws = _outputs_and_draws(model, X)
    alone = [_outputs_and_draws(model, rows(X, [place]))[0] for place in range(len(together))]
    return together, torch.cat(alone), draws


def _are_classes(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are columns of the outputs: a loss for classes refuses all others."""
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return False
    columns = outputs.shape[1]
    if columns == 1 or outputs.device.type != "cpu":  # where such an error would be the last one
        return columns > 1
    try:
        for other in (columns, -1):
            loss(outputs, torch.full_like(targets, other))
    except Exception:
        return True
    return False


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """A loss must return the records' own losses, or their plain mean."""
    shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
    with torch.no_grad():
        try:
            values = loss(outputs, targets)
            if isinstance(values, Tensor) and values.shape in ((), (len(outputs),)):
                pairs = zip(outputs.split(1), targets.split(1), strict=True)
                alone = torch.stack([loss(*pair).sum() for pair in pairs])
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            tokens = outputs.dim() == 3 and outputs.shape[:2] == targets.shape
            raise ValueError(
                f"`loss` cannot take {shapes}, of {outputs.dtype} and {targets.dtype}: {error}. "
                + (_OF_TOKENS if tokens else _ONE_EACH)
            ) from error
    if not isinstance(values, Tensor):
        raise TypeError(f"`loss` must return a tensor, got {type(values).__name__}.")
    if values.shape not in ((), (len(outputs),)):
        raise ValueError(
            f"`loss` must return one number for each record (shape {(len(outputs),)}) or their "
            f"mean, got shape {tuple(values.shape)} for {shapes}. {_ONE_EACH}"
        )
    if not _same(values, alone.mean() if values.dim() == 0 else alone, 1e-4):
        if values.dim() > 0:
            raise PrivacyError(_MIXES.format(what="`loss`"))
        broadcast = outputs.shape[1:] == (1,) and targets.dim() == 1
        raise PrivacyError(
            f"`loss` returns one number for {shapes} that is not the mean of the records' own "
            f"losses. {_WEIGHTS_OF_RECORDS}{' ' + _ONE_EACH if broadcast else ''}"
        )


def _check_every_target(
    loss: Loss, outputs: Tensor, targets: Tensor, generator: torch.Generator
) -> None:
    """A loss must return them for any targets: each beside another one, all, and all twice.

    Class weights under a mean, for one, show only where two classes of unequal weight meet.
    """
    every = _every_target(loss, outputs, targets, generator)
    k, device = len(every), every.device
    together = max(2, k // 128)
    few = torch.arange(together, device=device)
    neighbours = [(few + start) % k for start in range(0, k, together - 1)]
    some = torch.arange(min(k, 8), device=device)
    for places in (*neighbours, some, some.repeat_interleave(2)):
        rows = torch.arange(len(places), device=device) % len(outputs)
        _check_loss(loss, outputs[rows], every[places])


def _every_target(
    loss: Loss, outputs: Tensor, targets: Tensor, generator: torch.Generator
) -> Tensor:
    """Targets of all kinds that a loss takes: all classes or one-hot rows, shares, padded ones."""
    shape, size = targets.shape[1:], targets.shape[1:].numel()
    found = [targets]
    if targets.is_floating_point():
        shares = torch.rand((2, *shape), generator=generator, dtype=targets.dtype, device="cpu")
        found.append(shares.to(targets))
        if targets.dim() == 2:
            found.append(torch.eye(size, dtype=targets.dtype, device=targets.device))
    elif outputs.dim() == targets.dim() + 1:  # a column for each class, wherever it is
        classes = outputs.shape[1:].numel() // size
        filled = torch.arange(-(-classes // size) * size, device=targets.device) % classes
        few = None if size == 1 else max(2, _MOST_NUMBERS // outputs[0].numel())
        found.append(filled.to(targets).view(-1, *shape)[:few])
    ignored = getattr(loss, "ignore_index", -100 if targets.device.type == "cpu" else None)
    if size > 1 and targets.dtype == torch.long and ignored is not None:
        padded = targets[:2].flatten(1).clone()
        padded[0, 1:] = ignored
        found.append(padded.view(2, *shape))
        try:
            loss(outputs[:2], found[-1])
        except Exception:
            found.pop()  # it ignores no target
    return torch.cat(found)


def _check_no_mixing(model: nn.Module, loss: Loss, data: TrainTest) -> None:
    """The outputs of a batch must be those of its records as batches of one."""
    together, alone, _ = _together_and_alone(model, data.train_X)
    if not _same(together, alone):
        raise PrivacyError(_MIXES.format(what="The model"))
    _check_loss(loss, together, data.train_Y)


def _check_no_memory(model: nn.Module, data: TrainTest, generator: torch.Generator) -> None:
    """A forward pass must leave the same buffers behind whatever the records are."""
    if next(model.buffers(), None) is None:
        return
    left: list[dict[str, Tensor]] = []
    for _ in range(2):
        called = copy.deepcopy(model)
        with seeded_torch(0), torch.no_grad():
            call(called, synthetic_records(data, _BATCH, generator).train_X)
        left.append(dict(called.named_buffers()))
    first, second = left
    depend = [name for name, value in first.items() if not torch.equal(value, second[name])]
    if depend:
        raise PrivacyError(
            f"The model stores something of the records in its buffers ({', '.join(depend)}). "
            "Training leaves buffers as they are, because they would be released without any "
            "noise. Turn that off, for instance with track_running_stats=False."
        )


_OF_TOKENS = "For a causal language model pass botorch_dp.training.causal_lm_loss."
_ONE_EACH = (
    "Where outputs are n x 1 and targets n, let the model return outputs.squeeze(-1), or give "
    "targets of shape n x 1."
)
_WEIGHTS_OF_RECORDS = (
    "Sums, class weights and `ignore_index` under a mean (which divide by the weights of the whole "
    "batch), contrastive and ranking losses mix the records of a batch. Return one loss for each "
    'record, for instance with reduction="none". Class weights then have their effect if they are '
    "at most 1: clipping undoes larger ones."
)
_MIXES = (
    "{what} mixes the records of a batch, or changes with each call: on random data, the result "
    "for a record in a batch was not that for the record alone. The model is trained on single "
    "records and would be used in another way. Replace batch normalization by group "
    "normalization, and spectral by weight normalization, put the batch first (batch_first=True), "
    "and use a loss of each record alone."
)


def _same(one: Tensor, other: Tensor, coarse: float = 1e-3) -> bool:
    tolerance = 1e-5 if one.dtype == torch.float64 else coarse
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
