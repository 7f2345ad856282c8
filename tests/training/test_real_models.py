"""Data sets, inputs by name, tokens, encoders and recurrent layers: one record, one gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from botorch_dp.errors import PrivacyError
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_regression,
    multilayer_perceptron,
)
from tests.training.helpers import (
    FLOAT_DATA,
    SETTINGS,
    clipped_sum,
    clipped_sum_of,
    flat,
    make_data,
    weights,
)

WORDS, LENGTH = 11, 5


class Encoder(nn.Module):
    """A transformer encoder over tokens, with a mask, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens)) * mask.unsqueeze(-1)
        return self.head(hidden.sum(dim=1))


def text(n: int = 24, *, seed: int = 0) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(WORDS, (n, LENGTH), generator=generator)
    mask = torch.rand((n, LENGTH), generator=generator).lt(0.8).float()
    Y = torch.randint(3, (n,), generator=generator)
    inputs = {"tokens": tokens, "mask": mask}
    return TrainTest(inputs, Y, inputs, Y)


class Texts:
    """A map-style data set of the same records."""

    def __init__(self, data: TrainTest, *, spoiled: tuple[int, ...] = ()) -> None:
        self.data, self.spoiled, self.read = data, spoiled, list[int]()

    def __len__(self) -> int:
        return len(self.data.train_Y)

    def __getitem__(self, place: int) -> tuple[dict[str, Tensor], int]:
        self.read.append(place)
        if place in self.spoiled:
            raise OSError(f"record {place} cannot be read")
        inputs = {name: part[place] for name, part in self.data.train_X.items()}
        return inputs, int(self.data.train_Y[place])


#: The form of such a record.
LIKE = {"tokens": torch.zeros(LENGTH).long(), "mask": torch.zeros(LENGTH)}, 0


def records_gradients(model: nn.Module, data: TrainTest) -> list[Tensor]:
    rows = []
    moving = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(data.train_Y)):
        one = {name: part[i : i + 1] for name, part in data.train_X.items()}
        loss = cross_entropy_loss(model(**one), data.train_Y[i : i + 1]).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, moving)]))
    return rows


def test_a_data_set_trains_the_same_model_as_its_tensors() -> None:
    data = text()
    eager = DPTrainer(Encoder, cross_entropy_loss, data).fit(**SETTINGS, seed=3, curve=(1, 2))
    lazily = DPTrainer(Encoder, cross_entropy_loss, (Texts(data), Texts(data)), like=LIKE)
    lazy = lazily.fit(**SETTINGS, seed=3, curve=(1, 2))
    assert torch.equal(weights(eager.model), weights(lazy.model))
    assert eager.curve == lazy.curve


def test_only_the_records_of_batches_are_read() -> None:
    train = Texts(text(200))
    trainer = DPTrainer(Encoder, cross_entropy_loss, (train, Texts(text())), like=LIKE)
    assert not train.read
    drawn = trainer.fit(
        learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=4, epochs=1, seed=0
    )
    assert drawn.steps == 50
    assert 100 < len(train.read) < 320


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("token", [-1, WORDS, 2**40])
def test_a_token_that_does_not_exist_says_nothing(lazily: bool, token: int) -> None:
    data = text()
    broken = text()
    broken.train_X["tokens"][5, 2] = token
    given = (Texts(broken), Texts(data)) if lazily else broken._replace(test_X=data.test_X)
    trainer = DPTrainer(Encoder, cross_entropy_loss, given, like=LIKE if lazily else None)
    torch.manual_seed(0)
    model = Encoder()
    found = flat(clipped_sum_of(trainer, model, torch.tensor([4, 5, 6]), 0.3))
    rows = records_gradients(model, data)
    torch.testing.assert_close(found, clipped_sum([rows[4], rows[6]], 0.3), rtol=1e-4, atol=1e-5)
    assert type(trainer.fit(**SETTINGS, seed=0).model.embedding) is nn.Embedding


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([])


DATASET = TensorDataset(FLOAT_DATA.train_X, FLOAT_DATA.train_Y)


@pytest.mark.parametrize(
    "data, error, message",
    [
        ((Stream(), DATASET), TypeError, "train data set must have __getitem__ and __len__"),
        ((DATASET, DataLoader(DATASET, shuffle=True)), PrivacyError, "map-style data sets"),
        ((DATASET, []), ValueError, "test data set is empty"),
        (([1, 2], DATASET), PrivacyError, "the train data set.*as secret as any other.*`like="),
        ((DATASET, [1, 2]), PrivacyError, "the test data set.*as secret as any other.*`like="),
        (FLOAT_DATA._replace(train_X={}), TypeError, "must name its inputs"),
        (FLOAT_DATA._replace(train_X={"a": FLOAT_DATA.train_X}), ValueError, "must agree in names"),
    ],
)
def test_wrong_data_is_named(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DPTrainer(partial(multilayer_perceptron, 7, 3, (6,)), cross_entropy_loss, data)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize(
    "factory, loss, error, message",
    [
        (
            partial(logistic_regression, 7),
            squared,
            ValueError,
            r"one number for outputs \(6, 1\) and targets \(6,\).*squeeze",
        ),
        (
            partial(logistic_regression, 8),
            squared,
            ValueError,
            r"The model cannot take inputs of \(6, 7\) torch.float32: .*\(6x7 and 8x1\)",
        ),
        (nn.Linear, squared, TypeError, r"without arguments, and Linear needs.*partial\(Linear"),
        (lambda: nn.LazyLinear(3), cross_entropy_loss, ValueError, "LazyLinear has no weights"),
    ],
)
def test_errors_name_the_cause_and_the_fix(
    factory: Any, loss: Any, error: type[Exception], message: str
) -> None:
    data = FLOAT_DATA
    if loss is not cross_entropy_loss:
        data = TrainTest(data.train_X, data.train_Y.float(), data.test_X, data.test_Y.float())
    with pytest.raises(error, match=message):
        DPTrainer(factory, loss, data)


FACTORY = partial(multilayer_perceptron, 7, 3, (6,))


def test_a_wrong_name_gets_the_nearest_of_ours() -> None:
    trainer = DPTrainer(FACTORY, cross_entropy_loss, FLOAT_DATA)
    for name, ours in (("learning_rat", "learning_rate"), ("epoch", "epochs")):
        with pytest.raises(TypeError, match=f"no setting '{name}'. Did you mean '{ours}'"):
            trainer.fit(seed=0, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean 'adam'"):
        DPTrainer(FACTORY, cross_entropy_loss, FLOAT_DATA, optimizer="adm")


def test_a_data_set_of_plain_vectors_is_trained_record_by_record() -> None:
    data = make_data(dtype=torch.float32)
    pair = tuple(TensorDataset(X, Y) for X, Y in (data[:2], data[2:]))
    factory = partial(multilayer_perceptron, 7, 3, (6,))
    lazily = DPTrainer(factory, cross_entropy_loss, pair)  # type: ignore[arg-type]
    eager = DPTrainer(factory, cross_entropy_loss, data, engine="ghost")
    one, other = (each.fit(**SETTINGS, seed=0) for each in (lazily, eager))
    assert torch.equal(weights(one.model), weights(other.model))
    with pytest.raises(ValueError, match="pass tensors"):
        DPTrainer(factory, cross_entropy_loss, pair, engine="fused")  # type: ignore[arg-type]
