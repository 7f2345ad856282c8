"""The tasks of ``nothing_to_tune``: records, models, and what is public about them.

Twenty tasks in three groups. The first rule was chosen on the six of *design*. The eight that were
*checked later* had no part in it until a rule had been tried on them, and may have shaped a later
one: six until the first rule, which did not look at how many weights there are; and two
regressions until the second rule, which clipped all of them at a quarter of a record's norm. The
six that were *held out* were fixed before anything was changed for which they are a test, and the
rule was tried on them once.

Each task scales its features by a fixed function of each record, so that nothing about the scaling
was read from the records, and states the root mean square norm of a record as a round number
(``feature_norm``). Large sets are cut to a size at which hundreds of trainings are affordable.

The test records fall into two halves: one chooses wherever a baseline chooses, the other one says
how good what was chosen is.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data import blogfeedback, california_housing
from botorch_dp import datasets
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    accuracy,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.networks import Loss
from botorch_dp.training.setup import Metric


def explained(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that predictions explain, at least 0."""
    left = (outputs.squeeze(-1).clamp(-1, 1) - targets).square().mean()
    return max(0.0, 1 - float(left / targets.var(correction=0)))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared errors of single records."""
    return (outputs.squeeze(-1) - targets).square()


#: See the top of this file.
Group = Literal["design", "checked later", "held out"]


@dataclass(frozen=True)
class Task:
    """Records, a model, and what the rule is told.

    Args:
        records: All of them; the test records choose and judge.
        model: The model factory.
        loss: Of single records.
        feature_norm: Root mean square norm of a record's features, as a round public number.
        group: When somebody looked at it.
        optimizer: Of the baselines that have a learning rate.
        metric: Of the outputs and targets of test records.
        candidates: Configurations of the search whose tuning is not counted in epsilon.
    """

    records: Callable[[], TrainTest]
    model: Callable[[], nn.Module]
    loss: Loss
    feature_norm: float
    group: Group
    optimizer: str = "adam"
    metric: Metric = accuracy
    candidates: int = 40

    def label(self, name: str) -> str:
        """The name of this task in :data:`TASKS`, and its group unless that is the design."""
        return name.replace("_", " ") + ("" if self.group == "design" else f", {self.group}")

    def trainer(self, data: TrainTest, **how: object) -> DPTrainer:
        """A trainer of this task's model on some of its records."""
        return DPTrainer(self.model, self.loss, data, metric=self.metric, **how)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Parts:
    """Training records, records that choose, and records that judge."""

    choosing: TrainTest
    judging: tuple[Tensor, Tensor]


@lru_cache(maxsize=1)
def parts(name: str) -> Parts:
    """The records of a task, with the test records in two halves."""
    data = TASKS[name].records()
    half = len(data.test_Y) // 2
    choosing = data._replace(test_X=data.test_X[:half], test_Y=data.test_Y[:half])
    return Parts(choosing, (data.test_X[half:], data.test_Y[half:]))


def _split(X: Tensor, y: Tensor, train: int, test: int) -> TrainTest:
    """So many records of each kind, drawn once."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    a, b = order[:train], order[train : train + test]
    return TrainTest(X[a].float(), y[a], X[b].float(), y[b])


def adult() -> TrainTest:
    """Adult: 123 binary columns of 14 attributes; income above 50,000."""
    data = datasets.adult()
    X, y = torch.cat([data.train_X, data.test_X]), torch.cat([data.train_Y, data.test_Y])
    return _split(X, y, 24_000, 8_000)


#: Bounds of the eight features of California housing that need no look at the records.
_HOUSING = torch.tensor(
    [[0, 0, 0, 0, 0, 0, 32, -125], [15, 52, 20, 4, 6000, 8, 42, -114]], dtype=torch.float64
)


def _housing() -> tuple[Tensor, Tensor]:
    X, y = california_housing()
    low, high = _HOUSING
    return (2 * X.clamp(low, high) - low - high) / (high - low), y


def housing() -> TrainTest:
    """California housing: is a block's median value above 180,000?"""
    X, y = _housing()
    return _split(X, (y > 1.8).long(), 11_784, 8_000)


def housing_value() -> TrainTest:
    """California housing: the value itself, between 0 and 500,000."""
    X, y = _housing()
    return _split(X, (y.clamp(0, 5) / 2.5 - 1).float(), 11_784, 8_000)


def mnist() -> TrainTest:
    """MNIST, a fifth of the training records."""
    data = datasets.mnist()
    return _split(data.train_X, data.train_Y, 12_000, 8_000)


def mnist_small() -> TrainTest:
    """MNIST in 14 by 14 pixels, a tenth of the training records."""
    data = datasets.mnist()
    X = data.train_X[:20_000].view(-1, 1, 28, 28)
    return _split(nn.functional.avg_pool2d(X, 2), data.train_Y[:20_000], 6_000, 4_000)


def digits() -> TrainTest:
    """Scikit-learn's digits, 8 by 8 pixels."""
    return datasets.digits()


