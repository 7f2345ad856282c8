"""Which curves to train: rules that choose from a pool of curves measured beforehand.

Random configs of logistic regression are trained once each, to the end and with more replicates
than a trial has. A simulated study draws which replicates it sees; the others are the truth that
its front is judged by. So many studies cost no training, and rules are compared over twenty seeds
and more. All rules are those of the package: they score the configs of the pool that are left.

* *curves*: the expected gain of whole curves against its cost, with the planned ends and stops;
* *random curves*: configs drawn at random, each to its end;
* *ordinary*: expected hypervolume improvement of single points, each a training of its own.

``--models`` judges the models of random curves instead: by the curves that they did not see, and by
the front that they expect.

Run with ``OMP_NUM_THREADS=1 BOTORCH_DP_DATA=... python -m benchmarks.dpareto_pool``; the pool and
finished simulations are kept in a folder, and it goes on where it was interrupted.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.common import BenchmarkParser, mean_interval, save_results
from benchmarks.dpareto_curves import Setting, problem, settings, volumes
from botorch_dp._files import atomic_write
from botorch_dp.pareto import Batched, PrivacyUtilityProblem
from botorch_dp.pareto import beliefs as beliefs_module
from botorch_dp.pareto.beliefs import front_places, predicted
from botorch_dp.pareto.problem import CurvePlan, Measurement, Trial
from botorch_dp.pareto.proposals import (
    _POWER,
    _SHARE,
    _SHORTER,
    ProposalOptions,
    Search,
    WholeCurves,
    _scored,
    point_score,
)
from botorch_dp.space import SearchSpace

#: Replicates of each curve of the pool, and how many of them a trial sees.
REPLICATES, SEEN = 8, 3
#: Models whose quality is compared, and how many points they see; and errors that matter.
MODELS = {"as they are": 288, "without products": 288, "of fewer points": 96}
GOOD = 0.2


@dataclass(frozen=True)
class Curve:
    """One config of the pool, trained to the end.

    Args:
        config: With the longest training.
        checkpoints: ``K`` numbers of epochs.
        epsilons: ``K``.
        points: ``K x REPLICATES`` utilities.
    """

    config: dict[str, Any]
    checkpoints: list[int]
    epsilons: list[float]
    points: list[list[float]]


def trained_pool(setting: Setting, path: Path, count: int) -> list[Curve]:
    """Train what is missing of the pool; each curve is stored as it ends."""
    known = json.loads(path.read_text()) if path.exists() else []
    made = problem(setting, "random curves")
    configs = made.space.sample(count, seed=77)
    for number in range(len(known), count):
        config = made.whole(configs[number])
        checkpoints = list(made.checkpoints(config))
        seeds = [9_000_000 + 100 * number + k for k in range(REPLICATES)]
        points = [list(map(float, u)) for u in setting.oracles.curves(config, seeds, checkpoints)]
        epsilons = [made.epsilon(made.at(config, c)) for c in checkpoints]
        known.append(
            {
                "config": config,
                "checkpoints": checkpoints,
                "epsilons": epsilons,
                "points": points,
            }
        )
        with atomic_write(path, owner_only=True) as file:
            json.dump(known, file)
    return [Curve(**one) for one in known[:count]]


class Simulation:
    """One study on the pool.

    Args:
        pool: All curves.
        whole: The problem, with curves.
        rule: ``"curves"``, ``"random curves"`` or ``"ordinary"``.
        seed: Of what is drawn.
        scale: Of epsilon, in which hypervolume is improved.
    """

    def __init__(
        self,
        pool: Sequence[Curve],
        whole: PrivacyUtilityProblem,
        rule: str,
        seed: int,
        scale: Any = "linear",
    ) -> None:
        self._pool, self._rule = pool, rule
        self._known = {
            tuple({**curve.config, "epochs": c}.values()): e
            for curve in pool
            for c, e in zip(curve.checkpoints, curve.epsilons, strict=True)
        }
        self._problem = PrivacyUtilityProblem(
            whole.space,
            privacy=lambda config: self._known[tuple(config.values())],
            batched=Batched(replicates=lambda *_: []),
            resource=whole.resource if rule != "ordinary" else None,
            replicates=SEEN,
        )
        self._cost = whole.cost
        options = ProposalOptions(epsilon_scale=scale)
        self._search = Search(self._problem, seed=seed, options=options)
        self._rng = np.random.default_rng([seed, 5])
        self._order = self._rng.permutation(len(pool)).tolist()
        self._shown = [self._rng.permutation(REPLICATES) for _ in pool]
        self._left = list(self._order)
        self.trials: list[Trial] = []
        self.chosen: list[int] = []
        self.steps = 0.0

    def run(self, trainings: int, initial: int, every: int = 1) -> list[dict[str, Any]]:
        """The fronts after each training, or after some of them."""
        found = []
        for number in range(trainings):
            self._train(*self._next(number, initial))
            if (number + 1) % every == 0:
                found.append({"steps": self.steps, **self._judged()})
        return found

    def _next(self, number: int, initial: int) -> tuple[int, int, tuple[float, ...]]:
        """Which curve, where it ends, and below which utilities it is stopped before."""
        if self._rule == "random curves":
            place = self._left.pop(0)
            checkpoints = self._pool[place].checkpoints
            return place, checkpoints[-1], (0.0,) * len(checkpoints)
        if number < initial:
            place = self._left.pop(0)
            curve = self._pool[place]
            if self._rule == "ordinary":
                return place, int(self._rng.choice(curve.checkpoints)), ()
            along = self._problem.along(self._problem.whole(curve.config))
            end = along[max(len(along) - 1 - _SHORTER, len(along) // 2)]["epochs"]
            return place, end, (0.0,) * len(curve.checkpoints)
        beliefs = self._search.beliefs(self.trials)
        with manual_seed(number), torch.no_grad():
            if self._rule == "ordinary":
                return self._best_point(point_score(self._search, beliefs))
            curves = WholeCurves(self._search, beliefs)
            configs = [self._pool[place].config for place in self._left]
            scores = _scored(curves, self._search.known.candidates(configs))
            place = self._left.pop(int(scores.argmax()))
            proposal = curves.ended(self._pool[place].config)
            stops = proposal.stops or (0.0,) * len(self._pool[place].checkpoints)
            return place, proposal.config["epochs"], stops

    def _best_point(self, score: Any) -> tuple[int, int, tuple[float, ...]]:
        tried = {(n, t.config["epochs"]) for n, t in zip(self.chosen, self.trials, strict=True)}
        points = [
            (place, c)
            for place in self._order
            for c in self._pool[place].checkpoints
            if (place, c) not in tried
        ]
        configs = [{**self._pool[place].config, "epochs": c} for place, c in points]
        scores = _scored(score, self._search.known.candidates(configs))
        place, end = points[int(scores.argmax())]
        return place, end, ()

    def _train(self, place: int, end: int, stops: tuple[float, ...]) -> None:
        curve = self._pool[place]
        seen = self._shown[place][:SEEN]
        upto = curve.checkpoints.index(end) + 1
        plan = None
        if self._rule == "ordinary":
            answers = [curve.points[upto - 1][r] for r in seen]
            measured = tuple(Measurement(utility=u) for u in answers)
        else:
            plan = CurvePlan(
                tuple(curve.checkpoints[:upto]),
                tuple(curve.epsilons[:upto]),
                (*stops[: upto - 1], 0.0),
            )
            for k in range(upto):
                end = curve.checkpoints[k]
                if plan.is_last(end, [curve.points[k][r] for r in seen]):
                    break
            upto = k + 1
            measured = tuple(
                Measurement.of_curve(
                    {
                        c: Measurement(utility=curve.points[j][r], seconds=0.0)
                        for j, c in enumerate(curve.checkpoints[:upto])
                    }
                )
                for r in seen
            )
        config = {**curve.config, "epochs": plan.checkpoints[-1] if plan else end}
        self.trials.append(
            Trial(
                number=len(self.trials),
                config=config,
                seeds=tuple(range(SEEN)),
                epsilon=self._known[tuple(config.values())],
                state="complete",
                measurements=measured,
                plan=plan,
            )
        )
        self.chosen.append(place)
        self.steps += self._cost({**curve.config, "epochs": end})

    def _judged(self) -> dict[str, dict[str, float]]:
        """Hypervolumes of both fronts' points by the replicates that were not seen."""
        points = [p for trial in self.trials for p in self._problem.points(trial)]
        again = torch.tensor(
            [(p.values[0], self._truth(self.chosen[p.trial], p.config["epochs"])) for p in points],
            dtype=torch.double,
        )
        fronts = {"observed": torch.tensor([p.values for p in points], dtype=torch.double)}
        fronts["expected"] = fronts["observed"].clone()
        if len(self.trials) > 1:
            means = self._search.beliefs(self.trials).incumbent_means
            fronts["expected"][:, 1] = (-means[:, 1]).sigmoid()
        return {
            name: volumes(again[front_places(values)], self._problem.ref_point)
            for name, values in fronts.items()
        }

    def _truth(self, place: int, checkpoint: int) -> float:
        curve = self._pool[place]
        row = curve.points[curve.checkpoints.index(checkpoint)]
        return 1 - fmean(row[r] for r in self._shown[place][SEEN:])


