"""Models of Hugging Face in their natural form: masks, logits, LoRA, records that are mappings."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.space import Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, causal_lm_loss, cross_entropy_loss
from botorch_dp.training.calls import traced_calls
from botorch_dp.training.networks import is_correct
from botorch_dp.training.records import DatasetRecords
from botorch_dp.tuning import PrivateFit
from tests.training.helpers import SETTINGS, clipped_sum, clipped_sum_of, flat, weights

#: In one worker, which alone loads transformers, and where they are needed.
pytestmark = pytest.mark.xdist_group("transformers")

WORDS, LENGTH, ROWS = 40, 10, 16
G = torch.Generator().manual_seed(0)
IDS = torch.randint(3, WORDS, (ROWS, LENGTH), generator=G)
MASK = (torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (ROWS, 1), generator=G)).long()
Y = torch.randint(2, (ROWS,), generator=G)
TEXT = {"input_ids": IDS * MASK, "attention_mask": MASK}
IMAGES = {"pixel_values": torch.randn(ROWS, 3, 16, 16, generator=G)}


def distilbert(dropout: float = 0.0, **how: Any) -> nn.Module:
    drops = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), dropout)
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes, **drops, **how)
    )


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
WHOLE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(**how: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **SIZES, **WHOLE, **how)
    )


SIZES_OF_GPT2 = {
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **{"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "vocab_size": WORDS},
}


def gpt2(**how: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    return GPT2ForSequenceClassification(GPT2Config(pad_token_id=0, **SIZES_OF_GPT2, **how))


def llama(**how: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=WORDS, pad_token_id=0, max_position_embeddings=LENGTH, **SIZES, **how
        )
    )


def vit(**how: Any) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(image_size=16, patch_size=8, **SIZES, **WHOLE, **how)
    )


def _cases() -> Iterator[Any]:
    """Models, kernels of attention, and inputs."""
    quick = [(distilbert, "sdpa", True), (gpt2, "eager", False)]
    for model in (distilbert, bert, gpt2, llama):
        for attention in ("sdpa", "eager"):
            for masked in (True, False):
                X = TEXT if masked else {"input_ids": IDS}
                name = f"{model.__name__}, {attention}{', mask' * masked}"
                marks = [] if (model, attention, masked) in quick else [pytest.mark.slow]
                made = partial(model, attn_implementation=attention)
                yield pytest.param(made, X, id=name, marks=marks)
    for attention in ("sdpa", "eager"):
        made = partial(vit, attn_implementation=attention)
        yield pytest.param(made, IMAGES, id=f"vit, {attention}", marks=pytest.mark.slow)


def gradients_of_single_records(
    model: nn.Module, X: dict[str, Tensor], Y: Tensor, loss_of: Any
) -> list[Tensor]:
    """By plain calls of the model on a batch of one."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for place in range(len(Y)):
        one = {name: part[place : place + 1] for name, part in X.items()}
        loss = loss_of(model(**one).logits, Y[place : place + 1]).sum()
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        rows.append(
            flat([torch.zeros_like(p) if g is None else g for p, g in zip(trained, found)])  # noqa: B905
        )
    return rows


def assert_sums_are_those_of_single_records(
    trainer: DPTrainer,
    model: nn.Module,
    X: dict[str, Tensor],
    Y: Tensor = Y,
    loss: Any = cross_entropy_loss,
) -> None:
    rows = gradients_of_single_records(model, X, Y, loss)
    norms = torch.stack([row.norm() for row in rows])
    for clip_norm in (float(norms.median()), 1e6):
        found = flat(clipped_sum_of(trainer, model, torch.arange(ROWS), clip_norm))
        expected = clipped_sum(rows, clip_norm)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * float(norms.max()))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("factory", "X"), list(_cases()))
