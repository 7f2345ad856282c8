"""Groups of records: all records of one person count as one, and are protected together.

Of each group at most ``k`` records are used, the first ones in the order of the rows. Whatever is
computed of a group is the mean over these, so that it is bounded as a record's own value is: the
mean of clipped gradients is no longer than the clipping norm, and the mean of scores lies between
their bounds. Which records are used depends on the group's own rows alone: not on what they say,
and not on where other groups have theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp._checks import check_integer

#: Records of a group that are used unless stated. The mean of 16 has a sixteenth of the variance
#: that the choice of a single one would add; each further record costs as much time again.
PER_GROUP = 16


class Groups:
    """Which records belong to one group, such as a person, and which of them are used.

    Args:
        ids: One identifier for each record, a number or a text: an array, a tensor, a list or a
            column of a data frame.
        num_records: How many records there are.
        per_group: How many records of a group are used at most; :data:`PER_GROUP` if None.
    """

    def __init__(self, ids: Any, num_records: int, per_group: int | None = None) -> None:
        self.per_group = PER_GROUP if per_group is None else check_integer("per_group", per_group)
        #: The group of each record, ``n``.
        self.owners = _owners(ids, num_records)
        order, sizes = np.argsort(self.owners, kind="stable"), np.bincount(self.owners)
        ranks = np.arange(num_records) - np.repeat(sizes.cumsum() - sizes, sizes)
        self._used = order[ranks < self.per_group]
        self._counts = np.minimum(sizes, self.per_group)
        weights = np.zeros(num_records)
        weights[self._used] = np.repeat(1 / self._counts, self._counts)
        #: What each record counts, ``n``: 1 over the number of its group's used ones, or 0.
        self.weights = torch.from_numpy(weights)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def unused(self) -> int:
        """How many records are not used. Sensitive."""
        return len(self.owners) - len(self._used)

    @property
    def first(self) -> np.ndarray:
        """The place of the first record of each group."""
        return self._used[self._counts.cumsum() - self._counts]

    def places(self, chosen: np.ndarray) -> np.ndarray:
        """The places of the records of some groups that are used."""
        counts = self._counts[chosen]
        skipped = self._counts.cumsum()[chosen] - counts.cumsum()
        return self._used[np.arange(counts.sum()) + np.repeat(skipped, counts)]

    def means(self, values: Tensor) -> Tensor:
        """The means of records' values over each group, ``... x n`` to ``... x groups``."""
        owners = torch.from_numpy(self.owners).to(values.device)
        weights = self.weights.to(values.device)
        # A value that is not used must not reach its group's mean, whatever it is.
        parts = torch.where(weights > 0, values.double() * weights, 0.0)
        return parts.new_zeros(*values.shape[:-1], len(self)).index_add_(-1, owners, parts)


def groups_of(ids: Any, num_records: int, per_group: int | None = None) -> Groups | None:
    """The groups of some records; None if each of them is protected alone."""
    if ids is not None:
        return Groups(ids, num_records, per_group)
    if per_group is not None:
        raise TypeError("`per_group` needs `groups`, one identifier for each record: pass both.")
    return None


def _owners(ids: Any, num_records: int) -> np.ndarray:
    """The group of each record, in the order in which the groups first come."""
    values = list(ids.tolist() if hasattr(ids, "tolist") else ids)
    if len(values) != num_records:
        raise ValueError(
            f"`groups` must have one identifier for each of the {num_records:,} records, got "
            f"{len(values):,}."
        )
    numbers: dict[Any, int] = {}
    try:
        if any(value is None or value != value for value in values):
            raise TypeError
        return np.array([numbers.setdefault(value, len(numbers)) for value in values])
    except TypeError:  # pandas.NA is neither equal to itself nor another; a list has no hash
        raise ValueError(
            "`groups` must be a number or a text for every record, and some are missing or "
            "something else. Leave out records whose person is not known, or give each of them an "
            "identifier of its own if they are of different people."
        ) from None
