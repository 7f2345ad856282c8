"""Trainings whose unit is a person with many records."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.groups import Groups
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Receipt,
    audit_epsilon,
)
from botorch_dp.privacy.receipt_document import canonical, document_digest
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.plan import TrainingPlan
from tests.training.helpers import (
    BATCHES,
    ENGINES,
    FALSE_ALARM,
    FLOAT_DATA,
    NETWORK,
    Interrupting,
    clipped_sum,
    linear_loss,
    make_data,
    per_example_gradients,
    watched,
    weights,
    zero_model,
)

#: Sixty records of 14 people, who have from 1 to 20 of them, in no order.
IDS = np.random.default_rng(1).permutation(
    np.repeat(np.arange(14), [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 10, 20])
)
PEOPLE = 14
#: One step along the sum of all groups, without noise.
WHOLE: dict[str, Any] = {
    "learning_rate": 1.0,
    "clip_norm": 0.3,
    "noise_multiplier": 0.0,
    "batch_size": PEOPLE,
    "epochs": 1,
}
SETTINGS: dict[str, Any] = {**WHOLE, "noise_multiplier": 2.0, "batch_size": 4, "epochs": 3}


def one_step(trainer: DPTrainer, seed: int = 0, **settings: Any) -> tuple[nn.Module, Tensor]:
    """A model as training finds it, and the sum that its first step of all groups adds up."""
    plan = trainer.plan(**{**WHOLE, **settings})
    run = trainer.setup.start(plan, [seed])
    (model,), before = run.models(), run.result.clone()
    run.advance(1)
    return model.train(), ((before - run.result) * plan.batch_size)[0]


@pytest.mark.parametrize("per_group", [1, 4, 50])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_adds_up_means_of_clipped_gradients(engine: str, per_group: int) -> None:
    """The sum over people of ``(1/k_i) sum_j clip(g_ij)``, by autograd on one record at a time."""
    data = make_data()
    trainer = DPTrainer(
        lambda: NETWORK().double(),
        cross_entropy_loss,
        data,
        engine=engine,
        groups=IDS,
        per_group=per_group,
        sampling="without_replacement",
    )
    model, found = one_step(trainer)
    rows = per_example_gradients(model, cross_entropy_loss, data.train_X, data.train_Y)
    expected = torch.zeros_like(found)
    for person in range(PEOPLE):
        own = [rows[place] for place in np.flatnonzero(IDS == person)[:per_group]]
        expected += clipped_sum(own, 0.3) / len(own)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


#: What a person's records may be exchanged for: any number of anything.
STRANGE = {
    "nothing usable": torch.full((3, 4), math.nan, dtype=torch.float64),
    "one": torch.ones(1, 4, dtype=torch.float64),
    "many": torch.ones(30, 4, dtype=torch.float64) * 5,
    "enormous": torch.full((30, 4), 1e300, dtype=torch.float64),
    "opposite": -torch.ones(30, 4, dtype=torch.float64) * 5,
    "some infinite": torch.tensor([[math.inf] * 4, [1.0] * 4], dtype=torch.float64),
    "tiny": torch.full((17, 4), 1e-300, dtype=torch.float64),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_group_moves_a_sum_by_two_clipping_norms_at_most(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced; and by one when it is added or removed, whatever its records are."""
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    ids = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 6, 6, 7]

    def total(own: Tensor) -> Tensor:
        X = torch.cat([own, others])
        Y = torch.ones(len(X), dtype=torch.float64)
        owners = [-1] * len(own) + ids
        trainer = DPTrainer(
            zero_model(4),
            linear_loss,
            TrainTest(X, Y),
            engine=engine,
            groups=owners,
            per_group=8,
            sampling="without_replacement",
        )
        people = len(set(owners))
        return one_step(trainer, batch_size=people, clip_norm=0.5)[1]

    with torch.no_grad():
        without = total(others[:0])
        found = {name: total(rows) for name, rows in STRANGE.items()}
    largest = 0.0
    for rows in found.values():
        assert float((rows - without).norm()) <= 0.5 * (1 + 1e-12)
        largest = max([largest, *(float((rows - other).norm()) for other in found.values())])
    assert largest == pytest.approx(1.0)  # which is attained
    forget_weights(monkeypatch)
    longest = float((total(STRANGE["opposite"]) - total(STRANGE["many"])).norm())
    assert longest == pytest.approx(8.0)


