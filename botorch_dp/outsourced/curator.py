"""The curator: holds the rows, releases a transformed copy once, answers row indices."""

from __future__ import annotations

import math
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from botorch_dp._checks import (
    check_callable,
    check_integer,
    check_interval,
    check_positive,
    check_tensor,
)
from botorch_dp._files import MEMORY
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced.transforms import (
    centred,
    check_rows,
    lifted,
    projected,
    projected_sensitivity,
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
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.privacy.rounding import float_above
from botorch_dp.privacy.runs import Run, fingerprint

#: Characters of the longest request id, for the curator and for all clients.
LONGEST_REQUEST_ID = 128
#: Bytes of the largest released rows that a log's file can keep.
_LARGEST_KEPT = 900_000_000


class QuestionRefused(ValueError):
    """A question that gets no answer. The message says why, and quotes no sensitive value."""


@dataclass(frozen=True)
class PrivateAnswers:
    """How answers are released when they are sensitive too.

    Guarantee: answers are clipped to ``bounds`` (NaN counts as the lower one), so replacing one
    record behind an answer moves it by at most their distance, and Laplace noise of scale
    ``(high - low) / epsilon`` makes it epsilon-differentially private. Every question is charged to
    the ledger before the objective is evaluated. A printed condition: whether and when a
    measurement fails does not depend on a single record.

    Args:
        epsilon: The cost of one answer.
        bounds: Public bounds ``(low, high)`` of an answer.
        ledger: Where each answer is charged.
        label: What it is for, in public words; shown in the ledger.

    Example:
        >>> answers = PrivateAnswers(epsilon=0.5, bounds=(0.0, 1.0))
        >>> answers.price().epsilon()
        0.5
    """

    epsilon: float
    bounds: tuple[float, float]
    ledger: PrivacyLedger | None = None
    label: str = ""

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        low, high = check_interval("bounds", self.bounds)
        check_positive("the width of `bounds`", high - low)
        self.price()

    @property
    def width(self) -> float:
        """The distance of the bounds, never rounded down."""
        low, high = self.bounds
        return float_above(Fraction(high) - Fraction(low))

    def price(self) -> Guarantee:
        """What one answer costs."""
        condition = "whether and when a measurement fails does not depend on a single record"
        noise = laplace_guarantee(sensitivity=self.width, epsilon=self.epsilon)
        unit = PrivacyUnit("one record behind an answer", conditions=(condition,))
        return replace(noise, unit=unit)

    def _released(self, answer: float, *, unsafe_seed: int | None) -> float:
        """The answer, clipped, with fresh noise; the caller has charged it."""
        low, high = self.bounds
        release = laplace_mechanism(
            low if math.isnan(answer) else min(max(answer, low), high),
            sensitivity=self.width,
            epsilon=self.epsilon,
            unsafe_seed=unsafe_seed,
        )
        return float(release.value)


class Curator:
    """One released data set, and answers by row index.

    Usually made by one of its subclasses, which make the release. Made directly, it serves rows
    that were released before, from a file for instance.

    A question is on disk before its row is measured, and an answer is on disk before it is sent:
    after a restart, a repeated request gets the answer that was given before. Threads may ask at
    the same time; their rows are then measured at the same time, so that a measurement that hangs
    holds up nobody else. One curator at a time holds a ``log``.

    Args:
        evaluate: Row index to measured value. Called from several threads if several ask.
        dataset: The released rows.
        answers: How to release answers that are sensitive themselves; by default they are sent
            as measured, and no guarantee covers them.
        log: File of questions and answers, readable by its owner only; by default in memory.
        unsafe_seed: Reproducible noise of private answers, for simulations.
    """

    def __init__(
        self,
        evaluate: Callable[[int], float],
        dataset: Release[Tensor],
        *,
        answers: PrivateAnswers | None = None,
        log: str | os.PathLike[str] = MEMORY,
        unsafe_seed: int | None = None,
    ) -> None:
        check_tensor("dataset", dataset.value, shape=("n", "d"))
        self._open(lambda: dataset, evaluate, answers, log, unsafe_seed)

    def _open(
        self,
        release_rows: Callable[[], Release[Tensor]],
        evaluate: Callable[[int], float],
        answers: PrivateAnswers | None,
        log: str | os.PathLike[str],
        unsafe_seed: int | None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Check every argument and open the log; only then release the rows."""
        check_callable("evaluate", evaluate, otherwise=": pass a function of a row's number")
        check_payment(None if answers is None else answers.ledger, unsafe_seed=unsafe_seed)
        self.answers = answers
        self._evaluate = evaluate
        self._unsafe_seed = unsafe_seed
        self._lock = threading.Lock()
        #: One for each request id that somebody waits for.
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        #: The number and the row of each question, by its request id.
        self._queries: dict[str, tuple[int, int]] = {}
        self._answers: dict[int, float] = {}
        self._run = Run(
            None if str(log) == MEMORY else log,
            what="a curator's questions",
            settings=settings or {},
        )
        try:
            self._load()
            self.dataset = release_rows()
        except BaseException as error:
            self._run.close()
            if isinstance(error, BudgetExhausted) and self._run.path and not self._run.resumed:
                os.remove(self._run.path)  # nothing was released: other settings may be tried
            raise

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the released rows."""
        return self.dataset.guarantee

    @property
    def statement(self) -> str:
        """The guarantees of the rows and of an answer in words, for the other party."""
        if self.answers is None:
            return f"{self.guarantee}\nAnswers are sent as measured, and no guarantee covers them."
        price = self.answers.price()
        if self._unsafe_seed is not None:
            price = price.simulated()
        return f"{self.guarantee}\nEach answer: {price}"

    @property
    def num_rows(self) -> int:
        """How many rows can be asked for."""
        return self.dataset.value.shape[0]

    @property
    def num_queries(self) -> int:
        """How many questions were accepted so far, restarts included."""
        return len(self._queries)

    def query(self, index: int, *, request_id: str | None = None) -> float:
        """Measure one row.

        Args:
            index: Row of :attr:`dataset`.
            request_id: Names the question, in at most 128 characters. Asked again with the same
                id, also after a restart, the curator repeats its answer: nothing is measured,
                counted or charged twice. A measurement that failed is repeated for the same
                charge.

        Raises:
            QuestionRefused: There is no such row, the same id asked for another row before, or NaN
                or an infinity was measured (and answers leave as measured).
            BudgetExhausted: If answers are private and the ledger cannot bear another.
        """
        try:
            check_integer("index", index, at_least=0, at_most=self.num_rows - 1)
            request = uuid.uuid4().hex if request_id is None else check_request_id(request_id)
        except (TypeError, ValueError) as error:
            raise QuestionRefused(str(error)) from None
        with self._lock:
            one_at_a_time = self._locks.setdefault(request, threading.Lock())
        with one_at_a_time:
            number = self._numbered(request, index)
            if number not in self._answers:
                self._keep_answer(number, self._measure(index, request, number))
        answer = self._answers[number]
        if not math.isfinite(answer):
            raise QuestionRefused(f"Row {index} was measured, and its value is not finite.")
        return answer

    def close(self) -> None:
        """Let go of the log's file; nothing can be asked afterwards."""
        self._run.close()

    def _load(self) -> None:
        """Read questions and answers from the log."""
        questions = self._run.items("question")
        if [*questions] != [*range(1, len(questions) + 1)]:
            raise PrivacyError(f"`log` {self._run.path} is damaged: a question is missing.")
        for number, (request, index, *_) in questions.items():
            self._queries[request] = (number, index)
        self._answers |= self._run.items("answer")

    def _numbered(self, request: str, index: int) -> int:
        """The number of a question, which is written down if it is new."""
        with self._lock:
            if request not in self._queries:
                number = self.num_queries + 1
                try:
                    self._run.add("question", number, [request, index])
                    self._queries[request] = (number, index)
                except BaseException:  # also Ctrl-C behind the commit
                    self._load()
                    raise
        number, known = self._queries[request]
        if known != index:
            raise QuestionRefused(
                f"`request_id` {request!r} asked for row {known} before and for row {index} now: "
                "give each question its own id."
            )
        return number

    def _keep_answer(self, number: int, answer: float) -> None:
        try:
            self._run.add("answer", number, answer)
            self._answers[number] = answer
        except BaseException:
            self._load()
            raise

    def _measure(self, index: int, request: str, number: int) -> float:
        private = self.answers
        if private is None:
            return float(self._evaluate(index))
        seed = None if self._unsafe_seed is None else self._unsafe_seed + number
        return self._released(
            private.ledger,
            private.price(),
            lambda measured: private._released(measured, unsafe_seed=seed),
            read=lambda: float(self._evaluate(index)),
            key=f"answer to {request}",
            label=private.label or f"answer for row {index}",
        )

    def _released(
        self, ledger: PrivacyLedger | None, price: Guarantee, draw: Any, *, key: str, **how: Any
    ) -> Any:
        """What this log, or a ledger, holds under a key: charged and drawn once."""
        if ledger is None:
            return self._run.release(price, draw, key=key, **how)
        return ledger.release(price, draw, key=f"{self._run.identity}/{key}", **how)


def check_request_id(request_id: object) -> str:
    """Return ``request_id``, or raise if it is no text of 1 to 128 characters."""
    # JSON can spell halves of characters, which no file and no database can store.
    if (
        not isinstance(request_id, str)
        or not 1 <= len(request_id) <= LONGEST_REQUEST_ID
        or any("\ud800" <= character <= "\udfff" for character in request_id)
    ):
        raise ValueError(
            f"`request_id` must be valid Unicode of 1 to {LONGEST_REQUEST_ID} characters."
        )
    return request_id


# --- The curators that release rows. ---


class RandomProjectionCurator(Curator):
    r"""The transform of [Kharkovskii2020], faithfully. **It has no privacy guarantee.**

    Centre ``X`` and draw ``M`` (``d x r``) standard normal. If the least singular value of ``X``
    is at least :attr:`singular_floor`, release ``X M / sqrt(r)``; otherwise first raise the
    singular values to ``sqrt(s^2 + floor^2)``.

    Guarantee: none. The published theorem does not hold: each released column lies in the column
    space of ``X``, so with more rows than columns a data set with one other row is told apart
    with certainty (see :func:`~botorch_dp.outsourced.column_space_residual`), at every epsilon.
    Use :class:`GaussianNoiseCurator` for a guarantee.

    Args:
        projection_dim: Columns ``r`` of the release.
        epsilon: The epsilon that the published theorem claims; it sets the floor.
        delta: Its delta.
        X: As for :class:`GaussianNoiseCurator`; likewise all others.

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
        log: str | os.PathLike[str] = MEMORY,
        unsafe_seed: int | None = None,
    ) -> None:
        check_rows(X)
        #: The least singular value that the transform asks for.
        self.singular_floor = singular_floor(
            projection_dim=projection_dim, epsilon=epsilon, delta=delta
        )
        warnings.warn(
            "RandomProjectionCurator guarantees nothing: whoever knows all rows but one can "
            "tell two candidates for it apart with certainty, because the release lies in the "
            "column space of the rows. Use GaussianNoiseCurator for a guarantee.",
            stacklevel=2,
        )

        def release_rows() -> Release[Tensor]:
            rows = centred(X)
            if torch.linalg.svdvals(rows).min() < self.singular_floor:
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
                void="the released columns lie in the column space of the rows, which identifies "
                "them",
            )
            return Release(rows @ projection / math.sqrt(projection_dim), guarantee)

        self._open(release_rows, evaluate, answers, log, unsafe_seed)


class GaussianNoiseCurator(Curator):
    r"""Rows plus Gaussian noise, after a public projection if asked.

    Guarantee: moving one row by at most ``row_distance`` moves the projected data set by at most
    ``row_distance * ||P||`` in Frobenius norm (one row changes, ``P`` is public). Gaussian noise
    of standard deviation that over ``mu`` gives mu-GDP, with ``mu`` the largest that is
    (epsilon, delta)-DP (exact Gaussian calibration). Everything the modeler computes from the
    rows is post-processing. Proven, under ``BOUNDED_ROW``; answers are not covered unless they
    are released through :class:`PrivateAnswers`. The rows are released once for each ``log``
    file: made again with the same file after a restart, the curator serves the same rows and is
    not charged again; other settings are refused.

    Rows of any dtype are projected and released in double precision, and rounded to their dtype
    afterwards. Without a projection the sensitivity holds to the last bit. With one, the product
    of large coordinates would round by more than any fixed part of ``row_distance``: coordinates
    are therefore first limited to 2^24 row distances from 0, which brings no two rows further
    apart, and the noise is widened by what the product of such rows can round (2e-7 of it for
    ten columns, 1e-5 for a hundred, at most 1e-3 for a thousand; see
    :func:`~botorch_dp.outsourced.transforms.projected_sensitivity`). Subtract a public centre
    from columns that would reach beyond.

    The projection has orthogonal columns scaled by ``sqrt(d / r)``: it keeps squared distances
    in expectation, as in [Kenthapadi2013], with a norm of ``sqrt(d / r)``, below that of a
    Gaussian matrix.

    Args:
        X: ``n x d`` rows.
        evaluate: Row index to measured value.
        epsilon: Epsilon of the released rows.
        delta: Delta of the released rows.
        projection_dim: Columns of the release, at most ``d``; by default no projection. That it was
            chosen without the rows is a condition on the caller.
        row_distance: How far one row may move (Euclidean) between neighbouring data sets.
        ledger: Charged with the release of the rows before it is made.
        label: What it is for, in public words; shown in the ledger.
        answers: How to release sensitive answers; see :class:`PrivateAnswers`.
        log: File of the released rows, of questions and of answers.
        unsafe_seed: Reproducible noise for simulations; voids the guarantee.

    Example:
        >>> curator = GaussianNoiseCurator(X, evaluate, epsilon=1.0, delta=1e-6)
        >>> curator.guarantee.status
        'proven'
        >>> modeler = Modeler(
        ...     curator.dataset,
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
        ledger: PrivacyLedger | None = None,
        label: str = "",
        answers: PrivateAnswers | None = None,
        log: str | os.PathLike[str] = MEMORY,
        unsafe_seed: int | None = None,
    ) -> None:
        check_rows(X)
        check_positive("row_distance", row_distance)
        unit = PrivacyUnit(
            f"one row, up to a distance of {row_distance!r} (answers are not covered)",
            NeighboringRelation.BOUNDED_ROW,
        )
        #: Public ``d x r`` matrix in double precision, or None.
        self.projection: Tensor | None = None
        sensitivity, columns = row_distance, X.shape[1]
        if projection_dim is not None:
            check_integer("projection_dim", projection_dim, at_most=columns)
            self.projection = public_projection(columns, projection_dim)
            sensitivity = projected_sensitivity(self.projection, row_distance)
            unit = unit.given("the seed of the projection was chosen without the rows")
            columns = projection_dim
        mechanism: dict[str, Any] = {"sensitivity": sensitivity, "epsilon": epsilon, "delta": delta}
        price = replace(gaussian_guarantee(**mechanism), unit=unit)
        warn_large_delta(delta, len(X))
        check_payment(ledger, unsafe_seed=unsafe_seed)
        size = 8 * len(X) * columns
        if size > _LARGEST_KEPT and str(log) != MEMORY:
            raise ValueError(
                f"`log` cannot keep released rows of {size} bytes (at most {_LARGEST_KEPT}): leave "
                "it out, and keep them by `save_dataset`."
            )

        def read() -> Tensor:
            rows = X.detach().to("cpu", torch.double)
            if self.projection is None:
                return rows
            return projected(rows, self.projection, row_distance)

        def draw(rows: Tensor) -> list[Any]:
            release = gaussian_mechanism(rows, unsafe_seed=unsafe_seed, **mechanism)
            return [release.value, release.scale]

        def release_rows() -> Release[Tensor]:
            if self._run.path is not None:
                value, scale = self._released(
                    ledger, price, draw, read=read, key="rows", label=label
                )
            elif ledger is not None:  # nobody can ask for these rows again, so no key is needed
                value, scale = ledger.release(price, draw, read=read, label=label)
            else:
                value, scale = draw(read())
            largest = torch.finfo(X.dtype).max
            return Release(
                value.clamp(-largest, largest).to(X),
                price if unsafe_seed is None else price.simulated(),
                scale=scale,
            )

        settings = {
            "epsilon": epsilon,
            "delta": delta,
            "projection_dim": projection_dim,
            "row_distance": row_distance,
            "projection_seed": 0,
            "unsafe_seed": unsafe_seed,
            "charged": ledger is not None,
            "fingerprint of the rows": fingerprint(X.detach().double()),
        }
        self._open(release_rows, evaluate, answers, log, unsafe_seed, settings)

    @property
    def noise_std(self) -> float:
        """Public standard deviation of the noise on each released coordinate."""
        if self.dataset.scale is None:
            raise PrivacyError("The release has no public noise scale.")
        return self.dataset.scale
