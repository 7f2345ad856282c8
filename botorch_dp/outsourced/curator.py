"""The curator: holds the rows, releases a transformed copy once, answers row indices."""

from __future__ import annotations

import math
import os
import threading
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp._checks import check_integer, check_interval, check_positive
from botorch_dp.errors import PrivacyError
from botorch_dp.outsourced.query_log import Query, QueryLog
from botorch_dp.outsourced.transforms import (
    centred,
    check_rows,
    lifted,
    public_projection,
    singular_floor,
)
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
)


class InvalidIndex(IndexError):
    """A question about a row that does not exist."""


@dataclass(frozen=True)
class PrivateAnswers:
    """How answers are released when they are sensitive too.

    Guarantee: an answer that moves by at most ``sensitivity`` when one record behind it is
    replaced, plus Laplace noise of scale ``sensitivity / epsilon``, is epsilon-differentially
    private; every question is charged to the ledger before the objective is evaluated.
    Conditional, because the code cannot check the sensitivity of a black box; use
    ``bounds`` to clip answers and make it true by construction.

    Args:
        epsilon: The cost of one answer.
        sensitivity: The most an answer can move. Give this or ``bounds``.
        bounds: Public bounds to which answers are clipped; the sensitivity is their distance.
        ledger: Where each answer is charged.
    """

    epsilon: float
    sensitivity: float | None = None
    bounds: tuple[float, float] | None = None
    ledger: PrivacyLedger | None = None

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if (self.sensitivity is None) == (self.bounds is None):
            raise ValueError("Give exactly one of `sensitivity` and `bounds`.")
        if self.sensitivity is not None:
            check_positive("sensitivity", self.sensitivity)
        else:
            check_interval("bounds", self.bounds)

    @property
    def width(self) -> float:
        """The sensitivity of one answer."""
        if self.bounds is not None:
            return self.bounds[1] - self.bounds[0]
        assert self.sensitivity is not None
        return self.sensitivity

    @property
    def guarantee(self) -> Guarantee:
        """What one answer costs."""
        conditions: tuple[str, ...] = ()
        if self.bounds is None:
            conditions = (f"an answer moves by at most {self.width!r} when one record is replaced",)
        return laplace_guarantee(
            sensitivity=self.width,
            epsilon=self.epsilon,
            unit=PrivacyUnit("one record behind an answer", conditions=conditions),
        )

    def bounded(self, answer: float) -> float:
        """Clip to the bounds, NaN to the lower one: no answer may raise."""
        if self.bounds is None:
            return answer if math.isfinite(answer) else 0.0
        low, high = self.bounds
        return low if math.isnan(answer) else min(max(answer, low), high)

    def released(self, answer: float, *, unsafe_seed: int | None = None) -> float:
        """The answer with fresh noise; the caller has charged it."""
        release = laplace_mechanism(
            self.bounded(answer),
            sensitivity=self.width,
            epsilon=self.epsilon,
            unsafe_seed=unsafe_seed,
        )
        return float(release.value)


