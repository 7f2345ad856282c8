"""Which config to try next: :func:`propose`, a pure function.

Candidates are a fixed space-filling set and small steps away from the best configs so far, all
rounded to what can be tried; the best candidates are polished by ever smaller steps. No gradient is
needed, so that integers, the exact epsilon and any acquisition function are treated alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.utils.multi_objective.box_decompositions.box_decomposition import BoxDecomposition
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.sampling import manual_seed
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp.acquisition.hvpoi import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)
from botorch_dp.pareto.charges import ChargedProblem
from botorch_dp.pareto.problem import PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.pareto.surrogates import (
    Candidates,
    EpsilonScale,
    KnownObjectives,
    PrivacyModel,
    Surrogates,
    front_indices,
    objective_scales,
    on_the_cpu,
)
from botorch_dp.space import Config, SearchSpace

#: Scores candidates; the one with the largest score is tried next.
Score: TypeAlias = Callable[[Candidates], Tensor]
#: Says of each of some configs whether it may be proposed.
Allowed: TypeAlias = Callable[[Sequence[Config]], list[bool]]


class AcquisitionFactory(Protocol):
    """Builds an acquisition function for one point at a time (``b x 1 x d``).

    Everything is maximized and in the scale of the models: ``-log(epsilon)``, ``-logit(error)``,
    then further objectives. Pending trials are in ``model`` and ``partitioning`` already. BoTorch's
    analytic acquisition functions and those of this package have this signature.
    """

    def __call__(
        self, model: Model, ref_point: Tensor, partitioning: BoxDecomposition
    ) -> AcquisitionFunction:
        """The acquisition function."""


class NothingAffordableError(StudyError):
    """No config that would be proposed is within the budget."""


#: A trial takes at most the fourth part of what is left, while such trials promise a gain.
_PACE = 4
#: Configs that are drawn to find one within the budget.
_DRAWN_TO_PAY = 512
#: Steps from the best configs, in units of the cube, and how many of each length.
_LOCAL_STEPS = (0.02, 0.06, 0.2)
_LOCAL_CANDIDATES = 512
#: Polishing: how many of the best candidates, and which steps they take in turn.
_POLISHED = 8
_POLISH_STEPS = (0.05, 0.02, 0.01, 0.005)
_POLISH_TRIES = 12
#: How often a step takes another value of each choice.
_SWITCH = 0.25
#: Points of a sequence that are drawn, in search of configs that constraints allow.
_MOST_DRAWN = 2**17
#: Points that acquisition functions get at once; their memory grows with it.
_CHUNK = 512


@dataclass(eq=False)
class Proposer:
    """What the proposals of one study have in common, and what follows from it.

    It keeps exact objectives, the space-filling candidates, and the models that it fitted last.
    That saves time and changes no proposal.

    All arguments are those of :class:`~botorch_dp.pareto.DPareto`.
    """

    problem: PrivacyUtilityProblem
    _: KW_ONLY
    seed: int
    acquisition: str | AcquisitionFactory = "ehvi"
    privacy_model: PrivacyModel = "exact"
    epsilon_scale: EpsilonScale = "log"
    candidates: int = 2048
    grid_levels: int = 3

    def __post_init__(self) -> None:
        space = self.problem.space
        self.known = KnownObjectives(self.problem, with_epsilon=self.privacy_model == "exact")
        self.scales = objective_scales(self.problem, self.epsilon_scale)
        self._grid: list[Config] | None = None
        if self.acquisition == "grid":
            grid = list(space.grid(self.grid_levels))
            order = np.random.default_rng(_stream(self.seed, "grid")).permutation(len(grid))
            self._grid = [grid[index] for index in order]
        self._drawn: dict[str, list[Config]] = {}
        self._pool: Candidates | None = None
        self._fitted: Mapping[Hashable, SingleTaskGP] = {}

    @property
    def exact(self) -> Proposer:
        """The one with exact epsilons, which a recommendation needs."""
        exact = self.privacy_model == "exact"
        return self if exact else replace(self, privacy_model="exact")

    def most_trials(self, trials: Sequence[Trial]) -> float:
        """How many trials there can be, these included."""
        return math.inf if self._grid is None else len(trials) + len(self.untried(trials))

    def untried(self, trials: Sequence[Trial]) -> list[Config]:
        """What is left of the grid, in its order."""
        tried = {tuple(trial.config.items()) for trial in trials}
        return [config for config in self._grid or () if tuple(config.items()) not in tried]

    def surrogates(self, trials: Sequence[Trial]) -> Surrogates:
        """The models fitted to the complete trials, believing in the others."""
        surrogates = Surrogates(
            self.problem,
            [trial for trial in trials if trial.state == "complete"],
            [trial.config for trial in trials if trial.state != "complete"],
            known=self.known,
            scales=self.scales,
            seed=_stream_seed(self.seed, "fit"),
            fitted=self._fitted,
        )
        self._fitted = surrogates.fitted
        return surrogates

    def best(
        self,
        score: Score,
        surrogates: Surrogates,
        number: int,
        *,
        allowed: Allowed | None = None,
    ) -> Config | None:
        """The config with the best score found; None if all scores are minus infinity.

        Args:
            score: Larger is better; not finite where nothing may be proposed.
            surrogates: Where the best configs so far are.
            number: Of the trial, which makes its random steps its own.
            allowed: Which configs may be proposed; all if None.
        """
        if allowed is not None:
            score = _allowed_only(score, allowed)
        space = self.problem.space
        generator = torch.Generator().manual_seed(_stream_seed(self.seed, "search", number))

        def near(starts: Tensor, lengths: Sequence[float], count: int) -> Candidates:
            codes = _steps_from(space, starts, lengths, count, generator)
            return self.known.candidates(space.allowed(space.decode(codes)))

        if self._pool is None:
            configs = self.quasi_random("candidates", self.candidates, space.spread)
            self._pool = self.known.candidates(space.allowed(configs))
        found = self._pool + near(_incumbents_on_front(surrogates), _LOCAL_STEPS, _LOCAL_CANDIDATES)
        scores = _scored(score, found)
        for step in _POLISH_STEPS:
            kept = scores.topk(min(_POLISHED, len(scores))).indices
            found, scores = found[kept], scores[kept]
            if len(scores) == 0 or scores[0] == -math.inf:
                return None
            tries = near(found.codes, (step,), _POLISH_TRIES * len(found))
            found = found + tries
            scores = torch.cat([scores, _scored(score, tries)])
        return found.configs[int(scores.argmax())]

    def quasi_random(
        self, purpose: str, count: int, placed: Callable[[NDArray[np.float64]], list[Config]]
    ) -> list[Config]:
        """The first ``count`` configs of a scrambled Sobol sequence that constraints allow.

        Fewer if they allow next to nothing, and an error if they allow nothing.
        """
        space, configs = self.problem.space, self._drawn.get(purpose, [])
        size = 2 ** math.ceil(math.log2(max(count, 2)))
        while len(configs) < count and size <= _MOST_DRAWN + 2 * count:
            engine = torch.quasirandom.SobolEngine(
                len(space.parameters), scramble=True, seed=_stream_seed(self.seed, purpose)
            )
            points = engine.draw(size, dtype=torch.double).numpy()
            configs = [config for config in placed(points) if space.satisfies(config)]
            self._drawn[purpose] = configs
            size *= 2
        if not configs:
            raise space.nothing_allowed(size // 2)
        return configs[:count]


@on_the_cpu
def propose(
    proposer: Proposer, trials: Sequence[Trial], initial: int, budget: ChargedProblem | None = None
) -> Config:
    """The trial after these, a pure function of its arguments.

    Args:
        proposer: The problem, the seed and the options.
        trials: All trials so far, by number.
        initial: How many trials are drawn before models are consulted.
        budget: What is affordable; everything if None.

    Raises:
        NothingAffordableError: Nothing that would be proposed is within the budget.
        StudyError: Nothing can be proposed.
    """
    if budget is None:
        return _proposed(proposer, trials, initial, None)
    # A trial may take all that is left only if no cheaper one promises anything.
    for times in (_PACE, 1):
        refused: list[Config] = []

        def allowed(
            configs: Sequence[Config], times: int = times, refused: list[Config] = refused
        ) -> list[bool]:
            seems = zip(configs, budget.affordable(configs, times), strict=True)
            return [fine and config not in refused for config, fine in seems]

        try:
            while len(refused) < _POLISHED:
                config = _proposed(proposer, trials, initial, allowed)
                if all(budget.affordable([config], times, exact=True)):
                    return config
                refused.append(config)
        except NothingAffordableError:
            continue
    raise NothingAffordableError("The budget is too small for another trial of this study.")


def _proposed(
    proposer: Proposer, trials: Sequence[Trial], initial: int, allowed: Allowed | None
) -> Config:
    problem, acquisition = proposer.problem, proposer.acquisition
    if acquisition == "grid":
        left = proposer.untried(trials)
        if not left:
            raise StudyError(
                f"All {len(trials)} points of the grid were proposed; start a study with larger "
                "`grid_levels`."
            )
        return _first(left, allowed)
    number = len(trials)
    if acquisition == "random":
        count = 1 if allowed is None else _DRAWN_TO_PAY
        drawn = problem.space.sample(count, seed=_stream(proposer.seed, "random", number))
        return _first(drawn, allowed)
    if number < initial or sum(trial.state == "complete" for trial in trials) < 2:
        count = number + (1 if allowed is None else _DRAWN_TO_PAY)
        drawn = proposer.quasi_random("initial", count, problem.space.draw)
        if number >= len(drawn):
            raise StudyError(
                f"The space's constraints allow only {len(drawn)} of the configs drawn, and "
                "all were proposed. Widen them, or lower `initial`."
            )
        return _first(drawn[number:], allowed)
    return _by_models(proposer, trials, allowed)


def _by_models(proposer: Proposer, trials: Sequence[Trial], allowed: Allowed | None) -> Config:
    """The config that maximizes the acquisition function; the most uncertain one if none gains."""
    number, surrogates = len(trials), proposer.surrogates(trials)
    with manual_seed(_stream_seed(proposer.seed, "search", number)), torch.no_grad():
        best = proposer.best(point_score(proposer, surrogates), surrogates, number, allowed=allowed)
        if best is None:
            # Nothing promises an improvement: look where least is known.
            uncertainty = partial(_uncertainty, surrogates)
            best = proposer.best(uncertainty, surrogates, number, allowed=allowed)
    if best is None and allowed is not None:
        raise NothingAffordableError
    if best is None:
        raise StudyError(
            "`privacy` raises an error, or returns no finite epsilon >= 0, for all candidates "
            f"({', '.join(sorted(proposer.known.failures))}). Call `problem.epsilon(config)` by "
            "hand to see what is wrong."
        )
    return best


def _allowed_places(configs: Sequence[Config], allowed: Allowed) -> Iterator[int]:
    """Indices of allowed configs, in order; it asks for one, two, four, ... at a time."""
    start, count = 0, 1
    while start < len(configs):
        answers = allowed(configs[start : start + count])
        yield from (start + place for place, each in enumerate(answers) if each)
        start, count = start + count, 2 * count


def _first(configs: Sequence[Config], allowed: Allowed | None) -> Config:
    if allowed is None:
        return configs[0]
    for place in _allowed_places(configs, allowed):
        return configs[place]
    raise NothingAffordableError


def _allowed_only(score: Score, allowed: Allowed) -> Score:
    """The score, minus infinity for the best ones that are not allowed."""

    def score_allowed(candidates: Candidates) -> Tensor:
        values = score(candidates)
        order = values.argsort(descending=True, stable=True)
        order = order[values[order] > -math.inf]
        best = [candidates.configs[place] for place in order.tolist()]
        found = list(itertools.islice(_allowed_places(best, allowed), _POLISHED))
        refused = torch.ones(len(best), dtype=torch.bool)
        refused[found] = False
        if len(found) == _POLISHED:
            refused[found[-1] :] = False
        values[order[refused]] = -math.inf
        return values

    return score_allowed


def point_score(proposer: Proposer, surrogates: Surrogates) -> Score:
    """The acquisition function as a score of single candidates."""
    acquisition, scales = proposer.acquisition, proposer.scales
    incumbents = surrogates.incumbent_means[surrogates.incumbents.possible]  # n x m
    if acquisition == "ehvi":
        maps = [scale.to_volume for scale in scales]
        volumes = torch.stack([f(incumbents[:, k]) for k, f in enumerate(maps)], dim=-1)
        worst = torch.tensor([scale.ref_volume for scale in scales], dtype=torch.double)
        cells = FastNondominatedPartitioning(worst, Y=volumes).get_hypercell_bounds()
        return _positive(
            lambda c: expected_hypervolume_improvement(*surrogates.predict(c), cells, maps)
        )
    ref_point = torch.tensor([scale.ref_model for scale in scales], dtype=torch.double)
    factory: Any = {
        "hvpoi": HypervolumeProbabilityOfImprovement,
        "log_hvpoi": LogHypervolumeProbabilityOfImprovement,
    }.get(str(acquisition), acquisition)
    partitioning = FastNondominatedPartitioning(ref_point, Y=incumbents)
    scored = _pointwise(factory(surrogates.model, ref_point, partitioning))
    return _positive(scored) if acquisition == "hvpoi" else scored


def expected_hypervolume_improvement(
    means: Tensor,
    stds: Tensor,
    cells: Tensor,
    maps: Sequence[Callable[[Tensor], Tensor]],
    *,
    num_nodes: int = 20,
) -> Tensor:
    r"""Expected hypervolume improvement of independent Gaussians seen through monotone maps.

    With the non-dominated space cut into boxes from ``l_c`` to ``u_c`` [Daulton2020], and ``y_k``
    the ``k``-th objective in the units of hypervolume,

    .. math::
        EHVI = \sum_c \prod_k E[(\min(y_k, u_{ck}) - l_{ck})^+],

    because objectives are independent. Each factor is a sum over Gauss-Hermite nodes; an objective
    that is known (standard deviation 0) needs one node only.

    Args:
        means: ``n x m``, in the scale of the models.
        stds: ``n x m``.
        cells: ``2 x c x m`` lower and upper ends of the boxes.
        maps: From the scale of the models to the units of hypervolume, one for each objective.
        num_nodes: Quadrature nodes. 20 are within some percent, which is all a ranking needs: the
            kinks at the ends of the boxes let the error fall slowly.

    Returns:
        ``n`` values.
    """
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(num_nodes))
    weights = weights / weights.sum()
    improvement = torch.ones(means.shape[0], cells.shape[1], dtype=means.dtype)
    for k, to_volume in enumerate(maps):
        mean, std = means[:, k : k + 1], stds[:, k : k + 1]
        lower, upper = cells[0, :, k], cells[1, :, k]
        if bool((std == 0).all()):
            improvement *= (torch.minimum(to_volume(mean), upper) - lower).clamp_min(0)
        else:
            values = to_volume(mean + std * nodes).unsqueeze(1)  # n x 1 x nodes
            gains = (torch.minimum(values, upper.unsqueeze(-1)) - lower.unsqueeze(-1)).clamp_min(0)
            improvement *= gains @ weights
    return improvement.sum(dim=-1)


def _pointwise(acquisition: AcquisitionFunction) -> Score:
    def score(candidates: Candidates) -> Tensor:
        chunks = candidates.codes.unsqueeze(-2).split(_CHUNK)
        return torch.cat([acquisition(chunk) for chunk in chunks])

    return score


def _positive(score: Score) -> Score:
    """The score with minus infinity in place of zero, where nothing can be gained."""

    def positive(candidates: Candidates) -> Tensor:
        values = score(candidates)
        return values.where(values > 0, -math.inf)

    return positive


def _uncertainty(surrogates: Surrogates, candidates: Candidates) -> Tensor:
    """Sum of the standard deviations of the modelled objectives."""
    return surrogates.predict(candidates)[1].sum(dim=-1)


def _scored(score: Score, candidates: Candidates) -> Tensor:
    """Scores, ``n``; minus infinity where a function fails or the score is no number."""
    scores = torch.full((len(candidates),), -math.inf, dtype=torch.double)
    possible = candidates.possible
    if possible.any():
        values = score(candidates[possible])
        scores[possible] = values.where(values.isfinite(), -math.inf)
    return scores


def _incumbents_on_front(surrogates: Surrogates) -> Tensor:
    """Codes of the incumbents on the believed front, ``k x d``."""
    possible = surrogates.incumbents.possible
    front = front_indices(-surrogates.incumbent_means[possible])
    return surrogates.incumbents.codes[possible][sorted(front)]


def _steps_from(
    space: SearchSpace,
    starts: Tensor,
    lengths: Sequence[float],
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """About ``count`` points, ``n x d``, Gaussian steps of each length away from the starts.

    A step changes each parameter with probability 1/2: one parameter alone often has to move by
    more than all of them together may. Choices have no small steps: some take another value. Where
    a parameter was not active there is nothing to be near to: it is drawn anew.
    """
    if len(starts) == 0:
        return starts
    dim = starts.shape[-1]
    per_length = max(1, count // (len(lengths) * len(starts)))
    shape = (len(lengths), per_length, len(starts), dim)
    noise = torch.randn(shape, generator=generator, dtype=starts.dtype)
    moved = torch.rand(shape, generator=generator, dtype=starts.dtype) < 0.5
    steps = noise * moved * torch.tensor(lengths, dtype=starts.dtype).reshape(-1, 1, 1, 1)
    points = (starts + steps).clamp(0, 1)
    idle = space.inactive(starts)
    if idle.any():
        anywhere = torch.rand(shape, generator=generator, dtype=starts.dtype)
        points = torch.where(idle, anywhere, points)
    for columns in space.columns.values():
        width = columns.stop - columns.start
        if width == 1:
            continue
        drawn = torch.randint(width, shape[:3], generator=generator)
        other = torch.nn.functional.one_hot(drawn, width).to(starts.dtype)
        switched = torch.rand((*shape[:3], 1), generator=generator) < _SWITCH
        switched |= idle[:, columns.start, None]
        points[..., columns] = torch.where(switched, other, starts[:, columns])
    return points.reshape(-1, dim)


def _stream(seed: int, purpose: str, number: int = 0) -> np.random.SeedSequence:
    """Random streams that differ for each purpose and number."""
    return np.random.SeedSequence(seed, spawn_key=(number, *purpose.encode()))


def _stream_seed(seed: int, purpose: str, number: int = 0) -> int:
    return int(_stream(seed, purpose, number).generate_state(1)[0])
