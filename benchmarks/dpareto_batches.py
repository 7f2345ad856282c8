"""Whether a study that trains four curves in each call finds as good a front with as many steps.

Four trials of one call share their batch size, and are proposed before any of them has ended, so a
study of as many steps may know less. Studies of both kinds are compared in two ways:

* on a *landscape*: a model of all curves of the pool of ``dpareto_pool`` stands for the truth, and
  the deviations of the replicates of the nearest of these curves for the luck of a training. So
  studies cost no training, and there may be many; fronts are judged by the truth;
* *trained* (``--trained``): the studies of ``dpareto_curves``, whose fronts are trained again.

Fronts are those that look best, and those that the study's models expect to be best. Both kinds of
studies have the same seeds, and are interpolated to equal steps before they are compared.

Run with ``OMP_NUM_THREADS=1 BOTORCH_DP_DATA=... python -m benchmarks.dpareto_batches``; what is
done is kept in a folder, and it goes on where it was interrupted.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks import dpareto_curves, dpareto_pool
from benchmarks.common import BenchmarkParser, mean_interval, save_results
from benchmarks.dpareto_curves import TOGETHER, Setting, length, volumes
from botorch_dp._files import atomic_write
from botorch_dp.pareto import DPareto, ParetoFront, PrivacyUtilityProblem
from botorch_dp.pareto.beliefs import fitted_gp, objective_scales, predicted
from botorch_dp.pareto.problem import thinned
from botorch_dp.space import Config

ALONE, AT_ONCE = "curves", "curves, four at once"
#: Points of each curve of the pool that the landscape is made of.
_POINTS = 8
#: After how many trials fronts are judged, and at how many thousand steps they are compared.
STOPS = (8, 12, 16, 20, 24, 28, 32)
KILOSTEPS = (80, 120, 160, 200, 240)


class Landscape:
    """A problem whose utilities come from a model of measured curves.

    Args:
        pool: The curves.
        like: The problem that they were measured on.
    """

    def __init__(self, pool: Sequence[dpareto_pool.Curve], like: PrivacyUtilityProblem) -> None:
        self._pool, self._space = pool, like.space
        self._scale = objective_scales(like)[1]
        seen = [thinned(range(len(curve.checkpoints)), _POINTS) for curve in pool]
        configs = [
            {**curve.config, "epochs": curve.checkpoints[k]}
            for curve, places in zip(pool, seen, strict=True)
            for k in places
        ]
        errors = [
            1 - fmean(curve.points[k])
            for curve, places in zip(pool, seen, strict=True)
            for k in places
        ]
        self._model = fitted_gp(
            self._space.encode(configs),
            self._scale.to_model(torch.tensor(errors, dtype=torch.double)).unsqueeze(-1),
            seed=0,
            trainings=torch.tensor([n for n, places in enumerate(seen) for _ in places]),
        )
        self._ends = self._space.encode([curve.config for curve in pool])
        self.problem = PrivacyUtilityProblem(
            self._space,
            privacy=like.privacy,
            resource=like.resource,
            promise=like.promise,
            replicates=like.replicates,
            batched=replace(like.batched, utilities=self.curves, replicates=self.curve),
        )

    def errors(self, config: Config, checkpoints: Sequence[int]) -> list[float]:
        """The true errors along a training."""
        codes = self._space.encode([{**config, "epochs": c} for c in checkpoints])
        means, _ = predicted(self._model, codes)
        return [-float(error) for error in self._scale.to_volume(means)]

    def _luck(self, config: Config, seed: int, checkpoints: Sequence[int]) -> list[float]:
        """How far a replicate of the nearest curve was above its mean."""
        code = self._space.encode([config])
        code[:, self._space.columns["epochs"]] = self._ends[0, self._space.columns["epochs"]]
        nearest = self._pool[int(torch.cdist(code, self._ends).argmin())]
        replicate = int(np.random.default_rng(seed).integers(len(nearest.points[0])))
        above = [own[replicate] - fmean(own) for own in nearest.points]
        return [float(np.interp(c, nearest.checkpoints, above)) for c in checkpoints]

    def curve(
        self, config: Config, seeds: Sequence[int], checkpoints: Sequence[int]
    ) -> Iterator[list[float]]:
        """What the studies measure."""
        true = self.errors(config, checkpoints)
        lucks = [self._luck(config, seed, checkpoints) for seed in seeds]
        for k, error in enumerate(true):
            yield [min(max(1 - error + luck[k], 0.0), 1.0) for luck in lucks]

    def curves(
        self, configs: Sequence[Config], seeds: Sequence[int], checkpoints: Sequence[Sequence[int]]
    ) -> Generator[dict[int, float], set[int], None]:
        """The same of several trainings, side by side."""
        each = zip(configs, seeds, checkpoints, strict=True)
        known = [[u for (u,) in self.curve(config, [seed], own)] for config, seed, own in each]
        running = set(range(len(configs)))
        for epochs in sorted({c for own in checkpoints for c in own}):
            reached = {
                place: known[place][checkpoints[place].index(epochs)]
                for place in sorted(running)
                if epochs in checkpoints[place]
            }
            if reached:
                running -= yield reached

    def volumes(self, front: ParetoFront) -> dict[str, float]:
        """Hypervolume of what a front's points truly are."""
        points = [
            (p.values[0], self.errors(p.config, [p.config["epochs"]])[0])
            for p in front.measured_on_front
        ]
        return volumes(torch.tensor(points, dtype=torch.double), self.problem.ref_point)

    def run(self, method: str, seed: int, setting: Setting) -> dict[str, Any]:
        """One study; its fronts after each stop."""
        study = DPareto(self.problem, seed=seed)
        found = {}
        for stop in STOPS:
            study.run(stop, together=TOGETHER.get(method, 1))
            front = study.front()
            steps = [setting.oracles.cost({**t.config, "epochs": length(t)}) for t in study.trials]
            found[str(stop)] = {
                "steps": sum(steps),
                "again": self.volumes(front),
                "expected again": self.volumes(front.shrunken or front),
            }
        return found


