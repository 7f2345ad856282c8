"""Training and test records: checks of their form, and masks for records that cannot be used.

What is public (types, shapes, sizes) is checked and refused. What one record says is not: a
record with a value that is not finite, or with a class that does not exist, keeps its place in the
batches but its gradient counts as zero.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from botorch_dp.errors import PrivacyError
from botorch_dp.training.inputs import Inputs, arguments, each_part, parts
from botorch_dp.training.randomness import seeded_everywhere

_EVALUATION_BATCH = 4096
#: So many numbers are converted at once: they stay in the cache.
CONVERTED = 2**16
#: More than rounding may take from the norm of a vector of doubles whose squares vanish.
_VANISHING = 1e-150
#: What the target of a record is called.
_TARGETS = ("labels", "label")


def lengths(vectors: Tensor) -> Tensor:
    """Their l2 norms along the last dimension, as factors of other norms.

    That of a single number needs no root. The square of a double may vanish, and a product of norms
    with it, where the product of the vectors does not: such norms are rounded up.
    """
    if vectors.shape[-1] == 1:
        found = vectors.squeeze(-1).abs()
    else:
        found = torch.linalg.vector_norm(vectors, dim=-1)
    return found.add_(_VANISHING) if vectors.dtype == torch.float64 else found


class TrainTest(NamedTuple):
    """Tensors to train on and to test on; without test records, no accuracy is measured.

    Args:
        train_X: Inputs, ``n x ...``, one record in each row; or several of them by name, such as
            tokens and their mask, with which the model is called as ``model(**inputs)``.
        train_Y: Targets, ``n`` or ``n x ...``.
        test_X: Inputs of the test records; None without.
        test_Y: Targets of the test records; None without.
    """

    train_X: Any  # noqa: N815
    train_Y: Tensor  # noqa: N815
    test_X: Any = None  # noqa: N815
    test_Y: Any = None  # noqa: N815

    def __repr__(self) -> str:
        return f"TrainTest({len(self.train_Y)} training records)"  # and nothing of what they say


class Records(Protocol):
    """Training records that are taken by their places."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, places: Tensor, seed: int | None = None) -> tuple[Inputs, Tensor, Tensor]:
        """Inputs and targets, all finite, and whether each record's gradient counts, ``m``.

        Args:
            places: Of the records.
            seed: For data sets that draw random numbers when they are read. Without one, each
                record is read under the same random numbers, whatever its place.
        """

    def form(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets, for their shapes and types alone."""

    def batches(self) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        """All records in order, as they came, and which of them could be read."""

    @property
    def unusable(self) -> int:
        """How many records' gradients do not count, as far as is known. Sensitive."""


class TrainingRecords:
    """Records in tensors; values are read, and unusable records masked, when first needed.

    The operations are the same whatever the data holds.

    Args:
        X: Inputs as they came, ``n x ...``.
        Y: Targets as they came, ``n x ...``.
        num_classes: Number of classes if the targets are integer classes: others are unusable.
    """

    def __init__(self, X: Inputs, Y: Tensor, num_classes: int | None) -> None:
        self._raw_X, self._raw_Y, self._num_classes = X, Y, num_classes

    def __len__(self) -> int:
        return len(self._raw_Y)

    def take(self, places: Tensor, seed: int | None = None) -> tuple[Inputs, Tensor, Tensor]:
        X = each_part(lambda part: part.index_select(0, places), self.X)
        return X, self.Y.index_select(0, places), self.usable.index_select(0, places)

    def form(self) -> tuple[Inputs, Tensor]:
        return self._raw_X, self._raw_Y

    def batches(self) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        for start in range(0, len(self), _EVALUATION_BATCH):
            some = slice(start, start + _EVALUATION_BATCH)
            targets = self._raw_Y[some]
            read = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
            yield each_part(lambda part, some=some: part[some], self._raw_X), targets, read  # type: ignore[misc]

    @property
    def unusable(self) -> int:
        return len(self) - int(self.usable.sum())

    @cached_property
    def usable(self) -> Tensor:
        """Whether a record's gradient counts, ``n``."""
        return _usable(self._raw_X, self._raw_Y, self._num_classes)

    @cached_property
    def X(self) -> Inputs:
        """Inputs, ``n x ...``; the rows of unusable records are zero."""
        return each_part(lambda part: _zeroed(part, self.usable), self._raw_X)

    @cached_property
    def Y(self) -> Tensor:
        """Targets, ``n x ...``; those of unusable records are zero."""
        return _zeroed(self._raw_Y, self.usable)

    @cached_property
    def input_lengths(self) -> Tensor:
        """The l2 norms of :attr:`X` in double precision, ``n``.

        Clipping rests on them, and :attr:`X` is a copy: what a caller does to their own tensors
        changes neither.
        """
        assert isinstance(self.X, Tensor)
        return torch.cat([lengths(part.double()) for part in _parts(self.X.flatten(1))])


class DatasetRecords:
    """Records of a map-style data set, read when a batch asks for them.

    A record whose reading fails, or whose form is not the one that was stated, is unusable, like
    one that is not finite: what one record does must not be seen. No record is read for the form.

    Each record is read under a seed of its own for the random numbers of torch, NumPy and Python,
    which are left as they were: how often one record draws changes no other one, and a data set
    that augments its records gives the same ones again under the same seed.

    Args:
        dataset: Has a length, and gives for a place ``(inputs, target)``, or a mapping with inputs
            by name and ``labels``, or several inputs and a target; see :func:`split`.
        like: A public or synthetic record: names, shapes and types of every one. Other names than
            these are left out.
        num_classes: As for :class:`TrainingRecords`.
    """

    def __init__(self, dataset: Any, like: Any, num_classes: int | None = None) -> None:
        self.dataset, self.num_classes, self.like = dataset, num_classes, like
        x, _ = split(like)
        self._names = list(x) if isinstance(x, Mapping) else None
        self._X, self._Y = self._as_record(like)
        self._bad: set[int] = set()

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def unusable(self) -> int:
        """Of those that were drawn so far."""
        return len(self._bad)

    def form(self) -> tuple[Inputs, Tensor]:
        return each_part(lambda part: part.unsqueeze(0), self._X), self._Y.unsqueeze(0)

    def joined(self, X: Inputs, Y: Tensor) -> Any:
        """Inputs and targets of a batch, as torch's loader makes one of such records."""
        if isinstance(self.like, Mapping):
            return {name: Y if name in _TARGETS else parts(X)[name] for name in self.like}
        if not isinstance(self.like, tuple | list):
            return X
        several, _ = arguments(X)
        return [*(several or (X,)), Y][: len(self.like)]

    def take(self, places: Tensor, seed: int | None = None) -> tuple[Inputs, Tensor, Tensor]:
        with warnings.catch_warnings(), seeded_everywhere(seed or 0) as reseed:  # of one record
            warnings.simplefilter("ignore")
            read = []
            for place in places.tolist():
                # A place tells how many records come before: what is the same each time must not
                # depend on it.
                reseed(0 if seed is None else place)
                read.append(self._read(place))
        Y = torch.stack([y for _, y, _ in read]) if read else self._Y.new_zeros(0, *self._Y.shape)
        columns = {
            name: torch.stack([parts(x)[name] for x, _, _ in read])
            if read
            else part.new_zeros(0, *part.shape)
            for name, part in parts(self._X).items()
        }
        X: Inputs = columns if isinstance(self._X, dict) else columns[""]
        usable = _usable(X, Y, self.num_classes)
        usable &= torch.tensor(
            [whole for _, _, whole in read], dtype=torch.bool, device=usable.device
        )
        self._bad.update(places[~usable.to(places.device)].tolist())
        return each_part(lambda part: _zeroed(part, usable), X), _zeroed(Y, usable), usable

    def batches(self) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        for start in range(0, len(self), _EVALUATION_BATCH):
            stop = min(len(self), start + _EVALUATION_BATCH)
            yield self.take(torch.arange(start, stop, device=self._Y.device))

    def _read(self, place: int) -> tuple[Inputs, Tensor, bool]:
        try:
            x, y = self._as_record(self.dataset[place])
            if _form_of(x, y) == _form_of(self._X, self._Y):
                return x, y, True
        except Exception:
            pass  # whatever it was, one record's error must not be seen
        return each_part(torch.zeros_like, self._X), torch.zeros_like(self._Y), False

    def _as_record(self, record: Any) -> tuple[Inputs, Tensor]:
        """A copy: a data set that reads into the same memory each time would make records one."""

        def own(value: Any) -> Tensor:
            device = value.device if isinstance(value, Tensor) else "cpu"
            return torch.as_tensor(value, device=device).detach().clone()

        x, y = split(record)
        return own(x) if self._names is None else {n: own(x[n]) for n in self._names}, own(y)


def split(record: Any) -> tuple[Any, Any]:
    """Inputs and target of a record.

    A record has ``labels`` among its names, or is a pair, or several inputs and a target; one part
    alone is its own target, as for an autoencoder. Token ids without ``labels`` are their own
    labels where they are not masked, as for a causal language model.
    """
    if not isinstance(record, Mapping):
        *x, y = record if isinstance(record, tuple | list) else (record,)
        return {str(place): each for place, each in enumerate(x)} if x[1:] else [*x, y][0], y
    target = next((name for name in _TARGETS if name in record), None)
    if target is None:
        tokens = torch.as_tensor(record["input_ids"], device="cpu")
        real = torch.as_tensor(record.get("attention_mask", 1), device="cpu") > 0
        return dict(record), torch.where(real, tokens, -100)
    return {name: part for name, part in record.items() if name != target}, record[target]


def _form_of(X: Inputs, Y: Tensor) -> list[tuple[object, ...]]:
    named = (*parts(X).items(), ("Y", Y))
    return [(name, part.shape, part.dtype, part.device, part.layout) for name, part in named]


def _usable(X: Inputs, Y: Tensor, num_classes: int | None) -> Tensor:
    usable = torch.ones(len(Y), dtype=torch.bool, device=Y.device)
    for values in (*parts(X).values(), Y):
        rows = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        usable &= torch.cat([part.isfinite().all(dim=1) for part in _parts(rows)])
    if num_classes is not None:
        usable &= (Y >= 0) & (num_classes > Y)
    return usable


def _zeroed(values: Tensor, usable: Tensor) -> Tensor:
    rows = usable.view(-1, *[1] * (values.dim() - 1))
    return torch.where(rows, values, values.new_zeros(()))


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Blocks of rows, ``n x d``, that stay in the cache."""
    return rows.split(max(1, CONVERTED // max(1, rows.shape[1])))


def check_data(data: object, *, named_inputs: bool = False, tests: bool = True) -> TrainTest:
    """Return the data as :class:`TrainTest`, or raise if its form is wrong; no value is read.

    Args:
        data: What was given.
        named_inputs: Whether inputs may be several tensors by name.
        tests: Whether there must be test records.
    """
    if isinstance(data, torch.utils.data.DataLoader):
        raise PrivacyError(
            "`data` is a DataLoader, whose shuffled passes cannot be accounted as Poisson sampling "
            "or as sampling without replacement. Pass TrainTest(train_X, train_Y, test_X, test_Y) "
            "or a pair of map-style data sets: the trainer draws its own batches."
        )
    if not isinstance(data, tuple) or len(data) not in (2, 4):
        raise TypeError(
            "`data` must be TrainTest(train_X, train_Y, test_X, test_Y) or a pair of map-style "
            "data sets, to train on and to test on, such as (data['train'], data['test']); got "
            f"{type(data).__name__}."
        )
    data = TrainTest(*data)
    if tests and data.test_X is None and data.test_Y is None:
        raise ValueError(
            "`data` has no test records: pass TrainTest(train_X, train_Y, test_X, test_Y)."
        )
    if named_inputs:
        data = data._replace(train_X=_as_named(data.train_X), test_X=_as_named(data.test_X))
    forms = []
    for part in ("train", "test"):
        X, Y = (data.train_X, data.train_Y) if part == "train" else (data.test_X, data.test_Y)
        if part == "test" and X is None and Y is None:
            continue
        named = {f"{part}_Y": Y}
        for name, value in (parts(X) if named_inputs else {"": X}).items():
            named[f"{part}_X.{name}" if name else f"{part}_X"] = value
        for name, value in named.items():
            if not isinstance(value, Tensor) or value.is_nested:
                raise TypeError(_NOT_ONE_TENSOR.format(what=f"`{name}`", got=type(value).__name__))
            if value.dim() == 0 or len(value) == 0:
                raise ValueError(f"`{name}` must hold records, got shape {tuple(value.shape)}.")
            if len(value) != len(Y):
                raise ValueError(f"`{name}` has {len(value)} records but `{part}_Y` has {len(Y)}.")
            if value.device != data.train_Y.device:
                raise ValueError(
                    f"`{name}` is on device {value.device} but `train_Y` on "
                    f"{data.train_Y.device}; move all tensors to one device."
                )
        if len(named) == 1:
            raise TypeError(f"`{part}_X` must name its inputs, got none.")
        forms.append({n[len(part) :]: (v.dtype, tuple(v.shape[1:])) for n, v in named.items()})
    if len(forms) > 1 and forms[0] != forms[1]:
        raise ValueError(
            "Training and test records must agree in names, types and all sizes but the first, got "
            f"{forms[0]} and {forms[1]}."
        )
    return data


_NOT_ONE_TENSOR = (
    "{what} must be a torch.Tensor, got {got}. Records of unequal length: pad them to one public "
    "length, and tell the model where they end. A tokenizer does both with padding='max_length' "
    "and truncation=True; torch.nn.utils.rnn.pad_sequence(..., batch_first=True) pads tensors. "
    "Records of equal length: use torch.stack."
)


def _as_named(X: Any) -> Any:
    """Inputs by name as a dictionary, whatever mapping they came in."""
    return dict(X) if isinstance(X, Mapping) else X


def datasets_of(data: object, like: Any) -> tuple[DatasetRecords, DatasetRecords | None] | None:
    """The records of one or two map-style data sets; None if the data is no such thing.

    Args:
        data: What was given.
        like: An example of a record, which is public or synthetic; see :class:`DatasetRecords`.
    """
    given: tuple[Any, ...]
    if isinstance(data, tuple):
        given = data if len(data) == 2 and not isinstance(data[1], Tensor) else ()
    else:
        given = () if isinstance(data, Tensor | Mapping | str) else (data,)
    if not given:
        if like is not None:
            raise TypeError(
                "`like` shows the form of the records of data sets. Tensors have a form of their "
                "own: leave it out."
            )
        return None
    if like is not None:
        _check_like(like)
    found: list[DatasetRecords] = []
    for name, dataset in zip(("train", "test"), given, strict=False):
        if isinstance(dataset, torch.utils.data.DataLoader):
            check_data(dataset)
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"The {name} data set must have __getitem__ and __len__, got "
                f"{type(dataset).__name__}: batches are drawn by place, which a stream does not "
                "allow."
            )
        if len(dataset) == 0:
            raise ValueError(f"The {name} data set is empty.")
        if not found and _repeats(dataset):
            raise PrivacyError(_REPEATED)
        example = _form_of_tensors(dataset) if like is None else like
        if example is None:
            raise PrivacyError(
                f"Nothing public says which form the records of the {name} data set have, and "
                "the first of them is as secret as any other. Pass `like=`, a synthetic record "
                "that all have the names, shapes and types of, such as (torch.zeros(3), 0) or "
                "{'input_ids': torch.zeros(64).long(), 'labels': 0}."
            )
        found.append(DatasetRecords(dataset, example))
    return found[0], found[1] if len(found) > 1 else None


_REPEATED = (
    "The train data set has a record in several rows. Each row is clipped alone, so that this "
    "record would add more than the noise covers. Give each record one row; what shall "
    "count more gets a larger weight in the loss, of at most 1."
)


def _repeats(dataset: Any) -> bool:
    """Whether a record can be seen to come more than once, by places and not by values."""
    if not isinstance(dataset, Subset | ConcatDataset | TensorDataset):
        return False
    origins = _origins(dataset)
    ordered = origins[:, np.lexsort(origins)]
    return bool((ordered[:, 1:] == ordered[:, :-1]).all(axis=0).any())


def _origins(dataset: Any) -> np.ndarray:
    """The origin of each record, ``2 x n``: its data set or memory, and its index there."""
    if isinstance(dataset, Subset):
        return _origins(dataset.dataset)[:, np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_origins(part) for part in dataset.datasets], axis=1)
    places = np.arange(len(dataset))
    if not isinstance(dataset, TensorDataset):
        return np.stack([np.full_like(places, id(dataset)), places])
    first = dataset.tensors[0]
    bytes_of_row = first.stride(0) * first.element_size() if first.numel() else 1
    return np.stack([np.zeros_like(places), first.data_ptr() + bytes_of_row * places])


def _check_like(like: Any) -> None:
    """Raise unless an example is a record whose parts are tensors or numbers."""
    several = isinstance(like, tuple | list) and len(like) > 0
    named = isinstance(like, Mapping) and any(name in like for name in (*_TARGETS, "input_ids"))
    if not several and not named and not isinstance(like, Tensor):
        raise TypeError(
            "`like` must be an example (inputs, target), a tensor, or inputs by name with "
            f"'labels' or 'input_ids' among them; got {type(like).__name__}."
        )
    x, y = split(like)
    for name, part in (*(x.items() if isinstance(x, Mapping) else [("inputs", x)]), ("target", y)):
        try:
            torch.as_tensor(part, device=part.device if isinstance(part, Tensor) else "cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"`like` ({name})"
            raise TypeError(
                _NOT_ONE_TENSOR.format(what=what, got=type(part).__name__)
                if isinstance(part, list | tuple)
                else f"{what} must be a tensor or a number: {error}."
            ) from error


_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
#: Those that are seeded whenever a record is read.
_SEEDED = (
    *(getattr(draw, "__self__", None) for draw in (random.random, np.random.standard_normal)),
    torch.default_generator,
)
#: How deep in a data set its own generators are looked for: a transform in a list in a transform.
_DEEP = 6


def own_generators(dataset: Any) -> list[str]:
    """Where a data set keeps random generators of its own, which no seed of a training sets.

    Found by its attributes and by what transforms are made of. Whatever has as many parts as there
    are records may be the records, and is left alone.
    """
    found, seen, size = [], set[int](), len(dataset)

    def look(name: str, value: Any, depth: int) -> None:
        if isinstance(value, _GENERATORS) and not any(value is each for each in _SEEDED):
            found.append(name)
        if id(value) in seen or depth == 0 or isinstance(value, _LEAVES):
            return
        seen.add(id(value))
        if isinstance(value, list | tuple | dict):
            if len(value) < size:
                for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                    look(f"{name}[{key!r}]", part, depth - 1)
            return
        for key, part in _held_by(value).items():
            look(f"{name}.{key}", part, depth - 1)

    for key, part in _held_by(dataset).items():
        look(key, part, _DEEP)
    return found


def why_unpublishable(dataset: Any) -> str:
    """Why no model of these records may be published; empty if it may."""
    names = own_generators(dataset)
    if not names:
        return ""
    return (
        f"The data set draws from random generators of its own ({', '.join(names)}): how often "
        "one record draws decides what all others get. Draw from torch, numpy.random or random, "
        "which are seeded anew for each record."
    )


def _held_by(value: Any) -> dict[str, Any]:
    """Attributes of an object, or variables of a function; none of the object's code is run."""
    held = dict(getattr(value, "__dict__", {}))
    if isinstance(value, FunctionType):
        variables = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held |= {name: cell.cell_contents for name, cell in variables}
    elif isinstance(value, MethodType):
        held["__self__"] = value.__self__
    elif isinstance(value, partial):
        held |= {"func": value.func, "args": value.args, **value.keywords}
    return held


_LEAVES = (Tensor, np.ndarray, str, bytes, type, ModuleType, *_GENERATORS)


def _form_of_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """The form of records that are rows of tensors, whose types and shapes are public."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset:
        return None
    return tuple(tensor.new_zeros(tensor.shape[1:]) for tensor in dataset.tensors)


def synthetic_records(data: TrainTest, size: int, generator: torch.Generator) -> TrainTest:
    """Random data of the same form, to try a model and a loss on without touching a record."""

    def like(template: Tensor, low: int) -> Tensor:
        shape = (size, *template.shape[1:])
        if template.is_floating_point() and low < 0:
            draw = torch.randn(
                shape, generator=generator, dtype=template.dtype, device=generator.device
            )
        else:
            # Zeros and ones are valid classes, labels, tokens and probabilities.
            draw = torch.randint(2, shape, generator=generator, device=generator.device)
            draw = draw.to(template.dtype)
        return draw.to(template.device)

    X = each_part(lambda part: like(part, -1), data.train_X)
    Y = like(data.train_Y, 0)
    return TrainTest(X, Y, X, Y)
