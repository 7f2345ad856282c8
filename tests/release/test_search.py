from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.acquisition import UCBSchedule
from botorch_dp.models import FiniteSetGP
from botorch_dp.release import GPUCB, BranchAndBound
from botorch_dp.release.private_ucb import run_search

LINE = torch.linspace(0, 1, 513, dtype=torch.double).unsqueeze(-1)
SQUARE = torch.cartesian_prod(*[torch.linspace(0, 1, 25, dtype=torch.double)] * 2)


def draws(choices, kernel, count):
    """Functions from the prior, each an n-vector."""
    values, vectors = torch.linalg.eigh(kernel.double()(choices).to_dense().detach())
    root = vectors * values.clamp_min(0).sqrt()
    return [root @ torch.randn(len(choices), dtype=torch.double) for _ in range(count)]


def branch_and_bound(choices, kernel, delta=0.05) -> BranchAndBound:
    gp = FiniteSetGP(choices, kernel=kernel, noise_std=0.0)
    return BranchAndBound(gp, schedule=UCBSchedule(len(choices), delta=delta))


def certify(search: BranchAndBound, f) -> list[int]:
    visited = []
    while not search.certified:
        index = search.ask()
        search.tell(index, f[index].item())
        visited.append(index)
    return visited


def short(kernel, lengthscale=0.2):
    kernel.lengthscale = lengthscale
    return kernel


SCATTERED = torch.rand(600, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)


@pytest.mark.parametrize(
    ("choices", "kernel", "share"),
    [
        (LINE, RBFKernel(), 0.05),
        (LINE, MaternKernel(nu=2.5), 0.08),
        (SQUARE, RBFKernel(), 0.12),
        (SQUARE, MaternKernel(nu=2.5), 0.25),
        (5 * SCATTERED - 2, short(MaternKernel(nu=2.5), 2.0), 0.35),  # no grid, no unit cube
    ],
)
def test_finds_the_exact_maximizer_after_few_samples(choices, kernel, share):
    if choices is not SCATTERED and len(choices) != 600:
        short(kernel)
    for f in draws(choices, kernel, 10):
        search = branch_and_bound(choices, kernel)
        visited = certify(search, f)
        assert search.best == int(f.argmax())
        assert len(set(visited)) == len(visited)
        assert len(visited) <= share * len(choices)


@pytest.mark.slow
def test_regret_falls_geometrically():
    """The median over draws of log10 of the best regret falls by a steady amount per sample."""
    kernel = short(MaternKernel(nu=2.5))
    line = torch.linspace(0, 1, 4097, dtype=torch.double).unsqueeze(-1)
    values, vectors = torch.linalg.eigh(kernel.double()(line[::8]).to_dense().detach())
    floor, curves = 1e-9, []
    root = vectors * values.clamp_min(0).sqrt()
    for _ in range(15):
        weights = torch.linalg.solve(
            kernel(line[::8]).to_dense().detach() + 1e-8 * torch.eye(513, dtype=torch.double),
            root @ torch.randn(513, dtype=torch.double),
        )
        f = (kernel(line, line[::8]).to_dense() @ weights).detach()
        search = branch_and_bound(line, kernel)
        seen = f[certify(search, f)].cummax(0).values
        regret = torch.full((40,), floor, dtype=torch.double)
        regret[: len(seen)] = (f.max() - seen[:40]).clamp_min(floor)
        curves.append(regret.log10())
    median = torch.stack(curves).median(0).values
    halves = median[0] - median[10], median[10] - median[20]
    assert min(halves) > 1  # a factor of ten for each ten samples
    assert median[25] < -6


def test_relevant_set_never_loses_the_maximizer():
    kernel = short(RBFKernel())
    for f in draws(SQUARE, kernel, 5):
        search = branch_and_bound(SQUARE, kernel)
        sizes = []
        while not search.certified:
            index = search.ask()
            search.tell(index, f[index].item())
            assert search.relevant[f.argmax()]
            sizes.append(int(search.relevant.sum()))
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("values", [[0.0], [0.3, 0.3, 0.3], [0.2, 0.5]])
def test_degenerate_sets_terminate(values):
    choices = torch.tensor(values, dtype=torch.double).unsqueeze(-1)
    f = choices.squeeze(-1)
    search = branch_and_bound(choices, RBFKernel())
    certify(search, f)
    assert f[search.best] == f.max()


def test_a_wrong_kernel_neither_loops_nor_crashes():
    f = 40 * torch.rand(513, dtype=torch.double)  # white noise under a smooth prior
    search = branch_and_bound(LINE, RBFKernel())
    visited = certify(search, f)
    assert len(visited) <= 513
    assert search.best in visited


def test_gp_ucb_follows_its_formula():
    gp = FiniteSetGP(SQUARE, kernel=short(RBFKernel()), noise_std=0.1)
    schedule = UCBSchedule(len(SQUARE), delta=0.1)
    search = GPUCB(gp, schedule=schedule)
    for t in range(1, 6):
        bounds = gp.mean + math.sqrt(schedule(t)) * gp.variance.sqrt()
        index = search.ask()
        assert index == int(bounds.argmax())
        search.tell(index, float(t))


@pytest.mark.parametrize("answer", [torch.tensor([1234.5, 6.0]), None, "1234.5"])
def test_objectives_that_answer_otherwise_are_refused_without_quoting_them(answer):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        run_search(branch_and_bound(LINE, RBFKernel()), lambda x: answer, steps=1)
    assert "1234" not in str(caught.value)


def test_poisoned_values_count_as_the_bound_they_cross():
    answers = iter([math.nan, 1e300, -math.inf, 0.5])
    gp = FiniteSetGP(LINE, kernel=RBFKernel(), noise_std=0.1)
    search = GPUCB(gp, schedule=UCBSchedule(513, delta=0.1))
    seen = run_search(search, lambda x: next(answers), steps=4)
    assert seen.values.tolist() == [-50.0, 50.0, -50.0, 0.5]
    assert seen.implausible == 3
    assert "50" not in repr(seen)
    assert "sensitive" in repr(seen)


def test_objective_cannot_change_the_choices():
    def vandal(x):
        x.fill_(99.0)
        return 0.0

    search = branch_and_bound(LINE.clone(), RBFKernel())
    run_search(search, vandal, steps=2)
    assert torch.equal(search.gp.choices, LINE)