def test_models_are_trained_and_published_as_they_are(factory: Any, X: dict[str, Tensor]) -> None:
    trainer = DPTrainer(factory, nn.CrossEntropyLoss(), TrainTest(X, Y, X, Y))
    assert trainer.engine == "ghost"
    trained = trainer.fit(**SETTINGS, publish=True)
    assert trained.guarantee.status == "conditional" and trained.accuracy is not None
    assert type(trained.model) is type(factory())
    torch.manual_seed(0)
    for model in (factory().train(), copy.deepcopy(trained.model).train()):
        assert_sums_are_those_of_single_records(trainer, model, X)
    right = trainer.setup.correct_alone(trained.model)
    with torch.no_grad():
        assert torch.equal(right, is_correct(trained.model(**X).logits, Y))


def lora(dropout: float = 0.0) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="SEQ_CLS", r=2, lora_dropout=dropout, target_modules=["q_lin", "v_lin"]
    )
    return get_peft_model(distilbert(dropout), config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", ["ghost", "per_record", "opacus"])
def test_lora_trains_alone_and_is_merged(engine: Any) -> None:
    data = TrainTest(TEXT, Y, TEXT, Y)
    trainer = DPTrainer(lora, cross_entropy_loss, data, engine=engine)
    torch.manual_seed(0)
    model = lora().train()
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names and all("lora_" in name or "modules_to_save" in name for name in names)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)  # half of them begin at zero
    assert_sums_are_those_of_single_records(trainer, model, TEXT)
    factory = partial(copy.deepcopy, model)
    trained = DPTrainer(factory, cross_entropy_loss, data, engine=engine).fit(
        **SETTINGS, publish=True
    )
    for name, parameter in trained.model.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)) == (name not in names)
    merged = copy.deepcopy(trained.model).merge_and_unload()
    assert type(merged) is type(distilbert())
    with torch.no_grad():
        torch.testing.assert_close(
            merged(**TEXT).logits, trained.model(**TEXT).logits, rtol=1e-4, atol=1e-5
        )


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=1, **SIZES_OF_GPT2))


TOKEN_LABELS = torch.where(MASK > 0, IDS, -100)
TOKENS = [{"input_ids": i, "attention_mask": m} for i, m in zip(IDS * MASK, MASK, strict=True)]
LABELLED = [{**row, "labels": each} for row, each in zip(TOKENS, TOKEN_LABELS, strict=True)]


