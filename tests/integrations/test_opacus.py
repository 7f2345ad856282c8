"""A user's Opacus loop: what it costs, what it promises, and which loops are refused."""

from __future__ import annotations

import copy
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import opacus
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.integrations import opacus_loop
from botorch_dp.integrations.opacus import PrivacyEngine, opacus_problem
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    audit_epsilon,
    dp_sgd_epsilon,
)
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import cross_entropy_loss
from botorch_dp.training.randomness import SystemRandomness
from tests.training.helpers import FLOAT_DATA, NETWORK, clipped_sum, per_example_gradients
from tests.training.models import CLASSES, HOSTILE, MODELS

X, Y = FLOAT_DATA.train_X, FLOAT_DATA.train_Y
N = len(X)
RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE)
DATA = TensorDataset(X, Y)
HOW: dict[str, Any] = {
    "noise_multiplier": 4.0,
    "max_grad_norm": 0.5,
    "epochs": 2,
    "criterion": nn.CrossEntropyLoss(),
}


class Made:
    """What `make_private` returned, and the engine."""

    def __init__(
        self,
        engine: Any = None,
        *,
        model: nn.Module | None = None,
        data: Any = DATA,
        batch_size: int = 6,
        lr: float = 0.1,
        loader: Any = None,
        **how: Any,
    ) -> None:
        self.engine = PrivacyEngine() if engine is None else engine
        self.module = NETWORK() if model is None else model
        self.inner = torch.optim.SGD(self.module.parameters(), lr=lr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model, self.optimizer, self.loader = self.engine.make_private(
                module=self.module,
                optimizer=self.inner,
                data_loader=loader or DataLoader(data, batch_size=batch_size),
                **{**HOW, **how},
            )

    def backward(self, X: Tensor, Y: Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(X), Y).backward()

    def train(self, epochs: int = 2) -> Made:
        for _ in range(epochs):
            for X, Y in self.loader:
                self.backward(X, Y)
                self.optimizer.step()
        return self


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def seeded(seed: int = 0) -> PrivacyEngine:
    return PrivacyEngine(unsafe_seed=seed)


@pytest.fixture(autouse=True)
def weights() -> None:
    torch.manual_seed(0)


# --- The promise. ---


def test_charged_before_the_first_step_and_promised_after_the_last() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    loop = Made(PrivacyEngine(ledger=ledger, delta=1e-6))
    (entry,) = ledger.entries()
    assert loop.engine.steps == 0 and len(loop.loader) == N // 6
    guarantee = loop.train().engine.guarantee(loop.model)
    assert entry.guarantee == guarantee and guarantee.status == "conditional"
    run = {"batch_size": 6, "num_records": N, "steps": 2 * (N // 6), "delta": 1e-6}
    epsilon = dp_sgd_epsilon(noise_multiplier=4.0, **run)
    assert guarantee.epsilon(1e-6) == loop.engine.get_epsilon(1e-6) == epsilon
    assert loop.engine.accountant.get_epsilon(delta=1e-6) == epsilon
    for said in ("not enforced", "your loop calls", "neither published nor shown"):
        assert str(guarantee).count(said) == 1
    assert len(ledger.entries()) == 1


def test_the_least_noise_for_a_target() -> None:
    engine, model = PrivacyEngine(), NETWORK()
    given: Any = {"module": model, "optimizer": torch.optim.Adam(model.parameters())}
    given |= {"data_loader": DataLoader(DATA, batch_size=6), "criterion": nn.CrossEntropyLoss()}
    engine.make_private_with_epsilon(
        **given, target_epsilon=3.0, target_delta=1e-6, epochs=4, max_grad_norm=1.0
    )
    assert 2.99 < engine.plan.guarantee.epsilon(1e-6) <= 3.0


def test_what_is_released_is_the_model_alone() -> None:
    loop = Made().train()
    released = loop.engine.release(loop.model)
    assert type(released.value) is type(loop.module) and not released.value.training
    assert torch.equal(flat(released.value), flat(loop.module))
    assert all(
        p.grad is None and not hasattr(p, "grad_sample") for p in released.value.parameters()
    )
    assert not any(each._forward_hooks for each in released.value.modules())


def test_a_released_model_that_was_changed_gets_no_receipt() -> None:
    loop = Made().train()
    release = loop.engine.release(loop.model)
    receipt = loop.engine.receipt(loop.model)
    assert receipt.verify(artifact=release.value).passes
    assert receipt.document["settings"]["origin"] == "not stated"
    next(release.value.parameters()).data.add_(1.0)
    with pytest.raises(PrivacyError, match="model was changed since"):
        release.receipt()


def test_nothing_is_promised_under_a_seed_and_it_can_be_repeated() -> None:
    one = Made(seeded())
    start = copy.deepcopy(one.engine._made().clean)
    other = Made(seeded(), model=copy.deepcopy(start))
    torch.testing.assert_close(flat(one.train().model), flat(other.train().model), rtol=0, atol=0)
    assert one.engine.guarantee(one.model).status == "none"
    assert not torch.equal(flat(Made(seeded(1), model=start).train().model), flat(one.model))


def test_no_seed_of_torch_gives_the_batches_or_the_noise() -> None:
    found = []
    start = NETWORK()
    for _ in range(2):
        torch.manual_seed(0)
        loop = Made(model=copy.deepcopy(start), batch_size=20)
        torch.manual_seed(0)
        found.append(([X.sum() for X, _ in [next(iter(loop.loader))]], flat(loop.model)))
        loop = Made(model=copy.deepcopy(start), batch_size=N)
        torch.manual_seed(0)
        found[-1] += (flat(loop.train(1).model),)
    assert found[0][0] != found[1][0] and torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][2], found[1][2])


def test_batches_in_parts_are_the_same_steps() -> None:
    model, whole = NETWORK(), None
    whole = flat(Made(seeded(), model=copy.deepcopy(model), batch_size=20).train().model)
    loop = Made(seeded(), model=model, batch_size=20)
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loop.loader, max_physical_batch_size=7, optimizer=loop.optimizer
        ) as loader:
            for X, Y in loader:
                assert len(X) <= 7
                loop.backward(X, Y)
                loop.optimizer.step()
    torch.testing.assert_close(flat(loop.model), whole, rtol=1e-4, atol=1e-5)
    assert loop.engine.steps == 2 * 3


