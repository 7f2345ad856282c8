"""Who was in the training data? An attack on published models, with and without noise.

Adult: of 2,000 people a fair coin puts each into the training data. The attacker has the model, the
records of all 2,000, and other people of the same kind, on whom models of his own are trained. He
says of a person "was in" if the model's loss is below that of his models by more than a threshold.
Two numbers: the share of right answers with the threshold chosen on one half of the people and
judged on the other (a coin has 50%), and the share of the members that are named where 1% of the
others are named by mistake (a coin: 1%). Stronger attacks exist; a guarantee bounds all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

from benchmarks.common import RESULTS, BenchmarkParser, Interval, mean_interval, save_results
from benchmarks.tables import markdown, stored
from botorch_dp import datasets
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import DPTrainer, TrainTest

PEOPLE = 2_000
#: Models of the attacker's own.
SHADOWS = 8
DELTA = 1e-5
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "epsilon.png"
#: Losses and accuracy of a model on records: ``n`` losses, and the share of right predictions.
Judge = Callable[[Tensor, Tensor], tuple[Tensor, float]]


def forest(X: Tensor, Y: Tensor, seed: int) -> Judge:
    model = RandomForestClassifier(random_state=seed).fit(X, Y)

    def judge(X: Tensor, Y: Tensor) -> tuple[Tensor, float]:
        probabilities = torch.from_numpy(model.predict_proba(X))
        right = probabilities.gather(1, Y[:, None].long())[:, 0]
        return torch.logit(1 - right, eps=1e-3), float(
            (probabilities.argmax(1) == Y).double().mean()
        )

    return judge


def network(epsilon: float, X: Tensor, Y: Tensor, seed: int) -> Judge:
    """123-64-2 by the package's trainer; without noise and clipping if epsilon is infinite."""
    trainer = DPTrainer(
        lambda: nn.Sequential(nn.Linear(X.shape[1], 64), nn.ReLU(), nn.Linear(64, 2)),
        nn.functional.cross_entropy,
        TrainTest(X, Y, X[:1], Y[:1]),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    if math.isinf(epsilon):
        settings = {"noise_multiplier": 0.0, "clip_norm": math.inf, "learning_rate": 0.5}
    else:
        settings = {"target_epsilon": epsilon, "clip_norm": 1.0, "learning_rate": 0.5}
    model = trainer.fit(
        **settings, batch_size=64, epochs=60 if math.isinf(epsilon) else 15, delta=DELTA, seed=seed
    ).model

    def judge(X: Tensor, Y: Tensor) -> tuple[Tensor, float]:
        with torch.no_grad():
            outputs = model(X)
        losses = nn.functional.cross_entropy(outputs, Y, reduction="none")
        return losses, float((outputs.argmax(1) == Y).double().mean())

    return judge


def right_guesses(losses: Tensor, member: Tensor) -> float:
    """The share of right guesses, both halves taken as equally many members and others."""
    halves = torch.arange(len(losses)) % 2 == 0
    shares = []
    for chosen_on in (halves, ~halves):
        thresholds = losses[chosen_on].unique()
        inside = losses[chosen_on & member][:, None] <= thresholds
        outside = losses[chosen_on & ~member][:, None] > thresholds
        balance = inside.double().mean(0) + outside.double().mean(0)
        threshold = thresholds[balance.argmax()]
        shares += [
            float((losses[~chosen_on & member] <= threshold).double().mean()),
            float((losses[~chosen_on & ~member] > threshold).double().mean()),
        ]
    return float(np.mean(shares))


def named(losses: Tensor, member: Tensor) -> float:
    """The share of members below the loss that 1% of the others are below."""
    threshold = losses[~member].double().quantile(0.01)
    return float((losses[member] < threshold).double().mean())


def bound(epsilon: float) -> float:
    """The share of right guesses that no attack exceeds under (epsilon, delta)."""
    return (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))