def model_quality(
    pool: Sequence[Curve], whole: PrivacyUtilityProblem, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """What models of some random curves expect of all others, and of the points that they saw.

    Of the others: mean error of the model (*bias*) and its root mean square where the true error is
    below .2, and how often the true one is in the 90% interval. Of their own: hypervolumes of both
    fronts. The models are those of the package; without the products; and of 96 points in all.
    """
    rows = []
    for count, (label, most) in itertools.product((16, 24), MODELS.items()):
        found: dict[str, list[float]] = {}
        problem = copy(whole)
        if label == "without products":
            problem.space = SearchSpace(**whole.space.parameters)
        for seed in seeds:
            with patch.object(beliefs_module, "_MOST_POINTS", most):
                study = Simulation(pool, problem, "random curves", seed)
                fronts = study.run(count, 0, every=count)[-1]
                beliefs = study._search.beliefs(study.trials)
            others = [curve for place, curve in enumerate(pool) if place not in study.chosen]
            configs = [{**c.config, "epochs": end} for c in others for end in c.checkpoints]
            means, stds = predicted(beliefs.fitted[1], whole.space.encode(configs))
            true = torch.tensor([1 - fmean(u) for c in others for u in c.points])
            good = true < GOOD
            off = (-means).sigmoid()[good] - true[good]
            within = (means + true.logit()).abs() < NormalDist().inv_cdf(0.95) * stds
            for name, value in (
                ("bias", off.mean()),
                ("root mean square", off.square().mean().sqrt()),
                ("in the 90% interval", within[good].double().mean()),
                *((kind, fronts[kind]["linear"]) for kind in ("observed", "expected")),
                ("ahead", fronts["expected"]["linear"] - fronts["observed"]["linear"]),
            ):
                found.setdefault(name, []).append(float(value))
        summary = {name: mean_interval(values) for name, values in found.items()}
        rows.append({"curves": count, "model": label, **summary})
        print(count, label, {name: str(value) for name, value in summary.items()}, flush=True)
    return rows


def ceiling(pool: Sequence[Curve]) -> dict[str, float]:
    """Hypervolume of the front of the whole pool, by the means of all replicates."""
    points = [
        (e, 1 - fmean(u))
        for curve in pool
        for e, u in zip(curve.epsilons, curve.points, strict=True)
    ]
    return volumes(torch.tensor(points, dtype=torch.double), (10.0, 1.0))


#: Rule -> the study's trainings, how many are drawn at first, and where its front is shown.
RULES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "curves": (24, 4, (8, 16, 24)),
    "curves in ln": (24, 4, (8, 16, 24)),
    "random curves": (32, 0, (8, 16, 32)),
    "ordinary": (64, 16, (32, 64)),
}
#: At how many thousand steps rules are compared as well.
KILOSTEPS = (60, 120, 180, 300)


