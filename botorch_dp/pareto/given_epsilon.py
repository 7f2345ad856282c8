"""Epsilon as an input: the noise of a training is solved for.

For a given epsilon, the noise follows from the batches, the steps and whatever else the privacy
oracle reads. A space that holds ``epsilon`` in place of the noise needs no search for a config that
meets a wanted epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.space import Config, Integer, Real, SearchSpace

_NAME = "epsilon"
#: Halvings of the logarithm of the noise, for the config that is tried and for candidates.
_EXACT, _ROUGH = 48, 8
#: How much the logarithm of the noise is lowered where a bound of the price is wanted.
_MARGIN = 0.01


def given_epsilon(
    problem: PrivacyUtilityProblem, noise: str, epsilon: Real | None = None
) -> PrivacyUtilityProblem:
    """The same problem with ``epsilon`` in its space, in place of a parameter that is noise.

    Each training gets the least noise of its range for which ``problem.privacy`` is at most the
    config's ``epsilon``, or the most noise if none is enough. The epsilon of a trial stays exact.
    The utility oracle is called with the noise, as before. Of a curve, ``epsilon`` is that of the
    longest training.

    Args:
        problem: Its ``privacy`` must fall in the noise.
        noise: The name of the parameter: a real one, above 0.
        epsilon: The range of epsilons; from a thousandth of the reference to the reference, by its
            logarithm, if None.

    Returns:
        A problem with a study of its own. ``study.recommend(2.0)`` then holds epsilon at 2 and
        searches the other parameters.

    Example:
        >>> asked = given_epsilon(problem, "noise_multiplier", Real(0.1, 8.0, log=True))
        >>> DPareto(asked, seed=0).run(40)
    """
    parameters = dict(problem.space.parameters)
    replaced = parameters.get(noise)
    if not isinstance(replaced, Real) or replaced.low <= 0:
        raise ValueError(f"`noise` must name a positive Real of the space, got {noise!r}.")
    if _NAME in parameters:
        raise ValueError("The space has a parameter `epsilon` already.")
    if epsilon is None:
        epsilon = Real(1e-3 * problem.ref_point[0], problem.ref_point[0], log=True)
    if not isinstance(epsilon, Real) or epsilon.low <= 0:
        raise ValueError(f"`epsilon` must be a Real above 0, got {epsilon!r}.")
    named = {(_NAME if k == noise else k): v for k, v in parameters.items()} | {_NAME: epsilon}
    space = SearchSpace(
        constraints=problem.space.constraints,
        products=[product for product in problem.space.products if noise not in product],
        **named,
    )
    try:
        space.sample(1, seed=0)
    except KeyError as error:
        raise ValueError(f"A constraint of the space reads {error}, which is solved for.") from None
    solver = NoiseSolver(problem, noise, replaced)
    oracle: Solved | None = Solved(solver, problem.oracle)
    batched = replace(problem.batched, epsilons=solver.bounds)
    if batched.replicates is not None:
        batched, oracle = replace(batched, replicates=oracle), None
    promise = problem.promise
    if promise is not None:
        guarantee = promise.guarantee and Solved(solver, promise.guarantee)
        promise = replace(promise, trainer=None, guarantee=guarantee)
    return PrivacyUtilityProblem(
        space,
        privacy=Solved(solver, problem.privacy),
        utility=oracle if problem.resource is None else None,
        utility_curve=oracle if problem.resource is not None else None,
        ref_point=problem.ref_point,
        replicates=problem.replicates,
        objectives=problem.objectives,
        promise=promise,
        name=f"{problem.name}, epsilon given",
        resource=problem.resource,
        batched=batched,
    )


class NoiseSolver:
    """Finds the noise that meets a config's epsilon.

    Args:
        problem: Whose privacy oracle says what noise costs.
        noise: The parameter that is solved for.
        within: Its range.
    """

    def __init__(self, problem: PrivacyUtilityProblem, noise: str, within: Real) -> None:
        self._privacy, self._bounds = problem.privacy, problem.batched.epsilons
        self._noise, self._low, self._high = noise, within.low, within.high
        self._whole: dict[str, int] = {}
        if problem.resource is not None:
            longest = problem.space.parameters[problem.resource.name]
            assert isinstance(longest, Integer)
            self._whole[problem.resource.name] = longest.high
        self._order = list(problem.space.parameters)
        self._solved: dict[tuple[Any, ...], float] = {}

    def __call__(self, config: Config) -> Config:
        """The config that is trained: with noise in place of epsilon."""
        wanted = {**config, **self._whole}
        key = tuple(wanted.values())
        if key not in self._solved:
            self._solved[key] = self._solve(wanted)
        return self._with(config, self._solved[key])

    def bounds(self, configs: Sequence[Config]) -> list[float]:
        """Upper bounds on the epsilons of many configs."""
        if not self._whole:
            given = np.array([config[_NAME] for config in configs])
            least = self._epsilons(configs, np.full(len(configs), math.log(self._high)))
            return [float(bound) for bound in np.maximum(given, least)]
        return [float(bound) for bound in self._epsilons(configs, self._rough_logs(configs))]

    def rough(self, configs: Sequence[Config]) -> list[Config]:
        """Many configs with a little less noise than the exact solution, to bound their prices.

        The bound may fail if ``batched.epsilons`` is far above ``privacy``: then the exact solution
        has less noise still. So the config that is proposed is priced exactly.
        """
        logs = self._rough_logs(configs, _ROUGH + 4) - _MARGIN
        return [self._with(c, n) for c, n in zip(configs, self._noises(logs), strict=True)]

    def _rough_logs(self, configs: Sequence[Config], halvings: int = _ROUGH) -> np.ndarray:
        """Logarithms of these noises."""
        wanted = [{**config, **self._whole} for config in configs]
        unique = {tuple(config.values()): config for config in wanted}
        given = np.array([config[_NAME] for config in unique.values()])
        low = np.full(len(unique), math.log(self._low))
        high = np.full(len(unique), math.log(self._high))
        for _ in range(halvings):
            middle = (low + high) / 2
            enough = self._epsilons(unique.values(), middle) <= given
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        logs = dict(zip(unique, low, strict=True))
        return np.array([logs[tuple(config.values())] for config in wanted])

    def _noises(self, logs: np.ndarray) -> list[float]:
        return np.clip(np.exp(logs), self._low, self._high).tolist()

    def _epsilons(self, configs: Any, logs: np.ndarray) -> np.ndarray:
        solved = [self._with(c, n) for c, n in zip(configs, self._noises(logs), strict=True)]
        if self._bounds is not None:
            return np.array(self._bounds(solved), dtype=float)
        return np.array([self._privacy(config) for config in solved], dtype=float)

    def _solve(self, config: Config) -> float:
        low, high, wanted = math.log(self._low), math.log(self._high), config[_NAME]
        if self._privacy(self._with(config, self._low)) <= wanted:
            return self._low
        if not self._privacy(self._with(config, self._high)) <= wanted:
            return self._high
        for _ in range(_EXACT):
            middle = (low + high) / 2
            if self._privacy(self._with(config, math.exp(middle))) <= wanted:
                high = middle
            else:
                low = middle
        return min(math.exp(high), self._high)

    def _with(self, config: Config, noise: float) -> Config:
        given = {**config, self._noise: noise}
        return {name: given[name] for name in self._order}

    def __getstate__(self) -> dict[str, Any]:
        # Other processes solve for themselves; it takes some milliseconds.
        return self.__dict__ | {"_solved": {}}


@dataclass(frozen=True)
class Solved:
    """A function of a config with noise, as one of a config with epsilon."""

    solver: NoiseSolver
    function: Callable[..., Any]

    def __call__(self, config: Config, *arguments: Any) -> Any:
        """The function's answer."""
        return self.function(self.solver(config), *arguments)
