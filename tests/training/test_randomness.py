from __future__ import annotations

import copy
import json
import math
import os
import pickle
import sys
import threading
import time
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp.training import randomness
from botorch_dp.training.randomness import (
    SeededRandomness,
    SystemRandomness,
    _system_binomial,
    _system_bytes,
    _system_integers,
)
from tests.training.helpers import FALSE_ALARM, variance_is

CPU = torch.device("cpu")


def both() -> list[SeededRandomness | SystemRandomness]:
    return [SeededRandomness(7, CPU), SystemRandomness()]


@pytest.mark.parametrize("coins", both(), ids=["seeded", "system"])
class TestBothKinds:
    def test_subsets_are_uniform(self, coins: SeededRandomness) -> None:
        """All 10 pairs out of 5, without order, equally often."""
        counts = np.zeros((5, 5))
        for _ in range(4000):
            first, second = sorted(coins.choose(5, 2).tolist())
            assert first != second
            counts[first, second] += 1
        pairs = counts[np.triu_indices(5, 1)]
        assert pairs.sum() == 4000
        assert stats.chisquare(pairs).pvalue > FALSE_ALARM

    def test_subsets_of_the_large_kind(self, coins: SeededRandomness) -> None:
        for population, size in ((30_956, 256), (60_000, 600), (1000, 999), (12, 12), (1, 1)):
            batch = coins.choose(population, size)
            assert batch.dtype == torch.long
            assert batch.shape == (size,)
            assert len(batch.unique()) == size
            assert 0 <= int(batch.min()) <= int(batch.max()) < population

    def test_successive_batches_are_independent(self, coins: SeededRandomness) -> None:
        """Unlike shuffled epochs, the next batch shares records with this one: m^2/n on average."""
        shared = []
        batch = set(coins.choose(100, 10).tolist())
        for _ in range(2000):
            following = set(coins.choose(100, 10).tolist())
            shared.append(len(batch & following))
            batch = following
        law = stats.hypergeom(100, 10, 10)
        observed = np.bincount(shared, minlength=5)[:4]
        expected = 2000 * law.pmf(np.arange(4))
        observed, expected = (
            np.append(observed, 2000 - observed.sum()),
            np.append(expected, 2000 - expected.sum()),
        )
        assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM

    def test_poisson_sampling(self, coins: SeededRandomness) -> None:
        """Sizes are binomial, and each record is as likely as any other."""
        batches = coins.choose_each(20, 0.3, 3000)
        sizes = np.bincount([len(batch) for batch in batches], minlength=21)
        expected = 3000 * stats.binom(20, 0.3).pmf(np.arange(21))
        usual = expected > 10
        together = [np.append(c[usual], c[~usual].sum()) for c in (sizes, expected)]
        assert stats.chisquare(*together).pvalue > FALSE_ALARM
        members = np.bincount(torch.cat(batches).numpy(), minlength=20)
        assert stats.chisquare(members).pvalue > FALSE_ALARM
        assert [len(batch) for batch in coins.choose_each(5, 1.0, 2)] == [5, 5]

    @pytest.mark.parametrize("sensitivity, each", [(2.0, 2.0), (1e-3, 5e-5), (50.0, 2000.0)])
    def test_noise_has_the_stated_deviation(
        self, coins: SeededRandomness, sensitivity: float, each: float
    ) -> None:
        total = torch.zeros(20_000, dtype=torch.float64)
        # Two calls, so that a draw used twice would show as a doubled variance.
        for _ in range(2):
            fresh = torch.zeros_like(total)
            coins.perturb_(fresh, sensitivity=sensitivity, std=each)
            total += fresh
        std = math.sqrt(2) * each
        assert variance_is(total, std)
        assert not variance_is(total, std / 2)
        assert not variance_is(total, std * 1.1)
        assert stats.kstest(total.numpy() / std, "norm").pvalue > FALSE_ALARM


def test_a_seed_repeats_and_every_bit_of_it_counts() -> None:
    def draws(seed: int) -> tuple[list[int], list[float], int]:
        coins = SeededRandomness(seed, CPU)
        noise = torch.zeros(4)
        coins.perturb_(noise, sensitivity=1.0, std=1.0)
        return coins.choose(1000, 5).tolist(), noise.tolist(), coins.torch_seed()

    assert draws(5) == draws(5)
    for other in (6, 5 + 2**32, 5 + 2**64, 5 + 2**200):
        for one, two in zip(draws(5), draws(other), strict=True):
            assert one != two


