"""What is known about a config without training: its exact objectives."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.pareto.space import Config

#: Seconds after which somebody waiting for a proposal should be told what takes so long.
_SLOW = 10.0


@dataclass(frozen=True)
class Candidates:
    """Configs under consideration.

    Args:
        codes: ``n x d``, of configs that can be tried.
        known: ``n x k`` exact objectives; NaN throughout where an oracle fails.
    """

    codes: Tensor
    known: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Tensor) -> Candidates:
        return Candidates(self.codes[index], self.known[index])

    def __add__(self, other: Candidates) -> Candidates:
        return Candidates(
            torch.cat([self.codes, other.codes]), torch.cat([self.known, other.known])
        )

    @property
    def possible(self) -> Tensor:
        """Which of them the oracles have nothing against, ``n``."""
        return self.known.isfinite().all(dim=-1)


class KnownObjectives:
    """Evaluates exact objectives, and remembers them for every config asked about.

    Args:
        problem: The problem.
        with_epsilon: Whether epsilon is among them; otherwise it is modelled like the error.
    """

    def __init__(self, problem: PrivacyUtilityProblem, *, with_epsilon: bool) -> None:
        self._problem = problem
        self._with_epsilon = with_epsilon
        functions = {
            index: objective.known
            for index, objective in enumerate(problem.objectives, start=2)
            if objective.function is not None
        }
        self._functions = list(functions.values())
        known = [0, *functions] if with_epsilon else list(functions)
        #: Which column of :attr:`Candidates.known` holds which objective.
        self.columns = {objective: column for column, objective in enumerate(known)}
        self._warned = False
        self._rows: dict[tuple[object, ...], tuple[float, ...]] = {}

    def candidates(self, codes: Tensor) -> Candidates:
        """The configs nearest to ``n x d`` codes, with their exact objectives."""
        configs = self._problem.space.decode(codes)
        return Candidates(self._problem.space.encode(configs), self(configs))

    def __call__(self, configs: Sequence[Config]) -> Tensor:
        """Exact objectives of configs, ``n x k``."""
        keys = [tuple(config.values()) for config in configs]
        unknown = {k: c for k, c in zip(keys, configs, strict=True) if k not in self._rows}
        if unknown:
            epsilons = self._epsilons(list(unknown.values()))
            for (key, config), epsilon in zip(unknown.items(), epsilons, strict=True):
                self._rows[key] = self._row(config, epsilon)
        rows = [self._rows[key] for key in keys]
        return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(self.columns))

    def _epsilons(self, configs: list[Config]) -> list[list[float]]:
        if not self._with_epsilon:
            return [[] for _ in configs]
        start = time.monotonic()
        try:
            epsilons = self._problem.epsilon_bounds(configs)
        except Exception:
            # One config can spoil a batch. Which oracle fails how is recorded when such a config
            # is tried, not when it is considered: NaN keeps it from being tried.
            epsilons = [_or_nan(self._problem.epsilon, config) for config in configs]
        seconds = time.monotonic() - start
        if seconds > _SLOW and not self._warned:
            self._warned = True
            warnings.warn(
                f"The privacy oracle took {seconds:.0f} s for {len(configs)} candidates. Give the "
                "problem a `privacy_batch`, or the study fewer `candidates` or "
                "`privacy_model='gp'`.",
                stacklevel=2,
            )
        return [[epsilon] for epsilon in epsilons]

    def _row(self, config: Config, epsilon: list[float]) -> tuple[float, ...]:
        row = (*epsilon, *(_or_nan(function, config) for function in self._functions))
        return row if all(map(math.isfinite, row)) else (math.nan,) * len(row)


def _or_nan(oracle: Callable[[Config], float], config: Config) -> float:
    try:
        return oracle(config)
    except Exception:
        return math.nan
