"""HVPoI against hand-computed values, brute force and Monte Carlo; with mock and real models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import ModelList
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.testing import MockModel, MockPosterior
from scipy.stats import norm
from torch import Tensor

from botorch_dp.acquisition import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)

DOUBLE = {"dtype": torch.double}
BOTH = [HypervolumeProbabilityOfImprovement, LogHypervolumeProbabilityOfImprovement]


def monte_carlo_error(probability: Tensor, draws: int) -> Tensor:
    """What a frequency may deviate by: Bernstein's bound at a false-alarm rate of 1e-6."""
    log_rate = math.log(2 / 1e-6)
    variance = probability * (1 - probability)
    return (2 * log_rate * variance / draws).sqrt() + 2 * log_rate / (3 * draws)


def partition(front: Tensor, ref_point: Tensor | None = None) -> FastNondominatedPartitioning:
    ref = front.new_zeros(front.shape[-1]) if ref_point is None else ref_point
    return FastNondominatedPartitioning(ref, Y=front)


def acquisition(
    kind: type, mean: Tensor, std: Tensor, front: Tensor, **options: Any
) -> tuple[Any, Tensor]:
    """The function for a posterior with the given ``b x m`` moments, and an X to evaluate."""
    posterior = MockPosterior(mean=mean.unsqueeze(-2), variance=std.square().unsqueeze(-2))
    partitioning = options.pop("partitioning", None)
    if partitioning is None:
        partitioning = partition(front, options.pop("ref_point", None))
    function = kind(MockModel(posterior), partitioning.ref_point, partitioning, **options)
    return function, torch.zeros(*mean.shape[:-1], 1, 1, dtype=mean.dtype)


def evaluate(kind: type, mean: Tensor, std: Tensor, front: Tensor, **options: Any) -> Tensor:
    function, X = acquisition(kind, mean, std, front, **options)
    return function(X)