def embeddings() -> TrainTest:
    """Made: 20 classes of unit vectors in 256 dimensions, as a frozen encoder gives."""
    rng = np.random.default_rng(0)
    classes = rng.integers(20, size=16_000)
    spread = 1.0 / np.sqrt(np.arange(1, 257))
    centres = rng.standard_normal((20, 256)) * spread
    X = 0.3 * centres[classes] + rng.standard_normal((16_000, 256)) * spread
    X @= np.linalg.qr(rng.standard_normal((256, 256)))[0]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return _split(torch.from_numpy(X), torch.from_numpy(classes), 10_000, 6_000)


def _blog(target: Callable[[Tensor], Tensor]) -> TrainTest:
    data = blogfeedback()
    X = torch.cat([data.train_X, data.test_X])
    y = torch.cat([data.train_Y, data.test_Y])
    # Counts have heavy tails; the logarithm of each number is a function of that number alone.
    return _split(X.sign() * X.abs().log1p() / 5, target(y), 20_000, 8_000)


def blog_any() -> TrainTest:
    """BlogFeedback: does a post get any comment?"""
    return _blog(lambda comments: (comments > 0).long())


def blog_some() -> TrainTest:
    """BlogFeedback: does a post get more than two comments?"""
    return _blog(lambda comments: (comments > 2).long())


def loans() -> TrainTest:
    """Loans: does one return more than 14.6%? From its amount, its rate and the income."""
    # There is no open download: the file lies in the folder that BOTORCH_DP_DATA names.
    with np.load(Path(os.environ["BOTORCH_DP_DATA"]) / "loans.npz") as arrays:
        X, returned = torch.from_numpy(arrays["X"]).double(), arrays["roi"]
    low, high = (torch.tensor(row, dtype=torch.float64) for row in ([6, 0.05, 8], [10.5, 0.25, 14]))
    X = torch.stack([X[:, 0].log1p(), X[:, 1], X[:, 2].log1p()], dim=1).clamp(low, high)
    X = (2 * X - low - high) / (high - low)
    return _split(X, torch.from_numpy(returned > 0.146).long(), 20_000, 8_000)


#: Whose sentences are told apart.
_PACKAGES = ("numpy", "scipy", "sklearn", "torch")


def sentences() -> TrainTest:
    """Lines of the documentation of four installed packages: which one does a line belong to?

    512 hashed words, each record brought to norm 1.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    lines: list[str] = []
    labels: list[int] = []
    for label, package in enumerate(_PACKAGES):
        found: dict[str, None] = {}
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            if "tests" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    for line in (ast.get_docstring(node) or "").splitlines():
                        if len(line.split()) >= 8 and package not in line and ">>>" not in line:
                            found[line.strip()] = None
            if len(found) > 8_000:
                break
        lines += list(found)[:5_000]
        labels += [label] * len(list(found)[:5_000])
    X = HashingVectorizer(n_features=512, norm="l2").transform(lines).toarray()
    return _split(torch.from_numpy(X), torch.tensor(labels), 12_000, 6_000)


def small_convolution() -> nn.Module:
    """One convolution and one linear layer, 2,218 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 10)
    )


def parity() -> TrainTest:
    """MNIST: is the digit even? Other records than those of :func:`mnist`."""
    data = datasets.mnist()
    a, b = _others(20_000, 12_000, 8_000)
    X, y = data.train_X, (data.train_Y % 2 == 0).long()
    return TrainTest(X[a], y[a], X[b], y[b])


def _others(first: int, train: int, test: int) -> tuple[Tensor, Tensor]:
    """Rows of MNIST in the order of :func:`_split`, from one on."""
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    return order[first : first + train], order[first + train : first + train + test]


def blog_count() -> TrainTest:
    """BlogFeedback: the logarithm of one plus the comments, up to 6, brought to -1 to 1."""
    return _blog(lambda comments: (comments.log1p().clamp(0, 6) / 3 - 1).float())


def _from_value(column: int) -> tuple[Tensor, Tensor]:
    """California housing with the value in place of one feature, and that feature."""
    X, y = california_housing()
    low, high = _HOUSING.clone()
    low[column], high[column] = 0, 5
    others = X.clone()
    others[:, column] = y
    return (2 * others.clamp(low, high) - low - high) / (high - low), X[:, column]


def income() -> TrainTest:
    """California housing: the median income up to 100,000, from the value and all else."""
    X, wanted = _from_value(0)
    return _split(X, (wanted.clamp(0, 10) / 5 - 1).float(), 11_784, 8_000)


def house_age() -> TrainTest:
    """California housing: the median age of the houses, up to 52 years, from all else."""
    X, wanted = _from_value(1)
    return _split(X, (wanted.clamp(0, 52) / 26 - 1).float(), 11_784, 8_000)


def digit_value() -> TrainTest:
    """MNIST: the value of the digit as a number, on the records of :func:`parity`."""
    data = datasets.mnist()
    a, b = _others(20_000, 12_000, 8_000)
    y = (data.train_Y / 4.5 - 1).float()
    return TrainTest(data.train_X[a], y[a], data.train_X[b], y[b])


