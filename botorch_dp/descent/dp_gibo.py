r"""DP-GIBO: private descent along gradients that are inferred from values.

At the present location, DP-GIBO [Sopa2025] asks for the losses of all records at a few points
around it, infers each record's gradient by a Gaussian process given all losses seen so far
[Mueller2021], clips it to norm ``B``, and takes a descent step along the noisy mean.

References:
    [Sopa2025] G. Sopa, J. Marusic, M. Avella-Medina, J. P. Cunningham. Scalable differentially
        private Bayesian optimization. arXiv:2502.06044, 2025.
    [Mueller2021] S. Müller, A. von Rohr, S. Trimpe. Local policy search with Bayesian
        optimization. NeurIPS 2021.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm.auto import tqdm

from botorch_dp._checks import check_positive
from botorch_dp.descent.checkpoint import Checkpoint, check_same_run
from botorch_dp.descent.clipping import ClippedMean
from botorch_dp.descent.designs import DesignName, Proposal, observation_noise
from botorch_dp.descent.losses import Observations, read_losses
from botorch_dp.descent.plan import DescentPlan, step_privacy
from botorch_dp.descent.result import DescentDiagnostics, DescentResult, StepRecord
from botorch_dp.descent.settings import (
    DescentSettings,
    PriorMean,
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

_DEFAULT_MAX_POINTS = 2000


class DPGIBO:
    r"""Minimize the mean loss over records, without gradients and under differential privacy.

    With ``D`` all points so far, ``L`` the losses there (one column for each record),
    ``a = K^{-1} 1`` and ``W = K^{-1} dk(D, x)``, one step is

    ``G = (W - a (1^T W) / (1^T a))^T L``,
    ``g = (1/n) sum_i clip_B(G_i) + N(0, (2 B sqrt(T) / (n mu))^2 I)``,
    ``x <- project(optimizer(x, g))``.

    The correction makes the weights sum to zero, as for a prior with an unknown constant mean;
    ``mean="zero"`` is the paper's plain ``W``.

    Guarantee: ``mu``-Gaussian differential privacy over all ``T`` steps, under replace-one, with
    no assumption on the losses. Points, weights and step sizes are functions of the settings and
    of released gradients. A record enters through its own column of ``L``, that is through one
    vector of norm at most ``B``, so replacing it moves the mean by at most ``2B/n``, which is
    ``mu / sqrt(T)`` standard deviations of the noise; ``T`` such steps compose to ``mu``, also
    adaptively. All iterates may be published. What the caller must see to: a record's losses must
    not depend on the other records, and the number of records is public.

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
            losses, some times that for heavy tails; :func:`public_clip_norm` finds it on public
            data. May be infinite only with ``mu=inf``.
        batch_size: Points for each step; the most points when ``tolerance`` is given. Defaults to
            one full stencil: ``d + 1``, or ``2 d`` for ``"central"``.
        tolerance: Take the fewest points for which the trace of the gradient's covariance is at
            most this (Algorithm 2); possibly none.
        optimizer: Makes a ``torch.optim`` optimizer of the parameter; plain descent if None.
        step_size: Of plain descent.
        bounds: A ``2 x d`` box; iterates are projected onto it and points stay inside.
        noise_variance: Variance of the noise in a single record's loss, for the model. A numerical
            noise of a few parts in 1e10 is the least, except with polynomial kernels.
        design: Where to sample, ``"simplex"``, ``"central"`` or ``"optimize"``.
        radius: Of the design in length-scales: a number, ``(first, last)`` to shrink over the run,
            or None for the smallest trace. Small radii sit in every ripple of a rough loss.
        ledger: Charged for each step before the records are asked.
        mean: Prior mean of the losses, ``"constant"`` (unknown) or ``"zero"``.
        max_points: How many points are kept; the oldest batches are dropped.
        num_records: ``n``, needed by :meth:`plan`; else taken from the first losses.
        unit: Whom or what one column is; replace-one is the only relation.
        checkpoint: A folder to save each step in and to continue from; see
            :mod:`~botorch_dp.descent.checkpoint`. It holds private losses.
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
        batch_size: int | None = None,
        tolerance: float | None = None,
        optimizer: MakeOptimizer | None = None,
        step_size: float = 0.1,
        bounds: Tensor | None = None,
        noise_variance: float = 0.0,
        design: DesignName = "simplex",
        radius: float | tuple[float, float] | None = None,
        ledger: PrivacyLedger | None = None,
        mean: PriorMean = "constant",
        max_points: int = _DEFAULT_MAX_POINTS,
        num_records: int | None = None,
        unit: PrivacyUnit = ONE_RECORD,
        checkpoint: str | os.PathLike[str] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        if not callable(record_losses):
            raise TypeError(
                f"`record_losses` must be callable, got {type(record_losses).__name__}: pass a "
                "function from points (b x d) to losses (b x n)."
            )
        self._settings = DescentSettings.checked(
            initial=initial,
            mu=mu,
            steps=steps,
            clip_norm=clip_norm,
            batch_size=batch_size,
            tolerance=tolerance,
            bounds=bounds,
            noise_variance=noise_variance,
            design=design,
            radius=radius,
            mean=mean,
            max_points=max_points,
            unsafe_seed=unsafe_seed,
            unit=unit,
        )
        if ledger is not None and math.isinf(mu):
            raise PrivacyError(
                "`ledger` cannot be charged for `mu=inf`: plain GIBO promises nothing. Leave the "
                "ledger out, or give a finite mu."
            )
        check_public_kernel(kernel)
        location = self._settings.initial
        derivatives = kernel_derivatives(kernel, like=location)
        derivatives.gradient_covariance(location)  # refuses a kernel without gradients now
        check_positive("step_size", step_size)
        self._record_losses = record_losses
        self._ledger = ledger
        self._design = self._settings.make_design()
        self._noise = observation_noise(derivatives, location, noise_variance)
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
            **self._settings.described(),
            "kernel": described_kernel(kernel),
            "optimizer": f"{self._optimizer.__class__.__name__} {self._optimizer.defaults}",
        }
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        if self._checkpoint is not None and self._checkpoint.exists:
            self._resume(self._checkpoint)

    @property
    def guarantee(self) -> Guarantee:
        """What the whole run promises."""
        return self._settings.guarantee(self._settings.steps)

    @property
    def steps_taken(self) -> int:
        """How many steps are done, those before a resumption included."""
        return len(self._history)

    def plan(self) -> DescentPlan:
        """Noise, evaluations, memory and guarantee of the run; reads no record.

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
        kept = min(evaluations, settings.max_points)
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

    def run(self, progress: bool = False) -> DescentResult:
        """Take all remaining steps.

        Args:
            progress: Whether to show a progress bar. It shows public numbers only.
        """
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
            The new location, with the guarantee of all steps taken so far.
        """
        settings, step = self._settings, self.steps_taken
        if step >= settings.steps:
            raise ValueError(f"All {settings.steps} steps are taken: a new run needs its own mu.")
        observations = self._observations.within(settings.max_points - settings.batch_size)
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
        return self.result.location

    @property
    def result(self) -> DescentResult:
        """The result of the steps taken so far."""
        taken = self.steps_taken
        if taken == 0:
            raise ValueError("No step was taken yet: call `run()` or `step()`.")
        guarantee = self._settings.guarantee(taken)
        scale = self._settings.noise_std(self._num_records) if self._num_records else None
        trajectory = torch.stack(self._trajectory)
        second_half = trajectory[1:][taken // 2 :]
        location, average = trajectory[-1].clone(), second_half.mean(dim=0)
        return DescentResult(
            location=Release(location, guarantee, scale),
            average=Release(average, guarantee, scale),
            trajectory=Release(trajectory, guarantee, scale),
            history=tuple(self._history),
            diagnostics=self._diagnostics,
        )

    def _belief(self, factor: KernelFactor) -> GradientBelief:
        return GradientBelief(
            factor, self._location.detach(), unknown_mean=self._settings.mean == "constant"
        )

    def _propose(self, belief: GradientBelief) -> Proposal:
        sampled = [record.radius for record in self._history if record.evaluations]
        return self._design.propose(
            belief,
            self._settings.batch_size,
            step=self.steps_taken,
            steps=self._settings.steps,
            previous=sampled[-1] if sampled else None,
        )

    def _charge(self) -> None:
        if self._ledger is not None:
            self._ledger.charge(
                self._settings.nominal_guarantee(taken=1),
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
            mu=step_privacy(self._settings.mu, self._settings.steps),
            # One stream for each step, so that a resumed simulation continues bit for bit.
            unsafe_seed=None if seed is None else (seed << 32) + self.steps_taken,
        ).value

    def _descend(self, gradient: Tensor) -> None:
        for group in self._optimizer.param_groups:
            if group.get("noise_std", 0.0) is None:
                group["noise_std"] = self._settings.noise_std(self._observations.num_records)
        self._location.grad = gradient.to(self._location)
        self._optimizer.step()
        bounds = self._settings.bounds
        if bounds is not None:
            with torch.no_grad():
                self._location.clamp_(bounds[0], bounds[1])

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
