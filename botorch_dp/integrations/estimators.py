"""Private estimators with scikit-learn's habits: from a table to a model, with nothing but epsilon.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from botorch_dp._checks import check_choice, needs_extra, warn_caller
from botorch_dp.groups import groups_of
from botorch_dp.integrations.columns import (
    Array,
    Column,
    Layout,
    Table,
    checked_labels,
    described,
    ends_of,
    places_of,
    stated_bounds,
    target_column,
)
from botorch_dp.privacy import PrivacyLedger, PrivacyUnit, Receipt, Release
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.privacy.guarantee import ONE_RECORD
from botorch_dp.privacy.ledger import make_release
from botorch_dp.training import (
    DPTrainer,
    TrainingPlan,
    TrainingSettings,
    TrainTest,
    cross_entropy_loss,
    multilayer_perceptron,
    private_ranges,
)
from botorch_dp.training.ranges import RangesPlan, Shapes, release_ranges

with needs_extra("sklearn", "`botorch_dp.integrations.estimators`"):
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        OneToOneFeatureMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted

_CHOSEN = (
    "whatever is stated of the columns and targets (bounds, labels, types, the categories of a "
    "type) was chosen without looking at the records",
    "whatever changed the features before (a scaler, an encoding, a selection) was chosen, and "
    "fitted, without these records, or has a guarantee that is counted beside this one",
)
#: How many times as far from the median as the quartiles the range of targets reaches: what lies
#: beyond is predicted wrongly, while columns lose little there.
_TARGET_WIDTHS = 4.0
#: Pieces of a curve, and rows whose features are computed at once.
_PIECES, _ROWS = 16, 512


class PrivateScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Scales every column to between -1 and 1 by a range that is found privately.

    ``fit`` is one release: noisy counts of all columns at once, see
    :func:`~botorch_dp.training.private_ranges`. It takes the place of a scaler that reads the exact
    range, mean or quantiles, which publishes them. Values beyond a range count as its end, missing
    ones as the middle.

    Guarantee: (epsilon, delta)-DP for one replaced record, proven, with exact noise. In a pipeline
    the model behind it has a guarantee of its own, and both hold together:
    ``compose(pipeline[0].guarantee_, pipeline[-1].guarantee_)``. A ``DPClassifier`` or
    ``DPRegressor`` needs no scaler: it finds ranges itself, within its own epsilon.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of columns whose range is known, by name or place; they cost
            nothing.
        unsafe_seed: Simulate with reproducible noise; nothing is guaranteed then.

    Attributes:
        lower_: The lower ends, released.
        upper_: The upper ends.
        guarantee_: The guarantee of the last fit.

    Example:
        >>> scaler = PrivateScaler(0.5, delta=1e-6)
        >>> print(scaler.plan(num_records=20_000, num_features=8))
        Ranges of 8 columns, found with all of the budget: quantiles are off by about 0.23% ...
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Mapping[Any, tuple[float, float]] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds = epsilon, delta, bounds
        self.unsafe_seed = unsafe_seed

    def plan(self, num_records: int, num_features: int) -> RangesPlan:
        """The cost of a fit to a table of this size, and how accurate it is."""
        columns = num_features - len(self.bounds or {})
        return RangesPlan.within(num_records, columns, self.epsilon, self.delta, 1.0)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        groups: Any = None,
        ledger: PrivacyLedger | None = None,
        key: str | None = None,
        label: str = "",
    ) -> PrivateScaler:
        """Release the ranges of the columns.

        Args:
            X: Numbers, dates or truth values, ``n x d``: an array or a data frame.
            y: Ignored.
            groups: Whose each record is, where people have several: one identifier for each. The
                first record of each person is read, and protects the person.
            ledger: Charged before a record is read.
            key: Names the released ranges in the ledger: asking again replays them, free of charge.
            label: What it is for, in public words; shown in the ledger.
        """
        table = Table(self, X)
        stated = stated_bounds(table.columns, {} if self.bounds is None else self.bounds)
        found = [place for place, each in enumerate(stated) if each is None]
        if not found:
            raise ValueError("The bounds of all columns are stated: there is nothing to find.")
        n, unit, read = _counted(table, groups, 1)
        plan = RangesPlan.within(n, len(found), self.epsilon, self.delta, 1.0, unit)
        if plan.is_too_noisy:
            warn_caller(str(plan))
        release = release_ranges(
            lambda: table.numbers()[read][:, found],
            (n, len(found)),
            price=plan.guarantee,
            ledger=ledger,
            key=key,
            label=label,
            unsafe_seed=self.unsafe_seed,
            delta=self.delta,
        )
        ends = iter(release.value.ends())
        self._ends = [next(ends) if each is None else each for each in stated]
        self._columns, self.guarantee_ = table.columns, release.guarantee
        self.lower_, self.upper_ = (np.array(each) for each in zip(*self._ends, strict=True))
        return self

    def transform(self, X: Any) -> Array:
        """Columns between -1 and 1, ``n x d``."""
        check_is_fitted(self)
        numbers = torch.from_numpy(Table(self, X, self._columns).numbers())
        scaled: Array = Shapes(self._ends)(numbers).numpy()
        return scaled

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check, of the released ranges.

        Its digest is that of ``[lower_, upper_]``; see :meth:`Receipt.of` for the ``facts``.
        """
        check_is_fitted(self)
        released = torch.from_numpy(np.stack([self.lower_, self.upper_]))
        return Release(released, self.guarantee_).receipt(**facts)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.non_deterministic = True, True
        return tags