def forget_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken version: each record of a group counts as a group does."""
    real = Groups.__init__

    def forgetting(self: Groups, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.weights = (self.weights > 0).double()

    monkeypatch.setattr(Groups, "__init__", forgetting)


def audited(batches: str) -> tuple[float, float]:
    """What exchanging one of two people of four records shows at least, and what is claimed."""
    sensitivity = 1.0 if batches == "poisson, one more" else 2.0
    settings = {
        **WHOLE,
        "clip_norm": 0.5,
        "noise_multiplier": sensitivity,
        "batch_size": 2,
        "delta": 0.05,
    }
    other = [math.nan] * 4 if batches == "poisson, one more" else [-5.0] * 4

    def trainer(rows: list[float]) -> DPTrainer:
        X = torch.tensor([[0.0], *([row] for row in rows)], dtype=torch.float64)
        return DPTrainer(
            zero_model(1),
            linear_loss,
            TrainTest(X, torch.ones(5, dtype=torch.float64)),
            groups=[1, 2, 2, 2, 2],
            per_group=4,
            **BATCHES[batches],
        )

    def draws(rows: list[float], seeds: range) -> Tensor:
        fitted = trainer(rows).replicates(seeds, **settings)
        return (torch.stack([f.model.weight.detach().flatten()[0] for f in fitted]) * 2**20).round()

    drawn = draws([5.0] * 4, range(1500)), draws(other, range(1500, 3000))
    report = audit_epsilon(
        lambda side, _: drawn[side],
        0,
        1,
        samples=1500,
        delta=0.05,
        confidence=1 - FALSE_ALARM,
        batched=True,
    )
    return report.lower_bound, trainer(other).plan(**settings).epsilon


def test_the_audit_stays_below_the_claim() -> None:
    bound, claim = audited("fixed")
    assert 0 < bound <= claim


@pytest.mark.parametrize("batches", ["fixed", "poisson, one more"])
def test_the_audit_catches_forgotten_weights(batches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_weights(monkeypatch)
    bound, claim = audited(batches)
    assert bound > claim


@pytest.mark.parametrize("batches", BATCHES)
def test_one_record_each_is_a_training_on_records(batches: str) -> None:
    """The same model under the same seed, at the same price."""
    plain = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, **BATCHES[batches])
    people = DPTrainer(
        NETWORK, cross_entropy_loss, FLOAT_DATA, groups=np.arange(60), **BATCHES[batches]
    )
    settings = {**SETTINGS, "batch_size": 6}
    one, other = (each.fit(**settings, seed=3) for each in (plain, people))
    assert torch.equal(weights(one.model), weights(other.model))
    assert one.epsilon == other.epsilon
    assert one.guarantee.protects == "one training record"
    assert other.guarantee.protects == "one person with all of at most 16 records that are used"
    assert "Where everybody has one, this is the guarantee for a record." in str(other)


@pytest.mark.parametrize("batches", BATCHES)
def test_people_are_counted_and_drawn(batches: str) -> None:
    trainer = DPTrainer(
        NETWORK, cross_entropy_loss, FLOAT_DATA, groups=IDS, per_group=4, **BATCHES[batches]
    )
    plan = trainer.plan(**SETTINGS)
    assert (plan.num_records, plan.steps, plan.per_group) == (PEOPLE, 9, 4)
    alone = TrainingPlan(**{**SETTINGS, "num_records": PEOPLE}, **BATCHES[batches])
    assert plan.guarantee.losses == alone.guarantee.losses
    assert plan.noise_std == alone.noise_std and plan.sensitivity == alone.sensitivity
    one_more = batches.endswith("one more")
    change = "one person is " + ("added or removed" if one_more else "replaced by any other")
    assert change in str(plan) and change in str(plan.guarantee) and "of 14 people" in str(plan)
    assert any("number of people" in each for each in plan.guarantee.conditions) is one_more
    assert any("same identifier" in each for each in plan.guarantee.conditions)
    assert not any("comes twice" in each for each in plan.guarantee.conditions)
    run = trainer.setup.start(plan, [0, 1])
    run.advance(1)
    for drawn in run._ahead:
        for places, counts in zip(drawn.batches.places, drawn.batches.weights, strict=True):
            own = IDS[places[counts > 0]]
            for person in own:
                size = min(4, int((IDS == person).sum()))
                assert (own == person).sum() == size
                assert (counts[counts > 0][own == person] == 1 / size).all()


def test_a_published_model_says_whom_it_protects(tmp_path: Path) -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(50.0, 1e-3))
    trainer = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, groups=IDS, per_group=4)
    trained = trainer.fit(**SETTINGS, publish=True, ledger=ledger)
    unit = PrivacyUnit.of_person(4)
    assert trained.guarantee.protects == unit.protects
    (entry,) = ledger.entries()
    assert entry.guarantee.protects == unit.protects
    receipt = trained.receipt()
    receipt.save(tmp_path / "receipt.json")
    loaded = Receipt.load(tmp_path / "receipt.json")
    assert loaded.verify().passes
    promise, training = loaded.document["promise"], loaded.document["training"]
    assert promise["protects"] == unit.protects
    assert promise["neighbours"] == "one person is replaced by any other"
    assert (training["num_records"], training["per_group"]) == (PEOPLE, 4)
    words = {"neighbours": "one record is replaced by any other"}
    altered = {**loaded.document, "promise": {**promise, **words}}
    found = Receipt(canonical({**altered, "digest": document_digest(altered)})).verify()
    assert "neighbours" in str(found.contradictions)


def test_a_resumed_run_is_an_uninterrupted_one(tmp_path: Path) -> None:
    loss = Interrupting(5)
    trainer = DPTrainer(NETWORK, loss, FLOAT_DATA, groups=IDS, per_group=4)
    loss.armed, loss.calls = True, 0
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    loss.armed = False
    for others in (np.roll(IDS, 1), None):
        other = DPTrainer(NETWORK, loss, FLOAT_DATA, groups=others)
        with pytest.raises(ValueError, match="other settings"):
            other.fit(**{**SETTINGS, "batch_size": 4}, seed=4, checkpoint=tmp_path / "run")
    resumed = trainer.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    assert torch.equal(weights(resumed.model), weights(trainer.fit(**SETTINGS, seed=4).model))


def test_a_group_is_never_told_from_others() -> None:
    """Sizes are sensitive: whoever has many records, or none that count, nothing is said."""
    X = FLOAT_DATA.train_X.clone()
    X[IDS == 13] = math.nan
    for ids in (IDS, np.where(IDS == 13, 12, IDS), np.arange(60)):
        trainer = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA._replace(train_X=X), groups=ids)
        plan = trainer.plan(**SETTINGS)
        assert plan.notes == trainer.setup.notes
        assert str(plan).replace(f"{len(set(ids))}", "") == str(plan).replace(
            f"{plan.num_records}", ""
        )


def test_wrong_groups_are_refused_before_a_record_is_read() -> None:
    data = watched(FLOAT_DATA)
    make = partial(DPTrainer, NETWORK, cross_entropy_loss, data)
    for groups, match in ((IDS[:-1], "each of the 60 records"), ([None] * 60, "missing")):
        with pytest.raises(ValueError, match=match):
            make(groups=groups)
    with pytest.raises(TypeError, match="pass both"):
        make(per_group=3)
    trainer = make(groups=IDS)
    with pytest.raises(ValueError, match="`batch_size` must be from 1 to 14"):
        trainer.plan(**{**SETTINGS, "batch_size": 15})


def test_what_protects_a_record_is_no_part_of_what_protects_a_person() -> None:
    trainer = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, groups=IDS)
    plain = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA)
    beside = plain.plan(**SETTINGS).guarantee
    with pytest.raises(PrivacyError, match="with the same `groups`, or both without"):
        trainer.beside(beside).plan(**SETTINGS)
    with pytest.raises(PrivacyError, match="with the same `groups`, or both without"):
        plain.beside(trainer.plan(**SETTINGS).guarantee).plan(**{**SETTINGS, "batch_size": 6})
    both = trainer.beside(trainer.plan(**SETTINGS).guarantee).plan(**SETTINGS)
    assert both.guarantee.protects == PrivacyUnit.of_person(16).protects


def test_sums_that_would_round_too_much_are_not_published() -> None:
    plan = TrainingPlan(**{**SETTINGS, "num_records": 10**6, "batch_size": 5000}, per_group=16)
    plan.check_publishable()
    with pytest.raises(PrivacyError, match="`batch_size` times `per_group` must be at most 80000"):
        TrainingPlan(
            **{**SETTINGS, "num_records": 10**6, "batch_size": 5001}, per_group=16
        ).check_publishable()


def test_a_problem_is_about_people() -> None:
    trainer = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, groups=IDS, per_group=4)
    from botorch_dp.space import Real, SearchSpace

    space = SearchSpace(noise_multiplier=Real(0.5, 8.0))
    settings = {k: v for k, v in SETTINGS.items() if k != "noise_multiplier"}
    problem = trainer.problem(space, **settings)
    assert problem.training.unit == PrivacyUnit.of_person(4, NeighboringRelation.REPLACE_ONE)
    config = {"noise_multiplier": 2.0}
    (bound,) = problem.batched.epsilons([config])
    assert trainer.plan(**SETTINGS).epsilon <= bound <= 1.1 * trainer.plan(**SETTINGS).epsilon
