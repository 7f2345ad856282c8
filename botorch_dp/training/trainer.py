"""The trainer by DP-SGD and DP-Adam, and what it returns."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from torch import nn

from botorch_dp._checks import (
    check_choice,
    check_integer,
    check_nonnegative,
    check_path,
    did_you_mean,
    warn_caller,
)
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    Release,
)
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.privacy.guarantee import warn_large_delta, warn_large_epsilon
from botorch_dp.privacy.runs import Run
from botorch_dp.space import SearchSpace
from botorch_dp.training.engines import ENGINES
from botorch_dp.training.networks import Loss, accuracy, causal_lm_loss, next_token_accuracy
from botorch_dp.training.norm import fit_with_norm, plan_with_norm
from botorch_dp.training.plan import (
    DELTA,
    OPTIMIZERS,
    Clipping,
    Sampling,
    TrainingPlan,
    TrainingSettings,
    check_seed,
    make_plan,
)
from botorch_dp.training.records import TrainTest
from botorch_dp.training.run import TrainingRun
from botorch_dp.training.setup import Metric, Setup
from botorch_dp.training.step_rules import OptimizerFactory, ScheduleFactory

if TYPE_CHECKING:
    from botorch_dp.pareto import PrivacyUtilityProblem

#: Settings that say how to step; without them the rule of ``untuned`` does.
_OF_STEPS = {"learning_rate", "clip_norm"}
#: A training of one step, to try a rule on.
_ONE_STEP: TrainingSettings = {
    "learning_rate": 1.0,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "batch_size": 1,
    "epochs": 1,
}


@dataclass(frozen=True, repr=False)
class TrainingDiagnostics:
    """Accuracy and counts of records. SENSITIVE: never publish it.

    Args:
        accuracy: The model's utility on the test records; None if the metric raised an error, or
            if there are no test records.
        unusable_records: Training records with values that are not finite or classes that do not
            exist; they never contribute a gradient.
        dropped_gradients: Gradients that were not finite and counted as zero.
        unused_records: Records beyond the first ``per_group`` of their group.
        curve: The utilities on the way, where they were asked for.
    """

    accuracy: float | None
    unusable_records: int
    dropped_gradients: int
    unused_records: int = 0
    curve: tuple[float | None, ...] = ()

    def __repr__(self) -> str:
        return "TrainingDiagnostics(sensitive)"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trained(Release[nn.Module]):
    """A trained model, which is the ``value`` of this release, and its guarantee.

    The guarantee covers the model (and every state it went through), nothing else: the accuracy is
    computed from the test records and is sensitive. Its status is ``"none"`` unless the model was
    trained with ``publish=True``; only then there is a receipt, which has the plan's public
    parameters, and nothing of the diagnostics.

    Args:
        plan: The public parameters of the run.
        steps: How many steps were taken; fewer than the plan has if the training was stopped. The
            guarantee is that of all of them.
        diagnostics: Sensitive.
    """

    plan: TrainingPlan
    steps: int
    diagnostics: TrainingDiagnostics

    __repr__ = object.__repr__

    @property
    def model(self) -> nn.Module:
        """The model, in evaluation mode; nobody else holds it."""
        return self.value

    @property
    def accuracy(self) -> float | None:
        """The utility on the test records; None without them. Sensitive.

        None as well if the metric raised an error after a training with ``publish=True``.
        """
        return self.diagnostics.accuracy

    @property
    def curve(self) -> tuple[float | None, ...]:
        """The utilities after the epochs that ``curve=`` named, as far as it came. Sensitive.

        The cost of stopping there is ``plan.guarantee_after(epochs * plan.steps_per_epoch)``; the
        guarantee of this training covers all of it.
        """
        return self.diagnostics.curve

    @property
    def epsilon(self) -> float:
        """The cost at ``plan.delta``, had the noise been secret.

        For tuning: a run under a seed guarantees nothing itself, and its guarantee says so.
        """
        return self.guarantee.nominal.epsilon(self.plan.delta)

    def __str__(self) -> str:
        """What one would paste into a report."""
        plan = self.plan
        taken = f"A model after {self.steps} of {plan.steps} steps on batches of about "
        taken += f"{plan.batch_size} of {plan.num_records} {plan.unit.counted}."
        if self.steps < plan.steps:
            taken += f" The training was stopped; its cost is that of all {plan.steps} steps."
        return "\n".join((taken, *plan.notes, str(self.guarantee)))


class DPTrainer:
    r"""Trains a model with DP-SGD or DP-Adam, fast enough to be tuned.

    Each step draws a batch of ``m`` records, clips the gradient of each of them to norm ``L`` and
    takes a step along

    .. math:: g = \frac1m \Big( \sum_i \nabla_i \min(1, L / \|\nabla_i\|) + N(0, (z L)^2 I) \Big)

    with ``z = noise_multiplier``, over the clipping norm as in Opacus. Batches are Poisson-sampled
    [Abadi2016]: each record joins independently. ``sampling="without_replacement"`` draws batches
    of fixed size, as Algorithms 3 and 4 of [Avent2020] do; the same noise then costs more. Batches
    are drawn independently at each step; there are no shuffled epochs.

    Guarantee: clipping bounds each record's part of the sum by ``L`` whatever the record is (a
    gradient that is not finite counts as zero), so the sum has sensitivity ``S = 2 L`` if one
    record is replaced and ``S = L`` if one is added or removed, and a step is a Gaussian mechanism
    on a random batch; steps compose adaptively, and the optimizer, the schedule and every later use
    of the parameters are post-processing. Normalized gradients [Bu2023],
    ``L grad_i / (|grad_i| + 0.01)``, are shorter than ``L`` for every record, too: ``S`` is the
    same. With ``groups``, the mean of a person's clipped gradients, which is no longer than ``L``
    either, takes the place of a record's. Status ``"conditional"`` with ``publish=True`` and
    ``"none"`` under a seed.

    Four engines compute the same sums. ``"fused"`` is for stacks of linear layers with elementwise
    activations and costs little more than plain SGD; all replicates are trained in one batched
    computation. ``"per_record"`` calls any other model on one record at a time, vectorized, so
    that no gradient can depend on two records. ``"ghost"`` does, too, but finds the norms without
    most of these gradients, in less time and, for large layers, in far less memory. ``"opacus"``
    takes the gradients from Opacus, which calls the model on whole batches. It is never chosen
    unless it is asked for, and its guarantee says that the isolation of records was tried and not
    enforced. See :mod:`.engines`. Models and losses that mix the records of a batch are refused,
    and the engines are tried on random records at initial and random weights, and at the final
    ones before a model is published; see :mod:`.isolation`.

    The trainer keeps no model. Each call of :meth:`fit` makes one, a :class:`~.run.TrainingRun`
    owns its parameters while it is trained, and the result holds a model of its own. The trainer
    couples parts that can be used alone: a plan, an engine, a source of randomness and a rule for
    steps. It does not train on several devices, and it does not stop by an accuracy that it
    measures: all steps are charged before the first one.

    A seed gives the same model again, bit for bit on the same machine with the same number of
    threads; with another number of threads, or as one of several replicates, it is the same up to
    rounding, because matrix products then add up in another order.

    Args:
        model_factory: Returns a fresh ``nn.Module``; its initial weights may be random. Use a
            function that can be pickled to train in other processes. A model may return its outputs
            as the ``logits`` of an object, as those of Hugging Face do. Batch normalization must be
            in evaluation mode; it then stays as it is.
        loss: Takes outputs and targets and returns one loss for each record, or their mean. It
            must not raise for any value of a record: an exception would tell about it. One that
            only passes outputs and targets on to torch's cross-entropy, squared or absolute error,
            with weights or without, is read when the trainer is made, and not called in training.
        data: :class:`TrainTest` on one device; or a pair of map-style data sets, to train on and to
            test on, which are read batch by batch. For a place they give ``(inputs, target)``, or
            inputs by name with ``labels`` among them. Without test records, ``TrainTest(X, Y)`` or
            a single data set, no accuracy is measured.
        optimizer: ``"sgd"``, ``"adam"`` (with torch's default moments), ``"scale_free"`` (no
            learning rate to choose); or what makes an optimizer of ``torch.optim`` from a list of
            parameters and ``lr=``, such as ``torch.optim.AdamW`` or ``partial(torch.optim.SGD,
            momentum=0.9, weight_decay=1e-4)``. It sees noisy gradients only. See
            :mod:`.step_rules`. If ``optimizer`` and ``schedule`` are left out, it is ``"sgd"`` for
            a training with a ``learning_rate`` or a ``clip_norm``; for one without, it is
            ``"scale_free"`` with the settings that :func:`~.untuned.suggest_settings` makes of
            public numbers.
        schedule: Makes a schedule of ``torch.optim.lr_scheduler`` from the optimizer and the number
            of steps; it is stepped after every step.
        clipping: ``"flat"`` clips gradients to ``clip_norm``; ``"normalized"`` brings all of them
            to it, so that only the product of ``clip_norm`` and the learning rate matters, and
            ``clip_norm`` may be left out.
        sampling: ``"poisson"`` or ``"without_replacement"``.
        relation: ``NeighboringRelation.REPLACE_ONE``, or for Poisson batches ``ADD_OR_REMOVE_ONE``.
            Epsilons under different relations cannot be compared.
        engine: ``"fused"``, ``"ghost"``, ``"per_record"``, or ``"auto"`` for the first of them that
            applies; or ``"opacus"``.
        metric: Takes the outputs and targets of the test records and returns the utility that
            :attr:`Trained.accuracy` reports. It is tried at once, on synthetic values.
        like: For data sets: a public or synthetic record, which shows names, shapes and types of
            every record. A record of another form, or length, counts as zero. Not needed for a
            ``TensorDataset``, whose tensors have types and shapes.
        groups: Whose each training record is, where people have several: a number or a text for
            each. A person with all of their records is then protected, and ``batch_size`` counts
            people; see :mod:`botorch_dp.groups`.
        per_group: How many records of a person are used at most; 16 unless given. It does not
            change the noise; a step takes the time of that many records.

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

        With nothing but an epsilon, all settings follow from public numbers:

        >>> trained = trainer.fit(target_epsilon=1.0, feature_norm=2.2, seed=0)
        >>> trained.plan.optimizer, trained.plan.batch_size, trained.plan.epochs
        ('scale_free', 83, 24)
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        loss: Loss,
        data: Any,
        *,
        optimizer: str | OptimizerFactory | None = None,
        schedule: ScheduleFactory | None = None,
        clipping: Clipping = "flat",
        sampling: Sampling = "poisson",
        relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
        engine: str = "auto",
        metric: Metric = accuracy,
        like: Any = None,
        groups: Any = None,
        per_group: int | None = None,
    ) -> None:
        check_choice("engine", engine, ("auto", *ENGINES))
        #: Whether the rule of ``untuned`` chooses how to step where settings leave it the choice.
        self._chooses = optimizer is None and schedule is None
        check_choice("clipping", clipping, get_args(Clipping))
        # Wrong names are refused here rather than at the first run.
        self._optimizer_name = _name_of("sgd" if optimizer is None else optimizer)
        self.clipping: Clipping = clipping
        self.sampling: Sampling = sampling
        self.relation = relation
        #: Of what is published together with the models; see :meth:`beside`.
        self.released: Guarantee | None = None
        self.setup = Setup(
            model_factory,
            loss,
            data,
            engine=engine,
            clipping=clipping,
            metric=next_token_accuracy if metric is accuracy and loss is causal_lm_loss else metric,
            like=like,
            optimizer=None if self._chooses else optimizer or "sgd",
            schedule=schedule,
            groups=groups,
            per_group=per_group,
        )
        self.setup.check_rule(self._plan(_ONE_STEP))

    @property
    def engine(self) -> str:
        """The engine that was chosen."""
        return self.setup.engine

    @property
    def metric(self) -> Metric:
        """The utility function of the test records."""
        return self.setup.metric

    def on(self, data: TrainTest) -> DPTrainer:
        """The same trainer on other records of the same form, such as public ones, ungrouped."""
        other = copy.copy(self)
        other.setup = self.setup.on(data)
        return other

    def beside(self, released: Guarantee | None) -> DPTrainer:
        """The same trainer for models that are published together with something else.

        Guarantees, charges and ``target_epsilon`` cover both, composed. What it was, and that it
        is released, is up to the caller.
        """
        other = copy.copy(self)
        other.released = released
        return other

    def without_tests(self) -> DPTrainer:
        """The same trainer without test records: none is read, and no accuracy is measured."""
        other = copy.copy(self)
        other.setup = self.setup.without_tests()
        return other

    def takes_defaults(self, settings: Collection[str]) -> bool:
        """Whether :func:`~.untuned.suggest_settings` completes settings of these names."""
        return self._chooses and not set(settings) & _OF_STEPS

    def plan(self, **settings: Unpack[TrainingSettings]) -> TrainingPlan:
        """What :meth:`fit` would do with these settings, and its guarantee, at no cost.

        ``print`` it: it says the cost in words.
        """
        if settings.get("feature_norm") == "private":
            return plan_with_norm(self, settings)
        plan = self._plan(settings)
        warn_large_delta(plan.delta, plan.num_records)
        warn_large_epsilon(settings.get("target_epsilon", 0.0))
        return plan

    def fit(
        self,
        *,
        seed: int | None = None,
        publish: bool = False,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = 60.0,
        progress: bool = False,
        on_interrupt: Literal["stop", "raise"] | None = None,
        curve: Sequence[int] = (),
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
            label: What it is for, in public words; shown in the ledger.
            checkpoint: A file to write the state to now and then and at the end, and to resume
                from if it exists. It is sensitive, and one process at a time may hold it. A
                resumed run under a seed gives the same model as one that was never interrupted; a
                published one gives one model, whatever happens to it: once that is stored, the
                file returns it.
            checkpoint_seconds: Time between two checkpoints.
            progress: Show a progress bar.
            on_interrupt: After Ctrl-C, ``"raise"`` raises ``KeyboardInterrupt``; with a
                ``checkpoint``, the same call then goes on without a new charge. ``"stop"`` returns
                the model as it is after the current step, at the cost of the complete run; with
                ``publish=True`` that is the model of this run for good. The default is ``"raise"``
                with a ``checkpoint`` and ``"stop"`` without.
            curve: Numbers of epochs, rising, after which to measure the utility on the test
                records: see :attr:`Trained.curve`. Each is a shorter training of the same
                settings, at no further cost in privacy.
            settings: ``learning_rate``, ``clip_norm``, ``noise_multiplier`` or
                ``target_epsilon``, ``batch_size``, ``epochs`` and ``delta``; see
                :class:`TrainingSettings`. ``target_epsilon`` alone is enough for a trainer whose
                ``optimizer`` was left out; pass ``feature_norm`` with it.

        Raises:
            BudgetExhausted: If the budget is too small for the run; nothing was trained.
            PrivacyError: If the arguments contradict each other (nothing was charged), or if, at
                the final weights of a model to be published, a record reaches beyond its own
                gradient (it is not handed out; the charge stays spent).
        """
        if settings.get("feature_norm") == "private":
            if checkpoint is not None:
                raise ValueError(
                    "`checkpoint` needs a norm that stays the same: find it with `private_norm` "
                    "and a key first, and pass its value as `feature_norm`."
                )
            how = {"on_interrupt": on_interrupt, "progress": progress, "curve": curve}
            return fit_with_norm(self, settings, seed, publish, how, ledger, label)
        plan = self._plan(settings)
        check_nonnegative("checkpoint_seconds", checkpoint_seconds)
        if on_interrupt is None:
            on_interrupt = "stop" if checkpoint is None else "raise"
        check_choice("on_interrupt", on_interrupt, ("stop", "raise"))
        if checkpoint is not None:
            check_path("checkpoint", checkpoint)
        check_seed(plan, seed, publish=publish, ledger=ledger)
        if publish:
            warn_large_delta(plan.delta, plan.num_records)
            warn_large_epsilon(settings.get("target_epsilon", 0.0))
        _check_curve(curve, plan, self.setup.num_tests)
        run = self.setup.start(plan, [seed])
        identity = self._identity(run, seed, curve, with_data=checkpoint is not None)
        with Run(
            checkpoint, what="a training", settings=identity, ledger=ledger, label=label
        ) as file:
            run.resume(file, checkpoint_seconds)

            def train() -> None:
                measure = partial(self.setup.measure, publish=publish)
                how = {"progress": progress, "stop_on_interrupt": on_interrupt == "stop"}
                run.train(curve, measure, **how)
                for model in run.models() if publish else ():
                    self.setup.check_final(model)

            if publish:
                # The noise of the steps is not shown. What is shown is one model, stored first; a
                # run that is cut off before goes on from its file without a new charge.
                final = file.release(
                    plan.guarantee,
                    lambda _: run.final_state(),
                    read=train,
                    key="model",
                    delta=None if ledger is not None and ledger.budget.renyi else plan.delta,
                )
                run.restore_final(final)
            else:
                train()
            (trained,) = _trained(self.setup, run, publish=publish)
        return trained

    def replicates(
        self,
        seeds: Sequence[int],
        *,
        progress: bool = False,
        **settings: Unpack[TrainingSettings],
    ) -> list[Trained]:
        """Train one model for each seed, with their own initial weights, batches and noise.

        To tune: the fused engine trains all of them in one batched computation. Ctrl-C raises
        ``KeyboardInterrupt``, so that a half-trained trial is not taken for a finished one.

        Args:
            seeds: Different non-negative integers.
            progress: Show a progress bar.
            settings: As for :meth:`fit`.

        Example:
            >>> common = {"clip_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 50, "epochs": 8}
            >>> trained = trainer.replicates([0, 1], **common, learning_rate=0.1)
        """
        plan = self._plan(settings)
        seeds = _check_seeds(seeds)
        run = self.setup.start(plan, seeds)
        run.advance(plan.steps, progress=progress)
        return _trained(self.setup, run)

    def problem(
        self,
        space: SearchSpace,
        *,
        replicates: int = 1,
        publish: bool = False,
        ref_point: tuple[float, float] = (10.0, 1.0),
        name: str | None = None,
        **settings: Unpack[TrainingSettings],
    ) -> PrivacyUtilityProblem:
        """The trade-off between privacy and utility of these trainings, for ``DPareto``.

        Args:
            space: Settings of a training: ``learning_rate``, ``clip_norm``, ``noise_multiplier`` or
                ``target_epsilon`` (the noise is then solved for), ``batch_size``, ``epochs``. With
                ``target_epsilon`` alone each epsilon is one training (or as many as ``replicates``
                says) with the settings that :meth:`fit` chooses for it.
            replicates: Trainings whose utilities one trial averages.
            publish: Whether to train with noise from the operating system instead of seeds, for a
                study with a budget (``DPareto(budget=...)``).
            ref_point: The (epsilon, error) that counts as worthless.
            name: How a stored study recognizes the problem.
            settings: Those that are the same in all trainings.

        Example:
            >>> space = SearchSpace(learning_rate=Real(0.01, 1.0, log=True),
            ...     noise_multiplier=Real(0.5, 8.0, log=True))
            >>> problem = trainer.problem(space, clip_norm=1.0, batch_size=50, epochs=4)
            >>> front = DPareto(problem, seed=0).run(16)
            >>> epsilons = SearchSpace(target_epsilon=Real(0.1, 8.0, log=True))
            >>> front = DPareto(trainer.problem(epsilons, feature_norm=2.2), seed=0).run(8)
        """
        if not self.setup.num_tests:
            raise ValueError(
                "`data` has no test records, and a problem weighs privacy against the accuracy on "
                "them. Make the trainer with TrainTest(train_X, train_Y, test_X, test_Y)."
            )
        from botorch_dp.training import oracles  # which needs BoTorch; training alone does not

        own = OPTIMIZERS.get(self._optimizer_name, f"DP-SGD with {self._optimizer_name}")
        return oracles.problem_of(
            oracles.oracles_of(self, space, settings, publish=publish),
            space,
            delta=settings.get("delta", DELTA),
            relation=self.relation,
            replicates=replicates,
            ref_point=ref_point,
            name=name or own,
            per_group=self.setup.per_group,
        )

    def _plan(self, settings: TrainingSettings) -> TrainingPlan:
        optimizer, own, suggested = self._optimizer_name, True, None
        without_rate = optimizer == "scale_free" and "learning_rate" not in settings
        if without_rate or self.takes_defaults(settings):
            suggested = self.setup.suggest(settings, self.relation)
            own = bool(settings.keys() & suggested.settings.keys())
            optimizer, settings = "scale_free", {**suggested.settings, **settings}
        outlook, warnings = (
            ("", ()) if suggested is None else (suggested.outlook, suggested.warnings)
        )
        plan = make_plan(
            settings,
            num_records=self.setup.num_units,
            per_group=self.setup.per_group,
            sampling=self.sampling,
            relation=self.relation,
            clipping=self.clipping,
            optimizer=optimizer,
            conditions=self.setup.conditions,
            notes=(*[outlook] * bool(outlook), *self.setup.notes),
            origin="not stated" if own else "default rule",
            unpublishable=self.setup.unpublishable,
            beside=self.released,
        )
        for warning in warnings:
            warn_caller(warning)
        return plan

    def _identity(
        self, run: TrainingRun, seed: int | None, curve: Sequence[int], *, with_data: bool
    ) -> dict[str, Any]:
        """All that a run depends on, JSON-ready; a file is continued by the same run only."""
        return {
            **run.plan.to_dict(),
            "seed": None if seed is None else int(seed),
            "engine": self.engine,
            "rule": run.rule.settings(),
            "parameters": list(run.result.shape),
            "dtype": str(run.result.dtype),
            "data": self.setup.fingerprint() if with_data else None,
            "curve": list(curve),
        }


def _trained(setup: Setup, run: TrainingRun, *, publish: bool = False) -> list[Trained]:
    """The models of a run, and their guarantees."""
    plan = run.plan
    guarantee = plan.guarantee if publish else plan.guarantee.simulated()
    if run.step < plan.steps:
        warn_caller(
            f"The training was stopped{' for good' if publish else ''} after {run.step} of "
            f"{plan.steps} steps. Its cost, also in a ledger, is that of all {plan.steps} steps. "
            "With `checkpoint=`, the same call goes on after Ctrl-C."
        )
    groups, unusable = setup.groups, setup.records.unusable
    *_, loss = guarantee.losses or (None,)  # the training's own comes last
    facts = {
        "training": plan.parameters(getattr(loss, "steps", run.step)),
        "settings": plan.origin,
    }
    return [
        Trained(
            model,
            guarantee,
            digest=digest_if_any(model) if publish else None,
            facts=facts,
            plan=plan,
            steps=run.step,
            diagnostics=TrainingDiagnostics(
                accuracy=setup.measure(model, publish=publish),
                unusable_records=unusable,
                dropped_gradients=run.dropped,
                unused_records=0 if groups is None else groups.unused,
                curve=tuple(run.utilities),
            ),
        )
        for model in run.models()
    ]


def _name_of(optimizer: object) -> str:
    """The name of a rule, or of what a factory makes."""
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise ValueError(
                f"`optimizer` must be one of {tuple(OPTIMIZERS)} or make a torch.optim.Optimizer, "
                f"got {optimizer!r}.{did_you_mean(optimizer, OPTIMIZERS)}"
            )
        return optimizer
    inner = optimizer.func if isinstance(optimizer, partial) else optimizer
    return str(getattr(inner, "__name__", type(inner).__name__))


def _check_curve(curve: Sequence[int], plan: TrainingPlan, num_tests: int) -> None:
    for epochs in curve:
        check_integer("each of `curve`", epochs, at_most=plan.epochs)
    if list(curve) != sorted(set(curve)):
        raise ValueError(f"`curve` must rise, got {curve}.")
    if curve and not num_tests:
        raise ValueError("`curve` is about the accuracy on test records, and `data` has none.")


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    seeds = [check_integer("each of `seeds`", seed, at_least=0) for seed in seeds]
    if not seeds:
        raise ValueError("`seeds` is empty: give at least one integer.")
    if len(set(seeds)) < len(seeds):
        raise ValueError("`seeds` must differ: the same seed gives the same model again.")
    return seeds