class Curator:
    """One released data set, and answers by row index.

    Usually made by one of its subclasses, which make the release. Made directly, it serves rows
    that were released before: after a restart, so that no noise is drawn, and paid for, twice.

    Args:
        evaluate: Row index to measured value.
        dataset: The released rows.
        answers: How to release answers that are sensitive themselves; by default they are sent
            as measured, and no guarantee covers them.
        max_queries: The most questions that will be answered, over all restarts.
        log: File of questions and answers; by default in memory.
        unsafe_seed: Reproducible noise of private answers, for simulations.
    """

    #: The least singular value that a transform asks for; 0 where nothing is ever lifted.
    singular_floor: float = 0.0

    def __init__(
        self,
        evaluate: Callable[[int], float],
        dataset: Release[Tensor],
        *,
        answers: PrivateAnswers | None = None,
        max_queries: int | None = None,
        log: str | os.PathLike[str] = ":memory:",
        unsafe_seed: int | None = None,
    ) -> None:
        if not callable(evaluate):
            raise TypeError("`evaluate` must be a function of a row index.")
        if max_queries is not None:
            check_integer("max_queries", max_queries)
        self.dataset = dataset
        self.answers = answers
        self.max_queries = max_queries
        self._evaluate = evaluate
        self._log = QueryLog(log)
        self._unsafe_seed = unsafe_seed
        self._lock = threading.Lock()

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the released rows."""
        return self.dataset.guarantee

    @property
    def num_rows(self) -> int:
        """How many rows can be asked for."""
        return self.dataset.value.shape[0]

    @property
    def num_queries(self) -> int:
        """How many questions were accepted so far, restarts included."""
        return len(self._log)

    def query_log(self) -> list[Query]:
        """What was asked, and when; never what was answered."""
        return self._log.entries()

    def check_index(self, index: object) -> int:
        """``index`` if there is such a row; otherwise raise :class:`InvalidIndex`."""
        try:
            return check_integer("index", index, at_least=0, at_most=self.num_rows - 1)
        except (TypeError, ValueError) as error:
            raise InvalidIndex(str(error)) from None

    def query(self, index: int, *, request_id: str | None = None) -> float:
        """Measure one row.

        Args:
            index: Row of :attr:`dataset`.
            request_id: Names the question. Asked again with the same id, also after a restart,
                the curator repeats its answer: nothing is measured, counted or charged twice.

        Raises:
            InvalidIndex: If there is no such row.
            QueryLimitReached: If ``max_queries`` are answered.
            BudgetExhausted: If answers are private and the ledger cannot bear another.
        """
        index = self.check_index(index)
        request = uuid.uuid4().hex if request_id is None else request_id
        with self._lock:
            known = self._log.open_request(request, index, limit=self.max_queries)
            if known is not None:
                return known
            answer = self._measure(index, request)
            self._log.close_request(request, answer)
            return answer

    def _measure(self, index: int, request: str) -> float:
        private = self.answers
        if private is None:
            return float(self._evaluate(index))
        if private.ledger is not None:
            # The key makes a question that was interrupted free to repeat: its first draw of
            # noise was never sent. Only this log knows that, so its name is part of the key: to
            # another log (of an earlier start, in memory) the same question is a new release.
            key = f"{self._log.name}/{request}"
            private.ledger.charge(private.guarantee, label=f"answer for row {index}", key=key)
        seed = None
        if self._unsafe_seed is not None:
            seed = self._unsafe_seed + len(self._log)
        return private.released(float(self._evaluate(index)), unsafe_seed=seed)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rows={self.num_rows}, queries={self.num_queries}, "
            f"status={self.guarantee.status!r})"
        )


class RandomProjectionCurator(Curator):
    r"""The transform of [Kharkovskii2020], faithfully. **It has no privacy guarantee.**

    Centre ``X`` and draw ``M`` (``d x r``) standard normal. If the least singular value of ``X``
    is at least :attr:`singular_floor`, release ``X M / sqrt(r)``; otherwise first raise the
    singular values to ``sqrt(s^2 + floor^2)``.

    Guarantee: none. The published theorem does not hold: each released column lies in the column
    space of ``X``, so with more rows than columns a data set with one other row is told apart
    with certainty (see :func:`~botorch_dp.outsourced.column_space_residual`), at every epsilon.
    Use :class:`GaussianNoiseCurator` for a promise.

    Args:
        X: ``n x d`` rows.
        evaluate: Row index to measured value.
        projection_dim: Columns ``r`` of the release.
        epsilon: The epsilon that the published theorem claims; it sets the floor.
        delta: Its delta.
        answers: How to release sensitive answers; see :class:`PrivateAnswers`.
        max_queries: The most questions that will be answered.
        log: File of questions and answers.
        unsafe_seed: Reproducible projection for simulations.

    Example:
        >>> curator = RandomProjectionCurator(
        ...     X, evaluate, projection_dim=10, epsilon=3.0, delta=1e-5
        ... )
        >>> curator.guarantee.status
        'none'
    """

    def __init__(
        self,
        X: Tensor,
        evaluate: Callable[[int], float],
        *,
        projection_dim: int,
        epsilon: float,
        delta: float,
        answers: PrivateAnswers | None = None,
        max_queries: int | None = None,
        log: str | os.PathLike[str] = ":memory:",
        unsafe_seed: int | None = None,
    ) -> None:
        check_rows(X)
        self.singular_floor = singular_floor(
            projection_dim=projection_dim, epsilon=epsilon, delta=delta
        )
        warnings.warn(
            "RandomProjectionCurator promises nothing: whoever knows all rows but one can tell "
            "two candidates for it apart with certainty, because the release lies in the column "
            "space of the rows. Use GaussianNoiseCurator for a guarantee.",
            stacklevel=2,
        )
        rows = centred(X)
        smallest = torch.linalg.svdvals(rows).min()
        if smallest < self.singular_floor:
            rows = lifted(rows, self.singular_floor)
        projection = gaussian_mechanism(
            torch.zeros(X.shape[1], projection_dim, dtype=X.dtype, device=X.device),
            sensitivity=1.0,
            mu=1.0,
            unsafe_seed=unsafe_seed,
        ).value
        guarantee = Guarantee(
            mechanism="Random projection with lifted singular values",
            unit=PrivacyUnit("one row", NeighboringRelation.BOUNDED_ROW),
            losses=(),
            void="the released columns lie in the column space of the rows, which identifies them",
        )
        super().__init__(
            evaluate,
            Release(rows @ projection / math.sqrt(projection_dim), guarantee),
            answers=answers,
            max_queries=max_queries,
            log=log,
            unsafe_seed=unsafe_seed,
        )


class GaussianNoiseCurator(Curator):
    r"""Rows plus Gaussian noise, after a public projection if asked: an honest transform.

    Guarantee: moving one row by at most ``row_distance`` moves the projected data set by at most
    ``row_distance * ||P||`` in Frobenius norm (one row changes, ``P`` is public). Gaussian noise
    of standard deviation that over ``mu`` gives mu-GDP, with ``mu`` the largest that is
    (epsilon, delta)-DP (exact Gaussian calibration). Everything the modeler computes from the
    rows is post-processing. Proven, under ``BOUNDED_ROW``; answers are not covered unless they
    are released through :class:`PrivateAnswers`. With a projection the bound is that of exact
    arithmetic: the product rounds by parts in 1e15 of the coordinates, so keep them within some
    thousand row distances (subtract a public centre); without one it holds to the last bit.

    The projection has orthogonal columns scaled by ``sqrt(d / r)``: it keeps squared distances
    in expectation, as in [Kenthapadi2013], with a norm of ``sqrt(d / r)``, below that of a
    Gaussian matrix.

    Args:
        X: ``n x d`` rows.
        evaluate: Row index to measured value.
        epsilon: Epsilon of the released rows.
        delta: Delta of the released rows.
        projection_dim: Columns of the release, at most ``d``; by default no projection.
        row_distance: How far one row may move (Euclidean) between neighbouring data sets.
        projection_seed: Public seed of the projection. It must not depend on the rows.
        ledger: Charged with the release of the rows before it is made.
        answers: How to release sensitive answers; see :class:`PrivateAnswers`.
        max_queries: The most questions that will be answered.
        log: File of questions and answers.
        unsafe_seed: Reproducible noise for simulations; voids the guarantee.

    Example:
        >>> curator = GaussianNoiseCurator(X, evaluate, epsilon=1.0, delta=1e-6)
        >>> curator.guarantee.status
        'proven'
        >>> modeler = Modeler(
        ...     curator.dataset.value,
        ...     kernel=InputNoiseRBF(lengthscale=2.0, noise_std=curator.noise_std),
        ...     noise_std=0.1,
        ...     delta=0.1,
        ... )
        >>> history = modeler.run(curator.query, steps=50)
    """

    def __init__(
        self,
        X: Tensor,
        evaluate: Callable[[int], float],
        *,
        epsilon: float,
        delta: float,
        projection_dim: int | None = None,
        row_distance: float = 1.0,
        projection_seed: int = 0,
        ledger: PrivacyLedger | None = None,
        answers: PrivateAnswers | None = None,
        max_queries: int | None = None,
        log: str | os.PathLike[str] = ":memory:",
        unsafe_seed: int | None = None,
    ) -> None:
        check_rows(X)
        check_positive("row_distance", row_distance)
        if projection_dim is not None:
            d = X.shape[1]
            if not 1 <= check_integer("projection_dim", projection_dim) <= d:
                raise ValueError(
                    f"`projection_dim` must be from 1 to the {d} columns of `X`, got "
                    f"{projection_dim}: more columns than the rows have only cost noise."
                )
        #: Public ``d x r`` matrix, or None.
        self.projection = (
            None
            if projection_dim is None
            else public_projection(X, projection_dim, projection_seed)
        )
        if self.projection is None:
            rows, stretch = X, 1.0
        else:
            rows = X @ self.projection
            # One part in 1e12 covers the rounding of the matrix norm.
            stretch = float(torch.linalg.matrix_norm(self.projection, ord=2)) * (1 + 1e-12)
        settings = {
            "sensitivity": row_distance * stretch,
            "epsilon": epsilon,
            "delta": delta,
            "unit": PrivacyUnit(
                f"one row, up to a distance of {row_distance!r} (answers are not covered)",
                NeighboringRelation.BOUNDED_ROW,
            ),
        }
        if ledger is not None:
            ledger.charge(gaussian_guarantee(**settings), label="outsourced data set")  # type: ignore[arg-type]
        release = gaussian_mechanism(rows, unsafe_seed=unsafe_seed, **settings)  # type: ignore[arg-type]
        super().__init__(
            evaluate,
            release,
            answers=answers,
            max_queries=max_queries,
            log=log,
            unsafe_seed=unsafe_seed,
        )

    @property
    def noise_std(self) -> float:
        """Public standard deviation of the noise on each released coordinate."""
        if self.dataset.scale is None:
            raise PrivacyError("The release has no public noise scale.")
        return self.dataset.scale