def mirrored() -> TrainTest:
    """MNIST with rows and columns of each image exchanged, other records than elsewhere."""
    data = datasets.mnist()
    a, b = _others(40_000, 6_000, 4_000)
    X = data.train_X.view(-1, 28, 28).transpose(1, 2).reshape(-1, 784)
    return TrainTest(X[a], data.train_Y[a], X[b], data.train_Y[b])


@lru_cache(maxsize=1)
def _public() -> nn.Module:
    """A network that was trained on 10,000 upright digits, which are public here."""
    data = datasets.mnist()
    a, b = _others(50_000, 9_000, 1_000)
    records = TrainTest(data.train_X[a], data.train_Y[a], data.train_X[b], data.train_Y[b])
    trainer = DPTrainer(
        partial(multilayer_perceptron, 784, 10, (64,)),
        cross_entropy_loss,
        records,
        optimizer="adam",
    )
    return trainer.fit(
        learning_rate=0.003, clip_norm=math.inf, noise_multiplier=0.0, batch_size=100, epochs=8,
        seed=0,
    ).model  # fmt: skip


def pretrained(*, frozen: bool = False) -> nn.Module:
    """A network with a first layer from other, public, records and a fresh last one."""
    model = multilayer_perceptron(784, 10, (64,))
    first, public = next(model.children()), next(_public().children())
    first.load_state_dict(public.state_dict())
    if frozen:
        first.requires_grad_(False)
    return model


_LINEAR = partial(multilayer_perceptron, hidden=())

TASKS: dict[str, Task] = {
    "adult": Task(adult, partial(logistic_regression, 123), logistic_loss, 3.7, "design"),
    "housing_net": Task(
        housing,
        partial(multilayer_perceptron, 8, 2, (32,)),
        cross_entropy_loss,
        1.4,
        "design",
        "sgd",
    ),
    "mnist_linear": Task(mnist, partial(_LINEAR, 784, 10), cross_entropy_loss, 9.2, "design"),
    "digits_net": Task(
        digits,
        partial(multilayer_perceptron, 64, 10, (64,)),
        cross_entropy_loss,
        3.9,
        "design",
        "sgd",
    ),
    "embeddings": Task(embeddings, partial(_LINEAR, 256, 20), cross_entropy_loss, 1.0, "design"),
    "housing_value": Task(
        housing_value, partial(_LINEAR, 8, 1), squared_error, 1.4, "design", metric=explained
    ),
    "blog_any": Task(
        blog_any, partial(logistic_regression, 280), logistic_loss, 3.6, "checked later"
    ),
    "blog_net": Task(
        blog_some,
        partial(multilayer_perceptron, 280, 2, (32,)),
        cross_entropy_loss,
        3.6,
        "checked later",
        "sgd",
    ),
    "loans": Task(loans, partial(logistic_regression, 3), logistic_loss, 0.7, "checked later"),
    "mnist_net": Task(
        mnist,
        partial(multilayer_perceptron, 784, 10, (64,)),
        cross_entropy_loss,
        9.2,
        "checked later",
        "sgd",
        candidates=20,
    ),
    "sentences": Task(
        sentences, partial(_LINEAR, 512, 4), cross_entropy_loss, 1.0, "checked later"
    ),
    "convolution": Task(
        mnist_small,
        small_convolution,
        cross_entropy_loss,
        4.4,
        "checked later",
        "sgd",
        candidates=12,
    ),
    "adult_net": Task(
        adult,
        partial(multilayer_perceptron, 123, 2, (32,)),
        cross_entropy_loss,
        3.7,
        "held out",
        "sgd",
    ),
    "parity_net": Task(
        parity,
        partial(multilayer_perceptron, 784, 2, (32,)),
        cross_entropy_loss,
        9.2,
        "held out",
        "sgd",
        candidates=20,
    ),
    "blog_count": Task(
        blog_count, partial(_LINEAR, 280, 1), squared_error, 3.6, "checked later", metric=explained
    ),
    "income_net": Task(
        income,
        partial(multilayer_perceptron, 8, 1, (32,)),
        squared_error,
        1.4,
        "checked later",
        "sgd",
        metric=explained,
    ),
    "fixed_layer": Task(
        mirrored,
        partial(pretrained, frozen=True),
        cross_entropy_loss,
        20.0,  # of the hidden layer, on the public records
        "held out",
        "sgd",
    ),
    "fine_tuned": Task(mirrored, pretrained, cross_entropy_loss, 9.2, "held out", "sgd"),
    "house_age": Task(
        house_age, partial(_LINEAR, 8, 1), squared_error, 1.4, "held out", metric=explained
    ),
    "digit_value": Task(
        digit_value,
        partial(multilayer_perceptron, 784, 1, (32,)),
        squared_error,
        9.2,
        "held out",
        "sgd",
        metric=explained,
        candidates=20,
    ),
}
