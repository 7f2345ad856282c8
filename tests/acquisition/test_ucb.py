from __future__ import annotations

import copy
import math

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.exceptions import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.testing import MockModel, MockPosterior
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.acquisition import PrivateUpperConfidenceBound, UCBSchedule
from botorch_dp.models import FiniteSetGP, public_gp

SCHEDULE = UCBSchedule(100, delta=0.05)


def model(dtype=torch.double, seed=0) -> SingleTaskGP:
    torch.manual_seed(seed)
    X = torch.rand(6, 2, dtype=dtype)
    Y = torch.sin(5 * X).sum(-1, keepdim=True)
    return public_gp(X, Y, kernel=MaternKernel(nu=2.5), noise_std=0.1)


@pytest.mark.parametrize(
    ("num_choices", "delta", "split", "step", "expected"),
    [
        # 2 log(n t^2 pi^2 / (split delta)), by hand
        (100, 0.05, 3, 10, 2 * math.log(100 * 100 * 9.869604401089358 / 0.15)),
        (36000, 1e-5, 6, 50, 2 * math.log(36000 * 2500 * 9.869604401089358 / 6e-5)),
        (1, 0.5, 3, 1, 2 * math.log(9.869604401089358 / 1.5)),
    ],
)
def test_schedule_is_the_formula(num_choices, delta, split, step, expected):
    assert UCBSchedule(num_choices, delta=delta, split=split)(step) == pytest.approx(expected)


def test_schedule_fails_as_seldom_as_it_says():
    """The union bound split * delta / 6 of the docstring, from the exact Gaussian tail."""
    schedule = UCBSchedule(50, delta=0.2)
    steps = torch.arange(1, 2001)
    widths = torch.tensor([math.sqrt(schedule(int(t))) for t in steps], dtype=torch.double)
    failure = 50 * torch.special.erfc(widths / math.sqrt(2)).sum().item()
    assert failure <= 3 * 0.2 / 6
    narrow = UCBSchedule(50, delta=0.2, split=300)
    widths = torch.tensor([math.sqrt(narrow(int(t))) for t in steps], dtype=torch.double)
    assert 50 * torch.special.erfc(widths / math.sqrt(2)).sum().item() > 3 * 0.2 / 6


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_choices": 0}, "num_choices"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"split": 0.0}, "split"),
        ({"num_choices": 1, "delta": 0.9, "split": 100.0}, "split"),
    ],
)
def test_schedule_names_the_wrong_argument(arguments, match):
    options = {"num_choices": 10, "delta": 0.1} | arguments
    with pytest.raises(ValueError, match=match):
        UCBSchedule(options.pop("num_choices"), **options)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_hand_computed_value_with_a_mock_model(dtype):
    mean = torch.tensor([[[0.5]], [[-1.0]]], dtype=dtype)
    variance = torch.tensor([[[4.0]], [[0.25]]], dtype=dtype)
    mock = MockModel(MockPosterior(mean=mean, variance=variance))
    acqf = PrivateUpperConfidenceBound(mock, schedule=SCHEDULE, step=3)
    width = math.sqrt(SCHEDULE(3))
    expected = torch.tensor([0.5 + 2 * width, -1.0 + 0.5 * width], dtype=dtype)
    torch.testing.assert_close(acqf(torch.zeros(2, 1, 2, dtype=dtype)), expected)


def test_gradient_is_right():
    gp = model()
    acqf = PrivateUpperConfidenceBound(gp, schedule=SCHEDULE, step=7)
    X = torch.rand(1, 1, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(acqf, (X,), eps=1e-6, atol=1e-5)


def test_single_precision_is_refused_and_the_model_stays_double():
    gp = model()
    acqf = PrivateUpperConfidenceBound(gp, schedule=SCHEDULE, step=7)
    before = copy.deepcopy(gp.state_dict())
    with pytest.raises(ValueError, match=r"`X` has dtype torch\.float32"):
        acqf(torch.rand(1, 1, 2))
    assert gp.train_inputs[0].dtype == torch.double
    for name, value in gp.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])


def test_double_is_refused_on_a_single_precision_model():
    acqf = PrivateUpperConfidenceBound(model(torch.float), schedule=SCHEDULE, step=7)
    assert acqf(torch.rand(1, 1, 2)).dtype == torch.float
    with pytest.raises(ValueError, match=r"torch\.float64"):
        acqf(torch.rand(1, 1, 2, dtype=torch.double))


def test_discrete_optimizer_finds_the_choice_that_the_finite_set_gp_ranks_first():
    choices = torch.rand(300, 2, dtype=torch.double)
    indices = [3, 77, 200, 150]
    values = torch.randn(4, dtype=torch.double)
    kernel = RBFKernel()
    gp = public_gp(choices[indices], values.unsqueeze(-1), kernel=kernel, noise_std=0.1)
    finite = FiniteSetGP(choices, kernel=kernel, noise_std=0.1)
    for index, value in zip(indices, values.tolist(), strict=True):
        finite.observe(index, value)
    schedule = UCBSchedule(len(choices), delta=0.1)
    acqf = PrivateUpperConfidenceBound(gp, schedule=schedule, step=5)
    candidate, value = optimize_acqf_discrete(acqf, q=1, choices=choices)
    bounds = finite.upper_confidence_bound(schedule(5))
    torch.testing.assert_close(candidate.squeeze(0), choices[bounds.argmax()])
    assert value.item() == pytest.approx(bounds.max().item(), abs=1e-8)


def test_input_constructor_counts_the_step():
    gp = model()
    data = SupervisedDataset(
        gp.train_inputs[0],
        gp.train_targets.unsqueeze(-1),
        feature_names=["a", "b"],
        outcome_names=["y"],
    )
    constructor = get_acqf_input_constructor(PrivateUpperConfidenceBound)
    arguments = constructor(model=gp, training_data=data, schedule=SCHEDULE, X_baseline=data.X)
    acqf = PrivateUpperConfidenceBound(**arguments)
    assert acqf.beta.item() == pytest.approx(SCHEDULE(7))
    assert constructor(model=gp, schedule=SCHEDULE, step=3)["step"] == 3


def test_input_constructor_refuses_what_it_cannot_honour():
    constructor = get_acqf_input_constructor(PrivateUpperConfidenceBound)
    with pytest.raises(UnsupportedError, match="X_pending"):
        constructor(model=model(), schedule=SCHEDULE, step=1, X_pending=torch.rand(2, 2))
    with pytest.raises(ValueError, match="`step`"):
        constructor(model=model(), schedule=SCHEDULE)
