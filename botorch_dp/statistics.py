r"""Scores of all records together, which one record moves by a known amount.

Most scores are means over records, and a mean moves by a record's share of it. AUC and F1 compare
records with each other, and yet one record cannot move them by much: how far is proven here for
each, and attained. All are counted in whole units, so that no rounding moves them further.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from botorch_dp._checks import check_integer, checked

__all__ = ["AUC", "F1", "Statistic"]

_PUBLIC_LABELS = "a record's label is public, and a record is replaced by one of the same label"
#: Parts of F1 that are told apart.
_PARTS = 1 << 40


class Statistic(Protocol):
    """A loss of all records together: ``offset + unit * units(predictions)``."""

    #: What it is called in messages.
    name: str
    #: ``n``, and what rests on the caller beyond that a prediction reads its own record only.
    num_records: int
    conditions: tuple[str, ...]
    #: By how many units one record moves it at most.
    sensitivity: float
    #: The loss of no units, and of each.
    offset: float
    unit: float

    def units(self, predictions: Tensor) -> float:
        """A whole number, for one configuration's predictions of the ``n`` records."""


@checked
class AUC:
    r"""``1 - AUC``: how often a negative record is ranked above a positive one.

    With ``n+`` positive and ``n-`` negative records, and every pair that is ranked wrongly counted
    as 2, every tie as 1, the units are a number ``U`` from 0 to ``2 n+ n-``.

    Sensitivity, where labels are public: a positive record is in ``n-`` pairs, a negative one in
    ``n+``, so that replacing one by another with its label moves ``U`` by at most
    ``2 max(n+, n-)``, and ``1 - AUC = U / (2 n+ n-)`` by at most ``1 / min(n+, n-)``.

    Sensitivity, where labels are protected as well: the class sizes may change, so that no
    division by them is bounded. ``V = U - n+ n-`` orders configurations as AUC does. A pair counts
    as -1, 0 or 1 there. Replacing a record within its class moves ``V`` by at most twice the size
    of the other class, at most ``2 (n - 1)``; a record that changes its class leaves ``n-`` pairs,
    say, and enters ``n+ - 1`` others, and moves ``V`` by at most ``n - 1``. The loss is
    ``1/2 + V / (2 n^2 p (1 - p))`` with a public guess ``p`` of the share of positive records; with
    the true one it is ``1 - AUC``.

    A prediction that is NaN counts as ranked wrongly in all its pairs; where labels are protected,
    a record whose label is neither 0 nor 1 is in no pair.

    Args:
        labels: ``n`` numbers, 1 for positive and 0 for negative.
        labels_are_public: Whether all labels may be known to everybody.
        share: The guess ``p``, where labels are protected.

    Example:
        >>> statistic = AUC([1, 0, 1, 0], labels_are_public=True)
        >>> statistic.units(torch.tensor([0.9, 0.2, 0.4, 0.6]))
        2
    """

    name = "AUC"

    def __init__(
        self, labels: ArrayLike | Tensor, *, labels_are_public: bool = False, share: float = 0.5
    ) -> None:
        positive, negative = _classes(labels)
        self._positive, self._negative = positive, negative
        self.labels_are_public = bool(labels_are_public)
        self.num_records = n = len(positive)
        if not 0 < share < 1:
            raise ValueError(f"`share` must lie between 0 and 1, got {share}.")
        self.conditions: tuple[str, ...] = ()
        if not labels_are_public:
            self.sensitivity = float(max(2 * (n - 1), 1))
            self.offset, self.unit = 0.5, 1 / (2 * n**2 * share * (1 - share))
            return
        sizes = _public_sizes(positive, negative)
        if min(sizes) == 0:
            raise ValueError(f"`labels` must name both classes, got {sizes} of 1 and 0.")
        self.conditions = (_PUBLIC_LABELS,)
        self.sensitivity = float(2 * max(sizes))
        self.offset, self.unit = 0.0, 1 / (2 * sizes[0] * sizes[1])

    def units(self, predictions: Tensor) -> float:
        """``U``, or ``V`` where labels are protected."""
        scores = _scores(predictions, self.num_records)
        above = scores[self._positive].nan_to_num(-torch.inf, torch.inf, -torch.inf).sort().values
        below = scores[self._negative].nan_to_num(torch.inf, torch.inf, -torch.inf)
        smaller = torch.searchsorted(above, below, right=False).sum()
        not_larger = torch.searchsorted(above, below, right=True).sum()
        wrong = int(smaller + not_larger)  # twice the smaller ones, once the equal ones
        return float(wrong if self.labels_are_public else wrong - len(above) * len(below))


