"""Three real models trained privately: a convolutional, a recurrent and a pretrained attention net.

* The convolutional network reads scikit-learn's 8 x 8 digits.
* The recurrent network tells from made-up sentences which of two words came first.
* The encoder was trained on public sentences, and learns on sensitive ones to tell another thing:
  its weights are frozen, and a new head is trained.

Each prints the guarantee of the released model, and its accuracy on test records (which the
guarantee does not cover).

Run: ``python -m examples.real_models``
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn

from botorch_dp import datasets
from botorch_dp.training import DPTrainer, Trained, TrainTest, cross_entropy_loss

WORDS, LENGTH = 20, 12


class Recurrent(nn.Module):
    """Words, a recurrent layer, and a head on the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.cell = DPLSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Tokens and mask, ``n x l``, to scores, ``n x 2``."""
        states = self.cell(self.embedding(tokens))[0] * mask.unsqueeze(-1)
        return self.head(states.sum(dim=1) / mask.sum(dim=1, keepdim=True))


class Encoder(nn.Module):
    """Words with places, one layer of attention, and a head on the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Tokens and mask, ``n x l``, to scores, ``n x 2``."""
        hidden = self.encoder(self.embedding(tokens) + self.places) * mask.unsqueeze(-1)
        return self.head(hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True))


def convolutional() -> nn.Module:
    """Two convolutions; group normalization, because batch normalization mixes records."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def images() -> TrainTest:
    """Digits as ``n x 1 x 8 x 8``."""
    data = datasets.digits()
    X, test = (part.view(-1, 1, 8, 8) for part in (data.train_X, data.test_X))
    return data._replace(train_X=X, test_X=test)


def sentences(n: int, about: tuple[int, ...], *, seed: int) -> TrainTest:
    """Sentences of words, and whether they hold one of the given words."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(about), WORDS, (n, LENGTH), generator=generator)
    lengths = torch.randint(4, LENGTH + 1, (n, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).float()
    marked = torch.rand(n, generator=generator) < 0.5
    place = (torch.rand(n, generator=generator) * lengths.squeeze(1)).long()
    word = torch.tensor(about)[torch.randint(len(about), (n,), generator=generator)]
    tokens[marked] = tokens[marked].scatter(1, place[marked, None], word[marked, None])
    Y, half = marked.long(), n // 4
    inputs = {"tokens": tokens, "mask": mask}
    return TrainTest(
        {name: part[half:] for name, part in inputs.items()},
        Y[half:],
        {name: part[:half] for name, part in inputs.items()},
        Y[:half],
    )


def train(
    factory: Callable[[], nn.Module], data: TrainTest, *, epsilon: float, epochs: int
) -> Trained:
    """Without a learning rate or a clipping norm to choose."""
    trainer = DPTrainer(
        factory, cross_entropy_loss, data, optimizer="scale_free", clipping="normalized"
    )
    return trainer.fit(
        target_epsilon=epsilon, batch_size=128, epochs=epochs, learning_rate=6.0, publish=True
    )


def pretrained(n: int, epochs: int) -> nn.Module:
    """An encoder from public sentences, where nothing has to be protected."""
    public = sentences(n, (0, 1, 2), seed=1)
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(public.train_Y)).split(64):
            optimizer.zero_grad()
            inputs = {name: part[batch] for name, part in public.train_X.items()}
            cross_entropy_loss(model(**inputs), public.train_Y[batch]).mean().backward()
            optimizer.step()
    return model


def main(size: int = 6000, epochs: int = 8) -> dict[str, Trained]:
    """Train all three and print what was reached."""
    torch.manual_seed(0)
    public = pretrained(size, max(1, epochs // 2))

    def with_new_head() -> nn.Module:
        model: Any = copy.deepcopy(public).requires_grad_(False)
        model.head = nn.Linear(32, 2)
        return model

    results = {
        "convolutional network, digits": train(convolutional, images(), epsilon=4.0, epochs=epochs),
        "recurrent network, sentences": train(
            Recurrent, sentences(size, (0,), seed=2), epsilon=4.0, epochs=epochs
        ),
        "pretrained encoder, sentences": train(
            with_new_head, sentences(size, (1,), seed=3), epsilon=4.0, epochs=epochs
        ),
    }
    for name, trained in results.items():
        print(f"{name}: accuracy {trained.accuracy:.3f}\n  {trained.guarantee}")
    return results


if __name__ == "__main__":
    main()
