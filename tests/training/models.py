"""Models of many kinds, which every engine must clip right or refuse; and some that mix records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import Tensor, nn

_G = torch.Generator().manual_seed(0)
ROWS, WORDS, WIDTH, CLASSES = 12, 20, 8, 3
VECTORS = torch.randn(ROWS, 7, generator=_G)
IMAGES = torch.randn(ROWS, 3, 10, 10, generator=_G)
SEQUENCES = torch.randn(ROWS, 6, WIDTH, generator=_G)
TOKENS = torch.randint(WORDS, (ROWS, 6), generator=_G)


class Case(NamedTuple):
    """A model, its inputs, and what the engines say of it."""

    factory: Callable[[], nn.Module]
    X: Tensor
    refused: Mapping[str, str] = MappingProxyType({})
    """The engines that refuse it, with a pattern of the reason."""


class Over(nn.Module):
    """A head over the mean of what a body makes of each place."""

    def __init__(self, body: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        hidden = self.body(X)
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(dim=1))


class Attending(nn.Module):
    """Words that look at each other, with a skip."""

    def __init__(self, attention: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attention = attention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        return self.norm(hidden + self.attention(hidden, hidden, hidden)[0])


class Reading(nn.Module):
    """A recurrent layer along words."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, WIDTH), layer(WIDTH, WIDTH, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.words(tokens))[0]


class Twice(nn.Module):
    """One layer that is called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(7, 7), nn.Linear(7, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(X).tanh()))


class SharedTable(nn.Module):
    """A last layer that has the table's weight: as a module, or by a function."""

    def __init__(self, by_function: bool) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = None if by_function else nn.Linear(WIDTH, WORDS, bias=False)
        if self.last is not None:
            self.last.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.inner(self.words(tokens).mean(dim=1)).tanh()
        return F.linear(hidden, self.words.weight) if self.last is None else self.last(hidden)


class WithFirstToken(nn.Module):
    """A learnt first place before layers that have parameters of their own."""

    def __init__(self, layers: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.layers = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH)), layers()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        first = self.first.expand(len(X), 1, WIDTH)
        return self.head(self.layers(torch.cat([first, X], dim=1))[:, 0])


class Gate(nn.Module):
    """A weight for each number, and a second input that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, X: Tensor, scale: Tensor | None = None) -> Tensor:
        return X * self.weight if scale is None else X * self.weight * scale


class Gated(nn.Module):
    def __init__(self, by_name: bool) -> None:
        super().__init__()
        self.gate, self.head, self.by_name = Gate(), nn.Linear(WIDTH, CLASSES), by_name

    def forward(self, X: Tensor) -> Tensor:
        mean = X.mean(dim=1)
        scale = 10 * mean.abs()
        gated = self.gate(mean, scale=scale) if self.by_name else self.gate(mean, scale)
        return self.head(gated)


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return self.layer(input=X)


class Lines(nn.Module):
    """A linear layer on the last of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.head = nn.Linear(10, 4), nn.Linear(4, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.lines(X).tanh().mean(dim=(1, 2)))


class Padded(nn.Module):
    """Words of which some are the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.words(tokens * (tokens > 5))


class Scaled(nn.Module):
    """A layer of no library."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm, self.head = nn.Parameter(torch.randn(7)), nn.Linear(7, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return self.head((X * self.logarithm.exp()).tanh())


