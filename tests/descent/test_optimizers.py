"""Noise-aware AdaGrad."""

from __future__ import annotations

import copy

import pytest
import torch

from botorch_dp.descent import NoiseAwareAdagrad


def parameter(*values: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.double))


def test_without_noise_it_is_adagrad() -> None:
    mine, theirs = parameter(1.0, -2.0), parameter(1.0, -2.0)
    ours = NoiseAwareAdagrad([mine], lr=0.3, noise_std=0.0)
    reference = torch.optim.Adagrad([theirs], lr=0.3, eps=1e-12)
    for _ in range(10):
        for x, optimizer in ((mine, ours), (theirs, reference)):
            x.grad = 2 * x.detach() + 0.1
            optimizer.step()
    torch.testing.assert_close(mine, theirs)


def test_known_noise_is_subtracted_down_to_its_own_spread() -> None:
    x = parameter(0.0, 0.0)
    optimizer = NoiseAwareAdagrad([x], lr=1.0, noise_std=2.0)
    x.grad = torch.tensor([10.0, 1.0], dtype=torch.double)
    optimizer.step()
    # 100 - 4 for the first; 1 - 4 is below the floor sqrt(2) * 4 for the second.
    expected = torch.tensor([-10 / 96**0.5, -1 / (2**0.5 * 4) ** 0.5], dtype=torch.double)
    torch.testing.assert_close(x.detach(), expected)


def test_its_steps_stay_longer_than_adagrads_in_noise() -> None:
    torch.manual_seed(1)
    mine, theirs = parameter(0.0), parameter(0.0)
    ours = NoiseAwareAdagrad([mine], lr=1.0, noise_std=1.0)
    plain = NoiseAwareAdagrad([theirs], lr=1.0, noise_std=0.0)
    for _ in range(400):
        noisy = 0.1 + torch.randn(1, dtype=torch.double)
        for x, optimizer in ((mine, ours), (theirs, plain)):
            x.grad = noisy.clone()
            optimizer.step()
    assert mine < theirs < 0


def test_its_state_can_be_saved() -> None:
    x = parameter(1.0)
    optimizer = NoiseAwareAdagrad([x], noise_std=0.1)
    x.grad = torch.ones(1, dtype=torch.double)
    optimizer.step()
    y = torch.nn.Parameter(x.detach().clone())
    other = NoiseAwareAdagrad([y], noise_std=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p, o in ((x, optimizer), (y, other)):
        p.grad = torch.full((1,), 0.5, dtype=torch.double)
        o.step()
    assert torch.equal(x, y)


def test_refusals() -> None:
    x = parameter(1.0)
    with pytest.raises(ValueError, match="`lr`"):
        NoiseAwareAdagrad([x], lr=0.0)
    with pytest.raises(ValueError, match="`noise_std`"):
        NoiseAwareAdagrad([x], noise_std=-1.0)
    optimizer = NoiseAwareAdagrad([x])
    with pytest.raises(ValueError, match="`noise_std` is not set"):
        optimizer.step()
    with pytest.raises(ValueError, match="closure"):
        NoiseAwareAdagrad([x], noise_std=0.0).step(lambda: 0.0)
