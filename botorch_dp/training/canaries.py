r"""An audit of a whole training pipeline with canaries, in one training run [Steinke2023].

``m`` canaries are put among the records, each by its own fair coin. The model is trained once, as
it would be for release, and an attacker who sees the model guesses which canaries were in. Under
(epsilon, delta)-DP nobody guesses much better than randomized response would, so many right
guesses are evidence that epsilon is larger than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor, nn

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    check_size,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training.plan import TrainingSettings
from botorch_dp.training.records import TrainTest, check_data
from botorch_dp.training.trainer import DPTrainer

#: Epsilon is raised in steps of this size until it can no longer be rejected.
_STEP = 0.02
#: Beyond this epsilon no reasonable number of canaries can reject anything.
_LARGEST_EPSILON = 50.0


@dataclass(frozen=True)
class TrainingAuditReport:
    """What a canary audit found. It depends on the records it was made with: sensitive.

    Args:
        lower_bound: Epsilon is at least this, with the stated confidence.
        canaries: How many canaries there were, ``m``.
        guesses: How many were guessed; the bound is for these.
        correct: How many guesses were right.
        delta: The delta that epsilon goes with.
        confidence: The probability that such a bound is right.
        relation: The neighbouring relation of the claim.
        claim: The epsilon that the run claims; infinite if it claims nothing.
    """

    lower_bound: float
    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    relation: NeighboringRelation
    claim: float

    @property
    def passes(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.claim

    def __str__(self) -> str:
        text = (
            f"Canary audit: epsilon >= {self.lower_bound:.4g} at delta = {self.delta:g} with "
            f"confidence {100 * self.confidence:.10g}%: {self.correct} of {self.guesses} guesses "
            f"about {self.canaries} canaries were right. Claimed: epsilon = {self.claim:.4g} where "
            f"{self.relation.value}, {'not refuted' if self.passes else 'REFUTED'}."
        )
        reachable = epsilon_from_guesses(
            self.canaries, self.canaries, self.canaries, self.delta, (1 - self.confidence) / 4
        )
        if self.passes and self.claim > reachable:
            text += f" So many canaries cannot refute more than {reachable:.3g}: insert more."
        return text


def audit_training(
    make_trainer: Callable[[TrainTest], DPTrainer],
    data: TrainTest,
    *,
    canaries: int | tuple[Tensor, Tensor] = 200,
    stand_ins: tuple[Tensor, Tensor] | None = None,
    score: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: bool = False,
    **settings: Unpack[TrainingSettings],
) -> TrainingAuditReport:
    r"""A lower bound on epsilon for a user's own model, data and settings, from one training run.

    Each canary has a place of its own after the training records. A fair coin decides whether the
    canary stands there, or a record with values that are not finite, whose gradient the trainer
    counts as zero: the canary is in or out while the number of records, which is public, stays.

    *Relation.* A coin decides about adding or removing one record's part of the sums, so the bound
    is one on the epsilon of add-or-remove-one. It is also one on that of replace-one, since putting
    an unusable record in a canary's place replaces one record; but it sees half of what
    replace-one allows, a sum that moves by ``clip_norm`` and not by twice as much. ``stand_ins``
    tests a replace-one claim to its end: the i-th of them takes the place of the i-th canary.

    *Bound.* By Theorem 5.2 of [Steinke2023]: if training is (epsilon, delta)-DP and ``r`` canaries
    are guessed, then with ``W ~ Binomial(r, e^epsilon / (1 + e^epsilon))``

    .. math:: P[\text{at least } v \text{ right}] \le P[W \ge v]
              + 2 m \delta \max_{1 \le i \le m} \tfrac1i P[v > W \ge v - i].

    Every epsilon for which the right side is below ``1 - confidence`` is rejected. The canaries of
    highest and of lowest score are guessed; all of them, a half, a quarter and an eighth are tried,
    each at a quarter of ``1 - confidence``, so that the best of the four bounds is still right.

    The bound is a floor and no estimate: one run with few canaries cannot show a large epsilon, and
    a weak attack shows nothing. A claim that survives is not proven by it.

    Args:
        make_trainer: Makes a trainer for given data, such as ``partial(DPTrainer, factory, loss)``.
        data: The records that are trained on beside the canaries. Nothing is promised to them by
            an audit: its report is sensitive, and its model is thrown away.
        canaries: How many to make (Gaussian inputs of the data's spread, or inputs that occur if
            they are integers, with targets that occur, both at random), or canaries of your own,
            ``m x ...`` inputs and ``m x ...`` targets. Good ones are far from each other and from
            the records.
        stand_ins: For a replace-one claim: what stands in a canary's place if it is out, ``m x
            ...`` inputs and targets. The worst have opposite gradients.
        score: ``(model, X, Y) -> m``, large for canaries that seem to be in. By default minus the
            norm of a canary's gradient: what a model has learned moves it no more.
        confidence: The probability that the bound is right.
        seed: Fixes coins, canaries, batches and noise, to repeat a test. None draws them from the
            operating system and trains with ``publish=True``, as for release.
        progress: Whether to show the training's progress bar.
        settings: The settings of :meth:`DPTrainer.fit`. The claim is the one of these settings,
            with the canaries counted as records, at ``delta``.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
        >>> X, y = torch.randn(100, 50), torch.randint(2, (100,))
        >>> make_trainer = partial(DPTrainer, partial(logistic_regression, 50), logistic_loss)
        >>> report = audit_training(make_trainer, TrainTest(X, y, X, y), canaries=50, seed=0,
        ...     learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0, batch_size=50, epochs=2)
        >>> report.passes
        True
    """
    if not callable(make_trainer):
        raise TypeError(
            "`make_trainer` must make a trainer for given data, such as partial(DPTrainer, "
            f"factory, loss); got {type(make_trainer).__name__}."
        )
    data = check_data(data)
    check_delta("confidence", confidence)
    if seed is not None:
        seed = check_integer("seed", seed, at_least=0)
    generator = np.random.default_rng(seed)
    if isinstance(canaries, tuple):
        inside = _checked_records("canaries", canaries, data)
    else:
        inside = _made_canaries(data, check_integer("canaries", canaries), generator)
    outside = _unusable(*inside) if stand_ins is None else stand_ins
    outside = _checked_records("stand_ins", outside, data)
    if len(outside[0]) != len(inside[0]):
        raise ValueError(
            f"`stand_ins` must be as many as canaries, {len(inside[0])}; got {len(outside[0])}."
        )

    # The attacker knows all canaries; which of them are in, only the training sees.
    attacker = make_trainer(_with_canaries(data, inside))
    plan = attacker.plan(**settings)
    if stand_ins is not None and plan.relation is not NeighboringRelation.REPLACE_ONE:
        raise PrivacyError(
            "`stand_ins` replace a canary by another record, but the claim is about one that is "
            "added or removed. Leave them out, or audit a trainer with relation=REPLACE_ONE."
        )
    included = generator.random(len(inside[0])) < 0.5
    chosen = torch.from_numpy(included)
    present = tuple(
        torch.where(chosen.view(-1, *[1] * (part.dim() - 1)).to(part.device), part, other)
        for part, other in zip(inside, outside, strict=True)
    )
    trainer = make_trainer(_with_canaries(data, (present[0], present[1])))
    trained = trainer.fit(publish=seed is None, seed=seed, progress=progress, **settings)
    if score is None:
        scores = _gradient_scores(attacker, trained.model, len(data.train_X), len(included))
    else:
        with torch.no_grad():
            scores = score(trained.model, *inside)
    if not isinstance(scores, Tensor) or scores.shape != chosen.shape:
        raise ValueError(f"`score` must return one number for each of {len(chosen)} canaries.")
    ranks = np.argsort(
        scores.detach().double().nan_to_num(nan=-math.inf).cpu().numpy(), kind="stable"
    )
    failure = (1 - confidence) / 4
    found = []
    for share in (1, 2, 4, 8):
        half = max(1, len(ranks) // (2 * share))
        correct = int(included[ranks[-half:]].sum() + (~included[ranks[:half]]).sum())
        guesses = min(2 * half, len(ranks))
        correct = min(correct, guesses)
        bound = epsilon_from_guesses(len(ranks), guesses, correct, plan.delta, failure)
        found.append((bound, guesses, correct))
    bound, guesses, correct = max(found)
    return TrainingAuditReport(
        lower_bound=bound,
        canaries=len(ranks),
        guesses=guesses,
        correct=correct,
        delta=plan.delta,
        confidence=confidence,
        relation=plan.relation,
        claim=plan.guarantee_after(trained.steps).epsilon(plan.delta),
    )


def guesses_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """How likely so many right guesses are at most, under (epsilon, delta)-DP [Steinke2023].

    Args:
        canaries: ``m``, each of them in with probability one half.
        guesses: ``r``, a number that was fixed beforehand.
        correct: How many of the guesses were right.
        epsilon: The epsilon that is put to the test.
        delta: The delta that goes with it.
    """
    canaries = check_integer("canaries", canaries)
    guesses = check_integer("guesses", guesses, at_least=0, at_most=canaries)
    correct = check_integer("correct", correct, at_least=0, at_most=guesses)
    epsilon = check_nonnegative("epsilon", epsilon)
    delta = check_delta("delta", delta, allow_zero=True)
    right = 1 / (1 + math.exp(-epsilon))
    below = binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)
    # The i-th sum is P[v > W >= v - i]; beyond v it grows no more while 1 / i falls.
    shares = np.cumsum(below) / np.arange(1, correct + 1)
    excess = 2 * canaries * delta * float(shares.max(initial=0.0))
    return min(1.0, float(binom.sf(correct - 1, guesses, right)) + excess)


def epsilon_from_guesses(
    canaries: int, guesses: int, correct: int, delta: float, failure: float
) -> float:
    """The epsilon up to which every one is rejected, wrong with probability ``failure`` at most."""
    check_delta("failure", failure)

    def rejected(epsilon: float) -> bool:
        return guesses_p_value(canaries, guesses, correct, epsilon, delta) < failure

    if not rejected(0.0):
        return 0.0
    # The bound need not rise steadily with epsilon because of delta's part: go to the first epsilon
    # that is not rejected, rather than search between two ends.
    low = 0.0
    while low < _LARGEST_EPSILON and rejected(low + _STEP):
        low += _STEP
    high = low + _STEP
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _with_canaries(data: TrainTest, records: tuple[Tensor, Tensor]) -> TrainTest:
    return data._replace(
        train_X=torch.cat([data.train_X, records[0]]), train_Y=torch.cat([data.train_Y, records[1]])
    )


def _checked_records(
    name: str, records: tuple[Tensor, Tensor], data: TrainTest
) -> tuple[Tensor, Tensor]:
    if len(records) != 2 or not all(isinstance(part, Tensor) for part in records):
        raise TypeError(f"`{name}` must be a tuple of inputs and targets.")
    for part, known in zip(records, (data.train_X, data.train_Y), strict=True):
        if part.shape[1:] != known.shape[1:] or part.dtype != known.dtype or part.dim() == 0:
            raise ValueError(
                f"`{name}` must be like the training records, m x {tuple(known.shape[1:])} of "
                f"{known.dtype}; got {tuple(part.shape)} of {part.dtype}."
            )
    if len(records[0]) != len(records[1]) or len(records[0]) == 0:
        raise ValueError(f"`{name}` must have as many inputs as targets, and at least one.")
    return records


def _made_canaries(
    data: TrainTest, count: int, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    n = len(data.train_X)
    check_size("canaries", count, 8 * count * max(1, data.train_X[0].numel()))

    def rows() -> Tensor:
        return torch.from_numpy(generator.integers(n, size=count)).to(data.train_X.device)

    X, Y = data.train_X[rows()], data.train_Y[rows()]
    if X.is_floating_point():
        spread = data.train_X.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
        noise: NDArray[np.float64] = generator.standard_normal(tuple(X.shape))
        X = (torch.from_numpy(noise).to(X.device) * spread).to(X.dtype)
    return X, Y


def _unusable(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Records whose gradients the trainer counts as zero."""
    if X.is_floating_point():
        return torch.full_like(X, math.nan), Y
    if Y.is_floating_point():
        return X, torch.full_like(Y, math.nan)
    raise ValueError(
        "With inputs and targets that are integers there is no record without a gradient: give "
        "`stand_ins`, which take a canary's place if it is out."
    )


def _gradient_scores(trainer: DPTrainer, model: nn.Module, first: int, count: int) -> Tensor:
    """Minus the norm of the gradient of each canary, ``m``."""
    norms = []
    for place in range(first, first + count):
        parts = trainer.setup.clipped_sum(model, torch.tensor([place], device="cpu"), math.inf)
        norms.append(torch.stack([part.double().norm() for part in parts]).norm())
    return -torch.stack(norms)
