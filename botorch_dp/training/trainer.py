"""Training with DP-SGD and DP-Adam: the trainer, and what it returns."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from botorch_dp._checks import (
    check_choice,
    check_integer,
    check_nonnegative,
    check_positive,
    did_you_mean,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyLedger
from botorch_dp.privacy.runs import Fingerprint, Run, fingerprint
from botorch_dp.training.fused import (
    Engine,
    FusedEngine,
    parameter_views,
    stack_parameters,
    trainable,
    why_not_fused,
)
from botorch_dp.training.ghost import GhostEngine
from botorch_dp.training.networks import Loss, accuracy, known_gradient
from botorch_dp.training.per_record import (
    MAX_GRADIENT_NUMBERS,
    PerRecordEngine,
    agree,
    check_contributions,
    examine,
    random_records,
)
from botorch_dp.training.plan import (
    OPTIMIZERS,
    STABILITY,
    Clipping,
    Sampling,
    TrainingPlan,
    TrainingSettings,
    make_plan,
)
from botorch_dp.training.randomness import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    seeded_torch,
)
from botorch_dp.training.records import (
    Records,
    TrainingRecords,
    TrainTest,
    batches_of,
    call,
    check_data,
    datasets_of,
    form_of,
    parts,
)
from botorch_dp.training.run import TrainingRun
from botorch_dp.training.step_rules import (
    OptimizerFactory,
    ScheduleFactory,
    StepRule,
    make_rule,
)
from botorch_dp.training.twins import tolerant

EngineName = Literal["auto", "fused", "ghost", "per_record", "opacus"]

#: Configurations are trained together as far as their parameters hold at most so many numbers.
_NUMBERS_TOGETHER = 2**24
_STOPPED = "the moment at which training was stopped did not depend on the records"
_NOTHING_KEPT = (
    "the model and its loss keep nothing of a record from one call to the next, raise for none, "
    "and bring no vectorization rule that mixes them"
)


class CurvePoint(NamedTuple):
    """How good a training was on its way. SENSITIVE: never publish it."""

    epochs: int
    """Passes over the records so far."""
    utility: float
    """The metric on the test records."""


class EpochReport(NamedTuple):
    """What a callback is told after an epoch. SENSITIVE: never publish it."""

    epochs: int
    """Passes over the records so far."""
    utility: float
    """The metric on the test records."""
    loss: float
    """The mean loss of the test records."""


@dataclass(frozen=True, repr=False)
class TrainingDiagnostics:
    """What was seen of the records in training. SENSITIVE: never publish it.

    Args:
        accuracy: The model's utility on the test records.
        unusable_records: Training records with values that are not finite or classes that do not
            exist; they never contribute a gradient.
        dropped_gradients: Gradients that were not finite and counted as zero.
        curve: The utilities on the way, where they were asked for.
    """

    accuracy: float
    unusable_records: int
    dropped_gradients: int
    curve: tuple[CurvePoint, ...] = ()

    def __repr__(self) -> str:
        return "TrainingDiagnostics(sensitive)"


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A trained model and what is promised for it.

    The guarantee covers ``model`` (and every state it went through), nothing else: the accuracy is
    computed from the test records and is sensitive.

    Args:
        model: The model, in evaluation mode.
        guarantee: What holds for the model; status ``"none"`` unless it was trained with
            ``publish=True``.
        plan: The public parameters of the run.
        steps: How many steps were taken.
        diagnostics: Sensitive.
    """

    model: nn.Module
    guarantee: Guarantee
    plan: TrainingPlan
    steps: int
    diagnostics: TrainingDiagnostics

    @property
    def accuracy(self) -> float:
        """The utility on the test records. Sensitive."""
        return self.diagnostics.accuracy

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """``(epochs, utility)`` on the way, where ``curve=`` asked for it. Sensitive.

        The cost of stopping there is ``plan.guarantee_after(epochs * plan.steps_per_epoch)``; the
        guarantee of this training covers all of it.
        """
        return self.diagnostics.curve

    @property
    def interrupted(self) -> bool:
        """Whether training was stopped before its last step."""
        return self.steps < self.plan.steps

    @property
    def epsilon(self) -> float:
        """The cost at ``plan.delta`` of the steps taken, had they been taken to publish the model.

        For tuning: a run under a seed promises nothing itself, and its guarantee says so.
        """
        return self.plan.guarantee_after(self.steps).epsilon(self.plan.delta)

    def __repr__(self) -> str:
        return f"Trained(steps={self.steps} of {self.plan.steps}, guarantee: {self.guarantee})"


