from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.pareto import DPareto, Objective, ParetoFront, Trial
from botorch_dp.pareto.front import dominated_volume, non_dominated
from botorch_dp.pareto.problem import Measurement
from botorch_dp.privacy import Guarantee, PrivacyUnit
from botorch_dp.privacy.losses import PureLoss
from tests.pareto import toy

GUARANTEE = Guarantee("toy", PrivacyUnit(), (PureLoss(12.0),))


def front(points: Sequence[tuple[float, Sequence[float]]], **options: Any) -> ParetoFront:
    """A front of trials with given epsilons and replicate errors."""
    trials = [
        Trial(
            number=number,
            config={"noise": 1.0, "epochs": number + 1},
            seeds=tuple(range(len(errors))),
            epsilon=epsilon,
            state="complete",
            measurements=tuple(Measurement(1 - error, (), 2.0) for error in errors),
        )
        for number, (epsilon, errors) in enumerate(points)
    ]
    return ParetoFront(toy.problem(), trials, guarantee=GUARANTEE, **options)


FIVE = [(2.0, [0.5]), (1.0, [0.8]), (4.0, [0.2]), (3.0, [0.6]), (20.0, [0.1])]


class TestPoints:
    def test_non_dominated_by_increasing_epsilon(self) -> None:
        found = front(FIVE)
        expected = [[1.0, 0.8], [2.0, 0.5], [4.0, 0.2], [20.0, 0.1]]
        assert torch.allclose(found.points, torch.tensor(expected, dtype=torch.double))
        assert [config["epochs"] for config in found.configs] == [2, 1, 3, 5]
        assert len(found) == 4 and found.all_points.shape == (5, 2)

    @pytest.mark.parametrize("levels", [6, 1000])
    def test_two_objectives_as_any_number(self, levels: int) -> None:
        """Two are sorted; with a constant third one, the general way answers the same."""
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            points = torch.randint(levels, (50, 2), generator=generator).double()
            third = torch.cat([points, torch.ones(50, 1, dtype=torch.double)], dim=-1)
            assert non_dominated(points).equal(non_dominated(third)[:, :2])

    def test_against_brute_force(self) -> None:
        points = torch.rand(60, 3, dtype=torch.double).mul(8).floor()
        kept = non_dominated(points).tolist()
        brute = {
            tuple(p)
            for p in points.tolist()
            if not any(
                all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in points.tolist()
            )
        }
        assert sorted(map(tuple, kept)) == sorted(brute)


class TestHypervolume:
    def test_by_hand(self) -> None:
        # Up to (10, 1): 1..2 at height .2, 2..4 at .5, 4..10 at .8.
        assert front(FIVE).hypervolume() == pytest.approx(0.2 + 2 * 0.5 + 6 * 0.8)
        assert front(FIVE).hypervolume((30.0, 0.5)) == pytest.approx(16 * 0.3 + 10 * 0.4)
        assert front(FIVE).hypervolume((0.5, 1.0)) == 0.0

    def test_monte_carlo_in_three_dimensions(self) -> None:
        generator = np.random.default_rng(0)
        points = torch.from_numpy(generator.random((12, 3)))
        draws = torch.from_numpy(generator.random((40_000, 3)))
        hit = (draws.unsqueeze(1) >= points).all(dim=-1).any(dim=-1).double().mean().item()
        volume = dominated_volume(points, [1.0, 1.0, 1.0])
        assert abs(volume - hit) < 5 * 0.5 / 200

    def test_by_trial(self) -> None:
        found = front(FIVE)
        volumes = found.hypervolume_by_trial()
        assert volumes.diff().min() >= 0
        assert volumes[0] == pytest.approx(8 * 0.5)
        assert volumes[-1] == pytest.approx(found.hypervolume())
        assert volumes[3] == volumes[2], "a dominated trial adds nothing"