def test_a_stored_state_goes_on_as_before() -> None:
    coins = SeededRandomness(3, CPU)
    coins.choose(50, 5)
    state = json.loads(json.dumps(coins.state()))
    other = SeededRandomness(4, CPU)
    other.restore(state)
    a, b = torch.zeros(33), torch.zeros(33)
    coins.perturb_(a, sensitivity=1.0, std=1.0)
    other.perturb_(b, sensitivity=1.0, std=1.0)
    assert torch.equal(a, b)
    assert torch.equal(coins.choose(50, 5), other.choose(50, 5))
    assert coins.torch_seed() == other.torch_seed()


def test_system_coins_follow_no_seed() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        coins = SystemRandomness()
        noise = torch.zeros(8, dtype=torch.float64)
        coins.perturb_(noise, sensitivity=1.0, std=1.0)
        drawn.append((noise.tolist(), coins.choose(10**6, 4).tolist(), coins.torch_seed()))
        assert coins.state() == {}
    assert all(one != two for one, two in zip(*drawn, strict=True))


@pytest.mark.parametrize("value", [0.0, 0.1, math.pi * 100, -1e-9])
def test_published_sums_lie_on_one_grid(value: float) -> None:
    """No low bit of a sum survives: what is published is a multiple of one power of two."""
    total = torch.full((5000,), value, dtype=torch.float64)
    SystemRandomness().perturb_(total, sensitivity=1.0, std=3.0)
    cells = total / 2.0 ** (1 - 24)
    assert torch.equal(cells, cells.round())
    assert variance_is(total - value, 3.0)