def _counted(table: Table, groups: Any, per_group: int | None = None) -> tuple[int, Any, Any]:
    """How many records or people there are, the unit, and whose records ranges are read of."""
    found = groups_of(groups, table.num_records, None if groups is None else per_group)
    if found is None:
        return table.num_records, ONE_RECORD, slice(None)
    return len(found), PrivacyUnit.of_person(found.per_group), found.first


class _PrivateEstimator(BaseEstimator):
    """A model of a table, trained by :class:`DPTrainer`, with nothing to choose but epsilon.

    What scikit-learn reads from the data is either found privately here, within the same epsilon
    (the ranges of columns and targets), or public (labels, types). Values beyond a range count as
    its end, missing ones as the middle; a record with a target that is not finite, or with another
    label, counts as none. Columns of a wrong type are refused by their type, and nothing is refused
    for a value.

    Each ``fit`` is a release of its own: it draws new noise and is charged to the ledger that is
    passed to ``fit`` (in a pipeline ``fit(X, y, dpclassifier__ledger=ledger)``). A ledger is no
    parameter, because ``clone`` would copy it, and two copies would spend one budget twice.
    """

    epsilon: float
    delta: float
    bounds: Any
    shape: str
    hidden: Sequence[int]
    epochs: int | None
    batch_size: int | None
    unsafe_seed: int | None
    model_: nn.Sequential
    _loss: Any

    def _parameters(self) -> tuple[int, torch.dtype]:
        """The outputs of a record and the type of its target; raises for wrong parameters."""
        raise NotImplementedError

    def _target_ends(self) -> tuple[float, float] | None:
        """Public ends of the targets, or None where they are to be found."""
        raise NotImplementedError

    def plan(self, num_records: int, num_features: int | Any) -> TrainingPlan:
        """What a fit to this many records would do, and its guarantee, at no cost.

        Args:
            num_records: How many records there are.
            num_features: How many columns of numbers there are; or a table of such columns, of
                which only the names and types are read.
        """
        columns = (
            described(num_features)
            if hasattr(num_features, "ndim")
            else [Column(place, "number") for place in range(num_features)]
        )
        return self._plan(self._layout(num_records, columns))

    def _layout(self, n: int, columns: list[Column], unit: PrivacyUnit = ONE_RECORD) -> Layout:
        check_choice("shape", self.shape, ("additive", "linear"))
        self._parameters()
        stated = stated_bounds(columns, self.bounds)
        found = sum(each is None for each in [*stated, self._target_ends()])
        how = (self.epsilon, self.delta, None, unit)
        ranges = RangesPlan.within(n, found, *how) if found else None
        is_curved = self.shape == "additive" and not tuple(self.hidden)
        return Layout(n, unit, columns, stated, ranges, _PIECES if is_curved else None)

    def _plan(self, layout: Layout) -> TrainingPlan:
        """The training at its widest; fewer features change its steps and not its epsilon."""
        outputs, kind = self._parameters()
        n = layout.num_records
        X = torch.zeros(1, layout.most_features, device="cpu").expand(n, -1)
        Y = torch.zeros(1, 1, dtype=kind, device="cpu").expand(n, -1)
        people = None if layout.unit is ONE_RECORD else np.arange(n)
        trainer = self._trainer(X, Y[:, 0] if outputs > 1 else Y, layout, people)
        plan = trainer.plan(**self._settings(layout))
        ranges = () if layout.ranges is None else (str(layout.ranges),)
        if layout.ranges is not None and layout.ranges.is_too_noisy:
            warn_caller(*ranges)
        return replace(plan, conditions=_CHOSEN, notes=(*ranges, *plan.notes))

    def _trainer(self, X: Tensor, Y: Tensor, layout: Layout, groups: Any) -> DPTrainer:
        outputs, _ = self._parameters()
        factory = partial(multilayer_perceptron, X.shape[1], outputs, tuple(self.hidden))
        trainer = DPTrainer(factory, type(self)._loss, TrainTest(X, Y), groups=groups)
        return trainer.beside(None if layout.ranges is None else layout.ranges.guarantee)

    def _settings(self, layout: Layout) -> TrainingSettings:
        settings: TrainingSettings = {"target_epsilon": self.epsilon, "delta": self.delta}
        settings["feature_norm"] = layout.feature_norm
        if self.batch_size is not None:
            settings["batch_size"] = self.batch_size
        if self.epochs is not None:
            settings["epochs"] = self.epochs
        return settings

    def _fit(
        self,
        X: Any,
        y: Any,
        read: Callable[[], Array],
        groups: Any,
        ledger: PrivacyLedger | None,
        label: str,
    ) -> None:
        """Train; ``read`` reads the targets, numbers or places of labels, when it is time to."""
        table = Table(self, X)
        n = table.num_records
        if np.shape(y) != (n,):
            raise ValueError(f"`y` must be one target for each of {n} records, got {np.shape(y)}.")
        counted, unit, first = _counted(table, groups)
        layout = self._layout(counted, table.columns, unit)
        plan = self._plan(layout)
        plan.check_publishable()
        _warn_of_fitted_steps(self)

        def train() -> tuple[nn.Sequential, TrainingPlan]:
            numbers, targets = table.numbers(), read()
            ends, found = self._target_ends(), None
            if layout.ranges is not None:
                unknown = [place for place, each in enumerate(layout.stated) if each is None]
                unread = [numbers[:, unknown], *([targets[:, None]] if ends is None else [])]
                found = private_ranges(
                    np.concatenate(unread, axis=1)[first],
                    mu=layout.ranges.mu,
                    pieces=layout.pieces,
                    unsafe_seed=self.unsafe_seed,
                ).value
                ends = found.ends(_TARGET_WIDTHS)[-1] if ends is None else ends
            assert ends is not None  # stated or found
            shapes = layout.shapes(found, ends)
            features, told = _features(shapes, numbers), self._told(targets, *ends)
            trainer = self._trainer(features, told, layout, groups)
            seed = self.unsafe_seed
            how: Any = {"publish": seed is None, "seed": seed, "on_interrupt": "raise"}
            trained = trainer.fit(**how, **self._settings(layout))
            assert trained.plan.guarantee.losses == plan.guarantee.losses  # as it was charged
            return nn.Sequential(shapes, trained.model), trained.plan

        released = make_release(
            plan.guarantee,
            train,
            ledger=ledger,
            label=label,
            delta=None if ledger is None or ledger.budget.renyi else self.delta,
            unsafe_seed=self.unsafe_seed,
        )
        (self.model_, taken), self.guarantee_ = released.value, released.guarantee
        self.plan_ = replace(taken, conditions=plan.conditions, notes=plan.notes)
        self._columns, self._digest = table.columns, digest_if_any(self.model_)
        self.n_iter_ = plan.steps

    def _told(self, targets: Array, low: float, high: float) -> Tensor:
        """Targets as the loss takes them."""
        raise NotImplementedError

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check, of what was learnt in the last fit.

        Its digest is that of ``model_``; see :meth:`Receipt.of` for the ``facts``.
        """
        check_is_fitted(self)
        training = self.plan_.parameters(self.n_iter_)
        known = {"training": training, "settings": self.plan_.origin}
        release = Release(self.model_, self.guarantee_, digest=self._digest)
        return Receipt.of(release, **{**known, **facts})

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        numbers = Table(self, X, self._columns).numbers()
        with torch.no_grad():
            features = _features(self._shapes, numbers, torch.double)
            outputs: Tensor = copy.deepcopy(self.model_[1]).double()(features)
        return outputs

    @property
    def _shapes(self) -> Shapes:
        shapes = self.model_[0]
        assert isinstance(shapes, Shapes)
        return shapes

    def explain(self, X: Any) -> Array:
        """Each column's part of a prediction, ``n x d``; of more than two classes, ``n x d x k``.

        In units of the targets, or of :meth:`decision_function`. The parts add up to the prediction
        (without its limits) above that of a record all of whose values are missing. Of ``model_``,
        so that it costs nothing; ``X`` may be the sensitive records, and its parts are then as
        sensitive as they are.
        """
        check_is_fitted(self)
        return self._parts(Table(self, X, self._columns).numbers())

    def curves(self) -> dict[Any, tuple[NDArray[Any], Array]]:
        """What the model learnt of each column: values, and their part of a prediction.

        Between two neighbouring values of a number the part is a line, beyond the ends it is
        constant. See :func:`~botorch_dp.plots.plot_shapes`.
        """
        check_is_fitted(self)
        owner = np.repeat(np.arange(len(self._columns)), [c.width for c in self._columns])
        found: dict[Any, tuple[NDArray[Any], Array]] = {}
        for place, column in enumerate(self._columns):
            own = np.flatnonzero(owner == place)
            if column.kind == "category":
                values: NDArray[Any] = np.asarray(column.type.categories)
                table = np.full((len(values), len(owner)), np.nan)
                table[:, own] = np.eye(len(values))
            else:
                mine = self._shapes.column == int(own[0])
                starts = self._shapes.start[mine]
                values = torch.cat([starts, starts + self._shapes.width[mine]]).unique().numpy()
                table = np.full((len(values), len(owner)), np.nan)
                table[:, own] = values[:, None]
            found[column.name] = values, self._parts(table)[:, place]
        return found

    def _parts(self, numbers: Array) -> Array:
        """Each column's part of the prediction of these columns of numbers."""
        if tuple(self.hidden):
            raise ValueError("A network (`hidden`) has no parts by column: leave `hidden` out.")
        (linear,) = (each for each in self.model_.modules() if isinstance(each, nn.Linear))
        features = _features(self._shapes, numbers, torch.double)
        owner = np.repeat(np.arange(len(self._columns)), [c.width for c in self._columns])
        own = torch.from_numpy(owner)[self._shapes.column]
        weights = self._weights(linear.weight.detach().double())  # k x p
        parts = torch.zeros(len(features), len(self._columns), len(weights), dtype=torch.double)
        parts.index_add_(1, own, features[:, :, None] * weights.T)
        return np.asarray(parts[:, :, 0] if len(weights) == 1 else parts)

    def _weights(self, weights: Tensor) -> Tensor:
        """Of the outputs that are explained, in their units."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.non_deterministic = True, True
        return tags


def _features(shapes: Shapes, numbers: Array, dtype: torch.dtype = torch.float32) -> Tensor:
    """Features ``n x p``, some rows at a time: in double precision they would be large."""
    parts = torch.from_numpy(numbers).split(_ROWS)
    return torch.cat([shapes(part).to(dtype) for part in parts])


class DPClassifier(ClassifierMixin, _PrivateEstimator):
    """A classifier of tables that needs no bounds, no norm and no learning rate.

    By default an additive model: a sum of curves, one for each column, through knots at privately
    found quantiles, trained by DP-SGD with settings that follow from public numbers. A part of
    epsilon goes to the knots, as much as the number of records and columns asks for; the rest to
    the training. :meth:`plan` says how much before a record is read.

    Guarantee: at most ``(epsilon, delta)``-DP for each fit, for one replaced record: noisy counts
    (:func:`~botorch_dp.training.private_ranges`) and a training on Poisson batches
    (:class:`~botorch_dp.training.DPTrainer`), composed.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``"private"``; or public ``(low, high)``, which cost nothing: of all columns (two
            numbers, or one of each for each column), or of some, ``{name: (low, high)}`` by name or
            place. Columns of truth values or categories need none.
        classes: The labels, all integers, all floats or all text. Public and required.
        shape: ``"additive"``, or ``"linear"`` for one weight a column.
        hidden: Widths of hidden layers of a network on scaled columns, in place of a shape.
        epochs: Passes over the records; by :func:`~.untuned.suggest_settings` if None.
        batch_size: Expected records in a step; the same.
        unsafe_seed: Simulate with reproducible noise; nothing is guaranteed then.

    Attributes:
        model_: The model, from columns of numbers to scores. Released, with the knots in its first
            layer.
        guarantee_: The guarantee of the last fit; it covers ``model_`` and all predictions.
        classes_: The labels, sorted.

    Example:
        >>> classifier = DPClassifier(1.0, classes=("no", "yes"))
        >>> classifier.plan(num_records=20_000, num_features=5).epsilon <= 1.0
        True
    """

    _loss = staticmethod(cross_entropy_loss)

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = "private",
        classes: Sequence[Any] | None = None,
        shape: str = "additive",
        hidden: Sequence[int] = (),
        epochs: int | None = None,
        batch_size: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.classes = bounds, classes
        self.shape, self.hidden = shape, hidden
        self.epochs, self.batch_size = epochs, batch_size
        self.unsafe_seed = unsafe_seed

    def _parameters(self) -> tuple[int, torch.dtype]:
        return len(checked_labels(self.classes)), torch.long

    def _target_ends(self) -> tuple[float, float]:
        return 0.0, 1.0  # labels have no range

    def _told(self, targets: Array, low: float, high: float) -> Tensor:
        return torch.from_numpy(targets.astype(np.int64))

    def _weights(self, weights: Tensor) -> Tensor:
        return weights[1:] - weights[:1] if len(weights) == 2 else weights

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
    ) -> DPClassifier:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: A data frame of numbers, dates, truth values and categories, an array of numbers, or
                a list of rows of them.
            y: Labels, ``n``, of the type of ``classes``; a record with another label counts as
                none.
            groups: Whose each record is, where people have several: one identifier for each. A
                person with all of their records is then protected.
            ledger: Charged before a record is read.
            label: What it is for, in public words; shown in the ledger.
        """
        self.classes_ = checked_labels(self.classes)
        kind = self.classes_.dtype.kind
        y = target_column(y, {"U": "UO", "f": "f"}.get(kind, "biu"))
        self._fit(X, y, lambda: places_of(y, self.classes_), groups, ledger, label)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, ``n x k``; missing features count as the middle."""
        probabilities: Array = self._outputs(X).softmax(dim=1).numpy()
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Their logarithms, ``n x k``."""
        logarithms: Array = self._outputs(X).log_softmax(dim=1).numpy()
        return logarithms

    def decision_function(self, X: Any) -> Array:
        """Scores of the classes, ``n x k``; of two classes, the second's over the first, ``n``."""
        scores: Array = self._outputs(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable labels, ``n``."""
        places = self._outputs(X).argmax(dim=1).numpy()
        labels: NDArray[Any] = self.classes_[places]
        return labels


class DPRegressor(RegressorMixin, _PrivateEstimator):
    """A regression of tables that needs no bounds, no norm and no learning rate.

    As :class:`DPClassifier`, for squared errors; the range of the targets is found with those of
    the columns.

    Guarantee: as :class:`DPClassifier`.

    Args:
        epsilon: As for :class:`DPClassifier`, also the other ones.
        delta: As there.
        bounds: As there.
        target_bounds: ``"private"``, or public ``(low, high)`` of the targets. Predictions lie
            within, and targets beyond count as the ends.
        shape: As there.
        hidden: As there.
        epochs: As there.
        batch_size: As there.
        unsafe_seed: As there.

    Example:
        >>> regressor = DPRegressor(1.0)
        >>> regressor.plan(num_records=20_000, num_features=5).epsilon <= 1.0
        True
    """

    _loss = staticmethod(torch.nn.functional.mse_loss)

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = "private",
        target_bounds: Any = "private",
        shape: str = "additive",
        hidden: Sequence[int] = (),
        epochs: int | None = None,
        batch_size: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.target_bounds = bounds, target_bounds
        self.shape, self.hidden = shape, hidden
        self.epochs, self.batch_size = epochs, batch_size
        self.unsafe_seed = unsafe_seed

    def _parameters(self) -> tuple[int, torch.dtype]:
        return 1, torch.float32

    def _target_ends(self) -> tuple[float, float] | None:
        if isinstance(self.target_bounds, str):
            check_choice("target_bounds", self.target_bounds, ("private",))
            return None
        low, high = ends_of("target_bounds", self.target_bounds, ())
        return float(low), float(high)

    def _told(self, targets: Array, low: float, high: float) -> Tensor:
        scaled = (2 * np.clip(targets, low, high) - low - high) / (high - low)
        return torch.from_numpy(scaled.astype(np.float32)).unsqueeze(1)

    def _weights(self, weights: Tensor) -> Tensor:
        low, high = self._shapes.targets.tolist()
        return weights * (high - low) / 2

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
    ) -> DPRegressor:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: As for :meth:`DPClassifier.fit`.
            y: Targets, ``n``; a record with a target that is not finite counts as none.
            groups: Whose each record is; see :meth:`DPClassifier.fit`.
            ledger: Charged before a record is read.
            label: What it is for, in public words; shown in the ledger.
        """
        y = target_column(y, "biuf")

        def targets() -> Array:
            values = np.asarray(y, dtype=np.float64)
            return np.where(np.isfinite(values), values, np.nan)

        self._fit(X, y, targets, groups, ledger, label)
        return self

    def predict(self, X: Any) -> Array:
        """Predictions within the bounds of the targets, ``n``."""
        scaled = self._outputs(X).squeeze(-1).clamp(-1, 1)
        low, high = self._shapes.targets.tolist()
        predicted: Array = ((scaled * (high - low) + low + high) / 2).numpy()
        return predicted


def _warn_of_fitted_steps(estimator: _PrivateEstimator) -> None:
    """Warn if a pipeline fits something to the records before the estimator.

    An estimator is not told which pipeline it is fitted in: that is looked up among its callers.
    """
    inner, frame = estimator, inspect.currentframe()
    while frame is not None:
        outer = frame.f_locals.get("self")
        if isinstance(outer, Pipeline) and outer.steps[-1][1] is inner:
            fitted = [
                type(step).__name__
                for _, step in outer.steps[:-1]
                if step not in (None, "passthrough")
                and not isinstance(step, FrozenEstimator | PrivateScaler)
                and get_tags(step).requires_fit
            ]
            if fitted:
                warn_caller(
                    f"{', '.join(fitted)} before {type(estimator).__name__} is fitted to the "
                    "sensitive records without noise: what it learns is published with the model, "
                    "and no guarantee covers it. Leave it out: ranges are found privately; or use "
                    "PrivateScaler, or fit it to public data and freeze it."
                )
            inner = outer
        frame = frame.f_back
