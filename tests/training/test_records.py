from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from botorch_dp.training import TrainTest
from botorch_dp.training.records import DatasetRecords, check_data, synthetic_records
from tests.training.helpers import make_data, training_records


@pytest.mark.parametrize(
    "change, message",
    [
        ({"train_X": [[1.0]]}, "`train_X` must be a torch.Tensor, got list"),
        (
            {"train_X": [torch.zeros(2), torch.zeros(3)]},
            "Records of unequal length: pad them.*padding='max_length'",
        ),
        ({"train_X": torch.zeros(0, 7).double()}, "`train_X` must hold records"),
        ({"test_Y": torch.tensor(1)}, "`test_Y` must hold records"),
        ({"train_Y": torch.zeros(59).long()}, "60 records but `train_Y` has 59"),
        ({"test_X": torch.zeros(31, 6).double()}, "must agree"),
        ({"test_X": torch.zeros(31, 7)}, "must agree"),
        ({"train_X": torch.zeros(60, 7, device="meta")}, "device"),
    ],
)
def test_wrong_forms_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_data(make_data()._replace(**change))


def test_not_four_tensors() -> None:
    with pytest.raises(ValueError, match=r"no test records.*TrainTest"):
        check_data((torch.zeros(3), torch.zeros(3)))
    with pytest.raises(TypeError, match=r"data\['train'\], data\['test'\].*got dict"):
        check_data({"train": [], "test": []})
    with pytest.raises(TypeError, match="TrainTest"):
        check_data(torch.zeros(4, 2))


def test_no_value_is_shown() -> None:
    data = make_data(n=3)
    assert repr(data) == "TrainTest(3 training records)"
    assert "TrainingRecords object" in repr(training_records(data, 3))


def test_unusable_records_become_zero_and_keep_their_place() -> None:
    data = make_data(n=6)
    X, Y = data.train_X.clone(), data.train_Y.clone()
    X[0, 3], X[1] = math.nan, math.inf
    Y[2], Y[3] = -1, 3
    records = training_records(data._replace(train_X=X, train_Y=Y), num_classes=3)
    assert records.usable.tolist() == [False] * 4 + [True] * 2
    assert torch.equal(records.X[4:], data.train_X[4:])
    assert torch.equal(records.Y[4:], data.train_Y[4:])
    assert float(records.X[:4].abs().max()) == int(records.Y[:4].abs().max()) == 0
    assert len(records) == 6
    assert torch.equal(X[1], torch.full((7,), math.inf).double())


class IntoOneMemory:
    """Reads every record into the same place, as readers of files do."""

    def __init__(self, data: TrainTest) -> None:
        self._data, self._x = data, torch.empty_like(data.train_X[0])
        self._y = torch.empty_like(data.train_Y[0])

    def __len__(self) -> int:
        return len(self._data.train_X)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self._x.copy_(self._data.train_X[place]), self._y.copy_(self._data.train_Y[place])


def test_records_read_into_one_memory_stay_apart() -> None:
    """Otherwise the last record of a batch would be all of them."""
    data = make_data(n=6)
    records = DatasetRecords(IntoOneMemory(data), (data.train_X[0] * 0, data.train_Y[0] * 0))
    X, Y, usable = records.take(torch.tensor([3, 0, 5]))
    assert torch.equal(X, data.train_X[[3, 0, 5]]) and torch.equal(Y, data.train_Y[[3, 0, 5]])
    assert usable.all()


def test_a_record_of_another_layout_is_unusable() -> None:
    rows = [(torch.eye(3), 1), (torch.eye(3).to_sparse(), 1), (torch.eye(3, device="meta"), 1)]
    X, _, usable = DatasetRecords(rows, (torch.zeros(3, 3), 0)).take(torch.arange(3))
    assert usable.tolist() == [True, False, False]
    assert torch.equal(X[0], torch.eye(3)) and not X[1:].any()


def test_synthetic_records_have_the_form_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    secret = torch.full((5, 2, 3), 12345.0, dtype=torch.float64)
    labels = torch.full((5,), 67)
    made = synthetic_records(TrainTest(secret, labels, secret, labels), 9, generator)
    assert made.train_X.shape == (9, 2, 3)
    assert made.train_X.dtype == torch.float64
    assert float(made.train_X.abs().max()) < 10
    assert set(made.train_Y.tolist()) <= {0, 1}


def test_lengths_stay_those_of_what_is_trained_on() -> None:
    """A data set changed between two trainings moves neither inputs nor the norms that are kept."""
    data = make_data()
    records = training_records(data, None)
    assert isinstance(records.X, Tensor)
    kept, inputs = records.input_lengths.clone(), records.X.clone()
    data.train_X.mul_(1000)
    assert torch.equal(records.X, inputs) and torch.equal(records.input_lengths, kept)
    torch.testing.assert_close(kept, inputs.flatten(1).double().norm(dim=1))