class TestReevaluate:
    def study(self, train: Any = toy.utility) -> DPareto:
        problem = toy.problem(train, replicates=2, secret_noise=True)
        return DPareto(problem, acquisition="random", seed=0)

    def test_fresh_seeds_for_the_configs_of_the_front(self) -> None:
        seen: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            seen.append(seed)
            return toy.utility(config, seed)

        study = self.study(train)
        observed = study.run(8)
        old = set(seen)
        seen.clear()
        again = observed.reevaluate(5)
        assert len(seen) == 5 * len(observed) and not set(seen) & old
        assert again.observed is observed
        assert {str(c) for c in again.configs} <= {str(c) for c in observed.configs}
        assert all(len(trial.utilities) == 5 for trial in again.trials)
        seen_once = set(seen)
        again.reevaluate(1)
        assert not set(seen[5 * len(observed) :]) & (seen_once | old)

    def test_undoes_the_winners_curse(self) -> None:
        """Of pure noise, what was observed looks better than chance; again, it does not."""
        study = DPareto(
            toy.problem(
                lambda config, seed: float(np.random.default_rng(seed).random()),
                privacy=lambda config: 1.0,
            ),
            acquisition="random",
            seed=0,
        )
        observed = study.run(40)
        assert observed.points[0, 1] < 0.1
        again = observed.reevaluate(200)
        assert abs(again.points[0, 1] - 0.5) < 5 * 0.29 / 200**0.5

    @pytest.mark.slow
    def test_what_models_expect_is_better_than_what_luck_chose(self) -> None:
        """Hypervolume of the true errors of the configs on either front."""
        gains = []
        for seed in range(10):
            front = DPareto(toy.problem(), seed=seed, acquisition="random").run(40)
            true = []
            for one in (front, front.shrunken):
                assert one is not None
                points = [(toy.epsilon(c), toy.expected_error(c)) for c in one.configs]
                true.append(dominated_volume(torch.tensor(points), (10.0, 1.0)))
            gains.append(true[1] - true[0])
        assert np.mean(gains) > 2 * np.std(gains, ddof=1) / len(gains) ** 0.5

    def test_a_shrunken_front_is_trained_again(self) -> None:
        observed = DPareto(toy.problem(), seed=0, acquisition="random").run(30)
        shrunken = observed.shrunken
        assert shrunken is not None and shrunken.observed is observed and shrunken.shrunken is None
        assert shrunken.table()["error"] == shrunken.points[:, 1].tolist()
        again = shrunken.reevaluate(2)
        assert again.observed is shrunken
        assert {t.number for t in again.trials} == {t.number for t in shrunken.front_trials}
        assert "as expected" in pickle.loads(pickle.dumps(observed)).shrunken.label

    def test_changes_neither_the_trials_nor_the_next_proposal(self) -> None:
        plain, again = (
            DPareto(toy.problem(), acquisition="ehvi", seed=0, candidates=64) for _ in range(2)
        )
        again.run(8, initial=6).reevaluate(2)
        assert again.run(10, initial=6).all_points.equal(plain.run(10, initial=6).all_points)

    def test_a_front_travels_without_its_study(self) -> None:
        with pytest.raises(ValueError, match="`replicates`"):
            self.study().run(2).reevaluate(0)
        observed = self.study().run(4)
        travelled = pickle.loads(pickle.dumps(observed))
        assert travelled.points.equal(observed.points)
        with pytest.raises(ValueError, match="has no study"):
            travelled.reevaluate(1)


def test_further_objectives_in_points_and_volume() -> None:
    problem = toy.problem(objectives=[Objective("time", 10.0)])
    trials = [
        Trial(
            number=0,
            config={"noise": 1.0, "epochs": 1},
            seeds=(1,),
            epsilon=2.0,
            state="complete",
            measurements=(Measurement(0.5, (4.0,)),),
        )
    ]
    found = ParetoFront(problem, trials, guarantee=GUARANTEE)
    assert found.points.tolist() == [[2.0, 0.5, 4.0]]
    assert found.hypervolume() == pytest.approx(8 * 0.5 * 6)
