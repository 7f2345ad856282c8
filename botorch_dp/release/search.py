r"""The searches behind the releases: GP-UCB on noisy values, branch and bound on exact ones.

Nothing here is private: what a search visits and sees stays with whoever holds the records.

References:
.. [Srinivas2010]
    N. Srinivas, A. Krause, S. M. Kakade and M. Seeger. Gaussian Process Optimization in the
    Bandit Setting: No Regret and Experimental Design. ICML 2010.
.. [deFreitas2012]
    N. de Freitas, A. Smola and M. Zoghi. Exponential Regret Bounds for Gaussian Process Bandits
    with Deterministic Observations. ICML 2012.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models.finite import FiniteSetGP
from botorch_dp.release.assumptions import plausible
from botorch_dp.release.journal import RunJournal

#: A choice (``d``) in, its value out: a float or a tensor of one element.
Objective = Callable[[Tensor], float | Tensor]

# What rounding leaves of a posterior variance; added before two confidence bounds are compared.
_ROUNDING_VARIANCE = 1e-12
# Choices closer than this, in units of the box, are told apart one by one.
_FINEST_SPACING = 2.0**-40


class Search(Protocol):
    """Where to look next, and what was seen."""

    gp: FiniteSetGP

    def ask(self) -> int:
        """The index of the next choice."""

    def tell(self, index: int, value: float) -> None:
        """Report the value of a choice."""


@dataclass(frozen=True, eq=False)
class SearchDiagnostics:
    """What a search saw. **Sensitive**: for the eyes of whoever holds the records.

    Args:
        indices: The visited choices, in order.
        values: Their observed values.
        mean: The posterior mean at all choices.
        variance: The posterior variance at all choices.
        implausible: How many values were NaN or beyond 50 prior standard deviations, and were
            replaced by that bound.
    """

    indices: tuple[int, ...]
    values: Tensor
    mean: Tensor
    variance: Tensor
    implausible: int

    def __repr__(self) -> str:
        return f"SearchDiagnostics(sensitive: {len(self.indices)} steps)"


class GPUCB:
    """GP-UCB [Srinivas2010]_: visit the choice with the largest upper confidence bound.

    Args:
        gp: The model; it is kept up to date.
        schedule: The widths of the confidence bounds.

    Example:
        >>> search = GPUCB(gp, schedule=UCBSchedule(gp.num_choices, delta=0.1))
        >>> for _ in range(20):
        ...     index = search.ask()
        ...     search.tell(index, objective(index))
    """

    def __init__(self, gp: FiniteSetGP, *, schedule: UCBSchedule) -> None:
        self.gp = gp
        self.schedule = schedule

    def ask(self) -> int:
        """The choice with the largest upper confidence bound; the first of several."""
        beta = self.schedule(self.gp.num_observations + 1)
        return int(self.gp.upper_confidence_bound(beta).argmax())

    def tell(self, index: int, value: float) -> None:
        """Condition the model on the observation."""
        self.gp.observe(index, value)


class BranchAndBound:
    r"""Maximize exact values on a finite set, on a lattice that is refined [deFreitas2012]_.

    Kept is the set of *relevant* choices: those whose upper confidence bound is not below the best
    lower one. In turns, the relevant set is sampled so densely that each of its choices has a
    sampled one within the lattice spacing, the set shrinks, and the spacing is halved. While the
    confidence bounds hold, the maximizer is never dropped. The search is ``certified`` when all
    relevant choices were sampled: then the best of them is the maximizer, and is all that
    :meth:`ask` still returns.

    Choices need not form a grid: they are gathered by the nearest vertex of a lattice over their
    bounding box.

    Args:
        gp: A model without observation noise; it is kept up to date.
        schedule: The widths of the confidence bounds.

    Example:
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_variance=0.0)
        >>> search = BranchAndBound(gp, schedule=UCBSchedule(len(choices), delta=0.1))
        >>> while not search.certified:
        ...     index = search.ask()
        ...     search.tell(index, objective(choices[index]))
        >>> search.best
    """

    def __init__(self, gp: FiniteSetGP, *, schedule: UCBSchedule) -> None:
        if gp.noise_variance != 0:
            raise ValueError(
                "`gp` must be noise-free for branch and bound, got noise_variance = "
                f"{gp.noise_variance:g}; use GPUCB for noisy values."
            )
        self.gp = gp
        self.schedule = schedule
        low, high = gp.choices.amin(0), gp.choices.amax(0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        self._unit = (gp.choices - low) / width  # n x d, in the unit cube
        self._seen = torch.full_like(gp.mean, torch.nan)
        self.relevant = torch.ones(gp.num_choices, dtype=torch.bool, device=gp.mean.device)
        self._spacing = 2.0
        self._queue = torch.zeros_like(self.relevant)

    @property
    def certified(self) -> bool:
        """Whether all choices that could be the maximizer were sampled."""
        return not bool((self.relevant & self._seen.isnan()).any())

    @property
    def best(self) -> int:
        """The sampled choice with the largest value."""
        if bool(self._seen.isnan().all()):
            raise ValueError("`best` needs at least one sample: call `ask` and `tell` first.")
        return int(self._seen.nan_to_num(nan=-math.inf).argmax())

    def ask(self) -> int:
        """The most promising choice that the present lattice still needs; the best if certified."""
        if self.certified:
            return self.best
        open_choices = self._queue & self.relevant & self._seen.isnan()
        while not bool(open_choices.any()):
            self._spacing /= 2
            self._queue = open_choices = self._cover()
        upper, _ = self._bounds()
        return int(torch.where(open_choices, upper, -math.inf).argmax())

    def tell(self, index: int, value: float) -> None:
        """Take in an exact value and drop the choices that it rules out."""
        if bool(self._seen[index].isnan()):
            self.gp.observe(index, value)
        self._seen[index] = value
        upper, lower = self._bounds()
        best_lower = torch.where(self.relevant, lower, -math.inf).max()
        self.relevant = self.relevant & (upper >= best_lower)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Upper and lower confidence bounds (n each); sampled values are known exactly."""
        width = math.sqrt(self.schedule(self.gp.num_observations + 1))
        deviation = (self.gp.variance + _ROUNDING_VARIANCE).sqrt()
        mean = self.gp.mean
        known = ~self._seen.isnan()
        upper = torch.where(known, self._seen, mean + width * deviation)
        lower = torch.where(known, self._seen, mean - width * deviation)
        return upper, lower

    def _cover(self) -> Tensor:
        """One relevant choice for each lattice vertex without a sampled one: ``n`` flags."""
        chosen = torch.zeros_like(self.relevant)
        relevant = self.relevant.nonzero().squeeze(-1)
        sampled = ~self._seen[relevant].isnan()
        if self._spacing < _FINEST_SPACING:
            chosen[relevant[~sampled]] = True
            return chosen
        steps = self._unit[relevant] / self._spacing
        vertices = steps.round()
        cells, cell = vertices.unique(dim=0, return_inverse=True)
        order = (steps - vertices).abs().amax(-1).argsort(stable=True)
        ranks = torch.arange(len(order), device=order.device)
        nearest = torch.full((len(cells),), len(order), device=order.device)
        nearest.scatter_reduce_(0, cell[order], ranks, reduce="amin")
        covered = torch.zeros(len(cells), dtype=torch.bool, device=order.device)
        covered[cell[sampled]] = True
        chosen[relevant[order[nearest[~covered]]]] = True
        return chosen