def lora_of(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets = ["c_attn", "c_proj"]
    config = LoraConfig("CAUSAL_LM", r=2, target_modules=targets, fan_in_fan_out=True)
    return get_peft_model(model, config)


def test_the_loss_of_a_record_is_that_of_the_models_themselves() -> None:
    model = language_model().eval()
    for text, labels in ((TEXT, TOKEN_LABELS), ({"input_ids": IDS}, IDS)):
        with torch.no_grad():
            ours = causal_lm_loss(model(**text).logits, labels)
            for place in range(4):
                one = {name: part[place : place + 1] for name, part in text.items()}
                theirs = model(**one, labels=labels[place : place + 1]).loss
                torch.testing.assert_close(ours[place], theirs)
    odd = TOKEN_LABELS.clone()
    odd[0], odd[1] = -100, 10**6  # nothing to learn, and no token
    assert torch.equal(causal_lm_loss(model(**TEXT).logits, odd)[:2], torch.zeros(2))


@pytest.mark.parametrize("adapted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_causal_language_model_is_trained_on_tokens_with_labels_or_without(adapted: bool) -> None:
    pretrained, zeros = language_model(), torch.zeros(LENGTH).long()

    def factory() -> nn.Module:
        model = copy.deepcopy(pretrained)
        return lora_of(model) if adapted else model

    like = {"input_ids": zeros, "attention_mask": zeros}
    found = []
    for rows, form in ((TOKENS, like), (LABELLED, {**like, "labels": zeros})):
        trainer = DPTrainer(factory, causal_lm_loss, (rows, rows[:4]), like=form)
        assert trainer.engine == "ghost"
        trained = trainer.fit(**SETTINGS, seed=0)
        found.append(weights(trained.model))
        torch.manual_seed(0)
        model = factory().train()
        for parameter in model.parameters():
            if adapted and parameter.requires_grad:
                nn.init.normal_(parameter, std=0.3)
        assert_sums_are_those_of_single_records(trainer, model, TEXT, TOKEN_LABELS, causal_lm_loss)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    published = trainer.fit(**SETTINGS, publish=True)
    assert published.guarantee.status == "conditional"
    with torch.no_grad():
        guess = published.model(**{n: part[:4] for n, part in TEXT.items()}).logits.argmax(-1)
    right = (guess[:, :-1] == TOKEN_LABELS[:4, 1:])[TOKEN_LABELS[:4, 1:] >= 0]
    assert published.accuracy == pytest.approx(float(right.float().mean()))
    with pytest.raises(ValueError, match=r"causal language model pass .*causal_lm_loss"):
        DPTrainer(factory, nn.CrossEntropyLoss(), rows, like=form)


def test_only_a_vectorized_call_counts_as_traced() -> None:
    """In its thread, and no longer than it takes."""
    own, elsewhere = torch.compiler.is_compiling, []
    with traced_calls(), traced_calls():
        assert torch.compiler.is_compiling()
        thread = threading.Thread(target=lambda: elsewhere.append(torch.compiler.is_compiling()))
        thread.start()
        thread.join()
    assert elsewhere == [False] and torch.compiler.is_compiling is own
    with pytest.raises(ZeroDivisionError), traced_calls():
        raise ZeroDivisionError
    assert torch.compiler.is_compiling is own and not own()


# --- Data sets. ---


class Tokenized:
    """Records that are mappings, as of `datasets.Dataset`: lists, and a column of no use."""

    def __init__(self, target: str = "labels", spoiled: int | None = None) -> None:
        self.target, self.spoiled = target, spoiled

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> dict[str, Any]:
        row: dict[str, Any] = {name: part[place].tolist() for name, part in TEXT.items()}
        if place == self.spoiled:
            row["input_ids"] = row["input_ids"][:-1]
        return {"text": "a sentence", **row, self.target: int(Y[place])}


ZEROS = torch.zeros(LENGTH, dtype=torch.long)
LIKE = {"input_ids": ZEROS, "attention_mask": ZEROS, "labels": 0}


def test_records_that_are_mappings_train_as_tensors_do() -> None:
    factory, settings = partial(distilbert, 0.1), {**SETTINGS, "epochs": 1}
    data = TrainTest(TEXT, Y, TEXT, Y)
    expected = DPTrainer(factory, cross_entropy_loss, data).fit(**settings, seed=0)
    trainer = DPTrainer(factory, cross_entropy_loss, (Tokenized(), Tokenized("label")), like=LIKE)
    found = trainer.fit(**settings, seed=0)
    torch.testing.assert_close(weights(found.model), weights(expected.model))
    assert found.accuracy == expected.accuracy and found.diagnostics.unusable_records == 0
    right = trainer.setup.correct_alone(found.model)
    other = DPTrainer(factory, cross_entropy_loss, data).setup.correct_alone(found.model)
    assert torch.equal(right, other)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"pixel_values": ZEROS}, "inputs by name with 'labels' .* among them; got dict"),
        ({"input_ids": [[1, 2], [3]], "labels": 0}, r"`like` \(input_ids\).*unequal length: pad"),
        (({"input_ids": "words"}, 0), r"`like` \(input_ids\) must be a tensor or a number"),
        (3, "must be an example"),
        (None, "as secret as any other.*`like=`.*'labels': 0"),
    ],
)
def test_wrong_examples_are_named(like: Any, message: str) -> None:
    with pytest.raises((TypeError, PrivacyError), match=message):
        DPTrainer(distilbert, cross_entropy_loss, (Tokenized(), Tokenized()), like=like)