def simulated(
    pool: Sequence[Curve], whole: PrivacyUtilityProblem, rule: str, seeds: int, folder: Path
) -> list[list[dict[str, Any]]]:
    """The fronts of each seed's study after each training; what is missing is simulated."""
    path = folder / f"{len(pool)}-{rule}.json".replace(" ", "-")
    known = json.loads(path.read_text()) if path.exists() else {}
    trainings, initial, _ = RULES[rule]
    scale = "log" if rule.endswith("in ln") else "linear"
    for seed in range(seeds):
        if str(seed) not in known:
            study = Simulation(pool, whole, rule.removesuffix(" in ln"), seed, scale)
            known[str(seed)] = study.run(trainings, initial)
            with atomic_write(path, owner_only=True) as file:
                json.dump(known, file)
    return [known[str(seed)] for seed in range(seeds)]


def within(study: Sequence[dict[str, Any]], thousands: int) -> dict[str, Any] | None:
    """The last front of a study that took at most so many steps."""
    fronts = [front for front in study if front["steps"] <= 1000 * thousands]
    return fronts[-1] if fronts else None


def rows_of(rule: str, studies: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Means with intervals, after so many trainings and after so many steps."""
    rows = []
    shown: list[tuple[str, list[dict[str, Any]]]] = [
        (f"{count} trainings", [study[count - 1] for study in studies]) for count in RULES[rule][2]
    ]
    for thousands in KILOSTEPS:
        last = [front for study in studies if (front := within(study, thousands)) is not None]
        if len(last) == len(studies):
            shown.append((f"{thousands}k steps", last))
    for label, fronts in shown:
        rows.append(
            {
                "rule": rule,
                "after": label,
                "steps": fmean(front["steps"] for front in fronts),
                **{
                    f"{scale}{', expected' * (kind == 'expected')}": mean_interval(
                        [front[kind][scale] for front in fronts]
                    )
                    for kind in ("observed", "expected")
                    for scale in ("linear", "log")
                },
            }
        )
    return rows


def leads(runs: dict[str, list[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """By how much *curves* are ahead of each other rule with as many steps, seed by seed."""
    rows = []
    for rule, thousands in itertools.product(runs, KILOSTEPS):
        pairs = [
            (within(ours, thousands), within(theirs, thousands))
            for ours, theirs in zip(runs.get("curves", []), runs[rule], strict=False)
        ]
        known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        if rule != "curves" and known and len(known) == len(pairs):
            row: dict[str, Any] = {"curves ahead of": rule, "after": f"{thousands}k steps"}
            for scale in ("linear", "log"):
                row[scale] = mean_interval(
                    [one["expected"][scale] - other["expected"][scale] for one, other in known]
                )
            rows.append(row)
    return rows


def main() -> None:
    parser = BenchmarkParser("dpareto_pool", __doc__, minutes=60)
    parser.add_argument("--curves", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--models", action="store_true", help="compare models, on other seeds")
    parser.add_argument("--rules", nargs="*", choices=tuple(RULES), default=tuple(RULES))
    parser.add_argument(
        "--pool",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp" / "dpareto_pool",
        help="folder of the pool; it holds measured utilities and is sensitive",
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    setting = settings(bool(os.environ.get("BOTORCH_DP_DATA")))["adult"]
    arguments.pool.mkdir(parents=True, exist_ok=True)
    pool = trained_pool(setting, arguments.pool / "pool.json", arguments.curves)
    whole = problem(setting, "random curves")
    best = ceiling(pool)
    print(f"The pool's own front: {best['linear']:.4g}, in ln {best['log']:.4g}", flush=True)
    if arguments.models:
        seeds = range(200, 200 + arguments.seeds)
        rows = model_quality(pool, whole, seeds)
        save_results("dpareto_models", {"curves": len(pool), "seeds": len(seeds), "rows": rows})
        return
    rows, runs = [], {}
    for rule in arguments.rules:
        runs[rule] = simulated(pool, whole, rule, arguments.seeds, arguments.pool)
        for row in rows_of(rule, runs[rule]):
            rows.append(row)
            print(
                f"{rule:16}{row['after']:>14}{row['steps'] / 1000:7.0f}k"
                f"{row['linear']!s:>26}{row['log']!s:>26}",
                flush=True,
            )
    ahead = leads(runs)
    for row in ahead:
        print(
            f"curves ahead of {row['curves ahead of']:16}{row['after']:>14}"
            f"{row['linear']!s:>30}{row['log']!s:>30}"
        )
    save_results(
        "dpareto_pool",
        {
            "curves": len(pool),
            "seeds": arguments.seeds,
            "constants": {"power": _POWER, "share": _SHARE, "shorter": _SHORTER},
            "pool": best,
            "rows": rows,
            "ahead": ahead,
        },
    )


if __name__ == "__main__":
    main()