@pytest.mark.parametrize("numbers", [1, 400])
def test_published_noise_is_widened_by_what_rounding_may_add(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum to the grid: sqrt(p) / 2 cells for each neighbour; adding up: the stated slack."""
    monkeypatch.setattr(
        "botorch_dp.training.randomness._system_normal",
        lambda size: torch.full((size,), 2.0**20, dtype=torch.float64),
    )
    total = torch.zeros(numbers, dtype=torch.float64)
    SystemRandomness().perturb_(total, sensitivity=1.0, std=3.0)
    grid = 2.0 ** (1 - 24)
    widened = 1 + 2e-6 + grid * math.sqrt(numbers)
    torch.testing.assert_close(
        total / (3.0 * 2**20), torch.full_like(total, widened), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 6, 2**62 + 1])
def test_system_integers_are_uniform(bound: int) -> None:
    """Each of two halves of the range is equally likely, also where most numbers are rejected."""
    drawn = np.concatenate([_system_integers(4000, bound) for _ in range(3)])
    assert 0 <= drawn.min() <= drawn.max() < bound
    if bound == 1:
        return
    if bound <= 6:
        assert stats.chisquare(np.bincount(drawn, minlength=bound)).pvalue > FALSE_ALARM
    else:
        low = int((drawn < bound // 2).sum())
        assert stats.binomtest(low, len(drawn), 0.5).pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [1e-3, 0.5 / 256, 1 / 256, 1.5 / 256, 0.5, 0.999, 1.0])
def test_bytes_and_fractions_make_the_stated_probability(probability: float) -> None:
    batches = SystemRandomness().choose_each(50_000, probability, 20)
    chosen = sum(map(len, batches))
    together = torch.cat(batches)
    assert 0 <= together.min() and together.max() < 50_000
    assert stats.binomtest(chosen, 1_000_000, probability).pvalue > FALSE_ALARM


@pytest.mark.parametrize("trials, probability", [(40, 0.03), (1000, 1e-4), (30_956, 256 / 30_956)])
def test_system_numbers_are_binomial(trials: int, probability: float) -> None:
    law = stats.binom(trials, probability)
    drawn = np.bincount(_system_binomial(20_000, trials, probability), minlength=trials + 1)
    expected = 20_000 * law.pmf(np.arange(trials + 1))
    usual = expected > 10
    together = [np.append(c[usual], c[~usual].sum()) for c in (drawn, expected)]
    assert stats.chisquare(*together).pvalue > FALSE_ALARM


def test_system_numbers_follow_the_distribution_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle and in the tails, to rounding: the number changes where the function says."""
    law, numbers = stats.binom(10_000, 0.01), np.array([60, 80, 99, 100, 101, 140])
    for shift, expected in ((1 - 1e-9, numbers), (1 + 1e-9, numbers + 1)):
        bits = (law.cdf(numbers) * shift * 2.0**64).astype(np.uint64)
        monkeypatch.setattr(randomness, "_system_bits", lambda size, bits=bits: bits)
        assert _system_binomial(len(numbers), 10_000, 0.01).tolist() == expected.tolist()


@pytest.mark.parametrize("probability", [0.0, 1e-6, 0.03])
def test_few_of_many_are_a_poisson_sample(probability: float) -> None:
    """Different numbers of the population; each as likely as any other, alone and in pairs."""
    batches = SystemRandomness().choose_each(40, probability, 20_000)
    assert len(batches) == 20_000 and all(batch.dtype == torch.long for batch in batches)
    members = np.bincount(torch.cat(batches).numpy(), minlength=40)
    if probability < 0.03:
        assert members.sum() <= 20
        return
    assert stats.chisquare(members, np.full(40, members.sum() / 40)).pvalue > FALSE_ALARM
    assert stats.binomtest(int(members.sum()), 800_000, 0.03).pvalue > FALSE_ALARM
    pairs = sum(bool({3, 4} <= set(batch.tolist())) for batch in batches)
    assert stats.binomtest(pairs, 20_000, 0.03**2).pvalue > FALSE_ALARM
    assert all(len(batch.unique()) == len(batch) for batch in batches)


def drawn_now(coins: SystemRandomness) -> list[float]:
    noise = torch.zeros(6, dtype=torch.float64)
    coins.perturb_(noise, sensitivity=1.0, std=1.0)
    return noise.tolist()


def test_noise_made_ahead_is_used_once_and_by_one() -> None:
    """Copies, pickles and forks of coins that have draws in store make their own."""
    coins = SystemRandomness()
    seen = [drawn_now(coins) for _ in range(3)]
    seen += [drawn_now(each) for each in (copy.deepcopy(coins), pickle.loads(pickle.dumps(coins)))]
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(drawn_now(coins)).encode())
        os._exit(0)
    os.wait()
    seen += [json.loads(os.read(read, 10_000)), drawn_now(coins)]
    numbers = [number for each in seen for number in each]
    # Two of them meet on the grid once in 70,000 runs; who shares a draw shares six.
    assert len(numbers) == 42 and len(set(numbers)) >= 41


def test_threads_never_share_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object in several threads, which take turns after every single instruction."""
    monkeypatch.setattr(randomness, "_CHUNK", 64)  # many borders between two stores of draws
    coins, taken = SystemRandomness(), [[] for _ in range(4)]

    def turns(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not SystemRandomness._draw.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            time.sleep(0)
        return turns

    def draw(mine: list[torch.Tensor]) -> None:
        sys.settrace(turns)
        for _ in range(200):
            mine.append(coins._draw(3, 2.0**50).clone())

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = torch.cat([draws for mine in taken for draws in mine])
    assert len(drawn) == 4 * 200 * 3 and len(drawn.unique()) == len(drawn)


def test_a_fork_of_the_same_number_begins_without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes are used again: a child of a child may have that of whoever drew."""
    coins = SystemRandomness()
    drawn_now(coins)
    number = os.getpid()
    read, write = os.pipe()
    if os.fork() == 0:
        monkeypatch.setattr(os, "getpid", lambda: number)
        os.write(write, json.dumps(drawn_now(coins)).encode())
        os._exit(0)
    os.wait()
    assert len(set(json.loads(os.read(read, 10_000))) & set(drawn_now(coins))) <= 1


@pytest.mark.parametrize("size", [1, 2048, 2049, 100_000])
def test_long_and_short_sequences_of_bytes_are_fresh_and_even(size: int) -> None:
    first, second = (np.frombuffer(_system_bytes(size), np.uint8) for _ in range(2))
    assert first.shape == (size,)
    if size > 1:
        assert not np.array_equal(first, second)
        counts = np.bincount(np.concatenate([first, second]) >> 4, minlength=16)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
