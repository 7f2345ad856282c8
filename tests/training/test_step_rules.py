"""Optimizers, schedules and rules without either: post-processing of the noisy gradient."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import DPTrainer, TrainingPlan, cross_entropy_loss, logistic_regression
from botorch_dp.training.engines.base import clip_factors
from botorch_dp.training.step_rules import ScaleFree, make_rule
from tests.training.helpers import (
    FLOAT_DATA,
    INDICES,
    NETWORK,
    OWN_ENGINES,
    SETTINGS,
    Interrupting,
    clipped_sum,
    clipped_sum_of,
    flat,
    make_data,
    per_example_gradients,
    trainer,
    weights,
)

PLAN = {
    "num_records": 12,
    "learning_rate": 0.3,
    "clip_norm": 0.25,
    "noise_multiplier": 3.0,
    "batch_size": 4,
    "epochs": 2,
}
OneCycle = torch.optim.lr_scheduler.OneCycleLR


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> OneCycle:
    return OneCycle(optimizer, max_lr=1.0, total_steps=steps)


def cosine(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def warm_then_drop(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    schedules = torch.optim.lr_scheduler
    return schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer), schedules.MultiStepLR(optimizer, [steps // 2])],
        milestones=[3],
    )


#: What a user would pass: an optimizer and a schedule.
CHOICES: dict[str, dict[str, Any]] = {
    "momentum and weight decay": {
        "optimizer": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01)
    },
    "AdamW": {"optimizer": torch.optim.AdamW},
    "RMSprop, one cycle": {"optimizer": torch.optim.RMSprop, "schedule": one_cycle},
    "SGD, cosine": {"optimizer": "sgd", "schedule": cosine},
    "Adam, warm, then dropped": {"optimizer": "adam", "schedule": warm_then_drop},
    "Adafactor": {"optimizer": torch.optim.Adafactor},
    "scale free": {"optimizer": "scale_free"},
}


@pytest.mark.parametrize("name", [n for n in CHOICES if "free" not in n])
def test_steps_are_those_of_a_loop_of_ones_own(name: str) -> None:
    """Whole batches without noise: the clipped mean gradient, handed to the optimizer itself."""
    data = make_data(n=20)
    torch.manual_seed(0)
    start = NETWORK(dtype=torch.float64)
    model = NETWORK(dtype=torch.float64)
    model.load_state_dict(start.state_dict())
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    chosen = CHOICES[name]["optimizer"]
    optimizer = make.get(chosen, chosen)(list(model.parameters()), lr=0.1)
    schedule = CHOICES[name].get("schedule", lambda *_: None)(optimizer, 5)
    for _ in range(5):
        rows = per_example_gradients(model, cross_entropy_loss, data.train_X, data.train_Y)
        total = clipped_sum(rows, 0.5) / 20
        place = 0
        for parameter in model.parameters():
            parameter.grad = total[place : place + parameter.numel()].view_as(parameter).clone()
            place += parameter.numel()
        optimizer.step()
        if schedule is not None:
            schedule.step()

    def factory() -> nn.Module:
        fresh = NETWORK(dtype=torch.float64)
        fresh.load_state_dict(start.state_dict())
        return fresh

    fitted = DPTrainer(factory, cross_entropy_loss, data, **CHOICES[name]).fit(
        learning_rate=0.1, clip_norm=0.5, noise_multiplier=0.0, batch_size=20, epochs=5, seed=0
    )
    torch.testing.assert_close(weights(fitted.model), weights(model), rtol=1e-8, atol=1e-10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHOICES)
def test_replicates_are_the_runs_of_their_seeds(name: str) -> None:
    each = trainer(**CHOICES[name])
    for seed, replicate in zip((4, 9), each.replicates([4, 9], **SETTINGS), strict=True):
        alone = each.fit(**SETTINGS, seed=seed)
        torch.testing.assert_close(
            weights(replicate.model), weights(alone.model), rtol=1e-4, atol=1e-5
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHOICES)
def test_a_resumed_run_is_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    loss = Interrupting(13)
    each = DPTrainer(NETWORK, loss, FLOAT_DATA, **CHOICES[name])
    loss.armed = True
    with pytest.raises(KeyboardInterrupt, match=r"^13 of 30 steps"):
        each.fit(**SETTINGS, seed=4, curve=(1, 3), checkpoint=tmp_path / "run")
    loss.armed = False
    resumed = each.fit(**SETTINGS, seed=4, curve=(1, 3), checkpoint=tmp_path / "run")
    whole = each.fit(**SETTINGS, seed=4, curve=(1, 3))
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.curve == whole.curve
    assert torch.equal(weights(whole.model), weights(each.fit(**SETTINGS, seed=4).model))


def test_another_optimizer_is_another_run(tmp_path: Path) -> None:
    each = trainer(optimizer=partial(torch.optim.SGD, momentum=0.9))
    each.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    other = trainer(optimizer=partial(torch.optim.SGD, momentum=0.8))
    with pytest.raises(ValueError, match="`rule` was"):
        other.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")


def test_the_guarantee_does_not_depend_on_the_optimizer() -> None:
    plain = trainer().plan(**SETTINGS).guarantee
    for name, chosen in CHOICES.items():
        guarantee = trainer(**chosen).plan(**SETTINGS).guarantee
        assert guarantee.epsilon(1e-5) == plain.epsilon(1e-5), name
    assert "AdamW" in str(trainer(**CHOICES["AdamW"]).plan(**SETTINGS).guarantee)
    published = trainer(**CHOICES["scale free"]).fit(**SETTINGS, publish=True)
    assert published.guarantee.status == "conditional"


class WithModes(torch.optim.SGD):
    """Keeps other parameters for evaluation than for training, as schedule-free packages do."""

    shift = 7.0

    def eval(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(self.shift)

    def train(self) -> None:
        if self.state.get("made") is None:
            self.state["made"] = True  # type: ignore[assignment]
            return
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(self.shift)


def test_optimizers_with_modes_are_asked_for_what_to_evaluate() -> None:
    def rule(factory: Any) -> Any:
        parameters = torch.zeros(1, 3)
        made = make_rule(parameters, TrainingPlan(**PLAN), logistic_regression(2), factory, None)
        made.step(torch.ones(1, 3))
        return parameters, made

    plain, _ = rule(torch.optim.SGD)
    parameters, made = rule(WithModes)
    assert torch.equal(made.result(), plain + 7)
    assert torch.equal(parameters, plain)


def scale_free(plan: dict[str, Any], size: int) -> tuple[Tensor, ScaleFree]:
    parameters = torch.zeros(1, size, dtype=torch.float64)
    return parameters, ScaleFree(parameters, TrainingPlan(**plan))


def test_scale_free_steps_do_not_know_the_scale_of_gradients() -> None:
    torch.manual_seed(0)
    sums = torch.randn(20, 1, 5, dtype=torch.float64)
    quiet = {**PLAN, "noise_multiplier": 0.0, "learning_rate": 1.0}
    found = []
    for scale in (1.0, 1e6, 1e-6):
        parameters, rule = scale_free(quiet, 5)
        for each in sums:
            rule.step(scale * each)
        found.append(parameters.clone())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
    still, rule = scale_free(quiet, 5)
    rule.step(torch.zeros(1, 5, dtype=torch.float64))
    assert still.eq(0).all() and rule.result().eq(0).all()


def test_scale_free_by_hand() -> None:
    """x <- x - D g / sqrt(T mean of squares); the average follows with weights 9 / (t + 8)."""
    x, rule = scale_free({**PLAN, "learning_rate": 5.0}, 1)
    expected, average, squares = 0.0, 0.0, 0.0
    for t, g in enumerate((4.0, -8.0, 2.0), start=1):
        rule.step(torch.full((1, 1), g, dtype=torch.float64))
        squares += (g / 4) ** 2
        expected -= 5.0 * (g / 4) / math.sqrt(6 * squares / t)
        average += 9 / (t + 8) * (expected - average)
        assert float(x) == pytest.approx(expected, rel=1e-12)
        assert float(rule.result()) == pytest.approx(average, rel=1e-12)


@pytest.mark.parametrize("engine", OWN_ENGINES)
def test_normalized_sums_are_those_of_single_records(engine: str) -> None:
    data = make_data()
    torch.manual_seed(1)
    model = NETWORK(dtype=torch.float64)
    each = DPTrainer(lambda: model, cross_entropy_loss, data, engine=engine, clipping="normalized")
    X, Y = data.train_X[INDICES], data.train_Y[INDICES]
    for clip_norm in (0.1, 1.0, 10.0):
        rows = per_example_gradients(model, cross_entropy_loss, X, Y)
        expected = torch.stack([clip_norm * r / (r.norm() + 0.01) for r in rows]).sum(dim=0)
        found = flat(clipped_sum_of(each, model, INDICES, clip_norm))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("stability", [0.0, 0.01])
def test_no_gradient_is_longer_than_the_norm(stability: float) -> None:
    """From the smallest to the largest norms there are, and those that are no numbers."""
    norms = torch.logspace(-320, 308, 5000, dtype=torch.float64)
    norms = torch.cat([norms, torch.tensor([0.0, math.inf, math.nan, 1.7e308])])
    factors = clip_factors(norms, 2.0, stability)
    lengths = torch.where(factors == 0, torch.zeros_like(norms), norms * factors)
    assert factors.isfinite().all()
    assert float(lengths.max()) <= 2.0 * (1 + 1e-15)
    broken = 2.0 / norms.clamp_min(0.01)  # an unstable divisor that is not added but a floor
    assert float((norms * broken).nan_to_num(0, 0).max()) <= 2.0 * (1 + 1e-15)


def plateau(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"optimizer": "adagrad"}, "`optimizer` must be one of.*scale_free"),
        ({"optimizer": 3}, "cannot take a step along given gradients"),
        ({"optimizer": torch.optim.LBFGS}, "`optimizer` LBFGS.*cannot take a step"),
        ({"optimizer": lambda p: 3}, "cannot take a step.*unexpected keyword argument 'lr'"),
        ({"schedule": lambda o, n: 3}, "cannot take a step"),
        ({"schedule": plateau}, "ReduceLROnPlateau"),
        ({"optimizer": "scale_free", "schedule": cosine}, "`schedule`"),
        ({"clipping": "soft"}, "`clipping` must be one of"),
    ],
)
def test_wrong_choices_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(**options)
