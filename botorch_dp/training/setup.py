"""What all trainings of a trainer share: model, loss, records, engine, rule and metric, checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from botorch_dp._checks import check_positive, warn_caller
from botorch_dp.errors import PrivacyError
from botorch_dp.groups import groups_of
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.privacy.runs import Fingerprint, fingerprint
from botorch_dp.training.calls import call, correct_alone, traced_calls
from botorch_dp.training.engines import ENGINES, engine_class
from botorch_dp.training.engines.base import (
    Engine,
    stack_parameters,
    trainable,
)
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.inputs import Inputs, parts
from botorch_dp.training.isolation import (
    agree,
    check_contributions,
    check_evaluation,
    check_model,
    examine,
    random_records,
)
from botorch_dp.training.networks import Loss, known_gradient, takes_labels
from botorch_dp.training.output_gradients import read_loss
from botorch_dp.training.plain_layers import in_training, without_token_errors
from botorch_dp.training.plan import (
    DELTA,
    LARGEST_PUBLISHED_BATCH,
    STABILITY,
    Clipping,
    TrainingPlan,
    TrainingSettings,
)
from botorch_dp.training.randomness import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    seeded_torch,
)
from botorch_dp.training.records import (
    DatasetRecords,
    Records,
    TrainingRecords,
    TrainTest,
    check_data,
    datasets_of,
    why_unpublishable,
)
from botorch_dp.training.run import TrainingRun
from botorch_dp.training.step_rules import (
    OptimizerFactory,
    ScheduleFactory,
    check_rule,
    make_rule,
)
from botorch_dp.training.untuned import SuggestedSettings, suggest_settings

Metric = Callable[[Tensor, Tensor], float]

_NOTHING_KEPT = (
    "your model and loss treat every record on its own: they store nothing between calls, raise no "
    "error for a single record, and define no custom vmap rule that mixes records"
)
FORM_IS_PUBLIC = (
    "the form of a record (names, shapes and types of its parts) was stated without looking at the "
    "records, and reading one of them from the data set depends on no other record"
)


class Setup:
    """Models, engines and utilities of one trainer; it keeps no model and changes no record.

    Arguments as for :class:`~botorch_dp.training.DPTrainer`. All checks are made here, on synthetic
    records: the values of the records are not read.
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        loss: Loss,
        data: Any,
        *,
        engine: str,
        clipping: Clipping,
        metric: Metric,
        like: Any = None,
        optimizer: str | OptimizerFactory | None = None,
        schedule: ScheduleFactory | None = None,
        groups: Any = None,
        per_group: int | None = None,
    ) -> None:
        #: Without an optimizer, it is the one that a plan names.
        self._optimizer, self._schedule = optimizer, schedule
        self.loss, self.metric = loss, metric
        datasets = datasets_of(data, like)
        if datasets is not None:
            train, test = datasets
            data = TrainTest(*train.form(), *(() if test is None else test.form()))
            self.records: Records = train
            self.tests: Records | None = test
            #: Why nothing that is trained on these records may be published, if so.
            self.unpublishable = why_unpublishable(train.dataset)
        self.form = check_data(data, named_inputs=True, tests=False)
        self._stability = STABILITY if clipping == "normalized" else 0.0
        self._model_factory = _checked_factory(model_factory)
        model = self.new_model(0)
        check_model(model, self.form)
        traits = examine(in_training(model), loss, self.form)
        self._draws, self.num_classes = traits.draws, traits.num_classes
        #: Numbers in an output, trained numbers, and layers that multiply by weights.
        self.num_outputs = traits.outputs[0].numel()
        self._read = read_loss(loss, traits.outputs, traits.targets, traits.num_classes)
        self.num_parameters = sum(parameter.numel() for parameter in trainable(model))
        self.layers = sum(parameter.dim() > 1 for parameter in trainable(model))
        if datasets is None:
            self._take(self.form)
        else:
            train.num_classes = self.num_classes
        self.groups = groups_of(groups, len(self.records), per_group)
        if self.num_tests:
            self._try_metric(traits.outputs, traits.targets)
        self.engine, self._kind = self._choose_engine(engine, model)
        self.check(model, precise=False, random_weights=True)

    def on(self, data: TrainTest) -> Setup:
        """The same on other records of the same form, without groups or further checks."""
        data = check_data(data, named_inputs=True, tests=False)
        mine, other = (_kinds(each.train_X, each.train_Y) for each in (self.form, data))
        if mine != other:
            raise ValueError(f"`data` must hold records of {mine}, got {other}.")
        same = copy.copy(self)
        same._take(data)
        same.groups = None
        return same

    @property
    def table(self) -> Tensor | None:
        """The training records, ``n x d``, if they are one tensor of floats."""
        X = self.form.train_X
        is_table = isinstance(X, Tensor) and X.dim() == 2 and X.is_floating_point()
        return X if is_table and isinstance(self.records, TrainingRecords) else None

    @property
    def num_features(self) -> int:
        """How many numbers a record has, in the first of its parts."""
        return max(1, next(iter(parts(self.form.train_X).values()))[:1].numel())

    def _take(self, data: TrainTest) -> None:
        """Train and test on these tensors."""
        self.form, self.tests, self.unpublishable = data, None, ""
        self.records = TrainingRecords(data.train_X, data.train_Y, self.num_classes)
        if data.test_Y is not None:
            self.tests = TrainingRecords(data.test_X, data.test_Y, self.num_classes)

    def without_tests(self) -> Setup:
        """The same without test records: nothing of them is read, and no metric is called."""
        same = copy.copy(self)
        same.form, same.tests = self.form._replace(test_X=None, test_Y=None), None
        return same

    @property
    def num_units(self) -> int:
        """How many training records there are, or people."""
        return len(self.records if self.groups is None else self.groups)

    @property
    def per_group(self) -> int | None:
        """How many records of a person are used at most; None if records are protected alone."""
        return None if self.groups is None else self.groups.per_group

    @property
    def num_tests(self) -> int:
        """How many test records there are."""
        return 0 if self.tests is None else len(self.tests)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the model and the records that a plan prints."""
        found = []
        if self.groups is not None:
            found.append(
                f"Each of {self.num_units:,} people counts as one record: by the mean of the "
                f"clipped gradients of their first {self.per_group} records, in the order of the "
                "rows. Further ones are not used. Where everybody has one, this is the guarantee "
                "for a record."
            )
        if not self.num_tests:
            found.append("No accuracy is measured, because there are no test records.")
        if self.unpublishable:
            found.append(
                "No model can be published, and a seed does not repeat a training. "
                + self.unpublishable
            )
        weights = [getattr(self.loss, name, None) for name in ("weight", "pos_weight")]
        largest = max((float(w.max()) for w in weights if isinstance(w, Tensor)), default=0.0)
        if largest > 1:
            found.append(
                f"The loss has weights up to {largest:g}. Clipping undoes those above 1 where "
                "it acts: let the largest be 1, and the others less."
            )
        return tuple(found)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.form.train_Y.device

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions on the model, the loss and the records, for the guarantee."""
        kind, own = self._kind, known_gradient(self.loss) is None and self._read is None
        # Without either, nothing of the caller's is called on records.
        found = (_NOTHING_KEPT,) if kind.calls_model or own else ()
        found = (*found, kind.condition) if kind.condition else found
        return (*found, FORM_IS_PUBLIC) if isinstance(self.records, DatasetRecords) else found

    def new_model(self, seed: int) -> nn.Module:
        """A model of the factory's; a factory that returns one model always keeps its weights.

        It is made where the records are, unless the factory says otherwise.
        """
        with seeded_torch(seed), self.device:
            try:
                model = self._model_factory()
            except TypeError as error:
                if not isinstance(self._model_factory, type):
                    raise
                name = self._model_factory.__name__
                raise TypeError(
                    f"`model_factory` is called without arguments, and {name} needs some "
                    f"({error}). Pass functools.partial({name}, ...)."
                ) from error
        return copy.deepcopy(model)

    def untrained(self, weights: dict[str, Tensor] | None = None) -> nn.Module:
        """A model of the factory in evaluation mode; without ``weights`` always the same one."""
        model = self.new_model(0)
        if weights is not None:
            try:
                model.load_state_dict(weights)
            except (RuntimeError, TypeError, AttributeError) as error:
                raise ValueError(f"`weights` are of another model: {error}") from error
        return model.eval()

    def start(self, plan: TrainingPlan, seeds: Sequence[int | None]) -> TrainingRun:
        """A run that has taken no step: fresh models, and coins from seeds.

        Args:
            plan: From :meth:`DPTrainer.plan`.
            seeds: One for each replicate; None for coins of the operating system.
        """
        coins: list[Randomness] = [
            SystemRandomness() if seed is None else SeededRandomness(int(seed), self.device)
            for seed in seeds
        ]
        models = [self.new_model(each.torch_seed()) for each in coins]
        precise = None in seeds
        optimizer = self._optimizer or plan.optimizer
        return TrainingRun(
            plan,
            models,
            coins,
            lambda rows: self.make_engine(models, rows, coins, precise=precise),
            lambda rows: make_rule(rows, plan, models[0], optimizer, self._schedule),
            self.groups,
        )

    def check_rule(self, plan: TrainingPlan) -> None:
        """Raise unless the optimizer and the schedule can take a step."""
        check_rule(plan, self.new_model(0), self._optimizer or plan.optimizer, self._schedule)

    def suggest(
        self, settings: TrainingSettings, relation: NeighboringRelation
    ) -> SuggestedSettings:
        """The settings of :func:`~.untuned.suggest_settings` for this model and these records."""
        if "target_epsilon" in settings:
            check_positive("target_epsilon", settings["target_epsilon"])
        first = next(iter(parts(self.form.train_X).values()))
        num_features, norm = self.num_features, settings.get("feature_norm")
        if isinstance(norm, str):
            raise ValueError(
                f"`feature_norm` must be a number here, got {norm!r}: `plan` and `fit` of a "
                "trainer find it privately; for others `private_norm` does."
            )
        if norm is None and first.dtype == torch.long:  # token ids have no norm to give
            norm = num_features**0.5
        is_scored = not self.form.train_Y.is_floating_point() or takes_labels(self.loss)
        suggested = suggest_settings(
            num_records=self.num_units,
            num_features=num_features,
            epsilon=settings.get("target_epsilon"),
            delta=settings.get("delta", DELTA),
            num_outputs=self.num_outputs,
            num_parameters=self.num_parameters,
            layers=max(1, self.layers),
            feature_norm=norm,
            regression=not is_scored,
            relation=relation,
        )
        most = max(1, LARGEST_PUBLISHED_BATCH // (self.per_group or 1))
        return replace(suggested, batch_size=min(suggested.batch_size, most))

    def make_engine(
        self,
        models: Sequence[nn.Module],
        parameters: Tensor,
        coins: Sequence[Randomness],
        *,
        precise: bool = False,
        kind: type[Engine] | None = None,
        records: Records | None = None,
    ) -> Engine:
        """The engine that reads these parameters.

        Args:
            models: One for each replicate.
            parameters: Their trained parameters, ``R x p``.
            coins: Seeds for models that draw random numbers, one source for each replicate.
            precise: Whether to clip and add up in double precision.
            kind: Another engine than the one that was chosen.
            records: Others than the training records.
        """
        for model in models:
            in_training(model)
        records = self.records if records is None else records
        return (kind or self._kind)(
            models,
            parameters,
            records,
            self._read or self.loss,
            precise=precise,
            stability=self._stability,
            forward_seeds=coins if self._draws or isinstance(records, DatasetRecords) else None,
        )

    def check(self, model: nn.Module, *, precise: bool, random_weights: bool = False) -> None:
        """Raise if a record reaches beyond its own gradient, or beyond its own output.

        See :func:`.check_contributions` and :func:`.check_evaluation`.
        """
        check_evaluation(model, self.form, random_weights=random_weights)
        maker = partial(self._engine_of_one, precise=precise)
        check_contributions(
            model, self.form, maker, self.num_classes, random_weights=random_weights
        )
        if self._kind.condition and not self._agrees(model, self._kind, random_weights):
            raise PrivacyError(
                f"The gradients that the {self.engine} engine finds for this model are not those "
                "of single records."
            )

    def check_final(self, model: nn.Module) -> None:
        """:meth:`check` at the final weights of a model that is to be published."""
        try:
            self.check(model, precise=True)
        except PrivacyError as error:
            raise PrivacyError(
                f"The model is not handed out, and what was charged stays spent. {error} This "
                "shows at its final weights only, so that the guarantee does not hold."
            ) from None

    def utility(self, model: nn.Module) -> float:
        """The metric on the test records. Sensitive, unless these are public."""
        if self.tests is None:
            raise ValueError("There are no test records to measure a model on.")
        # A copy, because a model might keep something of the test records.
        model = without_token_errors(copy.deepcopy(model))
        with torch.no_grad(), traced_calls():
            pairs = [(call(model, X), Y) for X, Y, _ in self.tests.batches()]
        outputs = torch.cat([outputs for outputs, _ in pairs])
        return float(self.metric(outputs, torch.cat([Y for _, Y in pairs])))

    def measure(self, model: nn.Module, *, publish: bool) -> float | None:
        """The utility if there are test records; for a published model, None if it cannot be had.

        Sensitive, as :meth:`utility` is.
        """
        if self.tests is None:
            return None
        try:
            return self.utility(model)
        except Exception as error:
            if not publish:
                raise
            warn_caller(
                f"Measuring the utility on the test records raised {type(error).__name__}; the "
                "published model is returned without an accuracy."
            )
            return None

    def correct_alone(self, model: nn.Module, *, on_training_records: bool = False) -> Tensor:
        """Whether each test record is classified correctly by a call on it alone. Sensitive.

        A record that cannot be read, or has another form than the others, is not.

        Args:
            model: See :func:`.calls.correct_alone`.
            on_training_records: Rather than of the test records.
        """
        records = self.records if on_training_records else self.tests
        if records is None:
            raise ValueError("There are no test records to score a model on.")
        return correct_alone(model, records)

    def fingerprint(self, *, tests: bool = False) -> Fingerprint:
        """A hash of all training records, and of the test records if asked for."""
        every = (self.records, *(() if self.tests is None or not tests else (self.tests,)))
        whose = () if self.groups is None else (torch.from_numpy(self.groups.owners),)
        if not isinstance(self.records, DatasetRecords):
            check_data(self.form, named_inputs=True, tests=False)  # it may have changed since
            pairs = [records.form() for records in every]
            return fingerprint(*(x for X, Y in pairs for x in (*parts(X).values(), Y)), *whose)
        batches = (batch for records in every for batch in records.batches())
        return fingerprint(*(fingerprint(*parts(X).values(), Y) for X, Y, _ in batches), *whose)

    def _try_metric(self, outputs: Tensor, targets: Tensor) -> None:
        """Call the metric with the shapes of the test records, and none of their values."""
        n = self.num_tests
        places = torch.arange(n, device=outputs.device) % len(outputs)
        try:
            float(self.metric(outputs[places], targets[places]))
        except Exception as error:
            raise ValueError(
                f"`metric` cannot take outputs of shape {(n, *outputs.shape[1:])} and targets of "
                f"shape {(n, *targets.shape[1:])} ({type(error).__name__}: {error}). Pass "
                "`metric=`, a function of the outputs and the targets of the test records, such "
                "as lambda outputs, targets: -float((outputs - targets).square().mean())."
            ) from error

    def _choose_engine(self, asked: str, model: nn.Module) -> tuple[str, type[Engine]]:
        """The engine that was asked for, or the first of all that can train the model."""
        made = random_records(self.form, 2, self.num_classes)
        X, _, _ = made.take(torch.arange(2, device=self.device))
        tried, reason = in_training(copy.deepcopy(model)), None
        one_by_one = isinstance(self.records, DatasetRecords)
        for name in ENGINES if asked == "auto" else (asked,):
            kind = engine_class(name)
            reason = kind.why_not(tried, X, one_by_one=one_by_one)
            if reason is None and kind.disagreement and not self._agrees(model, kind):
                reason = kind.disagreement
            if reason is None:
                return name, kind
        raise ValueError(
            f"The {asked} engine cannot train this model: {reason}. DPTrainer(..., engine='auto') "
            "takes the model as it is."
        )

    def _agrees(self, model: nn.Module, kind: type[Engine], random_weights: bool = True) -> bool:
        """Whether an engine's sums are those of the gradients of single records."""
        makers = [partial(self._engine_of_one, kind=each) for each in (kind, PerRecordEngine)]
        return agree(
            model,
            self.form,
            makers,
            self.num_classes,
            random_weights=random_weights,
            dropout=not kind.condition,
        )

    def _engine_of_one(
        self, model: nn.Module, records: TrainingRecords, coins: Randomness, **how: Any
    ) -> Engine:
        return self.make_engine([model], stack_parameters([model]), [coins], records=records, **how)


def _kinds(X: Inputs, Y: Tensor) -> str:
    """The shapes and types of inputs and targets."""
    return ", ".join(
        f"{name and name + ': '}{tuple(part.shape[1:])} {part.dtype}"
        for name, part in (*parts(X).items(), ("targets", Y))
    )


def _checked_factory(model_factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    if isinstance(model_factory, nn.Module):
        raise TypeError(
            "`model_factory` must be a function that returns a new model, but it is a "
            f"{type(model_factory).__name__}. Pass lambda: copy.deepcopy(model), for instance."
        )
    if not callable(model_factory):
        raise TypeError(f"`model_factory` must be callable, got {type(model_factory).__name__}.")
    return model_factory