class FrozenBody(nn.Module):
    """A body that is not trained, under a parameter that is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)).requires_grad_(False)
        self.shift = nn.Parameter(torch.zeros(4, 1, 1))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return self.head((self.body(X) + self.shift).relu().mean(dim=(2, 3)))


def imaged(*layers: nn.Module) -> nn.Module:
    body = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(body, nn.Linear(body(IMAGES[:1]).shape[1], CLASSES))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)


def weight_normed() -> nn.Module:
    inner = nn.utils.parametrizations.weight_norm(nn.Linear(7, 7))
    return nn.Sequential(inner, nn.Tanh(), nn.Linear(7, CLASSES))


_FAILS = {"opacus": "per-sample gradients fail or are wrong"}
_STEPS = {"opacus": r"is an nn\.(LSTM|GRU), for which"}
_SECOND = _FAILS
MODELS: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(7, CLASSES), VECTORS),
    "network": Case(
        lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, CLASSES)), VECTORS
    ),
    "convolution, groups of channels": Case(
        lambda: imaged(nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU()), IMAGES
    ),
    "grouped convolution": Case(
        lambda: imaged(nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.ReLU()), IMAGES
    ),
    "circular padding": Case(
        lambda: imaged(nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular"), nn.ReLU()),
        IMAGES,
        {"opacus": "pads in mode 'circular'"},
    ),
    "transposed convolution": Case(
        lambda: imaged(nn.ConvTranspose2d(3, 4, 3, 2), nn.ReLU()), IMAGES
    ),
    "instance normalization": Case(
        lambda: imaged(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU()), IMAGES
    ),
    "attention": Case(lambda: Over(Attending(nn.MultiheadAttention)), TOKENS, _SECOND),
    "attention of Opacus": Case(lambda: Over(Attending(DPMultiheadAttention)), TOKENS),
    "encoder": Case(lambda: Over(encoder()), SEQUENCES, _SECOND),
    "LSTM": Case(lambda: Over(Reading(nn.LSTM)), TOKENS, _STEPS),
    "GRU": Case(lambda: Over(Reading(nn.GRU)), TOKENS, _STEPS),
    "LSTM of Opacus": Case(lambda: Over(Reading(DPLSTM)), TOKENS),
    "GRU of Opacus": Case(lambda: Over(Reading(DPGRU)), TOKENS),
    "table": Case(lambda: Over(nn.Embedding(WORDS, WIDTH)), TOKENS),
    "table with padding": Case(lambda: Over(Padded()), TOKENS, {"opacus": "padding_idx"}),
    "bag of words": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode="sum"), nn.Linear(WIDTH, CLASSES)),
        TOKENS,
        _FAILS,
    ),
    "layer called twice": Case(Twice, VECTORS),
    "table that is a layer's weight": Case(partial(SharedTable, False), TOKENS),
    "table that a function uses": Case(partial(SharedTable, True), TOKENS, _FAILS),
    "own parameter over layers": Case(partial(WithFirstToken, encoder), SEQUENCES),
    "own parameter over plain layers": Case(
        partial(
            WithFirstToken, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        ),
        SEQUENCES,
    ),
    "layer of no library": Case(Scaled, VECTORS),
    "second input by name": Case(partial(Gated, True), SEQUENCES, _SECOND),
    "second input": Case(partial(Gated, False), SEQUENCES, _SECOND),
    "input by name": Case(ByName, VECTORS, _SECOND),
    "four dimensions": Case(Lines, IMAGES),
    "changed in place": Case(
        lambda: imaged(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)), IMAGES, _FAILS
    ),
    "frozen body": Case(FrozenBody, IMAGES),
    "weight normalization": Case(weight_normed, VECTORS),
}


class MeanGate(nn.Module):
    """Scales outputs by what a layer, zero at first, makes of a mean over the batch."""

    def __init__(self, only_above: float = 0.0, only_from: int = 0) -> None:
        super().__init__()
        self.score, self.gate = (nn.Linear(3, 1, bias=False) for _ in range(2))
        nn.init.zeros_(self.gate.weight)
        self.only_above, self.only_from = only_above, only_from

    def forward(self, X: Tensor) -> Tensor:
        seen = X * (X.abs() > self.only_above) * (len(X) >= self.only_from)
        return self.score(X) * (1 + self.gate(seen.mean(dim=0).expand_as(X)))


class AlongRecords(nn.Module):
    """A recurrence along the first dimension, whose weight is zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.new, self.old = nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(self.old.weight)

    def forward(self, X: Tensor) -> Tensor:
        state, states = X.new_zeros(X.shape[1], 4), []
        for x in X:
            state = self.new(x) + self.old(state)
            states.append(state)
        return self.head(torch.stack(states)).mean(dim=1)


class Experts(nn.Module):
    """Two experts, of which the first takes a part of the batch at most."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, X: Tensor) -> Tensor:
        chosen = X[:, :1] > 0
        fits = chosen.cumsum(dim=0) <= 2 * len(X) // 3 + 8
        return torch.where(chosen, self.first(X) * fits, self.second(X))


class LargestOne(nn.Module):
    """Scaled by the largest number of a batch, once that is large."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3, 1, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        return self.score(X / X.detach().abs().max().clamp_min(20.0))


class Hostile(NamedTuple):
    """A model that mixes records, and what finds it out."""

    factory: Callable[[], nn.Module]
    X: Tensor
    """The records, of which the first one is exchanged."""
    values: tuple[Any, Any]
    """What it is exchanged for."""
    found: bool
    """Whether the trials before training find it out."""


def _rows(size: int) -> Tensor:
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(size))


_CROWD = torch.cat([torch.ones(80, 3) * 0.5 + _rows(80).abs(), -_rows(23).abs() - 0.1])
HOSTILE: dict[str, Hostile] = {
    "mean over the batch": Hostile(MeanGate, _rows(20) + 1, (1e4, -1e4), True),
    "recurrence along records": Hostile(AlongRecords, torch.zeros(24, 24, 3), (30.0, -30.0), True),
    "mean of large numbers": Hostile(
        partial(MeanGate, only_above=50.0), _rows(20) + 1, (1e4, -1e4), False
    ),
    "mean over large batches": Hostile(
        partial(MeanGate, only_from=100), _rows(128) + 1, (1e4, -1e4), False
    ),
    "experts with a capacity": Hostile(
        Experts,
        torch.cat([torch.zeros(1, 3), _CROWD]),
        (torch.tensor([0.01, -30.0, -30.0]), torch.tensor([-0.01, 30.0, 30.0])),
        False,
    ),
    "scaled by the largest number": Hostile(LargestOne, 0.1 * _rows(40).abs(), (1e3, 0.0), False),
}


def largest_move(sums: Callable[[nn.Module, Tensor], Tensor], hostile: Hostile) -> float:
    """How far the exchange of the first record moves the sum of gradients clipped at 1.

    At weights that have moved away from zero.
    """
    found = []
    for value in hostile.values:
        X = hostile.X.clone()
        X[0] = value
        torch.manual_seed(0)
        model = hostile.factory().train()
        if isinstance(model, MeanGate):
            nn.init.ones_(model.gate.weight)
        found.append(sums(model, X))
    return float((found[0] - found[1]).norm())