class DPTrainer:
    r"""Trains a model with DP-SGD or DP-Adam, fast enough to be tuned.

    Each step draws a batch of ``m`` records, clips the gradient of each of them to norm ``L`` and
    takes a step along

    .. math:: g = \frac1m \Big( \sum_i \nabla_i \min(1, L / \|\nabla_i\|) + N(0, (z L)^2 I) \Big)

    with ``z = noise_multiplier``, over the clipping norm as in Opacus. Batches are Poisson-sampled [Abadi2016]: each record
    joins by its own coin. ``sampling="without_replacement"`` draws batches of fixed size, as
    Algorithms 3 and 4 of [Avent2020] do; the same noise then costs more. Batches are drawn
    independently at each step; there are no shuffled epochs.

    Guarantee: clipping bounds each record's part of the sum by ``L`` whatever the record is (a
    gradient that is not finite counts as zero), so the sum has sensitivity ``S = 2 L`` if one record
    is replaced and ``S = L`` if one is added or removed, and a step is a Gaussian mechanism on a random batch; steps compose adaptively, and the optimizer, the schedule
    and every later use of the parameters are post-processing. Normalized gradients [Bu2023],
    ``L grad_i / (|grad_i| + .01)``, are shorter than ``L`` for every record, too: ``S`` is the
    same. Status ``"conditional"`` with ``publish=True`` and ``"none"`` under a seed.

    Three engines compute the same sums. ``"fused"`` is for stacks of linear layers with elementwise
    activations and costs little more than plain SGD; all replicates are trained in one batched
    computation. ``"per_record"`` calls any other model on one record at a time, vectorized, so
    that no gradient can depend on two records; see :mod:`.per_record`. ``"ghost"`` does, too, but
    finds the norms without most of these gradients, in less time and, for large layers, in far less
    memory; see :mod:`.ghost`. Models and losses that mix the records of a batch are refused, and
    the engines are tried on random records at initial and random weights, and at the final ones
    before a model is published.

    A seed gives the same model again, bit for bit on the same machine with the same number of
    threads; with another number of threads, or as one of several replicates, it is the same up to
    rounding, because matrix products then add up in another order.

    Args:
        model_factory: Returns a fresh ``nn.Module``; its initial weights may be random. Use a
            function that can be pickled to train in other processes.
        loss: Takes outputs and targets and returns one loss for each record, or their mean. It
            must not raise for any value of a record: an exception would tell about it.
        data: :class:`TrainTest` on one device; or a pair of map-style data sets, to train on and to
            test on, which give ``(inputs, target)`` for a place and are read batch by batch. The form
            of their first records counts as public.
        optimizer: ``"sgd"``, ``"adam"`` (with torch's default moments), ``"schedule_free"``
            (descent with an average in place of a schedule), ``"scale_free"`` (no learning rate to
            choose); or what makes an optimizer of ``torch.optim`` from a list of parameters and
            ``lr=``, such as ``torch.optim.AdamW`` or ``partial(torch.optim.SGD, momentum=0.9,
            weight_decay=1e-4)``. It sees noisy gradients only. See :mod:`.step_rules`.
        schedule: Makes a schedule of ``torch.optim.lr_scheduler`` from the optimizer and the number
            of steps; it is stepped after every step.
        clipping: ``"flat"`` clips gradients to ``clip_norm``; ``"normalized"`` brings all of them
            to it, so that only the product of ``clip_norm`` and the learning rate matters, and
            ``clip_norm`` may be left out.
        sampling: ``"poisson"`` or ``"without_replacement"``.
        relation: ``NeighboringRelation.REPLACE_ONE``, or for Poisson batches ``ADD_OR_REMOVE_ONE``.
            Epsilons under different relations cannot be compared.
        engine: ``"fused"``, ``"ghost"``, ``"per_record"`` (``"opacus"`` is its former name), or
            ``"auto"`` for the first of them that applies. ``plan`` says what memory clipping takes.
        metric: Takes the outputs and targets of the test records and returns the utility that
            :attr:`Trained.accuracy` reports.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from botorch_dp.training import logistic_loss, logistic_regression
        >>> X, y = torch.randn(1000, 5), torch.randint(2, (1000,))
        >>> data = TrainTest(X, y, X, y)
        >>> trainer = DPTrainer(partial(logistic_regression, 5), logistic_loss, data)
        >>> trained = trainer.fit(learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0,
        ...                       batch_size=50, epochs=2, seed=0)
        >>> trained.guarantee.status
        'none'
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        loss: Loss,
        data: TrainTest | tuple[Any, Any],
        *,
        optimizer: str | OptimizerFactory = "sgd",
        schedule: ScheduleFactory | None = None,
        clipping: Clipping = "flat",
        sampling: Sampling = "poisson",
        relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
        engine: EngineName = "auto",
        metric: Callable[[Tensor, Tensor], float] = accuracy,
    ) -> None:
        check_choice("engine", engine, get_args(EngineName))
        self.data = data
        # Of data sets, the first record of each stands for the form of all.
        self._datasets = datasets_of(data)
        form = data if self._datasets is None else form_of(*self._datasets)
        self._form = check_data(form, named_inputs=True)
        self.optimizer = optimizer
        self.schedule = schedule
        self.clipping: Clipping = clipping
        self.sampling: Sampling = sampling
        self.relation = relation
        self.metric = metric
        if isinstance(model_factory, nn.Module):
            raise TypeError(
                f"`model_factory` is a {type(model_factory).__name__}, and must make one: each "
                "training begins with a fresh model. Pass a function that returns one, such as "
                "lambda: copy.deepcopy(model)."
            )
        if not callable(model_factory):
            raise TypeError(
                f"`model_factory` must be callable, got {type(model_factory).__name__}."
            )
        self._model_factory = model_factory
        model = self._new_model(0)
        self._check_model(model)
        model.train()
        self._loss = loss
        self._traits = examine(model, loss, self._form)
        self.engine = self._choose_engine(engine, model)
        self._records: Records
        if self._datasets is None:
            self._records = TrainingRecords(
                self._form.train_X, self._form.train_Y, self._traits.num_classes
            )
        else:
            self._records = self._datasets[0]
            self._datasets[0].num_classes = self._traits.num_classes
        self._check_contributions(model, precise=False, random_weights=True)
        self._numbers_per_record = self._count_numbers(model)
        self._number_bytes = trainable(model)[0].element_size()
        # Wrong names are refused here rather than at the first run.
        self._optimizer_name = _name_of(optimizer)
        plan = self.plan(
            learning_rate=1.0, clip_norm=1.0, noise_multiplier=1.0, batch_size=1, epochs=1
        )
        self._try_rule(model, plan)

    def __repr__(self) -> str:
        return (
            f"DPTrainer({self._datasets or self._form!r}, optimizer={self._optimizer_name!r}, "
            f"clipping={self.clipping!r}, sampling={self.sampling!r}, "
            f"relation={self.relation.name}, engine={self.engine!r})"
        )

    def plan(self, **settings: Unpack[TrainingSettings]) -> TrainingPlan:
        """What :meth:`fit` would do with these settings, and its guarantee, at no cost."""
        plan = make_plan(
            settings,
            num_records=len(self._records),
            optimizer=self._optimizer_name,
            clipping=self.clipping,
            sampling=self.sampling,
            relation=self.relation,
            conditions=()
            if self.engine == "fused" and known_gradient(self._loss)
            else (_NOTHING_KEPT,),
        )
        numbers = plan.batch_size * self._numbers_per_record
        if self.engine != "fused":  # larger batches are processed in parts
            numbers = min(numbers, max(MAX_GRADIENT_NUMBERS, self._numbers_per_record))
        return replace(plan, memory=numbers * self._number_bytes)

    def fit(
        self,
        *,
        seed: int | None = None,
        publish: bool = False,
        ledger: PrivacyLedger | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = 60.0,
        progress: bool = False,
        on_interrupt: Literal["stop", "raise"] = "stop",
        curve: Sequence[int] = (),
        callback: Callable[[EpochReport], None] | None = None,
        **settings: Unpack[TrainingSettings],
    ) -> Trained:
        """Train one model.

        Args:
            seed: A non-negative integer that fixes initial weights, batches and noise. Required to
                tune, refused to publish.
            publish: Draw batches and noise from the operating system and clip in double precision,
                for a model that others will see. Slower than under a seed.
            ledger: Charged with the complete run before a record is read; stopping early gives
                nothing back. Only with ``publish=True``.
            checkpoint: A file to write the state to now and then and at the end, and to resume
                from if it exists. It is sensitive, and one process at a time may hold it. A
                resumed run under a seed gives the same model as one that was never interrupted; a
                published one gives one model, whatever happens to it: once that is stored, the
                file returns it.
            checkpoint_seconds: Time between two checkpoints.
            progress: Show a progress bar.
            on_interrupt: After Ctrl-C, ``"stop"`` returns the model as it is after the current
                step, with the guarantee of the steps taken (with ``publish=True`` that is the
                model of this run for good); ``"raise"`` raises ``KeyboardInterrupt``, and the run
                can be continued. Both write the checkpoint first.
            curve: Numbers of epochs, rising, after which to measure the utility on the test
                records: see :attr:`Trained.curve`. Each is a shorter training of the same
                settings, at no further cost in privacy.
            callback: Told after each epoch how good the model is; the checkpoint is written
                first. What it is told is sensitive.
            settings: ``learning_rate``, ``clip_norm``, ``noise_multiplier`` or
                ``target_epsilon``, ``batch_size``, ``epochs`` and ``delta``; see
                :class:`TrainingSettings`.

        Raises:
            BudgetExhausted: If the ledger cannot bear the run; nothing was trained.
            PrivacyError: If the arguments contradict each other (nothing was charged), or if, at
                the final weights of a model to be published, a record reaches beyond its own
                gradient (it is not handed out; the charge stays spent).
        """
        plan = self.plan(**settings)
        check_nonnegative("checkpoint_seconds", checkpoint_seconds)
        if on_interrupt not in ("stop", "raise"):
            raise ValueError(f"`on_interrupt` must be 'stop' or 'raise', got {on_interrupt!r}.")
        if publish and seed is not None:
            raise PrivacyError(
                "`seed` was given together with publish=True: whoever knows or guesses the seed "
                "can subtract the noise. Leave it out; a published run draws from the system."
            )
        if ledger is not None and not publish:
            raise PrivacyError(
                "`ledger` was given to a run that is not to be published: its noise is simulated "
                "and promises nothing, so nothing is charged for it. Leave one of the two out."
            )
        if publish:
            plan.check_publishable()
        elif seed is None:
            raise ValueError("`seed` is required, unless publish=True: give an integer such as 0.")
        else:
            check_integer("seed", seed, at_least=0)
        checkpoints = _check_curve(curve, plan)
        if callback is not None and not callable(callback):
            raise TypeError(f"`callback` must be callable, got {type(callback).__name__}.")
        run, engine = self._start([plan], [seed])
        identity = self._identity(run, [seed], engine, checkpoints, checkpoint is not None)
        with Run(checkpoint, what="a training", settings=identity, ledger=ledger) as file:
            run.resume(file)

            def train() -> None:
                stops = {*checkpoints, *(range(1, plan.epochs) if callback else ()), plan.epochs}
                for epochs in run.pauses(
                    sorted(stops),
                    progress=progress,
                    stop_on_interrupt=on_interrupt == "stop",
                    file=file,
                    checkpoint_seconds=checkpoint_seconds,
                ):
                    if callback is not None:
                        (utility,) = self._measure(run)
                        loss = self._test_loss(run.models()[0])
                        callback(EpochReport(epochs, utility, loss))
                    elif epochs in checkpoints:
                        self._measure(run)
                if publish:
                    self._check_final(run.models())

            if publish:
                # The noise of the steps is not shown. What is shown is one model, stored
                # first; a run that is cut off before has shown nothing, and goes on unpaid.
                model = file.release(
                    plan.guarantee,
                    lambda _: run.shown(),
                    read=train,
                    key="model",
                    label=plan.guarantee.mechanism,
                    delta=None if ledger is not None and ledger.budget.renyi else plan.delta,
                )
                run.show(model)
            else:
                train()
        (trained,) = self._finish(run, engine, checkpoints, publish=publish)
        return trained

    def fit_replicates(
        self,
        *,
        seeds: Sequence[int],
        progress: bool = False,
        curve: Sequence[int] = (),
        **settings: Unpack[TrainingSettings],
    ) -> list[Trained]:
        """Train one model for each seed, with their own initial weights, batches and noise.

        To tune: the fused engine trains all of them in one batched computation. Ctrl-C raises
        ``KeyboardInterrupt``, so that a half-trained trial is not taken for a finished one.

        Args:
            seeds: Different non-negative integers.
            progress: Show a progress bar.
            curve: As for :meth:`fit`.
            settings: As for :meth:`fit`.
        """
        seeds = _check_seeds(seeds)
        if len(set(seeds)) < len(seeds):
            raise ValueError("`seeds` must differ: the same seed gives the same model again.")
        plans = [self.plan(**settings)] * len(seeds)
        return self._fit_together(plans, seeds, progress=progress, curve=curve)

    def fit_configurations(
        self,
        configurations: Sequence[TrainingSettings],
        *,
        seeds: Sequence[int],
        progress: bool = False,
        curve: Sequence[int] = (),
    ) -> list[Trained]:
        """Train one model for each configuration; each is what :meth:`fit` makes of it.

        To tune: the fused engine trains configurations of one batch size in one batched computation,
        whatever their learning rates, clipping norms, noise and epochs. Ctrl-C raises
        ``KeyboardInterrupt``.

        Args:
            configurations: The settings of :meth:`fit`, one dictionary for each model.
            seeds: One for each of them; they may be equal.
            progress: Show a progress bar.
            curve: As for :meth:`fit`; a configuration leaves out what lies beyond its own epochs.

        Example:
            >>> common = {"clip_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 50, "epochs": 2}
            >>> several = [{**common, "learning_rate": rate} for rate in (0.01, 0.1, 1.0)]
            >>> trained = trainer.fit_configurations(several, seeds=[0, 0, 0])
        """
        plans = [self.plan(**settings) for settings in configurations]
        seeds = _check_seeds(seeds)
        if len(plans) != len(seeds):
            raise ValueError(
                "`configurations` and `seeds` need one entry for each model, got "
                f"{len(plans)} and {len(seeds)}."
            )
        return self._fit_together(plans, seeds, progress=progress, curve=curve)

    def _fit_together(
        self,
        plans: Sequence[TrainingPlan],
        seeds: Sequence[int],
        *,
        progress: bool,
        curve: Sequence[int],
    ) -> list[Trained]:
        longest = max(plans, key=lambda plan: plan.epochs)
        checkpoints = set(_check_curve(curve, longest))
        trained: dict[int, Trained] = {}
        for places in self._together(plans):
            run, engine = self._start([plans[i] for i in places], [seeds[i] for i in places])
            ends = {plan.epochs for plan in run.plans}
            stops = sorted({*ends, *(e for e in checkpoints if e <= max(ends))})
            for epochs in run.pauses(stops, progress=progress):
                asked = epochs in checkpoints
                rows = [
                    row
                    for row, plan in enumerate(run.plans)
                    if plan.epochs == epochs or (asked and plan.epochs > epochs)
                ]
                self._measure(run, rows)
            trained |= zip(places, self._finish(run, engine, sorted(checkpoints)), strict=True)
        return [trained[place] for place in range(len(plans))]

    def _together(self, plans: Sequence[TrainingPlan]) -> Iterator[list[int]]:
        """The places of plans to train at once: of one batch size, those of more steps first."""
        size = sum(parameter.numel() for parameter in trainable(self._new_model(0)))
        most = max(1, _NUMBERS_TOGETHER // size)
        order = sorted(
            range(len(plans)), key=lambda place: (plans[place].batch_size, -plans[place].steps)
        )
        for _, group in groupby(order, key=lambda place: plans[place].batch_size):
            while part := list(islice(group, most)):
                yield part

    def curve(
        self,
        checkpoints: Sequence[int],
        *,
        seeds: Sequence[int],
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = 60.0,
        progress: bool = False,
        **settings: Unpack[TrainingSettings],
    ) -> Iterator[tuple[int, list[float]]]:
        """Train one model for each seed, and hand out their utilities on the way.

        To tune: whoever has seen enough closes the iterator, and no further step is taken.

        Args:
            checkpoints: Numbers of epochs, rising, after which to measure.
            seeds: Different non-negative integers.
            checkpoint: A file from which a training that was cut off goes on: points that were
                measured are handed out again at once. Sensitive; see :meth:`fit`.
            checkpoint_seconds: Time between two checkpoints; one is written before each point.
            progress: Show a progress bar.
            settings: As for :meth:`fit`; no step is taken after the last of the checkpoints.

        Yields:
            The number of epochs, and the utility on the test records of each seed's model. These
            are sensitive.

        Example:
            >>> for epochs, utilities in trainer.curve((1, 2, 4, 8), seeds=[0, 1], epochs=8,
            ...     learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=50):
            ...     if max(utilities) < 0.6:
            ...         break
        """
        plan = self.plan(**settings)
        stops = _check_stops(checkpoints, plan)
        seeds = _check_seeds(seeds)
        check_nonnegative("checkpoint_seconds", checkpoint_seconds)

        def points() -> Iterator[tuple[int, list[float]]]:
            run, engine = self._start([plan] * len(seeds), seeds)
            identity = self._identity(run, seeds, engine, stops, checkpoint is not None)
            with Run(checkpoint, what="a training", settings=identity) as file:
                run.resume(file)
                known = dict(run.known(stops))
                for epochs, utilities in known.items():
                    yield epochs, list(utilities.values())
                for epochs in run.pauses(
                    [epochs for epochs in stops if epochs not in known],
                    progress=progress,
                    file=file,
                    checkpoint_seconds=checkpoint_seconds,
                ):
                    yield epochs, self._measure(run)

        return points()

    def curves(
        self,
        configurations: Sequence[TrainingSettings],
        checkpoints: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        progress: bool = False,
    ) -> Generator[dict[int, float], set[int] | None, None]:
        """Train one model for each configuration, and hand out their utilities on the way.

        To tune: what :meth:`curve` is for one configuration, for several, which are trained as in
        :meth:`fit_configurations`. Whoever has seen enough of some sends the set of their places:
        no further step is taken for these, and the others go on.

        Args:
            configurations: The settings of :meth:`fit`, one dictionary for each model.
            checkpoints: Numbers of epochs for each of them, rising, after which to measure.
            seeds: One for each of them; they may be equal.
            progress: Show a progress bar.

        Yields:
            The utilities on the test records of all that have reached the next of their
            checkpoints, by their places. These are sensitive.

        Example:
            >>> points = trainer.curves(several, [(1, 2)] * 3, seeds=[0, 0, 0])
            >>> sorted(next(points))
            [0, 1, 2]
            >>> sorted(points.send({1}))  # the second one ends here
            [0, 2]
        """
        plans = [self.plan(**settings) for settings in configurations]
        seeds = _check_seeds(seeds)
        if not len(plans) == len(seeds) == len(checkpoints):
            raise ValueError(
                "`configurations`, `checkpoints` and `seeds` need one entry for each model, got "
                f"{len(plans)}, {len(checkpoints)} and {len(seeds)}."
            )
        stops = [_check_stops(own, plan) for own, plan in zip(checkpoints, plans, strict=True)]

        def points() -> Generator[dict[int, float], set[int] | None, None]:
            for places in self._together(plans):
                run, _ = self._start([plans[i] for i in places], [seeds[i] for i in places])
                while places:
                    epochs = min(e for i in places for e in stops[i] if e > run.epochs)
                    run.run(until=epochs * run.plans[0].steps_per_epoch, progress=progress)
                    rows = [row for row, i in enumerate(places) if epochs in stops[i]]
                    utilities = zip(rows, self._measure(run, rows), strict=True)
                    ended = (yield {places[row]: u for row, u in utilities}) or set()
                    left = [
                        row
                        for row, i in enumerate(places)
                        if i not in ended and epochs < stops[i][-1]
                    ]
                    if 0 < len(left) < len(places):
                        run = run.reduced(left, self._made)
                    places = [places[row] for row in left]

        return points()

    def clipped_gradient_sum(
        self, model: nn.Module, indices: Tensor, clip_norm: float
    ) -> list[Tensor]:
        """The sum of the clipped gradients of some training records. Sensitive.

        Args:
            model: A model such as the factory makes; it is left as it is.
            indices: Places in the training data, ``m``.
            clip_norm: Largest norm of one record's gradient; infinity clips nothing, whatever
                ``clipping`` is.

        Returns:
            One tensor for each trainable parameter, in the order of ``model.parameters()``.
        """
        check_positive("clip_norm", clip_norm, allow_inf=True)
        if indices.dim() != 1 or indices.is_floating_point() or indices.dtype == torch.bool:
            raise ValueError(f"`indices` must be integers of shape m, got {tuple(indices.shape)}.")
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self._records):
            raise ValueError(f"`indices` must lie between 0 and {len(self._records) - 1}.")
        twin = copy.deepcopy(model)
        self._check_model(twin)
        engine = self._make_engine(
            [twin], self._records, [SystemRandomness()], precise=False, clip=clip_norm < math.inf
        )
        batches = indices.to(self._form.train_Y.device).unsqueeze(0)
        sums = engine.clipped_sums(batches, None, float(clip_norm))
        return [view[0].clone() for view in parameter_views(sums, twin)]

    @property
    def tensors(self) -> TrainTest:
        """The records as tensors; raises for data sets and named inputs, which are not."""
        return check_data(self.data)

    def on(self, data: TrainTest) -> DPTrainer:
        """The same trainer on other data of the same types and record shapes, such as a twin."""
        data = check_data(data)
        for mine, other in zip(self.tensors, data, strict=True):
            if mine.dtype != other.dtype or mine.shape[1:] != other.shape[1:]:
                raise ValueError(
                    f"`data` must hold records of {tuple(mine.shape[1:])} {mine.dtype}, got "
                    f"{tuple(other.shape[1:])} {other.dtype}."
                )
        twin = copy.copy(self)
        twin.data = twin._form = data
        twin._records = TrainingRecords(data.train_X, data.train_Y, self._traits.num_classes)
        return twin

    def untrained(self, weights: dict[str, Tensor] | None = None) -> nn.Module:
        """A model of the factory in evaluation mode; without ``weights`` always the same one."""
        model = self._new_model(0)
        if weights is not None:
            try:
                model.load_state_dict(weights)
            except (RuntimeError, TypeError, AttributeError) as error:
                raise ValueError(f"`weights` are of another model: {error}") from error
        return model.eval()

    def utility(self, model: nn.Module) -> float:
        """The metric on the test records. Sensitive, unless these are public."""
        return float(self.metric(*self._tested(model)))

    def _check_model(self, model: object) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model_factory` must return a Module, got {type(model).__name__}.")
        for module in model.modules():
            if any(map(is_lazy, (*module.parameters(False), *module.buffers(False)))):
                raise ValueError(
                    f"{type(module).__name__} has no weights yet: it would take their sizes from "
                    "the first records that it sees. Give its sizes, for instance nn.Linear(20, 5) "
                    "in place of nn.LazyLinear(5)."
                )
        parameters = trainable(model)
        if not parameters:
            raise ValueError("The model has no trainable parameter; nothing is left to train.")
        device = self._form.train_Y.device
        types = {X.dtype for X in parts(self._form.train_X).values() if X.is_floating_point()}
        for parameter in parameters:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"Parameters must be float32 or float64, got {parameter.dtype}.")
            if types - {parameter.dtype}:
                raise TypeError(
                    f"The model has parameters of type {parameter.dtype} but the inputs are "
                    f"{(types - {parameter.dtype}).pop()}; convert one of them."
                )
            if parameter.device != device:
                raise ValueError(
                    f"The model is on {parameter.device} but the data on {device}; move one."
                )

    def _new_model(self, seed: int) -> nn.Module:
        """A model of the factory's; a factory that returns one model always keeps its weights."""
        with seeded_torch(seed):
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

    def _choose_engine(
        self, engine: EngineName, model: nn.Module
    ) -> Literal["fused", "ghost", "per_record"]:
        if engine == "opacus":
            engine = "per_record"
        reason = why_not_fused(model, self._form.train_X)
        if self._datasets is not None:
            reason = "records of a data set are read one by one; pass tensors"
        if engine == "fused" and reason is not None:
            raise ValueError(
                f"The fused engine cannot train this model: {reason}. Use engine='per_record'."
            )
        if engine in ("auto", "fused") and reason is None:
            return "fused"
        if engine == "per_record":
            return "per_record"
        makers = (partial(self._make_one, name="ghost"), partial(self._make_one, name="per_record"))
        if agree(model, self._form, makers, self._traits.num_classes):
            return "ghost"
        if engine == "ghost":
            raise ValueError(
                "The ghost engine cannot train this model: its layers change what comes in after "
                "they have used it, or use their weights in a way that it does not see. Use "
                "engine='per_record'."
            )
        return "per_record"

    def _make_engine(
        self,
        models: list[nn.Module],
        records: Records,
        coins: Sequence[Randomness],
        *,
        precise: bool,
        clip: bool = True,
        name: str | None = None,
    ) -> Engine:
        for model in models:
            model.train()
        stability = STABILITY if clip and self.clipping == "normalized" else 0.0
        name = name or self.engine
        if name == "fused":
            assert isinstance(records, TrainingRecords)
            return FusedEngine(models, records, self._loss, precise=precise, stability=stability)
        return {"ghost": GhostEngine, "per_record": PerRecordEngine}[name](
            models,
            records,
            self._loss,
            precise=precise,
            forward_seeds=coins if self._traits.draws else None,
            stability=stability,
        )

    def _make_one(
        self,
        model: nn.Module,
        records: TrainingRecords,
        coins: Randomness,
        *,
        precise: bool = False,
        name: str | None = None,
    ) -> Engine:
        return self._make_engine([model], records, [coins], precise=precise, name=name)

    def _count_numbers(self, model: nn.Module) -> int:
        """How many numbers clipping takes for each record of a batch, beside plain training's."""
        if self.engine == "fused":
            layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
            return sum(layer.in_features + layer.out_features for layer in layers)
        device = self._form.train_Y.device
        records = random_records(self._form, 1, self._traits.num_classes)
        engine = self._make_one(copy.deepcopy(model), records, SeededRandomness(0, device))
        engine.clipped_sums(torch.zeros(1, 1, dtype=torch.long, device=device), None, 1.0)
        assert isinstance(engine, PerRecordEngine)
        return engine.record_numbers

    def _check_contributions(
        self, model: nn.Module, *, precise: bool, random_weights: bool = False
    ) -> None:
        check_contributions(
            model,
            self._form,
            partial(self._make_one, precise=precise),
            self._traits.num_classes,
            random_weights=random_weights,
        )

    def _try_rule(self, model: nn.Module, plan: TrainingPlan) -> None:
        """Take a step along given gradients before any training."""
        parameters = stack_parameters([model])
        rule = make_rule(parameters, [plan], model, self.optimizer, self.schedule)
        try:
            rule.step(torch.ones_like(parameters))
        except Exception as error:
            raise ValueError(
                f"`optimizer` {self._optimizer_name} cannot take a step along given gradients "
                f"({type(error).__name__}: {error}). Choose one that needs nothing else."
            ) from error

    def _start(
        self, plans: Sequence[TrainingPlan], seeds: Sequence[int | None]
    ) -> tuple[TrainingRun, Engine]:
        """Fresh models and coins: from seeds, or from the operating system where a seed is None."""
        device = self._form.train_Y.device
        coins = [
            SystemRandomness() if seed is None else SeededRandomness(int(seed), device)
            for seed in seeds
        ]
        models = [self._new_model(each.torch_seed()) for each in coins]
        engine, rule = self._made(models, coins, plans, precise=None in seeds)
        return TrainingRun(plans, engine, coins, rule), engine

    def _made(
        self,
        models: list[nn.Module],
        coins: Sequence[Randomness],
        plans: Sequence[TrainingPlan],
        *,
        precise: bool = False,
    ) -> tuple[Engine, StepRule]:
        engine = self._make_engine(models, self._records, coins, precise=precise)
        rule = make_rule(engine.parameters, plans, models[0], self.optimizer, self.schedule)
        return engine, rule

    def _identity(
        self,
        run: TrainingRun,
        seeds: Sequence[int | None],
        engine: Engine,
        curve: Sequence[int],
        with_data: bool,
    ) -> dict[str, Any]:
        """All that a run depends on, JSON-ready; a file is continued by the same run only."""
        return {
            **run.plans[0].to_dict(),
            "seeds": [None if seed is None else int(seed) for seed in seeds],
            "engine": self.engine,
            "rule": run.rule.settings(),
            "parameters": list(engine.parameters.shape),
            "dtype": str(engine.parameters.dtype),
            "data": self._fingerprint() if with_data else None,
            **({"curve": list(curve)} if curve else {}),
        }

    def _fingerprint(self) -> Fingerprint:
        """What all training records are recognized by."""
        if self._datasets is None:
            return fingerprint(*parts(self._form.train_X).values(), self._form.train_Y)
        digests = (fingerprint(*parts(X).values(), Y) for X, Y in self._datasets[0].batches())
        return fingerprint(*digests)

    def _finish(
        self, run: TrainingRun, engine: Engine, curve: Sequence[int], *, publish: bool = False
    ) -> list[Trained]:
        unusable = self._records.unusable
        dropped = run.drawn - int(engine.kept)
        self._measure(run, [row for row, plan in enumerate(run.plans) if plan.steps >= run.step])

        @cache  # replicates of one plan share its guarantee
        def promised(plan: TrainingPlan, steps: int) -> Guarantee:
            guarantee = plan.guarantee_after(steps)
            if steps < plan.steps:
                guarantee = replace(guarantee, assumptions=(*guarantee.assumptions, _STOPPED))
            return guarantee if publish else guarantee.simulated()

        finished = []
        for place, (plan, model) in enumerate(zip(run.plans, run.models(), strict=True)):
            steps = min(run.step, plan.steps)
            points = [
                CurvePoint(epochs, utilities[place])
                for epochs, utilities in run.known(curve)
                if place in utilities
            ]
            finished.append(
                Trained(
                    model=model,
                    guarantee=promised(plan, steps),
                    plan=plan,
                    steps=steps,
                    diagnostics=TrainingDiagnostics(
                        accuracy=run.measured[steps][place],
                        unusable_records=unusable,
                        dropped_gradients=dropped,
                        curve=tuple(points),
                    ),
                )
            )
        return finished

    def _check_final(self, models: Sequence[nn.Module]) -> None:
        for model in models:
            try:
                self._check_contributions(model, precise=True)
            except PrivacyError as error:
                raise PrivacyError(
                    f"The model is not handed out, and what was charged stays spent. {error} This "
                    "shows at its final weights only, so that the guarantee does not hold."
                ) from None

    def _measure(self, run: TrainingRun, rows: Sequence[int] | None = None) -> list[float]:
        """The utilities of these replicates, or of all, on the test records where the run is."""
        rows = range(len(run.plans)) if rows is None else rows
        known = run.measured.setdefault(run.step, {})
        if any(row not in known for row in rows):
            models = run.models()
            for row in rows:
                known[row] = self.utility(models[row])
        return [known[row] for row in rows]

    def _test_loss(self, model: nn.Module) -> float:
        with torch.no_grad():
            return float(self._loss(*self._tested(model)).mean())

    def _tested(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """The model's outputs for the test records, and their targets."""
        # A copy, because a model might keep something of the test records.
        model = tolerant(copy.deepcopy(model))
        if self._datasets is None:
            batches = batches_of(self._form.test_X, self._form.test_Y)
        else:
            batches = self._datasets[1].batches()
        with torch.no_grad():
            pairs = [(call(model, X), Y) for X, Y in batches]
        return torch.cat([outputs for outputs, _ in pairs]), torch.cat([Y for _, Y in pairs])


def _name_of(optimizer: object) -> str:
    """The name of a rule, or of what a factory makes."""
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise ValueError(
                f"`optimizer` must be one of {tuple(OPTIMIZERS)} or make a torch.optim.Optimizer, "
                f"got {optimizer!r}.{did_you_mean(optimizer, OPTIMIZERS)}"
            )
        return optimizer
    if not callable(optimizer):
        raise TypeError(
            "`optimizer` must be a name, or make a torch.optim.Optimizer from a list of parameters "
            f"and lr=, such as torch.optim.AdamW; got {type(optimizer).__name__}."
        )
    inner = optimizer.func if isinstance(optimizer, partial) else optimizer
    return str(getattr(inner, "__name__", type(inner).__name__))


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    seeds = [check_integer("each of `seeds`", seed, at_least=0) for seed in seeds]
    if not seeds:
        raise ValueError("`seeds` is empty: give at least one integer.")
    return seeds


def _check_curve(curve: Sequence[int], plan: TrainingPlan) -> tuple[int, ...]:
    if isinstance(curve, str) or not isinstance(curve, Iterable):
        raise TypeError(f"A curve must be numbers of epochs such as (1, 2, 4), got {curve!r}.")
    points = tuple(
        check_integer("each checkpoint of a curve", epochs, at_most=plan.epochs) for epochs in curve
    )
    if list(points) != sorted(set(points)):
        raise ValueError(f"The checkpoints of a curve must rise, got {points}.")
    return points


def _check_stops(checkpoints: Sequence[int], plan: TrainingPlan) -> tuple[int, ...]:
    stops = _check_curve(checkpoints, plan)
    if not stops:
        raise ValueError("`checkpoints` is empty: give at least one number of epochs.")
    return stops