def others_of(order: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Rows of other people for each of the attacker's models, as many as were trained on."""
    elsewhere = order[PEOPLE:-8_000]
    draws = [torch.randperm(len(elsewhere), generator=generator) for _ in range(SHADOWS)]
    return [elsewhere[draw[: PEOPLE // 2]] for draw in draws]


def draw(stored: dict[str, Any], path: Path) -> None:
    """What an attacker can do at each epsilon, and what this attack did."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    epsilons = np.geomspace(0.05, 15, 200)
    limit = [100 * bound(epsilon) for epsilon in epsilons]
    axes.plot(epsilons, limit, color="C0")
    axes.fill_between(epsilons, limit, 101, alpha=0.1)
    axes.text(0.06, 88, "no attack gets here", color="C0", fontsize=11)
    for name, row in stored["models"].items():
        found = row["right guesses"]
        mean, low, high = (100 * found[key] for key in ("mean", "low", "high"))
        protected = "epsilon" in name
        at = float(name.rsplit("= ", 1)[1]) if protected else 20.0
        axes.errorbar(at, mean, [[mean - low], [high - mean]], fmt="o", color="C1", capsize=3)
        label = name.split(",")[0] if not protected else f"network, ε = {at:g}"
        label += "" if protected else ", no protection"
        axes.annotate(label, (at, mean), (-8, 8), textcoords="offset points", ha="right")
    axes.axhline(50, color="0.6", linewidth=0.8)
    axes.text(0.06, 47.5, "a coin", color="0.4")
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.3, 1, 3, 10, 20], ["0.1", "0.3", "1", "3", "10", "none"])
    axes.set(xlim=(0.05, 25), ylim=(45, 101), xlabel="ε for one record added or removed")
    axes.set_ylabel("attacker's right answers (%)")
    figure.savefig(path, dpi=150)


def table_membership() -> str:
    found = stored("membership")
    names = {"epsilon = 8": "ε = 8", "epsilon = 1": "ε = 1", "no protection": "no protection"}
    rows = []
    for name, row in found["models"].items():
        model, _, protection = name.partition(", ")
        limit = found["no attack exceeds"].get(
            f"{float(protection[10:]):.1f}" if protection[:7] == "epsilon" else ""
        )
        rows.append([
            f"{model}, {names[protection]}",
            *(_percent(row[column]) for column in ("accuracy", "right guesses", "named")),
            "100%" if limit is None else f"{100 * limit['right guesses']:.4g}%",
        ])  # fmt: skip
    head = [
        "model of 1,000 people",
        "accuracy",
        "attacker is right",
        "named",
        "no attack is right more than",
    ]
    return markdown(head, rows)


def _percent(found: dict[str, Any]) -> str:
    mean, low, high = (100 * found[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f}% [{low:.1f}, {high:.1f}]"


def main() -> None:
    parser = BenchmarkParser("membership", __doc__, minutes=6)
    parser.add_argument("--seeds", type=int, default=10, help="draws of people and coins")
    parser.add_argument("--figure", action="store_true", help="only draw what is stored")
    options = parser.parse_args()
    if options.figure:
        draw(json.loads((RESULTS / "membership.json").read_text()), FIGURE)
        return
    data = datasets.adult()
    X, Y = torch.cat([data.train_X, data.test_X]), torch.cat([data.train_Y, data.test_Y])
    models = {
        "random forest, no protection": forest,
        "network, no protection": lambda *each: network(math.inf, *each),
        "network, epsilon = 8": lambda *each: network(8.0, *each),
        "network, epsilon = 1": lambda *each: network(1.0, *each),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    for seed in range(options.seeds):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(X), generator=generator)
        people, fresh = order[:PEOPLE], order[-8_000:]
        member = torch.rand(PEOPLE, generator=generator) < 0.5
        for name, train in models.items():
            judge = train(X[people][member], Y[people][member], seed)
            losses, _ = judge(X[people], Y[people])
            others = others_of(order, generator)
            usual = [  # with noise of their own: the attacker does not know the model's
                train(X[rows], Y[rows], 1_000 * number + seed)(X[people], Y[people])[0]
                for number, rows in enumerate(others, start=1)
            ]
            excess = losses - torch.stack(usual).mean(0)
            accuracy = judge(X[fresh], Y[fresh])[1]
            found[name].append((right_guesses(excess, member), named(excess, member), accuracy))
    rows: dict[str, dict[str, Interval]] = {}
    for name, results in found.items():
        columns = [mean_interval(list(column)) for column in zip(*results, strict=True)]
        rows[name] = dict(zip(("right guesses", "named", "accuracy"), columns, strict=True))
        shown = ", ".join(f"{what} {interval}" for what, interval in rows[name].items())
        print(f"{name:30} {shown}")
    save_results(
        "membership",
        {
            "people": PEOPLE,
            "seeds": options.seeds,
            "delta": DELTA,
            "models": rows,
            "no attack exceeds": {
                str(epsilon): {"right guesses": bound(epsilon)} for epsilon in (1.0, 8.0)
            },
        },
    )


if __name__ == "__main__":
    main()
