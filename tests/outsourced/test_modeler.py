"""GP-UCB over released rows: the right question, a journal that loses nothing."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.errors import PrivacyError
from botorch_dp.models import public_gp
from botorch_dp.outsourced import Answer, InputNoiseRBF, Modeler
from botorch_dp.privacy import laplace_mechanism

Z = torch.rand(200, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1)) * 4


def value(index: int) -> float:
    """Largest near (1, 3)."""
    return float(torch.exp(-((Z[index] - torch.tensor([1.0, 3.0])) ** 2).sum()))


def modeler(**kwargs) -> Modeler:
    return Modeler(Z, **{"kernel": RBFKernel(), "noise_std": 0.05, "delta": 0.1, **kwargs})


class Killed(BaseException):
    """Stands for the process's end."""


def test_asks_for_the_largest_upper_bound() -> None:
    """Every question equals that of an exact GP with the paper's beta (split 6)."""
    search = modeler()
    for step in range(1, 8):
        index = search.ask()
        assert search.ask() == index
        if search.history:
            X = Z[[a.index for a in search.history]]
            Y = torch.tensor([[a.y] for a in search.history], dtype=torch.double)
            posterior = public_gp(X, Y, kernel=RBFKernel(), noise_std=0.05).posterior(Z)
            beta = 2 * math.log(200 * step**2 * math.pi**2 / (6 * 0.1))
            bound = posterior.mean + math.sqrt(beta) * posterior.variance.sqrt()
            assert bound[index] == pytest.approx(bound.max().item(), abs=1e-6)
        search.tell(index, value(index))


def test_learned_hyperparameters_find_it_too() -> None:
    search = Modeler(Z * torch.tensor([1.0, 50.0]), delta=0.1)
    search.run(lambda i: 1000 + 30 * value(i), steps=30)
    best = max(value(i) for i in range(len(Z)))
    assert (search.best.y - 1000) / 30 >= best - 0.05
    # In the answers' units, also between fits.
    assert search.mean[search.best.index] == pytest.approx(search.best.y, abs=3.0)


def test_takes_a_release_or_its_rows() -> None:
    release = laplace_mechanism(Z, sensitivity=1.0, epsilon=100.0, unsafe_seed=1)
    found = Modeler(release, kernel=RBFKernel(), noise_std=0.05, delta=0.1).run(value, steps=5)
    rows = release.value
    assert found == Modeler(rows, kernel=RBFKernel(), noise_std=0.05, delta=0.1).run(value, steps=5)


def test_run_counts_earlier_answers() -> None:
    search = modeler()
    search.tell(5, value(5))
    assert len(search.run(value, steps=3)) == 3
    assert search.history[0] == Answer(5, value(5))
    assert len(search.run(value, steps=3)) == 3