def test_an_empty_batch_is_a_step_of_noise() -> None:
    loop = Made(seeded(), batch_size=1, noise_multiplier=0.0, epochs=1)
    loop.engine._made().coins.choose_each = lambda *_: [torch.zeros(0, dtype=torch.long)]  # type: ignore[method-assign]
    before = flat(loop.model)
    X, Y = next(iter(loop.loader))
    loop.backward(X, Y)
    loop.optimizer.step()
    assert len(X) == 1 and loop.engine.steps == 1 and torch.equal(flat(loop.model), before)


# --- Models. ---


REFUSED = [name for name, case in MODELS.items() if "opacus" in case.refused]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["network", *REFUSED, "table", "LSTM of Opacus", "frozen body"])
def test_each_model_is_clipped_as_single_records_are_or_refused(name: str) -> None:
    case = MODELS[name]
    classes = torch.arange(len(case.X)) % CLASSES
    data, ledger = TensorDataset(case.X, classes), PrivacyLedger(budget=PrivacyBudget(9.0, 1e-4))
    model = case.factory()
    if "opacus" in case.refused:
        said = f"cannot train.*{case.refused['opacus']}.*DPTrainer.*takes the model as it is"
        with pytest.raises(ValueError, match=said):
            Made(PrivacyEngine(ledger=ledger), model=model, data=data)
        assert not ledger.entries()
        return
    rows = per_example_gradients(copy.deepcopy(model).train(), cross_entropy_loss, case.X, classes)
    before = flat(model)
    size = len(case.X)
    how = {"noise_multiplier": 0.0, "batch_size": size, "epochs": 1, "lr": 1.0}
    trained = Made(seeded(), model=model, data=data, **how).train(1)
    moved = (before - flat(trained.module))[
        torch.cat([torch.full((p.numel(),), p.requires_grad) for p in model.parameters()])
    ]
    torch.testing.assert_close(size * moved, clipped_sum(rows, 0.5), rtol=1e-4, atol=1e-4)


def test_a_model_whose_final_gradients_are_others_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    loop = Made(PrivacyEngine(ledger=ledger), model=nn.Linear(7, 3)).train()
    rules = opacus.GradSampleModule.GRAD_SAMPLERS
    rule = rules[nn.Linear]
    wrong = lambda *given: {key: rows.abs() for key, rows in rule(*given).items()}  # noqa: E731
    monkeypatch.setitem(rules, nn.Linear, wrong)
    with pytest.raises(PrivacyError, match="opacus engine finds"):
        loop.engine.guarantee(loop.model)
    assert len(ledger.entries()) == 1