@checked
class F1:
    r"""``1 - F1`` of the positive class, where labels are public.

    With ``P`` records predicted as positive, ``T`` of them rightly, and ``n+`` positive ones,
    ``F1 = 2 T / (n+ + P)``.

    Sensitivity: a replaced positive record moves ``T`` and ``P`` by one together, and F1 by
    ``2 (n+ + P - T) / ((n+ + P) (n+ + P + 1)) <= 2 / (n+ + 1)``; a replaced negative one moves
    ``P`` by one, and F1 by ``2 T / ((n+ + P) (n+ + P + 1)) <= 1 / (n+ + 1)``. Parts of ``2^-40``
    are counted, rounded down, so that ``ceil(2^41 / (n+ + 1))`` of them is the most.

    With protected labels one record moves F1 from 0 to 1 where it is the only positive one, so
    there is nothing to be had.

    Args:
        labels: ``n`` numbers, 1 for positive and 0 for negative, all public.
        labels_are_public: Must be True.

    Example:
        >>> statistic = F1([1, 0, 1, 0], labels_are_public=True)
        >>> statistic.offset + statistic.unit * statistic.units(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    """

    name = "F1"

    def __init__(self, labels: ArrayLike | Tensor, *, labels_are_public: bool = False) -> None:
        self._positive, negative = _classes(labels)
        if not labels_are_public:
            raise ValueError(
                "F1 has no bounded sensitivity while labels are protected: where few records are "
                "positive, one of them moves it from 0 to 1. Pass `labels_are_public=True` if they "
                'are, or use "roc_auc", or "log".'
            )
        positives, _ = _public_sizes(self._positive, negative)
        if positives == 0:
            raise ValueError("`labels` must name the positive class, got no label that is 1.")
        self.num_records = len(self._positive)
        self._positives = positives
        self.conditions: tuple[str, ...] = (_PUBLIC_LABELS,)
        self.sensitivity = float(-(-2 * _PARTS // (positives + 1)))
        self.offset, self.unit = 1.0, -1 / _PARTS

    def units(self, predictions: Tensor) -> float:
        """Parts of F1, for predictions that mean the positive class above a half."""
        scores = _scores(predictions, self.num_records)
        # NaN counts as the wrong class.
        predicted = torch.where(scores.isnan(), ~self._positive, scores > 0.5)
        right = int((predicted & self._positive).sum())
        return float(2 * right * _PARTS // (self._positives + int(predicted.sum())))


def _scores(predictions: Tensor, num_records: int) -> Tensor:
    if predictions.shape != (num_records,) or predictions.is_complex():
        raise ValueError(
            f"`predictions` must be {num_records} real numbers, one for each label, got "
            f"{tuple(predictions.shape)} of {predictions.dtype}."
        )
    return predictions.double()


def _classes(labels: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Which records are positive, and which negative."""
    try:
        values = labels if isinstance(labels, Tensor) else torch.from_numpy(np.asarray(labels))
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"`labels` must be numbers, got {type(labels).__name__}.") from error
    if values.dim() != 1 or values.is_complex():
        raise ValueError(f"`labels` must be n numbers, got shape {tuple(values.shape)}.")
    check_integer("the number of `labels`", len(values))
    return values == 1, values == 0


def _public_sizes(positive: Tensor, negative: Tensor) -> tuple[int, int]:
    if not bool((positive | negative).all()):
        raise ValueError("`labels` must be 0 or 1 where they are public.")
    return int(positive.sum()), int(negative.sum())