def linear() -> nn.Module:
    return nn.Linear(3, 2)


X = torch.randn(60, 3, generator=G)
LABELS = (X[:, 0] > 0).long()


@pytest.mark.parametrize("data", [TrainTest(X, LABELS), (X, LABELS), TensorDataset(X, LABELS)])
def test_without_test_records_there_is_no_accuracy(data: Any) -> None:
    def metric(outputs: Tensor, targets: Tensor) -> float:
        raise AssertionError("called")

    trainer = DPTrainer(linear, cross_entropy_loss, data, metric=metric)
    note = "No accuracy is measured, because there are no test records."
    assert note in str(trainer.plan(**SETTINGS))
    trained = trainer.fit(**SETTINGS, publish=True)
    assert trained.accuracy is None and note in str(trained)
    assert [each.accuracy for each in trainer.replicates([0, 1], **SETTINGS)] == [None, None]
    space = SearchSpace(learning_rate=Real(0.1, 1.0))
    with pytest.raises(ValueError, match="no test records, and a problem"):
        trainer.problem(space, **SETTINGS)
    with pytest.raises(ValueError, match="`curve` is about the accuracy"):
        trainer.fit(**SETTINGS, seed=0, curve=(1,))
    with pytest.raises(ValueError, match="no test records"):
        trainer.setup.correct_alone(trained.model)


def test_named_inputs_may_be_exchanged_for_others() -> None:
    trainer = DPTrainer(distilbert, cross_entropy_loss, TrainTest(TEXT, Y, TEXT, Y))
    trainer.on(TrainTest({"input_ids": IDS.flip(0), "attention_mask": MASK.flip(0)}, Y))
    with pytest.raises(ValueError, match=r"must hold records of input_ids.*attention_mask.*got"):
        trainer.on(TrainTest({"input_ids": IDS}, Y))


# --- Data sets that augment their records. ---


class Augmented:
    """Draws random numbers, more of them for some records, from one of several places."""

    def __init__(self, draw: Callable[[], float], much: int | None = None) -> None:
        self.transforms, self.much = [draw], much

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        draws = [self.transforms[0]() for _ in range(9 if place == self.much else 1)]
        return X[place] + sum(draws), int(LABELS[place])


GLOBAL = [lambda: float(torch.randn(())), np.random.standard_normal, lambda: random.gauss(0, 1)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("draw", GLOBAL)
def test_augmented_records_are_repeated_by_a_seed(draw: Callable[[], float]) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    states = [str(torch.get_rng_state()), str(np.random.get_state()), str(random.getstate())]
    like = (torch.zeros(3), 0)
    trainer = DPTrainer(linear, cross_entropy_loss, (Augmented(draw), Augmented(draw)), like=like)
    one, again, other = (trainer.fit(**SETTINGS, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(weights(one.model), weights(again.model)) and one.accuracy == again.accuracy
    assert not torch.equal(weights(one.model), weights(other.model))
    after = [str(torch.get_rng_state()), str(np.random.get_state()), str(random.getstate())]
    assert after == states
    assert "a seed does not repeat" not in str(trainer.plan(**SETTINGS))
    assert trainer.fit(**SETTINGS, publish=True).guarantee.status == "conditional"
    records = DatasetRecords(Augmented(draw), like)
    first, second = (records.take(torch.arange(4), seed)[0] for seed in (1, 2))
    assert isinstance(first, Tensor) and not torch.equal(first, second)


class Jitter:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self) -> float:
        return float(self.generator.standard_normal())


def closed_over() -> Callable[[], float]:
    generator = random.Random(0)
    return lambda: generator.gauss(0, 1)


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (Jitter(), "transforms[0].generator"),
        (Jitter().__call__, "transforms[0].__self__.generator"),
        (partial(torch.randn, (), generator=torch.Generator()), "transforms[0].generator"),
        (closed_over(), "transforms[0].generator"),
    ],
)
def test_a_data_set_with_random_numbers_of_its_own_is_named_and_not_read(
    draw: Callable[[], float], name: str
) -> None:
    class Unread(Augmented):
        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            raise AssertionError("read")

    trainer = DPTrainer(linear, cross_entropy_loss, Unread(draw), like=(torch.zeros(3), 0))
    plan = str(trainer.plan(**SETTINGS))
    assert "a seed does not repeat a training" in plan and f"({name})" in plan
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    budget = PrivacyBudget(2.0, 1e-5)
    with pytest.raises(PrivacyError, match=r"can be published.*\(transforms.*torch, numpy"):
        trainer.fit(**SETTINGS, publish=True, ledger=ledger)
    with pytest.raises(PrivacyError, match="No model can be published"):
        PrivateFit(trainer, budget=budget, test_records="training")
    assert not ledger.entries()