# --- Loops. ---


def the_same_batch_twice(loop: Made) -> None:
    X, Y = next(iter(loop.loader))
    loop.backward(X, Y)
    loop.optimizer.step()
    loop.backward(X, Y)
    loop.optimizer.step()


def a_batch_of_its_own(loop: Made) -> None:
    loop.backward(X[:6], Y[:6])
    loop.optimizer.step()


def another_batch(loop: Made) -> None:
    given, _ = next(iter(loop.loader))
    loop.backward(X[: len(given) + 1], Y[: len(given) + 1])
    loop.optimizer.step()


def two_backwards(loop: Made) -> None:
    batch = next(iter(loop.loader))
    loop.backward(*batch)
    nn.functional.cross_entropy(loop.model(batch[0]), batch[1]).backward()
    loop.optimizer.step()


def no_backward(loop: Made) -> None:
    next(iter(loop.loader))
    loop.optimizer.step()


def skips_a_batch(loop: Made) -> None:
    for place, (X, Y) in enumerate(loop.loader):
        if place != 1:
            loop.backward(X, Y)
            loop.optimizer.step()


def half_a_batch(loop: Made) -> None:
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=2, optimizer=loop.optimizer
    ) as loader:
        for X, Y in loader:
            loop.backward(X, Y)
            loop.optimizer.step()
            if loop.engine._made()._left:
                break
        next(iter(loop.loader))


def the_inner_optimizer(loop: Made) -> None:
    batches = iter(loop.loader)
    loop.backward(*next(batches))
    loop.inner.step()
    loop.optimizer.step()


def another_model(loop: Made) -> None:
    loop.model = NETWORK()
    loop.train(1)


def a_closure(loop: Made) -> None:
    batch = next(iter(loop.loader))
    loop.optimizer.step(lambda: loop.backward(*batch))


def more_parameters(loop: Made) -> None:
    loop.backward(*next(iter(loop.loader)))
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    loop.optimizer.step()


def frozen_later(loop: Made) -> None:
    loop.backward(*next(iter(loop.loader)))
    next(loop.module.parameters()).requires_grad_(False)
    loop.optimizer.step()


def less_noise(loop: Made) -> None:
    loop.backward(*next(iter(loop.loader)))
    loop.optimizer.noise_multiplier = 0.1
    loop.optimizer.step()


def larger_clipping_norm(loop: Made) -> None:
    loop.backward(*next(iter(loop.loader)))
    loop.optimizer.max_grad_norm = 100.0
    loop.optimizer.step()


def promised_for_another(loop: Made) -> None:
    loop.train().engine.guarantee(NETWORK())


