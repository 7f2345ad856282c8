r"""DP-GIBO: private descent along gradients that are inferred from values.

See [Sopa2025], and [Mueller2021] for the gradients.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_callable, check_count, check_positive
from botorch_dp._progress import ProgressBar
from botorch_dp.descent.designs import Design, DesignName, as_design, observation_noise
from botorch_dp.descent.settings import (
    DescentPlan,
    DescentResult,
    DescentSettings,
    StepRecord,
    check_public_kernel,
    kernel_settings,
)
from botorch_dp.descent.step import DescentDiagnostics, GradientStep, Observations, read_losses
from botorch_dp.errors import PrivacyError
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.privacy import Guarantee, PrivacyLedger, PrivacyUnit, Release
from botorch_dp.privacy.guarantee import ONE_RECORD
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import PerRecordLosses, known_num_records

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class _Progress:
    """How far a run has come. Replaced as a whole once a step is stored, and never changed.

    Args:
        observations: The points in use and the losses there; sensitive.
        trajectory: All iterates, the initial point first.
        history: Public facts about each step.
        num_records: ``n``, once it is known.
    """

    observations: Observations
    trajectory: tuple[Tensor, ...]
    history: tuple[StepRecord, ...]
    num_records: int | None

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.history)

    @property
    def location(self) -> Tensor:
        """The last iterate."""
        return self.trajectory[-1]


class DPGIBO:
    r"""Minimize the mean loss over records, without gradients and under differential privacy.

    At the present location it asks for the losses of all records at a few points around it, infers
    each record's gradient by a Gaussian process given all losses seen so far, clips it to norm
    ``B``, and takes a descent step along the noisy mean. With ``D`` all points so far, ``L`` the
    losses there (one column for each record), ``a = K^{-1} 1`` and ``W = K^{-1} dk(D, x)``:

    ``G = (W - a (1^T W) / (1^T a))^T L``,
    ``g = (1/n) sum_i clip_B(G_i) + N(0, (2 B sqrt(T) / (n mu))^2 I)``,
    ``x <- project(optimizer(x, g))``.

    The correction makes the weights sum to zero, as for a prior with an unknown constant mean;
    ``Design(mean="zero")`` is the paper's plain ``W``.

    Guarantee: ``mu``-Gaussian differential privacy over all ``T`` steps, under replace-one, with
    no assumption on the losses. Points, weights and step sizes are functions of the settings and
    of released gradients. A record enters through its own column of ``L``, that is through one
    vector of norm at most ``B``, so replacing it moves the mean by at most ``2B/n``, which is
    ``mu / sqrt(T)`` standard deviations of the noise; ``T`` such steps compose to ``mu``, also
    adaptively. All iterates may be published. The guarantee is that of all ``T`` steps whenever
    the run stops, for when it stops may depend on what was released. Three conditions rest on the
    caller and are printed: a record's losses must not depend on the other records, the number of
    records is public, and the settings were chosen without the records.

    Each step's noisy gradient is drawn once, stored, and replayed to whoever repeats the step. A
    deep copy, an unpickled or a forked object is a new run, which draws its own noise for each
    step that remains and is charged for it.

    Args:
        record_losses: Points ``b x d`` to losses ``b x n``, one column for each record. A NaN or
            an infinite loss is no error: that record's gradient counts as zero.
        initial: Where to start, a ``d``-vector chosen without the records (see
            :func:`private_start`). Its dtype and device are used throughout.
        kernel: An RBF, Matern-5/2 or polynomial kernel of GPyTorch, or a scaling of one, whose
            hyper-parameters were chosen without the records. A polynomial kernel needs no further
            points once its few functions are known, so it suits losses that are polynomials.
        mu: The privacy parameter of the whole run; infinite for plain GIBO without noise.
        steps: ``T``. Fixed in advance, since the noise of each step depends on it.
        clip_norm: ``B``. Near the median length of the records' gradients for bounded or convex
            losses, several times that for heavy tails; :func:`public_clip_norm` finds it on public
            data. May be infinite only with ``mu=inf``.
        box: A ``2 x d`` box; iterates are projected onto it and points stay inside.
        design: Where to ask for losses: a :class:`Design`, or the name of one, ``"simplex"``,
            ``"central"`` or ``"optimize"``.
        step_size: Of plain descent; or a function that makes a ``torch.optim`` optimizer of the
            parameter, which sets the steps instead.
        unit: Whom or what one column is; replace-one is the only relation.
        ledger: Charged for each step before the records are asked.
        label: What it is for, in public words; shown in the ledger.
        unsafe_seed: Simulate with reproducible noise. The result then guarantees nothing, and no
            ledger can be charged for it.

    Example:
        >>> data = torch.randn(500, 2, dtype=torch.double)
        >>> descent = DPGIBO(
        ...     lambda X: (X.unsqueeze(1) - data).square().sum(-1),  # b x n
        ...     torch.full((2,), 0.5, dtype=torch.double),
        ...     kernel=RBFKernel(),
        ...     mu=1.0,
        ...     steps=20,
        ...     clip_norm=2.0,
        ... )
        >>> print(descent.plan(num_records=500))
        >>> result = descent.run()
        >>> result.average.value, result.guarantee
    """

    def __init__(
        self,
        record_losses: PerRecordLosses,
        initial: Tensor,
        kernel: Kernel,
        *,
        mu: float,
        steps: int,
        clip_norm: float,
        box: Tensor | None = None,
        design: Design | DesignName = "simplex",
        step_size: float | MakeOptimizer = 0.1,
        unit: PrivacyUnit = ONE_RECORD,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
    ) -> None:
        check_callable("record_losses", record_losses)
        settings = DescentSettings(
            initial, mu, steps, clip_norm, box, as_design(design), unit, unsafe_seed
        )
        if ledger is not None and math.isinf(mu):
            raise PrivacyError(
                "`ledger` cannot be charged for `mu=inf`: plain GIBO guarantees nothing. Leave the "
                "ledger out, or give a finite mu."
            )
        check_payment(ledger, unsafe_seed=unsafe_seed)
        check_public_kernel(kernel)
        location = settings.initial
        derivatives = kernel_derivatives(kernel, like=location)
        derivatives.gradient_covariance(location)  # refuses a kernel without gradients now
        if not callable(step_size):
            check_positive("step_size", step_size)
        self._settings = settings
        self._record_losses = record_losses
        self._ledger, self._label = ledger, label
        self._noise = observation_noise(derivatives, location, settings.design.noise_std)
        #: What the optimizer works on; what was stored is in the progress.
        self._parameter = torch.nn.Parameter(location.clone())
        self._optimizer = (
            step_size([self._parameter])
            if callable(step_size)
            else torch.optim.SGD([self._parameter], lr=step_size)
        )
        self._progress = _Progress(
            observations=Observations(KernelFactor.empty(derivatives, len(location))),
            trajectory=(location,),
            history=(),
            num_records=known_num_records(record_losses, None),
        )
        self._diagnostics = DescentDiagnostics()
        self._stored_settings = {
            **settings.to_dict(),
            "dtype": str(location.dtype),
            "kernel": kernel_settings(kernel),
            "optimizer": {
                "class": self._optimizer.__class__.__name__,
                **{name: repr(value) for name, value in self._optimizer.defaults.items()},
            },
            "charged": ledger is not None,
        }
        #: In memory from the first step on, or of a file from the moment it was opened. A copy of
        #: this object gets a new one in memory.
        self._run: Run | None = None
        self._is_held = False

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run, whenever it stops."""
        return self._settings.guarantee()

    @property
    def steps_taken(self) -> int:
        """How many steps are done, those before a resumption included."""
        return self._progress.steps

    def plan(self, num_records: int | None = None) -> DescentPlan:
        """Guarantee, noise, evaluations and memory of the run; reads no record.

        Args:
            num_records: ``n``, if neither ``record_losses`` has it as an attribute nor a step was
                taken yet.
        """
        known = self._progress.num_records
        n = known if num_records is None else check_count("num_records", num_records)
        if known not in (None, n):
            raise ValueError(f"`num_records` = {n}, but `record_losses` has {known} records.")
        if n is None:
            raise ValueError(
                "`num_records` is needed to plan, as in `plan(num_records=500)`: the noise is "
                "proportional to 1 / n, and n is public under replace-one."
            )
        settings = self._settings
        evaluations = settings.steps * settings.batch_size
        kept = min(evaluations, settings.design.max_points)
        return DescentPlan(
            num_records=n,
            num_parameters=len(settings.initial),
            steps=settings.steps,
            evaluations=evaluations,
            clip_norm=settings.clip_norm,
            noise_std=settings.noise_std(n),
            table_bytes=kept * n * settings.initial.element_size(),
            guarantee=self.guarantee,
        )

    def run(
        self, progress: bool = False, checkpoint: str | os.PathLike[str] | None = None
    ) -> DescentResult:
        """Take all remaining steps.

        Args:
            progress: Whether to show a progress bar. It shows public numbers only.
            checkpoint: A file to store each step in and to continue from; see
                :class:`~botorch_dp.privacy.runs.Run`. It holds sensitive losses. Given from the
                first step on; later calls of this object continue in it without being told.
        """
        steps = self._settings.steps
        with (
            self._opened(checkpoint) as run,
            ProgressBar(
                total=steps, initial=self.steps_taken, desc="DP-GIBO", disable=not progress
            ) as bar,
        ):
            while self.steps_taken < steps:
                self._step(run)
                bar.set_postfix(trace=f"{self._progress.history[-1].trace:.3g}", refresh=False)
                bar.update()
            return self.result

    def step(self) -> Release[Tensor]:
        """Take one step: charge, ask the records, descend, store.

        Returns:
            The new location, with the guarantee of the whole run.
        """
        with self._opened() as run:
            self._step(run)
            return self._released(self._progress.location.clone())

    @property
    def result(self) -> DescentResult:
        """The result of the steps taken so far."""
        done = self._progress
        if done.steps == 0:
            raise ValueError("No step was taken yet: call `run()` or `step()`.")
        trajectory = torch.stack(done.trajectory)
        second_half = trajectory[1:][done.steps // 2 :]
        location = self._released(trajectory[-1].clone())
        return DescentResult(
            location=location,
            average=replace(location, value=second_half.mean(dim=0)),
            trajectory=replace(location, value=trajectory),
            history=done.history,
            planned_steps=self._settings.steps,
            diagnostics=self._diagnostics,
        )

    def _released(self, value: Tensor) -> Release[Tensor]:
        """A function of the gradients released so far."""
        n = self._progress.num_records
        scale = self._settings.noise_std(n) if n else None
        return Release(value, self._settings.guarantee(self.steps_taken), scale=scale)

    # One step. What can fail for public reasons comes before the charge; what is stored, before
    # what is shown.

    def _step(self, run: Run) -> None:
        settings, done = self._settings, self._progress
        if done.steps >= settings.steps:
            raise ValueError(f"All {settings.steps} steps are taken: a new run needs its own mu.")
        sampled = (record.radius for record in reversed(done.history) if record.evaluations)
        prepared = GradientStep.of(
            done.observations,
            done.location,
            settings.design,
            self._noise,
            number=done.steps,
            steps=settings.steps,
            box=settings.box,
            previous=next(sampled, None),
        )

        def observe() -> Observations:
            X, n = prepared.points, done.num_records
            if len(X) == 0:
                return prepared.answered(X.new_zeros(0, n or 0))
            # The first answer settles the number of records.
            return prepared.answered(read_losses(self._record_losses, X, n))

        # One stream for each step, so that a resumed simulation continues bit for bit.
        seed = None if settings.unsafe_seed is None else (settings.unsafe_seed << 32) + done.steps
        gradient, seen, mean = prepared.release(
            run,
            observe,
            clip_norm=settings.clip_norm,
            mu=settings.step_mu,
            price=settings.step_price,
            key=f"step {done.steps}",
            label=f"DP-GIBO step {done.steps + 1} of {settings.steps}",
            unsafe_seed=seed,
        )
        evaluations, trace = len(prepared.points), float(prepared.belief.trace)
        record = StepRecord(evaluations, len(prepared.factor), prepared.radius, trace)
        with self._optimizer_step(gradient) as location:
            taken = _Progress(
                seen, (*done.trajectory, location), (*done.history, record), seen.num_records
            )
            self._store(run, taken)
            self._progress = taken
        self._diagnostics.add(mean)

    @contextmanager
    def _optimizer_step(self, gradient: Tensor) -> Iterator[Tensor]:
        """Where the optimizer goes; if it or what follows fails, it is back where it was."""
        done, box = self._progress, self._settings.box
        parameter, optimizer = self._parameter, self._optimizer
        before = copy.deepcopy(optimizer.state_dict())
        try:
            parameter.grad = gradient.to(parameter)
            optimizer.step()
            if box is not None:
                with torch.no_grad():
                    parameter.clamp_(box[0], box[1])
            yield parameter.detach().clone()
        except BaseException:
            if self._progress is done:
                self._move_to(done.location)
                optimizer.load_state_dict(before)
            raise

    def _move_to(self, location: Tensor) -> None:
        with torch.no_grad():
            self._parameter.copy_(location)

    # The run: its identity, and its file if it has one.

    @contextmanager
    def _opened(self, checkpoint: str | os.PathLike[str] | None = None) -> Iterator[Run]:
        """The run, begun if it was not yet; with its file held, and continued where the file is."""
        run = self._run
        if run is not None and checkpoint is not None and os.path.realpath(checkpoint) != run.path:
            raise PrivacyError(
                f"`checkpoint` {checkpoint} must be given from the first step on, but this run has "
                f"begun {'in memory' if run.path is None else 'in ' + run.path}. To continue a "
                "stored run, give its file to a new DPGIBO."
            )
        if run is not None and (run.path is None or self._is_held):
            yield run
            return
        opened = Run(
            checkpoint if run is None else run.path,
            what="DP-GIBO",
            settings=self._stored_settings,
            ledger=self._ledger,
            label=self._label,
        )
        if opened.path is None:
            self._run = opened
            yield opened
            return
        with opened:
            if run is not None and run.identity != opened.identity:
                raise PrivacyError(
                    f"`checkpoint` {run.path} belongs to another run now: make a new DPGIBO."
                )
            self._load(opened)
            self._run, self._is_held = opened, True
            try:
                yield opened
            finally:
                self._is_held = False

    def _store(self, run: Run, taken: _Progress) -> None:
        """Store a step in the run's file, if it has one."""
        if run.path is None:
            return
        observations, step = taken.observations, taken.steps - 1
        with run.transaction():
            if step in observations.steps:
                run.add("losses", step, observations.losses[-1])
            run.keep_only("losses", observations.steps)
            run.put(
                blocks=list(observations.steps),
                points=observations.factor.points,
                root=observations.factor.root,
                trajectory=torch.stack(taken.trajectory),
                history=[asdict(record) for record in taken.history],
                num_records=taken.num_records,
                optimizer=self._optimizer.state_dict(),
            )

    def _load(self, run: Run) -> None:
        """Continue where the file is; a file without a step leaves everything as it is."""
        n, known = run.get("num_records"), self._progress.num_records
        if n is None:
            return
        if known not in (None, n):
            raise PrivacyError(
                f"`checkpoint` {run.path} is of {n} records, but `record_losses` is of {known}."
            )
        like, derivatives = self._settings.initial, self._progress.observations.factor.derivatives
        factor = KernelFactor(derivatives, run.get("points").to(like), run.get("root").to(like))
        steps, losses = tuple(run.get("blocks")), run.items("losses")
        observations = Observations(factor, tuple(losses[step].to(like) for step in steps), steps)
        self._progress = _Progress(
            observations,
            tuple(run.get("trajectory").to(like)),
            tuple(StepRecord(**record) for record in run.get("history")),
            n,
        )
        self._move_to(self._progress.location)
        self._optimizer.load_state_dict(run.get("optimizer"))