# --- What is frozen, and what is refused. ---


class Normalized(nn.Module):
    """Frozen batch normalization that its model tries to put in training mode."""

    def __init__(self, *, frozen: bool, layer: Any = nn.BatchNorm1d, awake: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.awake = nn.Linear(3, 4), nn.Linear(4, 2), awake
        self.norm = layer(4).train(not frozen)
        if self.norm.running_mean is not None:
            self.norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
            self.norm.running_var.copy_(torch.tensor([0.5, 2.0, 1.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.awake and torch.compiler.is_compiling():  # where nobody compares
            self.norm.train()
        return self.last(self.norm(self.first(x)).relu())


@pytest.mark.parametrize("awake", [False, True])
@pytest.mark.parametrize("engine", ["ghost", "per_record"])
def test_frozen_batch_normalization_cannot_be_updated(engine: Any, awake: bool) -> None:
    made = partial(Normalized, frozen=True)
    trainer = DPTrainer(
        partial(made, awake=awake), cross_entropy_loss, TrainTest(X, LABELS, X, LABELS),
        engine=engine,
    )  # fmt: skip
    trained = trainer.fit(**SETTINGS, publish=True)
    before = dict(made().named_buffers())
    for name, value in trained.model.named_buffers():
        assert torch.equal(value, before[name])
    assert type(trained.model.norm) is nn.BatchNorm1d and not trained.model.norm.training
    model = made().eval()
    rows = [
        flat(
            list(torch.autograd.grad(cross_entropy_loss(model(x), y).sum(), [*model.parameters()]))
        )
        for x, y in zip(X.split(1), LABELS.split(1), strict=True)
    ]
    found = flat(clipped_sum_of(trainer, model, torch.arange(len(X)), 0.3))
    torch.testing.assert_close(found, clipped_sum(rows, 0.3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (
            partial(Normalized, frozen=False),
            PrivacyError,
            r"BatchNorm1d\(4\) mixes.*nn.GroupNorm\(4, 4\).*freeze.*evaluation mode",
        ),
        (
            partial(
                Normalized, frozen=True, layer=partial(nn.BatchNorm1d, track_running_stats=False)
            ),
            PrivacyError,
            r"BatchNorm1d\(4\) mixes",
        ),
        (lambda: linear().bfloat16(), TypeError, r"weight is of type torch.bfloat16.*\.float\(\)"),
    ],
)
def test_what_is_refused_says_what_to_do(factory: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        DPTrainer(factory, cross_entropy_loss, TrainTest(X, LABELS, X, LABELS))


def test_checkpointed_activations_and_instances_are_refused() -> None:
    def checkpointed() -> nn.Module:
        model = distilbert()
        model.gradient_checkpointing_enable()
        return model

    data = TrainTest(TEXT, Y)
    for factory, error, message in (
        (checkpointed, ValueError, "gradient_checkpointing_disable"),
        (distilbert(), TypeError, "a function that returns a new model"),
    ):
        with pytest.raises(error, match=message):
            DPTrainer(factory, cross_entropy_loss, data)
