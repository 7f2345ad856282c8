"""A study's surrogate models: exact objectives where they are known, Gaussian processes for others.

Models see every objective so that larger is better and the real line is the range:
``-log(epsilon)``, ``-logit(error)``, and ``-log(value)`` or ``-value`` of further objectives.
Hypervolume is measured in other units, in which a reference point is natural: ``-epsilon`` (or
``-log(epsilon)``) and ``-error``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model, ModelList
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import skip_posterior_variances
from torch import Tensor

from botorch_dp.acquisition.hvpoi import believe
from botorch_dp.pareto.problem import PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.space import Config, SearchSpace

PrivacyModel = Literal["exact", "gp"]
EpsilonScale = Literal["linear", "log"]

#: Models see a larger epsilon as this one: random configs reach 1e7, and all of them are useless.
LARGEST_EPSILON = 50.0
#: They see a smaller one than this share of the reference as that: the difference is of no use.
SMALLEST_EPSILON_SHARE = 1e-3
#: Errors of 0 and 1 have no logit.
SMALLEST_ERROR = 1e-3
#: The fit ends when a step gains less than this share of the likelihood.
_FIT_TOLERANCE = 1e-6
#: Points predicted at once: a joint covariance is computed too, whose size is their square.
_CHUNK = 256
#: Trials that a model is conditioned on at most: a fit takes time with their cube, and from 800 on
#: GPyTorch solves approximately.
_MOST_SEEN = 512
#: Length-scales and noise are fitted again when trials have grown by a share between this and half
#: of it: they move little by then, and a fit takes most of a proposal's time. After the longest
#: wait, in trials, they are fitted again anyway.
_REFIT_SHARE, _LONGEST_WAIT = 1 / 16, 64
#: Configs whose exact objectives are remembered, enough for some proposals: the memory of a study
#: that runs for weeks must not grow with every config that it ever considered.
_REMEMBERED = 16_384
#: How far epsilons may differ between versions of a library, as a share, and how many trials are
#: checked when a study is opened, since an oracle may take its time.
_SAME_EPSILON, _MOST_CHECKED = 1e-6, 512


@dataclass(frozen=True)
class Scale:
    """How one objective (to be minimized) is shown to models and to the hypervolume.

    Args:
        to_model: From its value to what models see.
        to_volume: From what models see to the units of hypervolume.
        ref_model: The reference value as models see it.
        ref_volume: The reference value in the units of hypervolume.
    """

    to_model: Callable[[Tensor], Tensor]
    to_volume: Callable[[Tensor], Tensor]
    ref_model: float
    ref_volume: float


def objective_scales(problem: PrivacyUtilityProblem, epsilon_scale: EpsilonScale) -> list[Scale]:
    """The scales of epsilon, error and the further objectives, in this order."""
    ref_epsilon, ref_error = problem.ref_point
    smallest = SMALLEST_EPSILON_SHARE * ref_epsilon
    largest = max(LARGEST_EPSILON, ref_epsilon)

    clamped_ref = min(ref_error, 1 - SMALLEST_ERROR)
    linear = epsilon_scale == "linear"
    scales = [
        Scale(
            to_model=lambda epsilon: -epsilon.clamp(smallest, largest).log(),
            to_volume=_negative_exp_negative if linear else Tensor.clone,
            ref_model=-math.log(ref_epsilon),
            ref_volume=-ref_epsilon if linear else -math.log(ref_epsilon),
        ),
        Scale(
            to_model=lambda error: -error.clamp(SMALLEST_ERROR, 1 - SMALLEST_ERROR).logit(),
            to_volume=lambda seen: -torch.sigmoid(-seen),
            ref_model=-math.log(clamped_ref / (1 - clamped_ref)),
            ref_volume=-ref_error,
        ),
    ]
    for objective in problem.objectives:
        ref = objective.ref_point
        scales.append(
            Scale(lambda value: -value.log(), _negative_exp_negative, -math.log(ref), -ref)
            if objective.log
            else Scale(torch.neg, Tensor.clone, -ref, -ref)
        )
    return scales


_P = ParamSpec("_P")
_T = TypeVar("_T")


def on_the_cpu(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: make the CPU torch's default device, for BoTorch and GPyTorch, too."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return called


def _negative_exp_negative(value: Tensor) -> Tensor:
    return -torch.exp(-value)


@dataclass(frozen=True)
class Candidates:
    """Configs under consideration.

    Args:
        configs: ``n`` configs that can be tried.
        codes: Their codes, ``n x d``.
        known: ``n x k`` exact objectives; NaN throughout where a function fails.
    """

    configs: list[Config]
    codes: Tensor
    known: Tensor

    def __len__(self) -> int:
        return len(self.configs)

    def __getitem__(self, index: Tensor) -> Candidates:
        places = torch.arange(len(self))[index].tolist()
        return Candidates([self.configs[i] for i in places], self.codes[index], self.known[index])

    def __add__(self, other: Candidates) -> Candidates:
        return Candidates(
            self.configs + other.configs,
            torch.cat([self.codes, other.codes]),
            torch.cat([self.known, other.known]),
        )

    @property
    def possible(self) -> Tensor:
        """Whether all exact objectives of a config are defined, ``n``."""
        return self.known.isfinite().all(dim=-1)


class KnownObjectives:
    """Exact objectives of configs, with a cache.

    A function may fail on a config, which is then not proposed; :attr:`failures` has it and one
    warning tells of it, by the type of the error only: its message may quote a record.

    Args:
        problem: The problem.
        with_epsilon: Whether epsilon is among them; otherwise it is modelled like the error.
    """

    def __init__(self, problem: PrivacyUtilityProblem, *, with_epsilon: bool) -> None:
        self._problem = problem
        self._exact = {i: o for i, o in enumerate(problem.objectives, 2) if o.function is not None}
        #: What answers for many configs at once, by the name of the oracle.
        self._oracles: dict[str, Callable[[list[Config]], list[float]]] = {}
        if with_epsilon:
            self._oracles["privacy"] = problem.epsilon_bounds
        for objective in self._exact.values():
            self._oracles[objective.name] = partial(_each, objective.known)
        #: Which column of :attr:`Candidates.known` holds which objective.
        self.columns = {i: k for k, i in enumerate([0] * with_epsilon + list(self._exact))}
        #: What failed: oracles with the types of their errors.
        self.failures: set[str] = set()
        self._rows: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._tried: dict[tuple[object, ...], float] = {}

    def candidates(self, configs: Sequence[Config]) -> Candidates:
        """Configs with their codes and their exact objectives."""
        return Candidates(list(configs), self._problem.space.encode(configs), self(configs))

    def check_stored(self, trials: Sequence[Trial]) -> None:
        """Refuse another privacy function than that of the trials.

        Raises:
            StudyError: The front and its cost would mix two epsilons.
        """
        stored = [trial for trial in trials if not math.isnan(trial.epsilon)]
        for trial in stored[:: math.ceil(len(stored) / _MOST_CHECKED) or 1]:
            now = self._problem.epsilon(trial.config)
            if not math.isclose(now, trial.epsilon, rel_tol=_SAME_EPSILON):
                raise StudyError(
                    "`privacy` is not the function that this study began with: the epsilon of "
                    f"trial {trial.number} was {trial.epsilon:.9g} and is now {now:.9g}. "
                    "Continue with the old function, or start a new study."
                )

    def epsilon(self, config: Config) -> float:
        """The exact epsilon of a config that is tried, or what an exact function raises.

        It is asked for once: Optuna's sampler asks again about all trials for each proposal.
        """
        key = tuple(config.values())
        if key not in self._tried:
            for objective in self._exact.values():
                objective.known(config)
            self._tried[key] = self._problem.epsilon(config)
        return self._tried[key]

    def __call__(self, configs: Sequence[Config]) -> Tensor:
        """Exact objectives of configs, ``n x k``."""
        keys = [tuple(config.values()) for config in configs]
        unknown = {k: c for k, c in zip(keys, configs, strict=True) if k not in self._rows}
        if unknown:
            told = bool(self.failures)
            asked = list(unknown.values())
            columns = [self._answers(name, asked) for name in self._oracles]
            for i, key in enumerate(unknown):
                row = tuple(column[i] for column in columns)
                self._rows[key] = row if all(map(math.isfinite, row)) else (math.nan,) * len(row)
            if self.failures and not told:
                warnings.warn(
                    "`privacy` or another exact objective raised an error for some candidates, "
                    f"which are not proposed: {', '.join(sorted(self.failures))}. Call them by "
                    "hand to see what is wrong.",
                    stacklevel=3,
                )
        # Last in, last out: a config that is asked about again moves to the end.
        rows = [self._rows.setdefault(key, self._rows.pop(key)) for key in keys]
        while len(self._rows) > max(_REMEMBERED, len(keys)):
            del self._rows[next(iter(self._rows))]
        return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(self.columns))

    def _answers(self, name: str, configs: list[Config]) -> list[float]:
        try:
            return self._oracles[name](configs)
        except Exception as error:
            # The caller's code may raise anything, and to consider a config is not to try it: this
            # must not end the study, and one config must not spoil the others.
            if len(configs) > 1:
                return [self._answers(name, [config])[0] for config in configs]
            self.failures.add(f"{name}: {type(error).__name__}")
            return [math.nan]


def _each(function: Callable[[Config], float], configs: list[Config]) -> list[float]:
    return [function(config) for config in configs]


class ExactObjective(DeterministicModel):
    """A known objective as a BoTorch model, for acquisition functions that want one."""

    def __init__(self, values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._values = values
        self._num_outputs = 1

    def forward(self, X: Tensor) -> Tensor:
        """``batch x q x d`` codes to ``batch x q x 1`` values."""
        return self._values(X.reshape(-1, X.shape[-1])).reshape(*X.shape[:-1], 1)

    def fantasize(self, X: Tensor, sampler: object = None, **_: object) -> ExactObjective:
        """What is known exactly cannot be learned."""
        return self


class Surrogates:
    """Surrogate models of all objectives, fitted to the complete trials of a study.

    Pending and failed trials are *believed* (a kriging believer): the posterior is conditioned on
    its own mean there, which takes away the uncertainty they will settle (or that cannot be
    settled), moves no mean, and has no part in fitting hyper-parameters.

    Hyper-parameters are those of the first trials, up to the last one at which they were due
    (:func:`refit_every`); the posterior is that of all.

    Of many trials models see some only: half of these are spread over all, a quarter are the
    latest, and the others lie nearest to the front predicted from the first half. No trial is
    seen because of what it measured itself, so there is no selection bias; and what was proposed
    lately is seen, so it is not proposed again.

    Args:
        problem: The problem.
        complete: The complete trials; at least one.
        believed: Configs of pending and failed trials.
        known: The exact objectives; the others are modelled.
        scales: Of all objectives.
        seed: For restarts of the fit.
        fitted: What :attr:`fitted` was before. It saves time and changes nothing.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        complete: Sequence[Trial],
        believed: Sequence[Config],
        *,
        known: KnownObjectives,
        scales: Sequence[Scale],
        seed: int = 0,
        fitted: Mapping[Hashable, SingleTaskGP] | None = None,
    ) -> None:
        self._known = known
        self._space = problem.space
        self._scales = list(scales)
        latest = list(believed)[-_MOST_SEEN:]
        #: The configs of all complete trials, and after them those of pending and failed ones.
        self.incumbents = known.candidates([*(trial.config for trial in complete), *latest])
        count = len(complete)
        codes, believed_X = self.incumbents.codes.tensor_split([count])  # n x d, b x d
        values = torch.tensor(problem.values(complete), dtype=torch.double)
        products = product_weights(problem.space)
        #: Models by what they were fitted to.
        self.fitted: dict[Hashable, SingleTaskGP] = {}
        #: The models by objective.
        self._gps: dict[int, Model] = {}

        def fit(first: Sequence[int], trials: Sequence[int]) -> None:
            """Fit hyper-parameters to the first trials, and condition on these trials."""
            few, many = list(first), list(trials)
            for index, scale in enumerate(self._scales):
                if index in known.columns:
                    continue
                Y = scale.to_model(values[:, index : index + 1])
                key = (index, codes[few].numpy().tobytes(), Y[few].numpy().tobytes())
                gp = (fitted or {}).get(key)
                if gp is None:
                    gp = fitted_gp(codes[few], Y[few], seed=seed, products=products)
                self.fitted[key] = gp
                if many != few:
                    gp = deepcopy(gp)
                    condition(gp, codes[many], Y[many])
                self._gps[index] = gp

        settled = count - count % refit_every(count)
        first, newest = list(range(settled)), list(range(settled, count))
        shown = first + newest
        if count > _MOST_SEEN:
            spread = farthest_points(codes[:settled], _MOST_SEEN // 2)
            fit(spread, spread)
            expected = self._means(self.incumbents)[:settled].nan_to_num(-math.inf)
            front = front_indices(-expected)
            distances = _distances(codes[:settled], codes[front]).amin(dim=-1)
            distances[spread] = -1.0
            distances[-(_MOST_SEEN // 4) :] = -1.0
            order = distances.argsort(stable=True)[:_MOST_SEEN]
            first = order.sort().values.tolist()
            shown = order[: _MOST_SEEN - len(newest)].sort().values.tolist() + newest
        fit(first, shown)
        if latest:
            with torch.no_grad():
                self._gps = {index: believe(gp, believed_X) for index, gp in self._gps.items()}
        #: ``n x m`` posterior means there, in the scale of the models.
        self.incumbent_means = self._means(self.incumbents)

    @property
    def model(self) -> Model:
        """All objectives as one BoTorch model (maximized)."""
        return ModelList(*(self._gps.get(i) or self._exact(i) for i in range(len(self._scales))))

    def predict(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, ``n x m``; NaN where an exact objective is undefined."""
        parts = [
            predicted(self._gps[index], candidates.codes)
            if index in self._gps
            else (mean := self._exact_values(index, candidates.known), torch.zeros_like(mean))
            for index in range(len(self._scales))
        ]
        means, stds = (torch.stack(part, dim=-1) for part in zip(*parts, strict=True))
        return means, stds

    def _means(self, candidates: Candidates) -> Tensor:
        """Posterior means without variances, which take far less time."""
        means = []
        with torch.no_grad(), skip_posterior_variances():
            for index in range(len(self._scales)):
                gp: Any = self._gps.get(index)
                if gp is None:
                    means.append(self._exact_values(index, candidates.known))
                else:
                    chunks = candidates.codes.split(_CHUNK)
                    means.append(torch.cat([gp.posterior(X).mean.squeeze(-1) for X in chunks]))
        return torch.stack(means, dim=-1)

    def _exact_values(self, index: int, known: Tensor) -> Tensor:
        return self._scales[index].to_model(known[:, self._known.columns[index]])

    def _exact(self, index: int) -> ExactObjective:
        return ExactObjective(
            lambda X: self._exact_values(index, self._known(self._space.decode(X)))
        )


def fitted_gp(
    train_X: Tensor, train_Y: Tensor, *, seed: int, products: Tensor | None = None
) -> SingleTaskGP:
    """A Matérn-5/2 GP with a length-scale for each parameter and inferred noise, ``n x 1`` data.

    The noise is inferred from all trials at once rather than from the replicates of each: the
    variance of three numbers is often tiny by chance, and the trial would get too large a weight.

    Args:
        train_X: ``n x d`` codes.
        train_Y: ``n x 1``.
        seed: For restarts of the fit.
        products: ``d x f`` weights of the products of parameters that it sees as well.
    """
    model = SingleTaskGP(
        train_X,
        train_Y,
        covar_module=smooth_kernel(train_X.shape[-1], products),
        outcome_transform=Standardize(m=1),
    )
    # Only a failed first attempt draws random restarts.
    with manual_seed(seed):
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model),
            optimizer_kwargs={"options": {"ftol": _FIT_TOLERANCE}},
        )
    return model


class _WithProducts(Kernel):
    """A kernel that sees products of parameters beside the codes, ``d x f`` weights of these."""

    def __init__(self, base: Kernel, weights: Tensor) -> None:
        super().__init__()
        self.base_kernel = base
        self.register_buffer("weights", weights)

    def _seen(self, X: Tensor) -> Tensor:
        return torch.cat([X, X @ self.weights], dim=-1)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        return self.base_kernel.forward(self._seen(x1), self._seen(x2), diag=diag, **params)


def smooth_kernel(dim: int, products: Tensor | None = None) -> Kernel:
    """A Matérn-5/2 kernel with a length-scale for each code, and for each product of them.

    Args:
        dim: How many codes there are.
        products: ``d x f`` weights of the products that are seen as well, if any.
    """
    seen = dim if products is None else dim + products.shape[-1]
    matern = get_covar_module_with_dim_scaled_prior(ard_num_dims=seen, use_rbf_kernel=False)
    return matern if products is None else _WithProducts(matern, products)


def refit_every(count: int) -> int:
    """How many trials lie between two fits of hyper-parameters, once there are ``count``."""
    doublings = math.floor(math.log2(max(1.0, _REFIT_SHARE * count)))
    return min(2**doublings, _LONGEST_WAIT)


def condition(model: Any, train_X: Tensor, train_Y: Tensor) -> None:
    """Condition a GP on other data than its hyper-parameters were fitted to, ``n x 1`` values."""
    transform = model.outcome_transform
    values = (train_Y - transform.means) / transform.stdvs
    model.set_train_data(train_X, values.squeeze(-1), strict=False)
    model.eval()


def product_weights(space: SearchSpace) -> Tensor | None:
    """Weights of the codes in the logarithms of the space's products, ``d x f`` in units of 1."""
    weights = torch.zeros(space.dim, len(space.products), dtype=torch.double)
    for column, product in enumerate(space.products):
        for name, power in product.items():
            parameter: Any = space.parameters[name]
            rise = power * math.log(parameter.high / parameter.low)
            weights[space.columns[name].start, column] = rise
    return weights / weights.abs().sum(dim=0) if space.products else None


def farthest_points(codes: Tensor, count: int) -> list[int]:
    """Farthest-point sampling: indices of ``count`` of the ``n x d`` codes."""
    chosen = [0]
    distances = _distances(codes, codes[:1]).squeeze(-1)
    for _ in range(count - 1):
        distances[chosen[-1]] = -1.0  # not again, also where all that are left are copies
        chosen.append(int(distances.argmax()))
        distances = distances.minimum(_distances(codes, codes[chosen[-1:]]).squeeze(-1))
    return chosen


def _distances(codes: Tensor, others: Tensor) -> Tensor:
    return torch.cdist(codes, others, compute_mode="donot_use_mm_for_euclid_dist")


def front_indices(points: Tensor) -> list[int]:
    """Indices of the non-dominated points by increasing first objective; all are minimized."""
    if points.shape[-1] == 2:
        # By the first objective, ties by the second: on the front is who lowers the second.
        first, second = points.numpy().T
        order = np.lexsort((second, first))
        best_before = np.minimum.accumulate(np.append(np.inf, second[order]))[:-1]
        return [int(index) for index in order[second[order] < best_before]]
    indices = is_non_dominated(-points, deduplicate=True).nonzero().flatten().tolist()
    return sorted(indices, key=lambda index: points[index].tolist())


def predicted(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and standard deviation of the function at ``n x d`` points, each ``n``."""
    means, variances = [], []
    with torch.no_grad():
        for chunk in X.split(_CHUNK):
            posterior: Any = model.posterior(chunk)
            means.append(posterior.mean.squeeze(-1))
            variances.append(posterior.variance.squeeze(-1))
    return torch.cat(means), torch.cat(variances).clamp_min(0).sqrt()


def require_complete(trials: Sequence[Trial], what: str) -> list[Trial]:
    """The complete trials, or an error that says why there is nothing to do ``what`` with."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if complete:
        return complete
    kinds = sorted({trial.failure_type for trial in trials if trial.failure})
    detail = ""
    if kinds:
        detail = (
            f" The {len(trials)} trials so far failed with {kinds}; "
            "`study.trials[0].failure` says more."
        )
    raise StudyError(f"No trial has finished, so there is no {what}.{detail}")
