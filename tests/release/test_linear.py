"""The linear choice: weights, sensitivity under arbitrary replacement, and what it promises."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cached_property

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from scipy.stats import chisquare
from torch import Tensor

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.models.finite import FiniteSetGP
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    audit_epsilon,
)
from botorch_dp.release import (
    LinearChoice,
    MaxVarianceDesign,
    SobolDesign,
    StatedDesign,
    UtilityWarning,
)
from tests.release.maxima import ReadLog

quiet = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")

CHOICES = torch.linspace(0, 1, 41, dtype=torch.double).unsqueeze(-1)
BOX = torch.tensor([[0.0], [1.0]], dtype=torch.double)
EXTREMES = [0.0, 1.0, -3.0, 7.0, 1e300, -1e300, math.inf, -math.inf, math.nan]


def kernel(length: float = 0.2) -> RBFKernel:
    result = RBFKernel().double()
    result.lengthscale = length
    return result


def mechanism(**changes: object) -> LinearChoice:
    arguments: dict[str, object] = {
        "choices": CHOICES,
        "design": SobolDesign(BOX, num_points=8),
        "kernel": kernel(),
        "noise_variance": 0.01,
        "bounds": (-3.0, 7.0),
        "num_records": 20,
        "epsilon": 1.0,
        **changes,
    }
    return LinearChoice(**arguments)  # type: ignore[arg-type]


def random_scores(seed: int, shape: tuple[int, int] = (8, 20)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -3 + 10 * torch.rand(shape, generator=generator, dtype=torch.double)


# What is computed


@pytest.mark.parametrize("prior_mean", [None, 3.0, -1.0])
@pytest.mark.parametrize("negate", [False, True])
def test_utilities_are_the_posterior_mean(prior_mean: float | None, negate: bool) -> None:
    """Against the incremental posterior over the choices."""
    design = MaxVarianceDesign(CHOICES, num_points=8, kernel=kernel(), noise_variance=0.01)
    release = mechanism(design=design, prior_mean=prior_mean, negate=negate)
    scores = random_scores(0)
    center = 2.0 if prior_mean is None else prior_mean
    gp = FiniteSetGP(CHOICES, kernel=kernel(), noise_variance=0.01)
    for index, value in zip(design.indices, scores.mean(-1), strict=True):
        gp.observe(index, value.item() - center)
    unit = (gp.mean + center + 3) / 10
    torch.testing.assert_close(
        release.posterior_mean(scores), -unit if negate else unit, rtol=1e-9, atol=1e-9
    )


def test_sensitivity_is_the_formula() -> None:
    release = mechanism()
    D = SobolDesign(BOX, num_points=8).points
    length = kernel().lengthscale.item()
    K = torch.exp(-((D - D.T) ** 2) / (2 * length**2)) + 0.01 * torch.eye(8).double()
    weights = torch.exp(-((CHOICES - D.T) ** 2) / (2 * length**2)) @ K.inverse()
    expected = 10 / 20 * weights.abs().sum(-1).max().item()
    assert release.sensitivity == pytest.approx(expected, rel=1e-9)
    assert release.sensitivity >= 10 / 20 * release.weights.abs().sum(-1).max().item()
    assert release.scale == pytest.approx(2 * expected / 1.0, rel=1e-9)


@quiet
def test_draws_follow_the_softmax() -> None:
    """Chi-square at a false-alarm rate of 1e-6; draws are seeded one by one."""
    choices = torch.tensor([[0.0], [0.3], [0.6], [1.0]], dtype=torch.double)
    release = mechanism(choices=choices, epsilon=4.0)
    scores = random_scores(1)
    logits = 10 * release.posterior_mean(scores) / release.scale
    expected = torch.softmax(logits, dim=0)
    assert expected.max() / expected.min() > 1.05
    drawn = [release.release(scores, unsafe_seed=seed).value.item() for seed in range(3000)]
    counts = [drawn.count(choice.item()) for choice in choices]
    assert chisquare(counts, (3000 * expected).numpy()).pvalue > 1e-6
    assert chisquare(counts, (3000 * torch.softmax(8 * logits, 0)).numpy()).pvalue < 1e-6


@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
def test_large_epsilon_finds_the_best(method: str) -> None:
    records = 0.35 + 0.1 * torch.linspace(-1, 1, 500, dtype=torch.double)
    found = mechanism(
        design=SobolDesign(BOX, num_points=16),
        noise_variance=1e-3,
        bounds=(0.0, 1.0),
        epsilon=1e4,
        method=method,
        negate=True,
        num_records=500,
    ).release(lambda X: (X - records).abs())
    assert found.value.item() == pytest.approx(0.35, abs=0.051)
    assert found.guarantee.epsilon() == 1e4


def test_weights_depend_on_the_kernel_only_for_utility() -> None:
    """Any kernel, also one with another prior variance, has its sensitivity computed."""
    for other in (MaternKernel(nu=1.5).double(), kernel(5.0), kernel(1e-3)):
        release = mechanism(kernel=other)
        moved = _largest_move(release)
        assert 0.9 * release.sensitivity < moved <= release.sensitivity


# What one record can do


def _largest_move(release: LinearChoice) -> float:
    """The largest move of a posterior mean over worst-case and extreme replacements."""
    scores = random_scores(2)
    low, high = release.bounds
    width = high - low
    moved = 0.0
    worst = release.weights[release.weights.abs().sum(-1).argmax()]
    up = torch.where(worst > 0, high, low)
    down = torch.where(worst > 0, low, high)
    candidates = [up, down, *(torch.full((8,), value, dtype=torch.double) for value in EXTREMES)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        picks = torch.randint(len(EXTREMES), (8,), generator=generator)
        candidates.append(torch.tensor(EXTREMES, dtype=torch.double)[picks])
    means = []
    for candidate in candidates:
        replaced = scores.clone()
        replaced[:, 7] = candidate
        means.append(release.posterior_mean(replaced))
    for first in means:
        for second in means:
            moved = max(moved, (first - second).abs().max().item() * width)
    return moved


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("noise_variance", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("bounds", [(-3.0, 7.0), (0.25, 0.5), (-1e12, 1e12)])
def test_replacing_a_record_moves_means_by_at_most_the_sensitivity(
    negate: bool, noise_variance: float, bounds: tuple[float, float]
) -> None:
    release = mechanism(negate=negate, noise_variance=noise_variance, bounds=bounds)
    moved = _largest_move(release)
    assert moved <= release.sensitivity
    assert moved >= release.sensitivity * (1 - 1e-6)  # tight: the worst case attains it


@quiet
def test_nothing_that_a_record_says_shows() -> None:
    scores = random_scores(4)
    release = mechanism()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for above in (7.0, 8.0, 1e300, math.inf):
            scores[:, 3] = above
            assert torch.equal(release.posterior_mean(scores), release.posterior_mean(scores))
            reference = scores.clone()
            reference[:, 3] = 7.0
            assert torch.equal(release.posterior_mean(scores), release.posterior_mean(reference))
        scores[:, 3], reference[:, 3] = math.nan, -3.0
        assert torch.equal(release.posterior_mean(scores), release.posterior_mean(reference))
        reference[:, 3] = 7.0
        losses = mechanism(negate=True)
        assert torch.equal(losses.posterior_mean(scores), losses.posterior_mean(reference))
        mechanism(epsilon=1e4).release(scores)


class BrokenSensitivity(LinearChoice):
    """Forgets the weights: takes the posterior mean for a mean of scores."""

    @cached_property
    def _unit_sensitivity(self) -> float:
        return 1 / self.num_records


def audited(kind: type[LinearChoice], epsilon: float, claim: float, samples: int) -> bool:
    """Whether a claim survives on a worst-case pair of one-record data sets."""
    # One choice whose weights are opposite to those of eight others: then nearly all of epsilon
    # shows in the probability of drawing it.
    choices = torch.tensor([[-1.0], *[[1.1]] * 8], dtype=torch.double)
    design = StatedDesign(torch.tensor([[0.0], [0.1]]).double(), origin="two fixed points")
    # Extrapolating from two close points takes weights of absolute sum 10.
    release = kind(
        choices=choices,
        design=design,
        kernel=kernel(1.0),
        noise_variance=1e-3,
        bounds=(0.0, 1.0),
        num_records=1,
        epsilon=epsilon,
    )
    assert release.weights.abs().sum(-1).max() > 4
    return audit_epsilon(
        lambda scores: release.release(scores).value.item(),
        torch.tensor([[1.0], [0.0]], dtype=torch.double),
        torch.tensor([[0.0], [1.0]], dtype=torch.double),
        samples=samples,
        confidence=1 - 1e-6,
        claim=claim,
    ).passes


@pytest.mark.slow
@quiet
def test_audit_and_its_broken_versions() -> None:
    assert audited(LinearChoice, 1.0, claim=1.0, samples=1500)
    assert not audited(BrokenSensitivity, 1.0, claim=1.0, samples=1500)
    assert not audited(LinearChoice, 4.0, claim=1.0, samples=1500)


@quiet
@pytest.mark.slow
def test_large_audit_and_its_broken_version() -> None:
    assert audited(LinearChoice, 1.0, claim=1.0, samples=50_000)
    assert not audited(LinearChoice, 2.0, claim=1.0, samples=10_000)


# What it promises, and what it costs


def test_guarantee_is_pure_and_proven() -> None:
    guarantee = mechanism(epsilon=0.5, unit=PrivacyUnit("one patient")).guarantee
    assert guarantee.status == "proven" and guarantee.summed == (0.5, 0.0)
    assert guarantee.relation is NeighboringRelation.REPLACE_ONE
    assert "one patient" in str(guarantee)
    assert "given that a record's score depends on that record" in str(guarantee)
    stated = StatedDesign(CHOICES[:4], origin="a printed table")
    given = mechanism(design=stated, method="permute_and_flip").guarantee
    assert given.status == "proven" and "a printed table" in str(given)


def test_settings_of_the_caller_are_a_printed_condition() -> None:
    text = str(mechanism().guarantee)
    for words in ("the choices, the design, the kernel, the prior mean, the bounds", "without the"):
        assert words in text


def test_an_adaptive_design_is_refused() -> None:
    for visited in (CHOICES[:8], CHOICES[:8].tolist()):
        with pytest.raises(NotPublicError, match="PrivateObjective"):
            mechanism(design=visited)


def test_charged_before_the_records_are_read() -> None:
    design = SobolDesign(BOX, num_points=4)
    choice = mechanism(design=design, bounds=(0.0, 1.0), num_records=10_000, epsilon=5.0)
    with PrivacyLedger(budget=PrivacyBudget(9.0)) as ledger:
        reads = []

        def watched(X: Tensor) -> Tensor:
            reads.append(ledger.spent())
            assert torch.equal(X, design.points)
            return (X - 0.5).abs().expand(-1, 10_000)

        release = choice.release(watched, ledger=ledger)
        assert reads == [(5.0, 0.0)]
        assert release.guarantee.status == "proven"
        with pytest.raises(BudgetExhausted):
            choice.release(watched, ledger=ledger)
        assert len(reads) == 1


def test_scores_as_a_tensor_or_a_function() -> None:
    scores = random_scores(5, (4, 30))
    settings = {"design": SobolDesign(BOX, num_points=4), "num_records": 30, "epsilon": 50.0}
    choice = mechanism(**settings)
    from_tensor = choice.release(scores, unsafe_seed=1)
    for same in (lambda X: scores, lambda X: scores.numpy()):
        from_function = choice.release(same, unsafe_seed=1)
        assert torch.equal(from_tensor.value, from_function.value)
        assert from_tensor.scale == from_function.scale
    single = mechanism(choices=CHOICES.float(), **settings).release(scores, unsafe_seed=1)
    assert single.value.dtype == torch.float and single.value in CHOICES.float()


def test_utility_is_said_before_anything_is_spent() -> None:
    small = mechanism(num_records=20, bounds=(0.0, 1.0))
    large = mechanism(num_records=200_000, bounds=(0.0, 1.0))
    assert small.utility().drowned and not large.utility().drowned
    bound = large.utility(delta=0.1)
    assert bound.noise == pytest.approx(large.scale * (math.log(40) + math.log(9)))
    assert bound.noise > replace(large, epsilon=2.0).utility(delta=0.1).noise
    with pytest.warns(UtilityWarning, match="a blind draw has 0.0244"):
        mechanism(epsilon=0.5).release(random_scores(0))


@quiet
def test_utility_bound_holds() -> None:
    scores = random_scores(6)
    release = mechanism(epsilon=30.0)
    mean = 10 * release.posterior_mean(scores)
    bound = release.utility(delta=0.2)
    losses = []
    for seed in range(300):
        drawn = release.release(scores, unsafe_seed=seed).value
        losses.append((mean.max() - mean[(drawn == CHOICES).flatten()]).item())
    within = sum(loss <= bound.loss for loss in losses) / len(losses)
    assert within >= 0.8
    assert max(losses) > 0


# Wrong arguments


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"choices": torch.rand(3, 2, dtype=torch.double)}, "same space"),
        ({"choices": torch.empty(0, 1)}, "`choices`"),
        ({"choices": torch.tensor([[math.nan]])}, "`choices`"),
        ({"noise_variance": 0.0}, "`noise_variance`"),
        (
            {"noise_variance": 1e-300, "design": StatedDesign(torch.zeros(3, 1), origin="x")},
            "too small",
        ),
        ({"bounds": (1.0, 0.0)}, "`bounds`"),
        ({"bounds": (-1.7e308, 1.7e308)}, "`bounds`"),
        ({"num_records": 0}, "`num_records`"),
        ({"epsilon": 0.0}, "`epsilon`"),
        ({"epsilon": math.nan}, "`epsilon`"),
        ({"method": "best"}, "`method`"),
        ({"prior_mean": 8.0}, "`prior_mean`"),
        ({"prior_mean": math.nan}, "`prior_mean`"),
        ({"kernel": 1.0}, "`kernel`"),
    ],
)
def test_wrong_parameters(change: dict[str, object], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        mechanism(**change)


def test_wrong_scores_are_named_before_anything_is_spent() -> None:
    choice = mechanism(design=SobolDesign(BOX, num_points=4), num_records=11)
    with PrivacyLedger(budget=PrivacyBudget(5.0)) as ledger:
        for scores, match in (
            (torch.rand(5, 11), "must return 4 x"),
            (torch.rand(4), "must return 4 x"),
            (torch.rand(4, 0), "must return 4 x"),
            (1.0, "a function or an m x n tensor"),
            (torch.rand(4, 10), "10 columns where 11"),
        ):
            with pytest.raises((TypeError, ValueError), match=match):
                choice.release(scores, ledger=ledger)  # type: ignore[arg-type]
        assert ledger.entries() == []


@quiet
def test_one_choice_and_one_point() -> None:
    release = mechanism(
        choices=CHOICES[:1], design=SobolDesign(BOX, num_points=1), num_records=1
    ).release(torch.tensor([[math.nan]]))
    assert torch.equal(release.value, CHOICES[0])


@pytest.mark.parametrize(
    "relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.BOUNDED_ROW]
)
def test_the_bound_is_for_a_replaced_record(relation: NeighboringRelation) -> None:
    with pytest.raises(PrivacyError, match="REPLACE_ONE only"):
        mechanism(unit=PrivacyUnit("one patient", relation))


def test_a_wrong_seed_is_refused_before_anything_is_charged() -> None:
    with PrivacyLedger(budget=PrivacyBudget(5.0)) as ledger:
        with pytest.raises(ValueError, match="`unsafe_seed`"):
            mechanism().release(random_scores(0), ledger=ledger, unsafe_seed=-1)
        with pytest.raises(PrivacyError, match="nothing to charge"):
            mechanism().release(random_scores(0), ledger=ledger, unsafe_seed=1)
        assert ledger.entries() == []


def test_scores_are_read_after_the_charge() -> None:
    scores = random_scores(0)
    with PrivacyLedger(budget=PrivacyBudget(5e4)) as ledger:
        with ReadLog(scores, ledger) as log:
            mechanism(epsilon=1e4).release(scores, ledger=ledger)
        assert set(log.charges) == {1}