class TestBatches:
    def test_a_batch_is_chosen_as_if_answered_with_the_means(self) -> None:
        search, one_by_one = modeler(), modeler()
        for told in (17, 80, 140):
            search.tell(told, value(told))
            one_by_one.tell(told, value(told))
        asked = search.ask_batch(4)
        assert len(set(asked)) == 4 and search.ask_batch(4) == asked and search.ask() == asked[0]
        for index in asked:
            assert one_by_one.ask() == index
            one_by_one.tell(index, float(one_by_one.mean[index]))

    def test_finds_the_best_row_with_few_rounds(self) -> None:
        search = modeler()
        with ThreadPoolExecutor(5) as pool:
            history = search.run(value, steps=58, q=5, executor=pool)
        assert len(history) == 58
        assert max(a.y for a in history) >= max(value(i) for i in range(len(Z))) - 0.02
        assert history == modeler().run(value, steps=58, q=5)

    def test_what_was_open_is_asked_again_with_its_ids(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.jsonl"
        asked: list[tuple[int, str]] = []

        def dies_on_third(index: int, *, request_id: str) -> float:
            asked.append((index, request_id))
            if len(asked) == 3:
                raise Killed
            return value(index)

        first = modeler()
        with pytest.raises(Killed):
            first.run(dies_on_third, steps=8, q=4, checkpoint=path)
        first.close()
        again = modeler()
        history = again.run(dies_on_third, steps=8, q=4, checkpoint=path)
        assert asked[3] == asked[2]
        assert len({request for _, request in asked}) == 8
        assert history == modeler().run(value, steps=8, q=4)

    def test_an_answer_that_was_not_asked_for_forgets_what_is_open(self) -> None:
        search = modeler()
        first = search.ask_batch(2)
        other = next(i for i in range(len(Z)) if i not in first)
        search.tell(other, 5.0)
        assert search.ask() != first[0] or search.ask_batch(2) != first


class TestCheckpoint:
    def test_refuses_another_data_set(self, tmp_path: Path) -> None:
        path = tmp_path / "search.run"
        search = modeler()
        search.resume(path)
        with pytest.raises(PrivacyError, match="in use"):
            modeler().resume(path)
        search.close()
        with pytest.raises(PrivacyError, match="fingerprint of the rows"):
            Modeler(Z + 1, kernel=RBFKernel(), noise_std=0.1, delta=0.1).resume(path)

    def test_keeps_what_is_asked_and_told_by_hand(self, tmp_path: Path) -> None:
        path = tmp_path / "search.run"
        search, again, last = modeler(), modeler(), modeler()
        search.resume(path)
        index = search.ask()
        search.close()
        again.resume(path)
        assert again.ask() == index
        again.tell(index, 0.5)
        again.close()
        with pytest.raises(PrivacyError, match="closed"):
            again.ask()
        last.resume(path)
        assert last.history == [Answer(index, 0.5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta": 0.0}, "`delta`"),
        ({"noise_std": None}, "`noise_std`"),
        ({"mean": math.nan}, "`mean`"),
    ],
)
def test_wrong_settings(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        modeler(**settings)


def test_wrong_answers() -> None:
    search = modeler()
    for index, y in [(200, 0.0), (-1, 0.0), (0, math.nan)]:
        with pytest.raises(ValueError, match="`"):
            search.tell(index, y)
    assert search.history == []
    with pytest.raises(ValueError, match="Nothing"):
        _ = search.best


def test_one_row_and_one_column() -> None:
    search = Modeler(torch.zeros(1, 1, dtype=torch.double), delta=0.1)
    assert search.run(lambda _: 2.0, steps=6)[-1] == Answer(0, 2.0)


class TestInputNoiseRBF:
    """The kernel of noisy rows is the average of the RBF over the noise."""

    def test_rows_whose_distance_overflows_teach_nothing_about_each_other(self) -> None:
        Z = torch.tensor([[0.0, 0.0], [1e200, 0.0], [1e200, 1.0], [math.nan, 0.0]]).double()
        found = InputNoiseRBF(lengthscale=1.0, noise_std=0.5).forward(Z, Z)
        assert torch.equal(found[:1, :3], torch.tensor([[1.0, 0.0, 0.0]]).double())
        assert not found[:3, :3].isnan().any()
        assert found[3].isnan().all() and found[:, 3].isnan().all()

    def test_is_the_average_over_input_noise(self) -> None:
        generator = torch.Generator().manual_seed(0)
        z1, z2 = torch.randn(2, 4, 3, generator=generator, dtype=torch.double)
        lengthscale, noise_std = 1.3, 0.4
        kernel = InputNoiseRBF(lengthscale=lengthscale, noise_std=noise_std)
        draws = torch.randn(200_000, 2, 3, generator=generator, dtype=torch.double) * noise_std
        shift = draws[:, 0] - draws[:, 1]
        # z1 x z2 x draws: exact distances after each draw of the noise.
        moved = (z1[:, None, None] - z2[:, None] - shift).square().sum(-1)
        expected = (-moved / (2 * lengthscale**2)).exp().mean(-1)
        torch.testing.assert_close(kernel(z1, z2).to_dense(), expected, atol=4e-3, rtol=0)

    def test_a_row_is_itself(self) -> None:
        Z = torch.randn(5, 2, dtype=torch.double)
        covariance = InputNoiseRBF(lengthscale=1.0, noise_std=2.0)(Z, Z).to_dense()
        torch.testing.assert_close(covariance.diagonal(), torch.ones(5, dtype=torch.double))
        assert covariance.fill_diagonal_(0).max() < (1 / 9) + 1e-9
        assert torch.linalg.eigvalsh(covariance.fill_diagonal_(1)).min() > 0
        kernel = InputNoiseRBF(lengthscale=1.0, noise_std=2.0)
        torch.testing.assert_close(kernel(Z, diag=True), torch.ones(5, dtype=torch.double))