def at_steps(run: Mapping[str, Any], steps: float, kind: str, scale: str) -> float:
    """The hypervolume of a study's front after so many steps, NaN beyond those it was judged at."""
    known = [one["steps"] for one in run.values()]
    values = [one[kind][scale] for one in run.values()]
    return float(np.interp(steps, known, values, left=math.nan, right=math.nan))


def compared(runs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Fronts at equal steps, and by how much those of trials trained at once are ahead."""
    rows = []
    for thousands in KILOSTEPS:
        for kind in ("again", "expected again"):
            for scale in ("linear", "log"):
                pairs = [
                    [at_steps(runs[m][s], 1000 * thousands, kind, scale) for m in (ALONE, AT_ONCE)]
                    for s in sorted(set(runs[ALONE]) & set(runs[AT_ONCE]))
                ]
                pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
                if len(pairs) < 2:
                    continue
                rows.append(
                    {
                        "steps": 1000 * thousands,
                        "front": "expected" if kind == "expected again" else "observed",
                        "scale": scale,
                        "one after the other": mean_interval([one for one, _ in pairs]),
                        "four at once": mean_interval([other for _, other in pairs]),
                        "ahead by": mean_interval([other - one for one, other in pairs]),
                    }
                )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"{row['steps'] // 1000:4}k {row['front']:9}{row['scale']:7}"
            f"{row['one after the other']!s:>26}{row['four at once']!s:>26}{row['ahead by']!s:>30}"
            f"  {row['ahead by'].count} seeds",
            flush=True,
        )


def main() -> None:
    parser = BenchmarkParser("dpareto_batches", __doc__, minutes=40)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--curves", type=int, default=150, help="of the pool")
    parser.add_argument("--trained", action="store_true", help="train each study")
    home = Path.home() / ".cache" / "botorch_dp"
    parser.add_argument("--pool", type=Path, default=home / "dpareto_pool", help="its folder")
    parser.add_argument("--studies", type=Path, default=home / "dpareto_curves", help="the same")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    setting = dpareto_curves.settings(bool(os.environ.get("BOTORCH_DP_DATA")))["adult"]
    runs: dict[str, dict[str, Any]] = {ALONE: {}, AT_ONCE: {}}
    name = "dpareto_batches_trained" if arguments.trained else "dpareto_batches"
    if arguments.trained:
        arguments.studies.mkdir(parents=True, exist_ok=True)
        run: Any = lambda method, seed: dpareto_curves.run(  # noqa: E731
            setting, method, seed, arguments.studies
        )
    else:
        arguments.pool.mkdir(parents=True, exist_ok=True)
        pool = dpareto_pool.trained_pool(setting, arguments.pool / "pool.json", arguments.curves)
        landscape = Landscape(pool, dpareto_curves.problem(setting, ALONE))
        run = partial(landscape.run, setting=setting)
        known = arguments.pool / f"{len(pool)}-batches.json"
        runs |= json.loads(known.read_text()) if known.exists() else {}
    for seed in map(str, range(arguments.seeds)):
        for method, found in runs.items():
            if seed in found:
                continue
            found[seed] = run(method, int(seed))
            print(f"seed {seed}, {method}", flush=True)
            if not arguments.trained:
                with atomic_write(known, owner_only=True) as file:
                    json.dump(runs, file)
    rows = compared(runs)
    show(rows)
    save_results(name, {"data": setting.oracles.data, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
