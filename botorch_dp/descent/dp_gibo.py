r"""DP-GIBO: private descent along gradients that are inferred from values.

At the present location, DP-GIBO [Sopa2025] asks for the losses of all records at a few points
around it, infers each record's gradient by a Gaussian process given all losses seen so far
[Mueller2021], clips it to norm ``B``, and takes a descent step along the noisy mean.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm.auto import tqdm

from botorch_dp._checks import check_positive
from botorch_dp.descent.checkpoint import Checkpoint, check_same_run
from botorch_dp.descent.clipping import ClippedMean, Observations, read_losses
from botorch_dp.descent.designs import (
    Design,
    DesignName,
    Proposal,
    as_design,
    observation_noise,
)
from botorch_dp.descent.settings import (
    DescentDiagnostics,
    DescentPlan,
    DescentResult,
    DescentSettings,
    StepRecord,
    check_public_kernel,
    described_kernel,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.objectives import PerRecordLosses, known_num_records
from botorch_dp.privacy import (
    ONE_RECORD,
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_mechanism,
)

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class DPGIBO:
    r"""Minimize the mean loss over records, without gradients and under differential privacy.

    With ``D`` all points so far, ``L`` the losses there (one column for each record),
    ``a = K^{-1} 1`` and ``W = K^{-1} dk(D, x)``, one step is

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

    Args:
        record_losses: Points ``b x d`` to losses ``b x n``, one column for each record. A NaN or
            an infinite loss is no error: that record's gradient counts as zero.
        initial: Where to start, a ``d``-vector chosen without the records (see
            :func:`private_start`). Its dtype and device are used throughout.
        kernel: A GPyTorch kernel whose hyper-parameters were chosen without the records. A
            polynomial kernel asks for nothing more once its few functions are pinned down, so it
            suits losses that are polynomials.
        mu: The privacy parameter of the whole run; infinite for plain GIBO without noise.
        steps: ``T``. Fixed in advance, since the noise of each step depends on it.
        clip_norm: ``B``. Near the median length of the records' gradients for bounded or convex
            losses, several times that for heavy tails; :func:`public_clip_norm` finds it on public
            data. May be infinite only with ``mu=inf``.
        box: A ``2 x d`` box; iterates are projected onto it and points stay inside.
        design: Where to ask for losses: a :class:`Design`, or the name of one, ``"simplex"``,
            ``"central"`` or ``"optimize"``.
        optimizer: Makes a ``torch.optim`` optimizer of the parameter; plain descent if None.
        step_size: Of plain descent.
        num_records: ``n``, needed by :meth:`plan`; else taken from the first losses.
        unit: Whom or what one column is; replace-one is the only relation.
        ledger: Charged for each step before the records are asked.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.

    Example:
        >>> data = torch.randn(500, 2, dtype=torch.double)
        >>> descent = DPGIBO(
        ...     lambda X: (X.unsqueeze(1) - data).square().sum(-1),  # b x n
        ...     torch.full((2,), 0.5, dtype=torch.double),
        ...     kernel=RBFKernel(),
        ...     mu=1.0,
        ...     steps=20,
        ...     clip_norm=2.0,
        ...     num_records=500,
        ... )
        >>> print(descent.plan())
        >>> result = descent.run()
        >>> result.average.value, result.guarantee
    """

    def __init__(
        self,
        record_losses: PerRecordLosses,
        initial: Tensor,
        *,
        kernel: Kernel,
        mu: float,
        steps: int,
        clip_norm: float,
        box: Tensor | None = None,
        design: Design | DesignName = "simplex",
        optimizer: MakeOptimizer | None = None,
        step_size: float = 0.1,
        num_records: int | None = None,
        unit: PrivacyUnit = ONE_RECORD,
        ledger: PrivacyLedger | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        if not callable(record_losses):
            raise TypeError(
                f"`record_losses` must be callable, got {type(record_losses).__name__}: pass a "
                "function from points (b x d) to losses (b x n)."
            )
        settings = DescentSettings(
            initial, mu, steps, clip_norm, box, as_design(design), unit, unsafe_seed
        )
        if ledger is not None and math.isinf(mu):
            raise PrivacyError(
                "`ledger` cannot be charged for `mu=inf`: plain GIBO promises nothing. Leave the "
                "ledger out, or give a finite mu."
            )
        check_public_kernel(kernel)
        location = settings.initial
        derivatives = kernel_derivatives(kernel, like=location)
        derivatives.gradient_covariance(location)  # refuses a kernel without gradients now
        check_positive("step_size", step_size)
        self._settings = settings
        self._record_losses = record_losses
        self._ledger = ledger
        self._noise = observation_noise(derivatives, location, settings.design.noise_variance)
        self._location = torch.nn.Parameter(location.clone())
        self._optimizer = (
            torch.optim.SGD([self._location], lr=step_size)
            if optimizer is None
            else optimizer([self._location])
        )
        self._num_records = known_num_records(record_losses, num_records)
        self._observations = Observations(KernelFactor.empty(derivatives, len(location)))
        self._trajectory = [location]
        self._history: list[StepRecord] = []
        self._diagnostics = DescentDiagnostics()
        self._run_id = uuid.uuid4().hex
        self._identity = {
            **settings.described(),
            "kernel": described_kernel(kernel),
            "optimizer": f"{self._optimizer.__class__.__name__} {self._optimizer.defaults}",
        }
        self._checkpoint: Checkpoint | None = None

    @property
    def guarantee(self) -> Guarantee:
        """What the whole run promises, whenever it stops."""
        return self._settings.guarantee()

    @property
    def steps_taken(self) -> int:
        """How many steps are done, those before a resumption included."""
        return len(self._history)

    def plan(self) -> DescentPlan:
        """Price, noise, evaluations and memory of the run; reads no record.

        Needs ``num_records``.
        """
        n = self._num_records
        if n is None:
            raise ValueError(
                "`num_records` is needed to plan: pass it to DPGIBO. The noise is proportional to "
                "1 / n, and n is public under replace-one."
            )
        settings = self._settings
        evaluations = settings.steps * settings.batch_size
        kept = min(evaluations, settings.design.max_points)
        return DescentPlan(
            num_records=n,
            num_parameters=len(self._location),
            steps=settings.steps,
            evaluations=evaluations,
            clip_norm=settings.clip_norm,
            noise_std=settings.noise_std(n),
            table_bytes=kept * n * self._location.element_size(),
            guarantee=self.guarantee,
        )

    def run(
        self, progress: bool = False, checkpoint: str | os.PathLike[str] | None = None
    ) -> DescentResult:
        """Take all remaining steps.

        Args:
            progress: Whether to show a progress bar. It shows public numbers only.
            checkpoint: A folder to save each step in and to continue from; see
                :mod:`~botorch_dp.descent.checkpoint`. It holds sensitive losses. Given to a run
                from its first step on.
        """
        if checkpoint is not None:
            self._open(Checkpoint(checkpoint))
        with tqdm(
            total=self._settings.steps,
            initial=self.steps_taken,
            desc="DP-GIBO",
            disable=not progress,
        ) as bar:
            while self.steps_taken < self._settings.steps:
                self.step()
                bar.set_postfix(trace=f"{self._history[-1].trace:.3g}", refresh=False)
                bar.update()
        return self.result

    def step(self) -> Release[Tensor]:
        """Take one step: charge, ask the records, descend, save.

        Returns:
            The new location, with the guarantee of the whole run.
        """
        settings, step = self._settings, self.steps_taken
        if step >= settings.steps:
            raise ValueError(f"All {settings.steps} steps are taken: a new run needs its own mu.")
        observations = self._observations.within(settings.design.max_points - settings.batch_size)
        belief = self._belief(observations.factor)
        proposal = self._propose(belief)
        factor, kept = observations.factor.extended(proposal.points, self._noise)
        X = proposal.points[kept]  # a dependent point would be asked for in vain
        if self._checkpoint is not None and step == 0:
            # The key of the first charge must outlive a crash, or a retry would be charged again.
            self._checkpoint.save(self._state())
        self._charge()
        losses = self._ask(X)
        observations = observations.with_batch(factor, losses, step)
        if len(X):
            belief = belief.extended(factor)
        gradient = self._private_gradient(observations, belief.weights)
        # An interruption so far leaves nothing but a charge, which a retry does not repeat.
        self._observations = observations
        self._descend(gradient)
        self._trajectory.append(self._location.detach().clone())
        self._history.append(StepRecord(len(X), len(factor), proposal.radius, float(belief.trace)))
        if self._checkpoint is not None:
            self._checkpoint.save(self._state(), (step, losses) if len(X) else None)
        return self._released(self._trajectory[-1].clone())

    @property
    def result(self) -> DescentResult:
        """The result of the steps taken so far."""
        taken = self.steps_taken
        if taken == 0:
            raise ValueError("No step was taken yet: call `run()` or `step()`.")
        trajectory = torch.stack(self._trajectory)
        second_half = trajectory[1:][taken // 2 :]
        location = self._released(trajectory[-1].clone())
        return DescentResult(
            location=location,
            average=replace(location, value=second_half.mean(dim=0)),
            trajectory=replace(location, value=trajectory),
            history=tuple(self._history),
            planned_steps=self._settings.steps,
            diagnostics=self._diagnostics,
        )

    def _released(self, value: Tensor) -> Release[Tensor]:
        """A function of the gradients released so far."""
        scale = self._settings.noise_std(self._num_records) if self._num_records else None
        return Release(value, self._settings.guarantee(self.steps_taken), scale)

    def _belief(self, factor: KernelFactor) -> GradientBelief:
        unknown_mean = self._settings.design.has_unknown_mean
        return GradientBelief(factor, self._location.detach(), unknown_mean=unknown_mean)

    def _propose(self, belief: GradientBelief) -> Proposal:
        sampled = (record.radius for record in reversed(self._history) if record.evaluations)
        return self._settings.design.propose(
            belief,
            box=self._settings.box,
            step=self.steps_taken,
            steps=self._settings.steps,
            previous=next(sampled, None),
        )

    def _charge(self) -> None:
        if self._ledger is not None:
            self._ledger.charge(
                self._settings.step_price,
                label=f"DP-GIBO step {self.steps_taken + 1} of {self._settings.steps}",
                key=f"dp-gibo/{self._run_id}/{self.steps_taken}",
            )

    def _ask(self, X: Tensor) -> Tensor:
        """The losses of all records at ``X``; the first answer settles their number."""
        if len(X) == 0:
            return X.new_zeros(0, self._num_records or 0)
        losses = read_losses(self._record_losses, X, self._num_records)
        self._num_records = losses.shape[-1]
        return losses

    def _private_gradient(self, observations: Observations, weights: Tensor) -> Tensor:
        """The noisy mean of the clipped gradients, ``d``."""
        n = observations.num_records
        mean = ClippedMean(len(self._location), n, self._settings.clip_norm)
        for gradients in observations.gradients(weights):
            mean.add(gradients)
        self._diagnostics.add(mean)
        if math.isinf(self._settings.mu):
            return mean.value()
        seed = self._settings.unsafe_seed
        return gaussian_mechanism(
            mean.value(),
            sensitivity=2 * self._settings.clip_norm / n,
            mu=self._settings.step_mu,
            # One stream for each step, so that a resumed simulation continues bit for bit.
            unsafe_seed=None if seed is None else (seed << 32) + self.steps_taken,
        ).value

    def _descend(self, gradient: Tensor) -> None:
        for group in self._optimizer.param_groups:
            if group.get("noise_std", 0.0) is None:
                group["noise_std"] = self._settings.noise_std(self._observations.num_records)
        self._location.grad = gradient.to(self._location)
        self._optimizer.step()
        box = self._settings.box
        if box is not None:
            with torch.no_grad():
                self._location.clamp_(box[0], box[1])

    def _state(self) -> dict[str, Any]:
        return {
            "settings": self._identity,
            "run_id": self._run_id,
            "num_records": self._num_records,
            "blocks": self._observations.steps,
            "points": self._observations.factor.points,
            "root": self._observations.factor.root,
            "trajectory": torch.stack(self._trajectory),
            "history": [asdict(record) for record in self._history],
            "optimizer": self._optimizer.state_dict(),
        }

    def _open(self, checkpoint: Checkpoint) -> None:
        """Save this run in the folder from now on; first continue the one that it holds."""
        if self._checkpoint is not None and self._checkpoint.folder.samefile(checkpoint.folder):
            return
        if self._checkpoint is not None or self._history:
            raise ValueError(
                f"`checkpoint` {checkpoint.folder} must be given from the first step on, but this "
                f"run has taken {self.steps_taken} steps without it. To continue a saved run, give "
                "its folder to a new DPGIBO."
            )
        if checkpoint.exists:
            self._resume(checkpoint)
        self._checkpoint = checkpoint

    def _resume(self, checkpoint: Checkpoint) -> None:
        state, blocks = checkpoint.load(self._location.device)
        check_same_run(state, self._identity, self._num_records, checkpoint.folder)
        self._run_id = state["run_id"]
        self._num_records = state["num_records"] or self._num_records
        derivatives = self._observations.factor.derivatives
        factor = KernelFactor(derivatives, state["points"], state["root"])
        self._observations = Observations(factor, tuple(blocks), tuple(state["blocks"]))
        self._trajectory = list(state["trajectory"])
        self._history = [StepRecord(**record) for record in state["history"]]
        with torch.no_grad():
            self._location.copy_(self._trajectory[-1])
        self._optimizer.load_state_dict(state["optimizer"])
