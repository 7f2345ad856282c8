"""Tune an image classifier that Opacus trains, and pay for the tuning."""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp import PrivacyBudget, PrivateSelection, Real, SearchSpace
from botorch_dp.privacy import DPSGD, NeighboringRelation

EPSILON, DELTA, BATCH, EPOCHS = 8.0, 1e-4, 100, 4
digits = load_digits()
X = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(digits.target)
train_set, test_X, test_y = TensorDataset(X[:1400], y[:1400]), X[1400:], y[1400:]


def train(config, noise_multiplier):
    torch.seed()  # secret noise, another one in each training
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=(model := nn.Sequential(*layers)),
        optimizer=torch.optim.SGD(model.parameters(), lr=config["learning_rate"]),
        data_loader=DataLoader(train_set, batch_size=BATCH),
        noise_multiplier=noise_multiplier,
        max_grad_norm=config["clip_norm"],
    )
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    right = model(test_X).argmax(dim=1) == test_y
    return model._module.state_dict(), right.double().mean().item()


added = NeighboringRelation.ADD_OR_REMOVE_ONE
training = DPSGD(batch_size=BATCH, num_records=1400, steps=14 * EPOCHS, relation=added)
space = SearchSpace(learning_rate=Real(0.1, 10, log=True), clip_norm=Real(0.1, 10, log=True))
selection = PrivateSelection(train, space, mechanism=lambda config: training, num_scored=397,
                             budget=PrivacyBudget(EPSILON, DELTA), trials=8)  # fmt: skip
print(selection.plan())
best = selection.run()
print(best)
