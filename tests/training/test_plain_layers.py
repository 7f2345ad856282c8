"""Layers in plain operations compute what torch's own layers compute."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn

from botorch_dp.training.plain_layers import with_plain_layers

LENGTH, WIDTH, SIZE = 5, 6, 3


def same(one: Any, other: Any) -> None:
    if isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif one is None:
        assert other is None
    else:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "num_layers": 2, "batch_first": True},
        {"proj_size": 2, "bidirectional": True, "num_layers": 2},
        {"nonlinearity": "relu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("begun", [False, True])
def test_recurrent_layers(layer: Any, options: dict[str, Any], begun: bool) -> None:
    if ("proj_size" in options and layer is not nn.LSTM) or (
        "nonlinearity" in options and layer is not nn.RNN
    ):
        pytest.skip("this layer has no such option")
    torch.manual_seed(0)
    closed = layer(WIDTH, 4, **options)
    opened = with_plain_layers(copy.deepcopy(closed))
    assert type(opened) is not layer
    X = torch.randn(LENGTH, SIZE, WIDTH)
    rows = closed.num_layers * (1 + closed.bidirectional)
    state: Any = torch.randn(rows, SIZE, closed.proj_size or 4)
    if layer is nn.LSTM:
        state = (state, torch.randn(rows, SIZE, 4))
    X = X.transpose(0, 1) if closed.batch_first else X
    same(opened(X, state if begun else None), closed(X, state if begun else None))
    same(opened(X[0]), closed(X[0]))  # without a batch


@pytest.mark.parametrize("layer", [DPLSTM, DPGRU, DPRNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_recurrent_layers_of_opacus(layer: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    own = layer(WIDTH, 4, batch_first=True, **options)
    opened = with_plain_layers(copy.deepcopy(own))
    assert isinstance(opened, layer) and type(opened) is not layer
    X = torch.randn(SIZE, LENGTH, WIDTH)
    same(opened(X), own(X))
    rows = own.num_layers * own.num_directions
    state: Any = torch.randn(rows, SIZE, 4)
    state = (state, torch.randn(rows, SIZE, 4)) if layer is DPLSTM else state
    same(opened(X, state), own(X, state))
    packed = nn.utils.rnn.pack_padded_sequence(X, [5, 4, 2], batch_first=True)
    same(opened(packed)[0].data, own(packed)[0].data)


def test_a_hook_on_a_map_of_states_is_not_left_out() -> None:
    torch.manual_seed(0)
    own = DPLSTM(WIDTH, 4, batch_first=True)
    own.cells[0].hh.register_forward_hook(lambda module, inputs, output: 2 * output)
    X = torch.randn(SIZE, LENGTH, WIDTH)
    same(with_plain_layers(copy.deepcopy(own))(X), own(X))


MASKS = {
    "none": None,
    "bool": torch.ones(LENGTH, LENGTH).triu(1).bool(),
    "float": torch.randn(LENGTH, LENGTH),
    "per head": torch.randn(SIZE * 2, LENGTH, LENGTH),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("own_keys", [False, True])
def test_attention(mask: str, padded: bool, batch_first: bool, own_keys: bool) -> None:
    torch.manual_seed(0)
    closed = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
    opened = with_plain_layers(copy.deepcopy(closed))
    X = torch.randn(SIZE, LENGTH, WIDTH)
    Z = torch.randn(SIZE, LENGTH, WIDTH) if own_keys else X
    X, Z = (X, Z) if batch_first else (X.transpose(0, 1), Z.transpose(0, 1))
    padding = torch.zeros(SIZE, LENGTH, dtype=torch.bool)
    padding[:, -1] = True
    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        given = {
            "attn_mask": MASKS[mask],
            # Torch warns of masks of two kinds.
            "key_padding_mask": (
                padding
                if mask in ("none", "bool")
                else torch.zeros(SIZE, LENGTH).masked_fill(padding, -torch.inf)
            )
            if padded
            else None,
            **options,
        }
        same(opened(X, Z, Z, **given), closed(X, Z, Z, **given))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4}])
def test_attention_of_other_kinds_is_torchs_own(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    closed = nn.MultiheadAttention(WIDTH, 2, **options)
    opened = with_plain_layers(copy.deepcopy(closed))
    X = torch.randn(LENGTH, SIZE, WIDTH)
    K = torch.randn(LENGTH, SIZE, options.get("kdim", WIDTH))
    same(opened(X, K, X), closed(X, K, X))
