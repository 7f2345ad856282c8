"""Speed of the gradient acquisition and of one DP-GIBO step.

    OMP_NUM_THREADS=1 python -m benchmarks.dp_gibo_speed [--repeats 9]

1. ``GradientTrace``, value and derivative, against a lean dense recomputation: the kernel matrix of
   all points from its formula, one factorization, automatic differentiation; no model at all. One
   set at a time or all in a batch, whichever is faster.
2. One whole DP-GIBO step (design, factor, gradients, clipping, noise; the objective aside) at
   N/d/n = 850/33/5000, 340/33/5000 and 110/10/1000, against a lean step, which is the same one
   written in torch for one kernel and one design, with the exact sum of clipped gradients and
   OpenDP's noise, but without checks, copies and records, and without the claim that makes a step
   safe to repeat; plus one claim and release in the memory of a run.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from benchmarks.common import BenchmarkParser, Ratio, interleaved_ratio, save_results, seconds
from botorch_dp.acquisition import GradientTrace
from botorch_dp.descent import DPGIBO, Design
from botorch_dp.descent.settings import DescentSettings
from botorch_dp.descent.step import ClippedMean
from botorch_dp.models import public_gp
from botorch_dp.models.gradient import regular_simplex
from botorch_dp.privacy import gaussian_mechanism
from botorch_dp.privacy.runs import Run

NOISE = 1e-4


def ard_rbf(d: int, lengthscale: float = 0.5) -> Kernel:
    kernel = RBFKernel(ard_num_dims=d).double()
    kernel.lengthscale = lengthscale
    return kernel


def value_and_slope(function: Callable[[Tensor], Tensor], sets: Tensor) -> Callable[[], Tensor]:
    def evaluate() -> Tensor:
        Z = sets.clone().requires_grad_()
        values = function(Z)
        (slopes,) = torch.autograd.grad(values.sum(), Z)
        return torch.cat((values.detach().reshape(-1), slopes.reshape(-1)))

    return evaluate


def trace_functions(num_points: int, d: int, candidates: int) -> dict[str, Callable[[], Tensor]]:
    """Value and derivative for some candidate sets of ``d + 1`` points: ours and the baselines."""
    torch.manual_seed(0)
    X = torch.rand(num_points, d, dtype=torch.double)
    model = public_gp(X, X[:, :1], kernel=ard_rbf(d), noise_std=math.sqrt(NOISE))
    location = torch.full((d,), 0.5, dtype=torch.double)
    lengthscale = model.covar_module.lengthscale.detach()
    sets = torch.rand(candidates, d + 1, d, dtype=torch.double)
    prior = lengthscale.pow(-2).sum()
    noise = NOISE * torch.eye(num_points + d + 1, dtype=torch.double)

    def dense(Z: Tensor) -> Tensor:
        D = torch.cat((X.expand(*Z.shape[:-2], *X.shape), Z), dim=-2) / lengthscale
        squares = D.square().sum(-1, keepdim=True)
        K = torch.exp(D @ D.mT - 0.5 * squares - 0.5 * squares.mT) + noise
        offsets = D - location / lengthscale
        C = offsets / lengthscale * torch.exp(-0.5 * offsets.square().sum(-1, keepdim=True))
        whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(K), C, upper=False)
        return whitened.square().sum((-2, -1)) - prior

    each = [value_and_slope(dense, Z) for Z in sets]

    def one_by_one() -> Tensor:
        parts = torch.stack([function() for function in each])
        return torch.cat((parts[:, 0], parts[:, 1:].reshape(-1)))

    acqf = GradientTrace(model, location)

    functions = {
        "ours": value_and_slope(acqf, sets),
        "one by one": one_by_one,
        "in a batch": value_and_slope(dense, sets),
    }
    for name in ("one by one", "in a batch"):
        torch.testing.assert_close(functions["ours"](), functions[name](), rtol=1e-6, atol=1e-7)
    return functions


def in_a_row(function: Callable[[], Any]) -> Callable[[], None]:
    """Ten calls in a row, as an optimizer makes them."""

    def calls() -> None:
        for _ in range(10):
            function()

    return calls


def trace_ratios(repeats: int) -> dict[str, Ratio]:
    ratios = {}
    for num_points, candidates in itertools.product((20, 100, 300), (1, 16)):
        functions = trace_functions(num_points, 10, candidates)
        name = f"gradient trace, N = {num_points}, d = 10, {candidates} candidate sets"
        ours = in_a_row(functions.pop("ours"))
        timed = [
            interleaved_ratio(ours, in_a_row(other), repeats=repeats, clock=time.process_time)
            for other in functions.values()
        ]
        ratios[name] = min(timed, key=lambda ratio: ratio.median)
        print(f"{name}: {ratios[name]}", flush=True)
    return ratios


RADIUS = 0.1


def prepared_run(num_points: int, d: int, n: int, *, mu: float = 1.0) -> tuple[DPGIBO, Tensor]:
    """A run that has seen ``num_points - d - 1`` points, and the losses it will see next."""
    torch.manual_seed(0)
    batch = d + 1
    losses = torch.randn(batch, n, dtype=torch.double)
    run = DPGIBO(
        lambda X: losses[: len(X)],
        torch.full((d,), 0.5, dtype=torch.double),
        kernel=ard_rbf(d, 0.3),
        mu=mu,
        steps=1000,
        clip_norm=1.0,
        step_size=0.1,
        design=Design(max_points=10_000, radius=RADIUS, batch_size=batch),
    )
    observations = run._progress.observations
    while len(observations.factor) < num_points - batch:
        wanted = min(batch, num_points - batch - len(observations.factor))
        X = torch.rand(wanted, d, dtype=torch.double)
        factor, _ = observations.factor.extended(X, run._noise)
        block = torch.randn(wanted, n, dtype=torch.double)
        observations = observations.with_batch(factor, block, len(observations.steps))
    run._progress = replace(run._progress, observations=observations, num_records=n)
    return run, losses


def our_step(run: DPGIBO) -> Callable[[], Tensor]:
    """A step of a prepared run, from the same state each time."""
    observations, start = run._progress.observations, run._progress.location

    def step() -> Tensor:
        trajectory = (*run._progress.trajectory[:-1], start)
        run._progress = replace(run._progress, observations=observations, trajectory=trajectory)
        return run.step().value

    return step


def lean_step(run: DPGIBO, losses: Tensor) -> Callable[[], Tensor]:
    """The same step as a competent user would write it: one kernel, one design, no other case.

    With the products, the exact sum and the noise that are needed, and without what makes a step
    safe to repeat: no claim, no checks, no copies, no record of what was done. Points are in
    length-scales.
    """
    settings, seen = run._settings, run._progress.observations
    observations, noise = seen.factor, run._noise
    n, (count, d) = losses.shape[1], (losses.shape[0], settings.initial.shape[0])
    scale = float(observations.derivatives.length_scales[0])
    old, total = len(observations), len(observations) + count
    points = torch.cat((observations.points, torch.zeros(count, d))) / scale
    table = torch.cat((*seen.losses, losses))
    whitened = torch.empty(total, d + 1, dtype=torch.double)
    location, known = settings.initial / scale, observations.root
    simplex = regular_simplex(d + 1, like=points)
    ones, prior = torch.ones(total, 1, dtype=torch.double), torch.eye(d, dtype=torch.double)

    def columns(X: Tensor) -> Tensor:
        offsets = X - location
        values = offsets.square().sum(1, keepdim=True).mul_(-0.5).exp_()
        return torch.cat((offsets.mul_(values), ones[: len(X)]), 1)

    def corrected(gram: Tensor) -> tuple[Tensor, Tensor]:
        effect = gram[-1, :-1]
        return effect, effect / gram[-1, -1]

    @torch.no_grad()
    def step() -> Tensor:
        first = torch.linalg.solve_triangular(known, columns(points[:old]), upper=False)
        gram = first.mT @ first
        effect, share = corrected(gram)
        covariance = (prior - gram[:-1, :-1]).addr_(share, effect)
        basis, _ = torch.linalg.qr(torch.linalg.eigh(covariance)[1].flip(-1))
        X = torch.add(location, simplex @ basis.mT, alpha=RADIUS, out=points[old:])
        covariances = torch.cdist(points, X, compute_mode="donot_use_mm_for_euclid_dist").square_()
        covariances.mul_(-0.5).exp_()
        crossed = torch.linalg.solve_triangular(known, covariances[:old], upper=False)
        within = torch.addmm(covariances[old:], crossed.mT, crossed, alpha=-1)
        within.diagonal().add_(noise)
        corner = torch.linalg.cholesky(within)
        root = torch.zeros(total, total, dtype=torch.double)
        root[:old, :old], root[old:, :old], root[old:, old:] = known, crossed.mT, corner
        last = torch.addmm(columns(X), crossed.mT, first, alpha=-1)
        last = torch.linalg.solve_triangular(corner, last, upper=False)
        torch.cat((first, last), out=whitened)
        table[old:] = losses
        effect, share = corrected(gram.addmm_(last.mT, last))
        weights = torch.addr(whitened[:, :-1], whitened[:, -1], share, alpha=-1)
        weights = torch.linalg.solve_triangular(root.mT, weights.div_(scale), upper=True)
        mean = ClippedMean(d, n, settings.clip_norm)
        mean.add(weights.mT @ table)
        gradient = mean.value()
        if settings.mu < math.inf:
            sensitivity = 2 * settings.clip_norm / n
            gradient = gaussian_mechanism(
                gradient, sensitivity=sensitivity, mu=settings.step_mu
            ).value
        return settings.initial - 0.1 * gradient

    return step


def step_ratios(num_points: int, d: int, n: int, repeats: int) -> dict[str, Any]:
    """A step over a lean one and a release: the median over turns, with their range."""
    plain, losses = prepared_run(num_points, d, n, mu=math.inf)
    ours, lean = our_step(plain), lean_step(plain, losses)
    torch.testing.assert_close(ours(), lean(), rtol=1e-6, atol=1e-9)
    run, losses = prepared_run(num_points, d, n)
    values, price = np.zeros(d), DescentSettings(torch.zeros(d), 1.0, 1000, 1.0).step_price
    in_memory = Run(None, what="a benchmark", settings={})
    keys = map(str, itertools.count())
    parts: dict[str, Callable[[], Any]] = {
        "step": our_step(run),
        "lean step": lean_step(run, losses),
        "release in memory": lambda: in_memory.release(
            price, lambda _: values, key=next(keys), read=lambda: None
        ),
    }
    for part in 3 * list(parts.values()):
        part()
    taken = [
        {name: 1e3 * seconds(part, time.process_time) for name, part in parts.items()}
        for _ in range(repeats)
    ]
    ratios = sorted(t["step"] / (t["lean step"] + t["release in memory"]) for t in taken)
    return {
        **{f"{name}, ms": statistics.median(turn[name] for turn in taken) for name in parts},
        "step over lean step and release": statistics.median(ratios),
        "step over lean step and release, range": [ratios[0], ratios[-1]],
    }


def main() -> None:
    parser = BenchmarkParser("dp_gibo_speed", __doc__, minutes=4)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    ratios = trace_ratios(repeats)
    steps = {}
    for sizes in ((850, 33, 5000), (340, 33, 5000), (110, 10, 1000)):
        name = "one step, N = {}, d = {}, n = {}, simplex".format(*sizes)
        steps[name] = step_ratios(*sizes, 3 * repeats)
        print(name, {key: np.round(value, 2).tolist() for key, value in steps[name].items()})
    save_results("dp_gibo_speed", {"ratios": ratios, "steps": steps})


if __name__ == "__main__":
    main()