LOOPS = [
    (lambda loop: loop.train(3), "All 20 planned steps"),
    (the_same_batch_twice, "no new batch"),
    (a_batch_of_its_own, "no new batch"),
    (another_batch, "not those of the"),
    (two_backwards, "(not those of the|accumulation)"),
    (no_backward, "not those of the"),
    (skips_a_batch, "no step was taken on it"),
    (half_a_batch, "no step was taken on it"),
    (lambda loop: loop.loader.dataset[0], "not the next ones"),
    (the_inner_optimizer, "Something else than the step"),
    (another_model, "not those of the"),
    (a_closure, "`closure`"),
    (more_parameters, "parameters are not those"),
    (frozen_later, "parameters are not those"),
    (less_noise, "another noise or clipping norm"),
    (larger_clipping_norm, "another noise or clipping norm"),
    (lambda loop: copy.deepcopy(loop.optimizer), "cannot be copied"),
    (lambda loop: copy.deepcopy(loop.loader), "cannot be copied"),
    (lambda loop: Made(loop.engine), "used already"),
    (lambda loop: loop.engine.load_checkpoint(path="x", module=loop.model), "another engine"),
    (lambda loop: loop.engine.guarantee(loop.model), "No step was taken"),
    (promised_for_another, "not what the last step left"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("loop", "said"), LOOPS)
def test_other_steps_than_were_priced_are_refused(loop: Any, said: str) -> None:
    """Before they leave anything in the weights that the engine would hand out."""
    made = Made()
    with pytest.raises(ValueError, match=said):
        loop(made)
    assert made.engine.steps <= 20
    if loop not in (the_inner_optimizer, promised_for_another):
        after = torch.cat([p.flatten() for p in made.engine._made()._after])
        assert torch.equal(after, flat(made.module))


def test_a_fork_takes_no_steps() -> None:
    loop = Made()
    batch = next(iter(loop.loader))
    loop.backward(*batch)

    def child(queue: Any) -> None:
        for step in (loop.optimizer.step, lambda: loop.engine._made().draw()):
            try:
                step()
                queue.put("taken")
            except PrivacyError:
                queue.put("refused")

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert [queue.get(timeout=60), queue.get(timeout=60)] == ["refused", "refused"]
    process.join()


def test_a_script_that_is_started_again_pays_again(tmp_path: Path) -> None:
    price = PrivacyEngine(unsafe_seed=0)
    epsilon = Made(price).engine.plan.epsilon
    path, budget = tmp_path / "budget.ledger", PrivacyBudget(2.5 * epsilon, 1e-3)
    for _ in range(2):
        with PrivacyLedger(path, budget) as ledger:
            Made(PrivacyEngine(ledger=ledger))  # and was killed
    read: list[int] = []

    class Watched(TensorDataset):
        def __getitem__(self, place: int) -> Any:
            read.append(place)
            return super().__getitem__(place)

    with PrivacyLedger(path, budget) as ledger, pytest.raises(BudgetExhausted):
        like = (torch.zeros(7), 0)
        Made(PrivacyEngine(ledger=ledger, like=like), data=Watched(X, Y))
    assert not read


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grad_sample_mode": "ghost"}, "1.77 clipping norms"),
        ({"poisson_sampling": False}, "shuffled pass"),
        ({"clipping": "per_layer"}, "single layers is not accounted"),
        pytest.param({"noise_generator": torch.Generator()}, "unsafe_seed", id="generator"),
        ({"loss_reduction": "sum"}, "mean over the batch"),
        ({"wrap_model": False}, "model that make_private returns"),
        ({"epoch": 3}, "no argument 'epoch'"),
        ({"sampling": "poisson"}, r"no argument 'sampling'.* DPTrainer\(engine="),
        ({"grad_sample_mode": "functorch"}, r"engine='per_record'.* uses vmap"),
        ({"max_grad_norm": [1.0, 2.0]}, "max_grad_norm"),
        ({"model": nn.Linear(7, 1)}, "`loss` cannot take"),
        ({"noise_multiplier": 0.0}, "train under a seed"),
        ({"model": opacus.GradSampleModule(nn.Linear(7, 3))}, "pass the model itself"),
        pytest.param(
            {
                "model": HOSTILE["mean over the batch"].factory(),
                "data": TensorDataset(HOSTILE["mean over the batch"].X, torch.ones(20)),
                "criterion": lambda outputs, _: outputs.flatten(1).square().sum(dim=1),
            },
            "mixes the records",
            id="a mean over the batch",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_priced_is_refused(options: dict[str, Any], said: str) -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    with pytest.raises((TypeError, ValueError), match=said):
        Made(PrivacyEngine(ledger=ledger), **options)
    assert not ledger.entries()


def test_the_loader_of_a_training_is_taken_by_the_next_one() -> None:
    """A script that trains several times writes over its loader."""
    first = Made(batch_size=7).train()
    second = Made(batch_size=7, loader=first.loader).train()
    assert second.engine.steps == first.engine.steps == second.engine.plan.steps
    assert second.engine.plan.batch_size == 7 and second.loader is not first.loader
    rows = list(zip(X, Y, strict=True))
    loader = Made(PrivacyEngine(like=(X[0] * 0, Y[0] * 0)), data=rows).loader
    again = Made(loader=loader)
    assert "the form of a record" in str(again.engine.plan.guarantee)
    assert "the form of a record" not in str(second.engine.plan.guarantee)


class Autoencoder(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 2), nn.Linear(2, 7))


class Pair(nn.Module):
    """Scores two inputs together."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(7, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.one(a) + self.other(b)


OTHER_RECORDS = {
    "no target": (TensorDataset(X), Autoencoder, nn.MSELoss(), lambda m, X: (m(X), X), {}),
    "no tuple": (list(X), Autoencoder, nn.MSELoss(), lambda m, X: (m(X), X), {"like": X[0] * 0}),
    "several inputs": (
        TensorDataset(X, X[:, :2], Y), Pair, nn.CrossEntropyLoss(),
        lambda m, a, b, Y: (m(a, b), Y), {},
    ),
    "names and a target": (
        [({"a": x, "b": x[:2]}, y) for x, y in zip(X, Y, strict=True)], Pair,
        nn.CrossEntropyLoss(), lambda m, named, Y: (m(**named), Y),
        {"like": ({"a": X[0] * 0, "b": X[0, :2] * 0}, 0)},
    ),
    "by name": (
        [{"a": x, "b": x[:2], "label": y} for x, y in zip(X, Y, strict=True)], Pair,
        nn.CrossEntropyLoss(), lambda m, **r: (m(r["a"], r["b"]), r["label"]),
        {"like": {"a": X[0] * 0, "b": X[0, :2] * 0, "label": 0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_RECORDS)
def test_batches_are_what_a_loader_of_torch_makes_of_such_records(kind: str) -> None:
    data, factory, loss, call, options = OTHER_RECORDS[kind]
    torch.manual_seed(0)
    model = factory()
    plain = copy.deepcopy(model)
    made = Made(
        PrivacyEngine(unsafe_seed=0, **options), model=model, data=data, batch_size=N, epochs=1,
        criterion=loss, noise_multiplier=0.0, max_grad_norm=1e6, lr=1.0,
    )  # fmt: skip
    (ours,), (theirs,) = list(made.loader), list(DataLoader(data, batch_size=N))
    assert type(ours) is type(theirs)
    for batch, net in ((ours, made.model), (theirs, plain)):
        args = [batch] if isinstance(batch, Tensor) else batch
        found = call(net, **batch) if isinstance(batch, dict) else call(net, *args)
        loss(*found).backward()
    made.optimizer.step()
    torch.testing.assert_close(
        flat(made.model), flat(plain) - torch.cat([p.grad.flatten() for p in plain.parameters()])
    )


def test_loaders_and_optimizers_that_do_not_fit_are_refused() -> None:
    model = NETWORK()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(DATA, batch_size=6, collate_fn=lambda batch: batch)
    with pytest.raises(PrivacyError, match="`collate_fn`"):
        PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, **HOW)
    some = torch.utils.data.SubsetRandomSampler(range(20))
    for sampler in (some, torch.utils.data.RandomSampler(DATA, num_samples=9)):
        data = DataLoader(DATA, batch_size=6, sampler=sampler)
        with pytest.raises(PrivacyError, match=r"Subset\(data"):
            PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=data, **HOW)
    used = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    used.step()
    with pytest.raises(PrivacyError, match="has taken steps"):
        PrivacyEngine().make_private(
            module=model, optimizer=used, data_loader=DataLoader(DATA, batch_size=6), **HOW
        )
    with pytest.raises(ValueError, match="all trainable parameters"):
        part = torch.optim.SGD(list(model.parameters())[:1], lr=0.1)
        data = DataLoader(DATA, batch_size=6)
        PrivacyEngine().make_private(module=model, optimizer=part, data_loader=data, **HOW)
    with pytest.raises(PrivacyError, match="make_private"):
        PrivacyEngine().guarantee(model)


# --- Audits. ---


class Slope(nn.Module):
    """Gradients are the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(1, 1, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        return self.weight(X)


def noisy_sums(value: float, samples: int) -> list[float]:
    """The noisy gradients of many steps on three records, of which one is ``value``."""
    data = TensorDataset(torch.tensor([[1.0], [-1.0], [value]]), torch.zeros(3))
    loop = Made(model=Slope(), data=data, batch_size=3, epochs=samples, criterion=linear, lr=0.0)
    found = []
    for _ in range(samples):
        for X, _ in loop.loader:
            loop.model(X).mean().backward()
            loop.optimizer.step()
            found.append(float(3 * loop.module.weight.weight.grad))
    return found


def linear(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.flatten(1).sum(dim=1)


def bound(samples: int) -> float:
    drawn = [noisy_sums(value, samples) for value in (100.0, -100.0)]
    return audit_epsilon(
        lambda side, _: drawn[side], 0, 1, samples=samples, delta=0.01, batched=True,
        confidence=1 - 1e-6,
    ).lower_bound  # fmt: skip


def test_the_audit_of_one_step_passes_and_broken_engines_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = 400
    claim = dp_sgd_epsilon(
        noise_multiplier=HOW["noise_multiplier"], batch_size=3, num_records=3, steps=1, delta=0.01
    )
    assert bound(samples) <= claim
    honest = opacus_loop.add_clipped
    with monkeypatch.context() as patch:  # forgets to clip
        patch.setattr(
            opacus_loop, "add_clipped", lambda found, sums, counts, clip, s: honest(
                found, sums, counts, 1e3, s
            ),
        )  # fmt: skip
        assert bound(samples) > claim
    with monkeypatch.context() as patch:  # a tenth of the noise
        noise = SystemRandomness.perturb_
        patch.setattr(
            SystemRandomness,
            "perturb_",
            lambda self, total, *, std, sensitivity: noise(
                self, total, std=std / 10, sensitivity=sensitivity
            ),
        )
        assert bound(samples) > claim


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_step_gets_the_noise_that_was_priced(
    relation: NeighboringRelation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit with few draws sees a tenth of the noise; this sees half of it."""
    asked = []
    real = SystemRandomness.perturb_

    def seen(self: SystemRandomness, total: Tensor, *, std: float, sensitivity: float) -> None:
        asked.append((std, sensitivity))
        real(self, total, std=std, sensitivity=sensitivity)

    monkeypatch.setattr(SystemRandomness, "perturb_", seen)
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    made = Made(PrivacyEngine(ledger=ledger, relation=relation), epochs=1).train(1)
    noise, clip = HOW["noise_multiplier"], HOW["max_grad_norm"]
    assert asked == [(noise * clip, relation.sum_sensitivity * clip)] * (N // 6)
    guarantee = made.engine.guarantee(made.model)
    (loss,) = guarantee.losses
    assert loss.noise_multiplier == noise and loss.steps == len(asked)
    run = {"batch_size": 6, "num_records": N, "steps": N // 6, "delta": 1e-5}
    price = dp_sgd_epsilon(noise_multiplier=noise, relation=relation, **run)
    assert guarantee.unit.relation is relation and guarantee.epsilon(1e-5) == price
    assert ledger.entries()[0].guarantee == guarantee
    problem = opacus_problem(
        with_batches, SPACE, num_records=N, batch_size=6, relation=relation
    )  # fmt: skip
    config = {"lr": 0.3, "noise_multiplier": noise, "epochs": 1}
    assert problem.epsilon(config) == price and 0 <= problem.oracle(config, 0) <= 1


# --- Fronts. ---


def train(engine: PrivacyEngine, lr: float, noise_multiplier: float, epochs: int) -> float:
    loop = Made(engine, lr=lr, noise_multiplier=noise_multiplier, epochs=epochs).train(epochs)
    with torch.no_grad():
        return float((loop.model(X).argmax(1) == Y).float().mean())


SPACE = SearchSpace(
    lr=Real(0.05, 1.0, log=True), noise_multiplier=Real(1.0, 8.0), epochs=Integer(1, 2)
)


def with_batches(engine: PrivacyEngine, batch_size: int, **config: Any) -> float:
    return train(engine, **config)


def test_a_loop_becomes_a_front() -> None:
    problem = opacus_problem(with_batches, SPACE, num_records=N, batch_size=6)
    study = DPareto(problem, seed=0)
    front = study.run(3)
    for trial in study.trials:
        config = dict(trial.config)
        run = {"batch_size": 6, "num_records": N, "steps": config["epochs"] * (N // 6)}
        exact = dp_sgd_epsilon(noise_multiplier=config["noise_multiplier"], delta=1e-5, **run)
        assert problem.epsilon(config) == exact
    config = {"lr": 0.3, "noise_multiplier": 2.0, "epochs": 1}
    assert problem.oracle(config, 5) == problem.oracle(config, 5)
    assert front.guarantee is not None and "train" in str(front.caption)


def test_a_loop_that_takes_other_steps_than_its_price_is_refused() -> None:
    config = {"lr": 0.3, "noise_multiplier": 2.0, "epochs": 1}
    problem = opacus_problem(with_batches, SPACE, num_records=N, batch_size=7)
    with pytest.raises(PrivacyError, match=r"batch_size=6.*the accounting is for"):
        problem.oracle(config, 0)

    def quieter(engine: PrivacyEngine, batch_size: int, **config: Any) -> float:
        return train(engine, **{**config, "noise_multiplier": 0.5})

    problem = opacus_problem(quieter, SPACE, num_records=N, batch_size=6)
    with pytest.raises(PrivacyError, match=r"noise_multiplier=0\.5"):
        problem.oracle(config, 0)
