"""Opacus's training loop with our accounting, batches and noise. Importing this imports Opacus.

:class:`PrivacyEngine` takes the place of Opacus's own. The user's loop stays: it computes the loss
of each batch and calls ``backward()``, and Opacus finds the gradients of single records. What comes
before and after that is ours: which records are in a batch, clipping, noise and accounting. The
loop takes the steps that were charged and no others.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never

import opacus
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from botorch_dp._checks import check_delta, check_positive
from botorch_dp.errors import PrivacyError
from botorch_dp.integrations.opacus_loop import Loop, LoopOptimizer, LoopRecords, loader_of
from botorch_dp.pareto import Batched, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Receipt,
    Release,
    dp_sgd_epsilons,
)
from botorch_dp.privacy.guarantee import warn_large_delta, warn_large_epsilon
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.space import Config, SearchSpace
from botorch_dp.training.engines.base import trainable
from botorch_dp.training.engines.opacus import OpacusEngine, with_hooks
from botorch_dp.training.inputs import each_part
from botorch_dp.training.plan import DELTA, OPTIMIZERS, TrainingPlan, make_plan
from botorch_dp.training.randomness import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    seeded_torch,
)
from botorch_dp.training.records import (
    DatasetRecords,
    TrainTest,
    datasets_of,
    why_unpublishable,
)
from botorch_dp.training.setup import FORM_IS_PUBLIC, Setup

_LOOP = (
    "your loop calls the model on the rows of a batch in their order, computes the loss of each "
    "record from its row alone, as `criterion` does, and takes the plain mean over the batch, "
    "without class weights; it looks at the training records in no other way to decide what to do "
    "(which model, when to stop)"
)
_NOT_PRINTED = (
    "only the model is covered: losses and accuracies on training records, and gradients before "
    "the noise, are neither published nor shown to anybody who must not see the records"
)
#: Options of Opacus that change nothing: noise comes from the operating system, and the price is
#: computed from the exact distribution of the privacy loss.
_WITHOUT_EFFECT = ("secure_mode", "accountant", "alphas")
#: The options of Opacus that have one value here, and why.
_FIXED: dict[str, tuple[object, str]] = {
    "batch_first": (True, "the first dimension of a batch must count the records"),
    "loss_reduction": ("mean", "let your loss be the mean over the batch"),
    "poisson_sampling": (
        True,
        "a shuffled pass over the records is not Poisson sampling, and its epsilon is not known",
    ),
    "clipping": ("flat", "clipping of single layers is not accounted for"),
    "noise_generator": (None, "use PrivacyEngine(unsafe_seed=...) to tune under a seed"),
    "grad_sample_mode": (
        "hooks",
        "PrivacyEngine always uses Opacus's hooks. DPTrainer(..., engine='per_record') uses "
        "vmap, which takes layers without a hook, and engine='ghost' ghost clipping; Opacus's "
        "ghost clipping lets one record of some models add 1.77 clipping norms to the sum",
    ),
    "wrap_model": (True, "train with the model that make_private returns"),
    "rand_on_empty": (False, "an empty batch comes as one row of zeros that does not count"),
}


class PrivacyEngine(opacus.PrivacyEngine):
    """In place of ``opacus.PrivacyEngine``: the same loop, accounted, charged and guaranteed.

    Without ``unsafe_seed`` the model may be published. Batches and noise then come from the
    operating system, and the complete run is charged when it is made private, before a record is
    read. A script that is killed and started again trains anew and is charged anew; what was
    charged stays charged. Each batch must get exactly one step, and at most as many steps are taken
    as were charged: the engine refuses others before they change the model.

    With ``unsafe_seed`` everything can be repeated, and nothing is guaranteed: to tune.

    Gradients are clipped in double precision, and one that is not finite counts as zero. A record
    joins a batch with probability ``batch_size / n``, and an epoch has ``n // batch_size`` batches.

    Args:
        ledger: Charged with the complete run.
        label: What it is for, in public words; shown in the ledger.
        unsafe_seed: A non-negative integer that fixes batches and noise.
        delta: Where epsilon is stated and charged.
        like: A public or synthetic record, such as ``(inputs, target)``, for data sets other than
            ``TensorDataset``: the form of every one; see :class:`~botorch_dp.training.DPTrainer`.
            With one part alone ``criterion`` is tried on outputs and inputs; of three or more, the
            last is the target, and the model is tried on the others together.
        relation: ``NeighboringRelation.REPLACE_ONE``, or ``ADD_OR_REMOVE_ONE``, which Opacus's own
            numbers are for: these are smaller, and cannot be compared with the others.
        options: Others of Opacus, with the values that they have here; ``secure_mode``,
            ``accountant`` and ``alphas`` change nothing.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.randn(200, 3), torch.randint(2, (200,)))
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
        >>> engine = PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=2,
        ...     data_loader=DataLoader(data, batch_size=20), noise_multiplier=4.0,
        ...     max_grad_norm=1.0, criterion=loss
        ... )
        >>> for _ in range(2):
        ...     for X, y in loader:
        ...         optimizer.zero_grad()
        ...         loss(model(X), y).backward()
        ...         optimizer.step()
        >>> round(engine.guarantee(model).epsilon(1e-5), 2)
        0.82
    """

    def __init__(
        self,
        *,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
        delta: float = DELTA,
        like: Any = None,
        relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
        **options: Any,
    ) -> None:
        _check_options(options)
        check_payment(ledger, unsafe_seed=unsafe_seed)
        self.ledger, self.unsafe_seed, self._like = ledger, unsafe_seed, like
        self.label, self.relation = label, relation
        self.delta = check_delta("delta", delta)
        self._loop: Loop | None = None

    @property
    def plan(self) -> TrainingPlan:
        """What is trained, and what it costs; ``print`` it."""
        return self._made().plan

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._made().taken

    @property
    def accountant(self) -> PrivacyEngine:
        """The engine itself: scripts ask its :meth:`get_epsilon`, here or there."""
        return self

    def get_epsilon(self, delta: float, alphas: Any = None) -> float:
        """What the steps so far would cost at ``delta``; ``alphas`` of Opacus change nothing."""
        return self.plan.guarantee_after(self.steps).epsilon(delta) if self.steps else 0.0

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        epochs: int | None = None,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> tuple[GradSampleModule, DPOptimizer, DataLoader[Any]]:
        """The model, the optimizer and the loader to train with; the run is charged.

        Args:
            module: The model.
            optimizer: An optimizer of all of its trainable parameters.
            data_loader: Says from which data set records come, and how many there are in a batch.
            noise_multiplier: Standard deviation of the noise over ``max_grad_norm``.
            max_grad_norm: The clipping norm.
            epochs: Passes over the records. Needed to publish: the cost follows from it.
            criterion: The loss of your loop, such as ``nn.CrossEntropyLoss()``; it is tried on
                synthetic records of every class. Needed to publish: a loss that mixes records, such
                as a mean with class weights, lets one record move the gradients of all others.
            options: Opacus's others, with the values that they have by default.
        """
        noise = {"noise_multiplier": noise_multiplier}
        given = (module, optimizer, data_loader, criterion, max_grad_norm, epochs)
        return self._make(noise, self.delta, *given, options)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> tuple[GradSampleModule, DPOptimizer, DataLoader[Any]]:
        """As :meth:`make_private`, with the least noise for a target epsilon.

        Args:
            target_epsilon: Under the engine's ``relation``. See :meth:`make_private`, also for
                what is not described here.
            target_delta: Where it holds; takes the place of the engine's ``delta``.
        """
        target = {"target_epsilon": target_epsilon}
        given = (module, optimizer, data_loader, criterion, max_grad_norm, epochs)
        return self._make(target, check_delta("target_delta", target_delta), *given, options)

    def guarantee(self, model: nn.Module) -> Guarantee:
        """What holds for a trained model, as it is after the last step of its loop.

        It is that of the complete run, also if fewer steps were taken.

        Raises:
            PrivacyError: If the model is another one, or if at its weights one record reaches
                beyond its own gradient. What was charged stays spent.
        """
        return self.release(model).guarantee

    def release(self, model: nn.Module) -> Release[nn.Module]:
        """The trained model without hooks, gradients and optimizer, and its guarantee.

        Arguments and errors as for :meth:`guarantee`.
        """
        return self._made().release(getattr(model, "_module", model))

    def receipt(self, model: nn.Module, **facts: Any) -> Receipt:
        """A document that a stranger can check, of the model; see :meth:`Receipt.of` for ``facts``.

        Arguments and errors as for :meth:`guarantee`.
        """
        return self.release(model).receipt(**facts)

    def save_checkpoint(self, **given: Any) -> Never:
        """Refused: steps from another process were not charged by this engine."""
        raise PrivacyError(
            "A run cannot continue from a checkpoint, because another engine accounted for its "
            "first steps. Save `release(model).value.state_dict()`, or use "
            "DPTrainer.fit(checkpoint=...), which resumes."
        )

    load_checkpoint = save_checkpoint

    def _made(self) -> Loop:
        if self._loop is None:
            raise PrivacyError("Call `make_private` first.")
        return self._loop

    def _make(
        self,
        noise: dict[str, float],
        delta: float,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        criterion: Callable[[Tensor, Tensor], Tensor] | None,
        max_grad_norm: float,
        epochs: int | None,
        options: dict[str, Any],
    ) -> tuple[GradSampleModule, DPOptimizer, DataLoader[Any]]:
        secret = self.unsafe_seed is None
        if self._loop is not None:
            raise PrivacyError(
                "This engine was used already, and one engine is one training and one charge. "
                "Make a new PrivacyEngine."
            )
        if secret and epochs is None:
            raise TypeError(
                "Give `epochs`: the cost of a model that may be published is charged before its "
                "first step. Or give PrivacyEngine(unsafe_seed=...) to tune."
            )
        if secret and criterion is None:
            raise TypeError(
                "Give `criterion`, the loss of your loop, such as nn.CrossEntropyLoss(): a "
                "model that may be published needs a loss that does not mix the records of a "
                "batch, which is tried on synthetic records."
            )
        _check_options(options)
        _check_module(module, optimizer)
        records, batch_size = self._records(data_loader)
        device = trainable(module)[0].device
        X, Y = records.form()
        X, Y = each_part(lambda part: part.to(device), X), Y.to(device)
        clean = copy.deepcopy(module)
        try:
            setup = Setup(
                lambda: clean,
                criterion or (_any_loss if Y.is_floating_point() else nn.functional.cross_entropy),
                TrainTest(X, Y, X, Y),  # synthetic; the records stay where they are
                engine="opacus",
                clipping="flat",
                metric=lambda outputs, targets: 0.0,
            )
        except ValueError as error:
            if criterion is None and str(error).startswith("`loss`"):
                raise ValueError(f"{error} Or pass `criterion=`, the loss of your loop.") from error
            raise
        records.num_classes = setup.num_classes
        named = type(optimizer).__name__
        settings: Any = {
            **noise,
            "clip_norm": check_positive("max_grad_norm", max_grad_norm),
            "learning_rate": float(optimizer.defaults.get("lr") or 1.0),
            "batch_size": batch_size,
            "epochs": 1 if epochs is None else epochs,
            "delta": delta,
        }
        plan = make_plan(
            settings,
            num_records=len(records),
            relation=self.relation,
            optimizer=named.lower() if named.lower() in OPTIMIZERS else named,
            unpublishable=why_unpublishable(records.dataset),
            conditions=(
                *setup.conditions,
                *(() if self._like is None else (FORM_IS_PUBLIC,)),
                _LOOP,
                _NOT_PRINTED,
            ),
        )
        if secret:
            plan.check_publishable()
            warn_large_delta(plan.delta, plan.num_records)
            warn_large_epsilon(noise.get("target_epsilon", 0.0))
            if self.ledger is not None:
                stated = None if self.ledger.budget.renyi else plan.delta
                self.ledger.charge(plan.guarantee, label=self.label, delta=stated)
        coins: Randomness = (
            SystemRandomness()
            if self.unsafe_seed is None
            else SeededRandomness(self.unsafe_seed, device)
        )
        self._loop = loop = Loop(
            plan, epochs is not None, secret, records, coins, trainable(module), setup, clean
        )
        # Which torch would say at each step of a loop, of every model with such hooks.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        model = with_hooks(module, loss_reduction="mean")
        model.forbid_grad_accumulation()
        return model, LoopOptimizer(optimizer, loop), loader_of(loop)

    def _records(self, data_loader: DataLoader[Any]) -> tuple[DatasetRecords, int]:
        if isinstance(data_loader.dataset, LoopRecords):  # of an engine before
            before = data_loader.dataset.loop
            if FORM_IS_PUBLIC in before.plan.conditions:
                self._like = before.records.like
            return copy.copy(before.records), before.plan.batch_size
        if data_loader.batch_size is None or data_loader.collate_fn is not default_collate:
            raise PrivacyError(
                "`data_loader` must have a `batch_size` and no sampler of batches or "
                "`collate_fn` of its own: PrivacyEngine draws Poisson-sampled batches and reads "
                "the records one by one. Pass DataLoader(data, batch_size=...), and prepare "
                "each record in the data set."
            )
        found = datasets_of((data_loader.dataset, data_loader.dataset), self._like)
        assert found is not None
        sampler = data_loader.sampler
        known = isinstance(sampler, RandomSampler | SequentialSampler)
        if not known or len(sampler) != len(found[0]):  # type: ignore[arg-type]
            raise PrivacyError(
                "`data_loader` has a sampler that leaves out or repeats records, but Poisson "
                "sampling draws each record with the same probability. Pass a data set of the "
                "records to train on, such as torch.utils.data.Subset(data, places)."
            )
        return found[0], min(data_loader.batch_size, len(found[0]))


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _WITHOUT_EFFECT:
            continue
        if name not in _FIXED:
            raise TypeError(
                f"PrivacyEngine has no argument {name!r}: it always uses Opacus's hooks and "
                "Poisson sampling. DPTrainer(engine=..., sampling=...) offers others."
            )
        only, reason = _FIXED[name]
        if value != only:
            raise PrivacyError(f"`{name}` must be {only!r}, got {value!r}: {reason}.")


def _check_module(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    wrapped = hasattr(module, "_module") or hasattr(module, "autograd_grad_sample_hooks")
    if wrapped or isinstance(module, nn.parallel.DistributedDataParallel):
        raise PrivacyError(
            f"`module` is a {type(module).__name__}: pass the model itself, in one process and "
            "without the hooks of another engine."
        )
    if optimizer.state:
        raise PrivacyError(
            "`optimizer` has taken steps already, and its state may hold gradients without "
            "noise. Pass a new one."
        )
    if isinstance(optimizer, DPOptimizer):
        raise PrivacyError("`optimizer` is private already: pass the one of torch.optim.")
    given = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if given != {id(p) for p in trainable(module)} or not given:
        raise ValueError(
            "`optimizer` must have all trainable parameters of `module` and no others. Freeze what "
            "is not to be trained with requires_grad_(False)."
        )


def _any_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for any targets: what is tried is the model."""
    return outputs.flatten(1).square().sum(dim=1)