def run_search(
    search: Search,
    objective: Objective,
    *,
    steps: int,
    noise_std: float = 0.0,
    journal: RunJournal | None = None,
    progress: bool = False,
    description: str = "",
) -> SearchDiagnostics:
    """Run ``steps`` steps; exactly as many evaluations, whatever the values are.

    Args:
        search: A fresh search.
        objective: A choice (``d``) in, its value out.
        steps: The number of evaluations.
        noise_std: Of the observations, to tell which values are implausible.
        journal: Holds what an interrupted run has seen, and is kept up to date.
        progress: Whether to show a progress bar.
        description: Its label.
    """
    journal = RunJournal(None, {}) if journal is None else journal
    for index, value, _ in journal.seen:
        search.ask()  # asking is a part of the search's state
        search.tell(index, value)
    done = len(journal.seen)
    for _ in tqdm(
        range(done, steps), desc=description, total=steps, initial=done, disable=not progress
    ):
        index = search.ask()
        raw = _scalar(objective(search.gp.choices[index].clone()))
        value = plausible(raw, noise_std).item()
        search.tell(index, value)
        journal.record(index, value, value != raw.item())
    indices, values, implausible = zip(*journal.seen, strict=True)
    return SearchDiagnostics(
        indices=indices,
        values=torch.tensor(values, dtype=torch.double),
        mean=search.gp.mean,
        variance=search.gp.variance,
        implausible=sum(implausible),
    )


def _scalar(value: object) -> Tensor:
    """The objective's answer as a scalar tensor in double precision."""
    try:
        tensor = torch.as_tensor(value).detach().double()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            "`objective` must return a float or a tensor of one element, got "
            f"{type(value).__name__}."
        ) from None
    if tensor.numel() != 1:
        raise ValueError(
            "`objective` must return a float or a tensor of one element, got a tensor of shape "
            f"{tuple(tensor.shape)}."
        )
    return tensor.reshape(())