def random_problem(num_objectives: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of 12 posteriors, some dominated, and a front of several points above zero."""
    generator = torch.Generator().manual_seed(seed)
    front = torch.randn(12, num_objectives, generator=generator, **DOUBLE).abs()
    front = front / front.norm(dim=-1, keepdim=True)
    mean = 0.6 * torch.randn(12, num_objectives, generator=generator, **DOUBLE) + 0.5
    std = torch.rand(12, num_objectives, generator=generator, **DOUBLE) + 0.05
    return mean, std, front


def hypervolume_gain(front: Tensor, point: Tensor) -> float:
    """By a hypervolume algorithm that uses no cells."""
    hypervolume = Hypervolume(torch.zeros_like(point))

    def volume(points: Tensor) -> float:
        points = points[(points > 0).all(-1)]
        return hypervolume.compute(points[is_non_dominated(points)])

    return volume(torch.vstack([front, point])) - volume(front)


class TestValues:
    def test_one_front_point_by_hand(self) -> None:
        mean = torch.tensor([[2.0, 2.0], [0.5, 0.5]], **DOUBLE)
        std, front = torch.ones(2, 2, **DOUBLE), torch.ones(1, 2, **DOUBLE)
        value = evaluate(HypervolumeProbabilityOfImprovement, mean, std, front)
        expected = 3 * (1 - norm.cdf(-1) ** 2)
        torch.testing.assert_close(value, torch.tensor([expected, 0.0], **DOUBLE))
        value = evaluate(HypervolumeProbabilityOfImprovement, mean, std, front, region="box")
        expected = 3 * (norm.cdf(2) ** 2 - (norm.cdf(2) - norm.cdf(1)) ** 2)
        torch.testing.assert_close(value, torch.tensor([expected, 0.0], **DOUBLE))

    @pytest.mark.parametrize("num_objectives", [2, 3, 5])
    def test_empty_front(self, num_objectives: int) -> None:
        mean = torch.arange(1.0, num_objectives + 1, **DOUBLE).unsqueeze(0)
        std = torch.full_like(mean, 0.7)
        for front in (mean[:0], -torch.ones(3, num_objectives, **DOUBLE)):
            value = evaluate(HypervolumeProbabilityOfImprovement, mean, std, front)
            assert value.item() == pytest.approx(math.factorial(num_objectives))
            log_value = evaluate(LogHypervolumeProbabilityOfImprovement, mean, std, front)
            assert log_value.exp().item() == pytest.approx(value.item(), rel=1e-4)
            boxed = evaluate(HypervolumeProbabilityOfImprovement, mean, std, front, region="box")
            above = norm.cdf(mean.numpy() / 0.7).prod()
            assert boxed.item() == pytest.approx(value.item() * above, rel=1e-12)

    @pytest.mark.parametrize("seed", range(5))
    def test_strips(self, seed: int) -> None:
        """Two objectives: cut the plane by hand into the strips between the front points."""
        mean, std, front = random_problem(2, seed)
        front = front[is_non_dominated(front)]
        front = front[front[:, 0].argsort()]  # first objective up, second down
        xs = [0.0, *front[:, 0].tolist(), math.inf]
        ys = [*front[:, 1].tolist(), 0.0]
        for row in range(len(mean)):
            (m0, m1), (s0, s1) = mean[row].tolist(), std[row].tolist()
            gain = unbounded = box = 0.0
            for left, right, floor in zip(xs[:-1], xs[1:], ys, strict=True):
                gain += max(0.0, min(m0, right) - left) * max(0.0, m1 - floor)
                width = norm.cdf(right, m0, s0) - norm.cdf(left, m0, s0)
                box += width * norm.sf(floor, m1, s1)
                if left == 0.0:
                    width = norm.cdf(right, m0, s0)
                unbounded += width * (norm.sf(floor, m1, s1) if floor > 0 else 1.0)
            for region, probability in (("unbounded", unbounded), ("box", box)):
                value = evaluate(
                    HypervolumeProbabilityOfImprovement, mean, std, front, region=region
                )
                assert value[row].item() == pytest.approx(gain * probability, rel=1e-10)

    @pytest.mark.parametrize("num_objectives", [2, 3, 4])
    def test_monte_carlo(self, num_objectives: int) -> None:
        """Draws for the probability, a hypervolume algorithm that uses no cells for the gain."""
        mean, std, front = random_problem(num_objectives, seed=10 + num_objectives)
        gain = torch.tensor([hypervolume_gain(front, one) for one in mean], **DOUBLE)
        assert 2 <= (gain > 1e-12).sum() <= 10  # the problem has both kinds of means
        draws = mean + std * torch.randn(40_000, *mean.shape, **DOUBLE)
        improves = ~(draws.unsqueeze(-2) <= front).all(-1).any(-1)
        beats_ref_point = (draws > 0).all(-1)
        for region, hits in (("unbounded", improves), ("box", improves & beats_ref_point)):
            frequency = hits.double().mean(0)
            value = evaluate(HypervolumeProbabilityOfImprovement, mean, std, front, region=region)
            positive = gain > 1e-9
            assert value[~positive].abs().max() < 1e-9
            probability = (value / gain)[positive]
            error = monte_carlo_error(probability, len(draws))
            assert ((probability - frequency[positive]).abs() <= error).all()
            log_value = evaluate(
                LogHypervolumeProbabilityOfImprovement, mean, std, front, region=region
            )
            torch.testing.assert_close(
                log_value.exp()[positive], value[positive], rtol=1e-3, atol=0
            )

    def test_log_where_the_probability_underflows(self) -> None:
        """At one temperature, the smoothed gains of two posteriors with equal means cancel."""
        mean, front = torch.full((1, 2), -39.0, **DOUBLE), torch.ones(1, 2, **DOUBLE)
        ones = torch.ones(1, 2, **DOUBLE)
        values = [
            evaluate(
                LogHypervolumeProbabilityOfImprovement, mean, ones * std, front, tau_relu=1e-3 / std
            ).item()
            for std in (1.0, 0.5)
        ]
        assert values[0] - values[1] == pytest.approx(norm.logcdf(-40) - norm.logcdf(-80), 1e-12)

    @pytest.mark.parametrize("kind", BOTH)
    def test_ties_in_the_front(self, kind: type) -> None:
        """Coordinates that coincide, also with the mean, must not count a cell twice."""
        front = torch.tensor([[1.0, 2, 3], [1, 3, 2], [2, 1, 3], [2, 2, 2], [3, 1, 1]], **DOUBLE)
        mean, std = torch.tensor([[2.0, 3, 3]], **DOUBLE), torch.ones(1, 3, **DOUBLE)
        gain = hypervolume_gain(front, mean[0])
        value = evaluate(kind, mean, std, front)
        if kind is LogHypervolumeProbabilityOfImprovement:
            value = value.exp()
        draws = mean + torch.randn(100_000, 3, **DOUBLE)
        improves = (~(draws.unsqueeze(-2) <= front).all(-1).any(-1)).double().mean()
        assert abs(value / gain - improves) <= monte_carlo_error(improves, len(draws))

    @pytest.mark.parametrize("kind", BOTH)
    def test_minimizing_is_maximizing_the_negative(self, kind: type) -> None:
        mean, std, front = random_problem(2, seed=3)
        signs = torch.tensor([-1.0, 1.0], **DOUBLE)
        expected = evaluate(kind, mean, std, front)
        value = evaluate(kind, mean * signs, std, front, weights=signs.tolist())
        torch.testing.assert_close(value, expected)
        scale = torch.tensor([-3.0, 0.5], **DOUBLE)
        value = evaluate(kind, mean / scale, std / scale.abs(), front, weights=scale)
        torch.testing.assert_close(value, expected)


class TestGradients:
    @pytest.mark.parametrize("kind", BOTH)
    @pytest.mark.parametrize("region", ["unbounded", "box"])
    @pytest.mark.parametrize("num_objectives", [2, 3])
    def test_finite_differences(self, kind: type, region: str, num_objectives: int) -> None:
        mean, std, front = random_problem(num_objectives, seed=5)
        cells = partition(front)

        def value(mean: Tensor, std: Tensor) -> Tensor:
            # A temperature that finite differences can resolve.
            log = kind is LogHypervolumeProbabilityOfImprovement
            options = {"tau_relu": 0.1} if log else {}
            return evaluate(kind, mean, std, front, partitioning=cells, region=region, **options)

        moments = (mean.requires_grad_(), std.requires_grad_())
        assert torch.autograd.gradcheck(value, moments)

    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    @pytest.mark.parametrize("distance", [0.0, 1.0, 40.0, 1e4])
    @pytest.mark.parametrize("num_points", [0, 1, 12])
    @pytest.mark.parametrize("region", ["unbounded", "box"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.double])
    def test_log_is_informative(
        self, scale: float, distance: float, num_points: int, region: str, dtype: torch.dtype
    ) -> None:
        """Dominated by many standard deviations: an ascent step leads towards the front."""
        front = (scale * random_problem(2, seed=6)[2][:num_points]).to(dtype)
        mean, std = (torch.full((1, 2), scale, dtype=dtype) for _ in range(2))
        mean, std = (-distance * 0.1 * mean).requires_grad_(), (0.1 * std).requires_grad_()
        value = evaluate(LogHypervolumeProbabilityOfImprovement, mean, std, front, region=region)
        gradients = torch.autograd.grad(value, (mean, std))
        assert value.isfinite().all() and all(part.isfinite().all() for part in gradients)
        in_std_units = gradients[0] * 0.1 * scale
        assert (in_std_units > 0).all() and in_std_units.max() > 1e-4

    @pytest.mark.parametrize("kind", BOTH)
    def test_no_variance(self, kind: type) -> None:
        """A deterministic outcome decides in which strip the other one has to improve."""
        front = torch.tensor([[1.0, 2.0], [2.0, 1.0]], **DOUBLE)
        mean = torch.tensor([[1.5, 1.8]], **DOUBLE, requires_grad=True)
        std = torch.tensor([[0.0, 0.3]], **DOUBLE)
        value = evaluate(kind, mean, std, front)
        gradient = torch.autograd.grad(value, mean)[0]
        value = value.exp() if kind is LogHypervolumeProbabilityOfImprovement else value
        assert value.item() == pytest.approx(0.5 * 0.8 * norm.sf(1, 1.8, 0.3), rel=1e-4)
        assert gradient.isfinite().all()

    def test_plain_version_is_exactly_zero_where_dominated(self) -> None:
        mean = torch.zeros(1, 2, **DOUBLE, requires_grad=True)
        value = evaluate(
            HypervolumeProbabilityOfImprovement, mean, torch.ones(1, 2, **DOUBLE), mean.detach() + 1
        )
        assert value.item() == 0 and not torch.autograd.grad(value, mean)[0].any()

    @pytest.mark.parametrize("kind", BOTH)
    def test_single_precision(self, kind: type) -> None:
        mean, std, front = (part.float() for part in random_problem(3, seed=8))
        value = evaluate(kind, mean.requires_grad_(), std.requires_grad_(), front)
        exact = evaluate(kind, mean.double(), std.double(), front.double())
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, rtol=1e-2, atol=1e-5)
        gradients = torch.autograd.grad(value.sum(), (mean, std))
        assert all(part.isfinite().all() for part in gradients)


def toy_outcomes(X: Tensor) -> Tensor:
    """Two conflicting outcomes, both to be minimized, best at (0, 0, .) and (1, 0, .)."""
    return torch.stack([X[..., 0] + X[..., 1], 1.2 - X[..., 0] + X[..., 1].square()], dim=-1)


REF_POINT = torch.tensor([-2.2, -2.2], **DOUBLE)
TOY_X = torch.rand(10, 3, generator=torch.Generator().manual_seed(0), **DOUBLE)


def toy_model(kind: str) -> Any:
    X, Y = TOY_X, toy_outcomes(TOY_X)
    transforms = {"input_transform": Normalize(3), "outcome_transform": Standardize(2)}
    if kind == "list":
        return ModelListGP(*(SingleTaskGP(X, y.unsqueeze(-1)) for y in Y.unbind(-1)))
    if kind == "fixed noise":
        return SingleTaskGP(X, Y, torch.full_like(Y, 1e-4), **transforms)
    if kind == "plain":
        return SingleTaskGP(X, Y, outcome_transform=None)
    return SingleTaskGP(X, Y, **transforms)


def on_toy_model(kind: type, model: Any, **options: Any) -> Any:
    front = -model.posterior(TOY_X).mean.detach()
    partitioning = FastNondominatedPartitioning(REF_POINT, Y=front)
    return kind(model, REF_POINT, partitioning, weights=[-1.0, -1.0], **options)


class TestRealModels:
    @pytest.mark.parametrize("kind", BOTH)
    @pytest.mark.parametrize("name", ["list", "fixed noise", "plain", "transforms"])
    def test_matches_the_moments_of_the_posterior(self, kind: type, name: str) -> None:
        model = toy_model(name)
        function = on_toy_model(kind, model)
        X = (torch.rand(5, 1, 3, **DOUBLE) + 0.02).requires_grad_()  # away from the front
        posterior = model.posterior(X)
        expected = evaluate(
            kind,
            -posterior.mean.squeeze(-2),
            posterior.variance.squeeze(-2).sqrt(),
            None,
            partitioning=function.partitioning,
        )
        value = function(X)
        torch.testing.assert_close(value, expected)

    @pytest.mark.parametrize("kind", BOTH)
    def test_model_is_left_alone(self, kind: type) -> None:
        model = toy_model("transforms")
        X = torch.rand(4, 1, 3, **DOUBLE)
        before = model.posterior(X).variance
        state = {name: part.clone() for name, part in model.state_dict().items()}
        function = on_toy_model(kind, model, X_pending=X[0])
        function(X)
        with pytest.raises(ValueError, match=r"`X` has dtype torch.float32.*float64"):
            function(X.float())
        assert all(torch.equal(part, state[name]) for name, part in model.state_dict().items())
        assert model.train_targets.shape[-1] == 10
        torch.testing.assert_close(model.posterior(X).variance, before)

    @pytest.mark.parametrize("kind", BOTH)
    def test_batched_model_and_batched_fronts(self, kind: type) -> None:
        X = torch.rand(3, 10, 2, **DOUBLE)
        Y = torch.stack([X.sum(-1), 1 - X[..., 0]], dim=-1)
        model = SingleTaskGP(X, Y, outcome_transform=None)
        ref_point = torch.full((2,), -1.0, **DOUBLE)
        # Fronts of different sizes: the partitioning pads them with cells that have no volume.
        fronts = torch.stack([Y[0], Y[1].amax(0).expand(10, 2), Y[2] - 5])
        function = kind(model, ref_point, FastNondominatedPartitioning(ref_point, Y=fronts))
        test_X = torch.rand(1, 2, **DOUBLE)
        values = function(test_X)
        assert values.shape == (3,)
        for index in range(3):
            posterior = model.posterior(test_X)
            alone = evaluate(
                kind,
                posterior.mean[index],
                posterior.variance[index].sqrt(),
                None,
                partitioning=FastNondominatedPartitioning(ref_point, Y=fronts[index]),
            )
            torch.testing.assert_close(values[index], alone.squeeze(0))

    @pytest.mark.parametrize("kind", BOTH)
    def test_ensembles_are_averaged(self, kind: type) -> None:
        X = torch.rand(8, 2, **DOUBLE)
        model = ModelListGP(
            *(EnsembleMapSaasSingleTaskGP(X, y, num_taus=3) for y in (X[:, :1], X.sum(-1, True)))
        )
        for member in model.models:  # three different opinions
            kernel = member.covar_module.base_kernel
            opinions = torch.tensor([0.1, 1.0, 9.0], **DOUBLE).view(3, 1, 1)
            kernel.lengthscale = kernel.lengthscale.detach() * opinions
        posterior = model.posterior(test_X := torch.rand(5, 1, 2, **DOUBLE))
        assert posterior.mean.shape == (5, 3, 1, 2)
        assert posterior.mean.std(dim=1).min() > 1e-3
        partitioning = partition(torch.tensor([[0.5, 0.7]], **DOUBLE))
        members = evaluate(
            kind,
            posterior.mean.squeeze(-2),
            posterior.variance.squeeze(-2).sqrt(),
            None,
            partitioning=partitioning,
        )
        value = kind(model, partitioning.ref_point, partitioning)(test_X)
        if kind is LogHypervolumeProbabilityOfImprovement:
            members, value = members.exp(), value.exp()
        torch.testing.assert_close(value, members.mean(-1))
        pending = kind(model, partitioning.ref_point, partitioning, X_pending=test_X[0])
        assert pending(test_X).shape == (5,)


class TestOptimization:
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], **DOUBLE)

    def test_finds_an_improvement_from_dominated_starts(self) -> None:
        model = toy_model("transforms")
        function = on_toy_model(LogHypervolumeProbabilityOfImprovement, model)
        exact = on_toy_model(HypervolumeProbabilityOfImprovement, model)
        starts = torch.rand(16, 1, 3, **DOUBLE)
        starts = starts[exact(starts) == 0]
        assert len(starts) >= 12
        candidates, values = optimize_acqf(
            function,
            self.bounds,
            q=1,
            num_restarts=len(starts),
            batch_initial_conditions=starts,
            return_best_only=False,
        )
        reached = exact(candidates)
        assert (reached > 0).double().mean() > 0.6
        assert reached.max() > exact(torch.rand(512, 1, 3, **DOUBLE)).max()
        best = values.argmax()
        assert values[best].item() == pytest.approx(reached[best].log().item(), abs=1e-3)

    def test_sequential_batch_then_mixed_search(self) -> None:
        function = on_toy_model(LogHypervolumeProbabilityOfImprovement, toy_model("list"))
        candidates, _ = optimize_acqf(
            function, self.bounds, q=3, num_restarts=2, raw_samples=32, sequential=True
        )
        assert torch.pdist(candidates).min() > 1e-2
        assert function.X_pending is None  # as before
        function.set_X_pending(candidates)
        candidate, _ = optimize_acqf_mixed(
            function,
            self.bounds,
            q=1,
            num_restarts=2,
            raw_samples=32,
            fixed_features_list=[{2: 0.0}, {2: 1.0}],
        )
        assert candidate[0, 2] in (0, 1)
        assert torch.cdist(candidate, candidates).min() > 1e-2


class TestPendingPoints:
    @pytest.mark.parametrize("name", ["list", "fixed noise", "plain", "transforms"])
    def test_gain_and_uncertainty_of_pending_points_are_not_sought_again(self, name: str) -> None:
        model = toy_model(name)
        exact = on_toy_model(HypervolumeProbabilityOfImprovement, model)
        logarithm = on_toy_model(LogHypervolumeProbabilityOfImprovement, model)
        candidates = torch.rand(512, 1, 3, **DOUBLE)
        best = candidates[exact(candidates).argmax()]
        dominated = torch.tensor([[0.9, 0.9, 0.5]], **DOUBLE)
        before = exact(best), logarithm(best), logarithm(dominated)
        assert before[0] > 0
        for function in (exact, logarithm):
            function.set_X_pending(torch.cat([best, dominated]))
        assert exact(best).item() < 1e-3 * before[0].item()
        assert (logarithm(best) < before[1] - 5).all()
        assert (logarithm(dominated) < before[2] - 1).all()
        # Conditioning on the mean moves no mean, and observing only reduces variance.
        old, new = model.posterior(candidates), exact.model.posterior(candidates)
        torch.testing.assert_close(new.mean.view(-1, 2), old.mean.view(-1, 2), rtol=0, atol=1e-3)
        assert (new.variance.view(-1, 2) <= old.variance.view(-1, 2) * (1 + 1e-6) + 1e-9).all()
        for function in (exact, logarithm):
            function.set_X_pending(None)
        assert torch.equal(exact(best), before[0]) and torch.equal(logarithm(best), before[1])

    def test_deterministic_outcomes_need_no_conditioning(self) -> None:
        known = GenericDeterministicModel(lambda X: toy_outcomes(X)[..., :1], num_outputs=1)
        model = ModelList(known, toy_model("list").models[1])
        function = on_toy_model(LogHypervolumeProbabilityOfImprovement, model)
        X = torch.rand(4, 1, 3, **DOUBLE)
        before = function(X)
        function.set_X_pending(X[0])
        assert function(X)[0] < before[0] - 1


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"region": "everywhere"}, "`region` must be one of"),
            ({"ref_point": [0.0, 0.1]}, "`ref_point` must be finite, and the reference"),
            ({"ref_point": [0.0]}, "`ref_point` must be finite, and the reference"),
            ({"ref_point": [0.0, math.nan]}, "`ref_point` must be finite"),
            ({"weights": [1.0]}, "`weights` must be one number for each of the 2"),
            ({"weights": [1.0, 0.0]}, "finite and not zero, got"),
            ({"weights": [1.0, math.inf]}, "finite and not zero, got"),
            ({"outcomes": [0]}, "`outcomes` must name one of the model's 2 outputs"),
        ],
    )
    def test_refused(self, options: dict[str, Any], message: str) -> None:
        mean, std, front = random_problem(2, seed=0)
        model = acquisition(HypervolumeProbabilityOfImprovement, mean, std, front)[0].model
        with pytest.raises(ValueError, match=message):
            HypervolumeProbabilityOfImprovement(
                model, **{"ref_point": [0.0, 0.0], "partitioning": partition(front), **options}
            )

    def test_precision_of_the_front(self) -> None:
        model = toy_model("plain")
        partitioning = FastNondominatedPartitioning(REF_POINT.float(), Y=torch.zeros(1, 2))
        function = HypervolumeProbabilityOfImprovement(model, REF_POINT, partitioning)
        with pytest.raises(ValueError, match=r"predicts in torch.float64.*has torch.float32"):
            function(torch.rand(1, 1, 3))
        assert all(parameter.dtype == torch.double for parameter in model.parameters())