# --- A user's loop as a problem. ---


@dataclass(frozen=True)
class _LoopOracles:
    """Privacy and utility of the trainings of a user's loop, by configuration; can be pickled.

    Arguments as for :func:`opacus_problem`.
    """

    train: Callable[..., float]
    num_records: int
    delta: float
    like: Any
    relation: NeighboringRelation
    settings: dict[str, Any]

    def plan(self, config: Config) -> TrainingPlan:
        """The public parameters of one training, as far as its epsilon goes."""
        chosen = {**self.settings, **config}
        known = ("noise_multiplier", "target_epsilon", "batch_size", "epochs")
        priced: Any = {name: chosen[name] for name in known if name in chosen}
        priced |= {"learning_rate": 1.0, "clip_norm": 1.0, "delta": self.delta}
        return make_plan(
            priced,
            num_records=self.num_records,
            relation=self.relation,
            conditions=(OpacusEngine.condition, _LOOP, _NOT_PRINTED),
        )

    def epsilon(self, config: Config) -> float:
        """The epsilon of publishing the model."""
        return self.plan(config).epsilon

    def guarantee(self, config: Config) -> Guarantee:
        """The guarantee of publishing the model."""
        return self.plan(config).guarantee

    def epsilons(self, configs: Sequence[Config]) -> list[float]:
        """Upper bounds on :meth:`epsilon` for many configurations at once."""
        chosen = [{**self.settings, **config} for config in configs]
        if any("target_epsilon" in each for each in chosen):
            return [float(each["target_epsilon"]) for each in chosen]
        bounds = dp_sgd_epsilons(
            [each["noise_multiplier"] for each in chosen],
            [each["batch_size"] for each in chosen],
            [each["epochs"] * (self.num_records // each["batch_size"]) for each in chosen],
            num_records=self.num_records,
            delta=self.delta,
            relation=self.relation,
        )
        return [float(bound) for bound in bounds]

    def utility(self, config: Config, seed: int) -> float:
        """What the loop says, its noise under a seed; refused if it took other steps."""
        how: Any = {"delta": self.delta, "like": self.like, "relation": self.relation}
        engine = PrivacyEngine(unsafe_seed=seed, **how)
        with seeded_torch(seed):
            value = float(self.train(engine, **self.settings, **config))
        plan, taken = self.plan(config), engine.plan
        names = ("num_records", "batch_size", "epochs", "noise_multiplier")
        differ = [name for name in names if getattr(plan, name) != getattr(taken, name)]
        if differ or engine.steps != plan.steps:
            raise PrivacyError(
                f"`train` took {engine.steps} steps with {_shown(taken, names)}, but the "
                f"accounting is for {plan.steps} steps with {_shown(plan, names)}. Pass the "
                "configuration's settings to `make_private`, and take a step on each batch of "
                "all epochs."
            )
        return value


def _shown(plan: TrainingPlan, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={getattr(plan, name):g}" for name in names)


def opacus_problem(
    train: Callable[..., float],
    space: SearchSpace,
    *,
    num_records: int,
    delta: float = DELTA,
    like: Any = None,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    replicates: int = 1,
    ref_point: tuple[float, float] = (10.0, 1.0),
    name: str = "an Opacus loop",
    **settings: Any,
) -> PrivacyUtilityProblem:
    """A user's own Opacus loop as a problem for ``DPareto``: which privacy buys which utility.

    Epsilon is exact and needs no training. Trainings are seeded, and guarantee nothing.

    Args:
        train: ``train(engine, **config) -> utility`` in [0, 1]: makes its model private with the
            engine that it is given, with ``epochs=``, and trains it.
        space: What ``train`` takes; must have ``noise_multiplier`` or ``target_epsilon``,
            ``batch_size`` and ``epochs``, unless they are among the settings.
        num_records: Number of training records.
        delta: Where epsilon is stated.
        like: As for :class:`PrivacyEngine`.
        relation: As there.
        replicates: Trainings whose utilities one trial averages.
        ref_point: The (epsilon, error) that counts as worthless.
        name: How a stored study recognizes the problem.
        settings: What is the same in all trainings; ``train`` is given them, too.

    Example:
        >>> space = SearchSpace(lr=Real(0.01, 1.0, log=True), noise_multiplier=Real(1.0, 8.0))
        >>> problem = opacus_problem(train, space, num_records=1000, batch_size=50, epochs=4)
        >>> front = DPareto(problem, seed=0).run(16)
    """
    both = sorted(set(space.parameters) & settings.keys())
    if both:
        raise ValueError(f"`space` and the settings both name {both}: leave one of them out.")
    trainings = _LoopOracles(train, num_records, delta, like, relation, settings)
    trainings.plan(space.sample(1, seed=0)[0])  # what is missing or wrong is said here
    unit = PrivacyUnit("one record of the training data", relation)
    return PrivacyUtilityProblem(
        space,
        privacy=trainings.epsilon,
        utility=trainings.utility,
        training=TrainingPrivacy(delta, unit=unit, guarantee=trainings.guarantee),
        replicates=replicates,
        ref_point=ref_point,
        name=name,
        batched=Batched(epsilons=trainings.epsilons),
    )
