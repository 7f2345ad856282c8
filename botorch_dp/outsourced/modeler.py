r"""The modeler: GP-UCB on the released rows, asking the curator for one or several at a time.

Everything here is computed from the released rows and the answers, so it is post-processing:
unlike in the other subpackages, hyper-parameters may be learned from the data.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp._checks import (
    check_count,
    check_finite,
    check_integer,
    check_nonnegative,
    check_path,
    check_positive,
    check_tensor,
)
from botorch_dp._progress import ProgressBar
from botorch_dp.acquisition import UCBSchedule
from botorch_dp.models import FiniteSetGP
from botorch_dp.privacy import Release
from botorch_dp.privacy.runs import Run, fingerprint

#: Fewer answers than this say too little about a length-scale.
_FEWEST_TO_LEARN_FROM = 4
#: How many answers lie between two fits of kernel, noise, mean and scale.
_REFIT_EVERY = 5


@dataclass(frozen=True)
class Answer:
    """One answered question."""

    index: int
    y: float


class Modeler:
    r"""GP-UCB over the rows of a released data set [Kharkovskii2020].

    At step ``t`` it asks for the row that maximizes ``mean + sqrt(beta_t) std`` with
    ``beta_t = 2 log(n t^2 pi^2 / (6 delta))``. Of several rows that are to be measured at once,
    each further one is chosen as if those before it had been answered with their posterior means,
    which leaves the mean as it is and lowers the variance [Desautels2014].

    Args:
        Z: ``n x r`` released rows, as a tensor or as the release that holds it.
        kernel: Covariance over the released rows, in units in which the prior variance is right.
            By default an ARD RBF is learned from the answers and learned again as they come.
        noise_std: Standard deviation of the answers' noise; needed with ``kernel``, learned
            without.
        delta: Failure probability of the confidence bounds.
        mean: Prior mean of the answers (with ``kernel``).

    Example:
        >>> modeler = Modeler(curator.dataset, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
        >>> index = modeler.ask()
        >>> modeler.tell(index, curator.query(index))
        >>> history = modeler.run(curator.query, steps=50, checkpoint="search.run")
    """

    def __init__(
        self,
        Z: Tensor | Release[Tensor],
        *,
        kernel: Kernel | None = None,
        noise_std: float | None = None,
        delta: float,
        mean: float = 0.0,
    ) -> None:
        Z = Z.value if isinstance(Z, Release) else Z
        self.Z = check_tensor("Z", Z, shape=("n", "d"))
        self.schedule = UCBSchedule(len(Z), delta=delta, split=6)
        self.learns = kernel is None
        if kernel is None and noise_std is not None:
            raise ValueError("`noise_std` goes with `kernel`; without one, both are learned.")
        if kernel is not None and noise_std is None:
            raise ValueError("`kernel` needs the `noise_std` of the answers.")
        self._mean = check_finite("mean", mean)
        self._scale = 1.0
        self._fitted = False
        self.history: list[Answer] = []
        self._open: dict[int, str] = {}  # rows asked for, and the ids of the questions
        #: What the model is given: with a learned kernel, the rows within the unit cube.
        self._rows = self.Z
        if kernel is None:
            low, high = Z.min(dim=0).values, Z.max(dim=0).values
            self._rows = (Z - low) / torch.where(high > low, high - low, torch.ones_like(low))
            # Until answers say more, a quarter of the cube's diagonal in each direction.
            with Z.device:
                kernel, noise_std = RBFKernel(), 0.1
                kernel.lengthscale = 0.25 * math.sqrt(Z.shape[1])
        else:
            check_positive("noise_std", noise_std)
        assert noise_std is not None
        self._gp = FiniteSetGP(self._rows, kernel=kernel, noise_std=noise_std)
        self._run: Run | None = None
        self._entries = 0

    @property
    def mean(self) -> Tensor:
        """Posterior mean of the answer at each row; ``n``."""
        return self._mean + self._scale * self._gp.mean

    @property
    def variance(self) -> Tensor:
        """Posterior variance at each row, without the answers' noise; ``n``."""
        return self._scale**2 * self._gp.variance

    @property
    def best(self) -> Answer:
        """The answered question with the largest answer."""
        if not self.history:
            raise ValueError("Nothing was answered yet.")
        return max(self.history, key=lambda answer: answer.y)

    def ask(self) -> int:
        """The row to measure next; the same until an answer is told."""
        return self.ask_batch(1)[0]

    def ask_batch(self, q: int) -> list[int]:
        """Different rows to measure at once; while questions are open, those and no others.

        Args:
            q: How many, at most ``n``.
        """
        check_integer("q", q, at_most=len(self.Z))
        if not self._open:
            gp = copy.deepcopy(self._gp) if q > 1 else self._gp
            for number in range(q):
                beta = self.schedule(len(self.history) + number + 1)
                bound = gp.upper_confidence_bound(beta)
                bound[list(self._open)] = -math.inf
                index = int(bound.argmax())
                request = uuid.uuid4().hex
                self._keep({"index": index, "request_id": request})
                self._open[index] = request
                if number + 1 < q:
                    gp.observe(index, float(gp.mean[index]))
        return list(self._open)[:q]

    def tell(self, index: int, y: float) -> None:
        """Learn an answer, to an open question or to any other.

        An answer that was not asked for may change what is best to ask: open questions are
        forgotten.

        Args:
            index: Row of ``Z``.
            y: The measured value.
        """
        check_integer("index", index, at_least=0, at_most=len(self.Z) - 1)
        y = check_finite("y", y)
        self._keep({"index": index, "y": y})
        self._close(index)
        self._learn(index, y)

    def _close(self, index: int) -> None:
        if self._open.pop(index, None) is None:
            self._open.clear()

    def resume(self, checkpoint: str | os.PathLike[str]) -> None:
        """Learn what a file holds, open questions included, and store what follows in it.

        :meth:`run` does so with its ``checkpoint``; call it yourself before :meth:`ask` and
        :meth:`tell`. The file is created if there is none, belongs to one data set, and is held
        until :meth:`close`.
        """
        path = os.path.realpath(check_path("checkpoint", checkpoint))
        if self._run is not None and self._run.path == path:
            return
        if self._run is not None or self.history or self._open:
            raise ValueError(
                f"`checkpoint` {os.path.basename(path)!r} must be given before the first question "
                "is asked."
            )
        settings = {"rows": list(self.Z.shape), "fingerprint of the rows": fingerprint(self.Z)}
        run = Run(path, what="an outsourced search", settings=settings)
        for entry in run.items("entry").values():
            if "y" in entry:
                self._close(entry["index"])
                self._learn(entry["index"], entry["y"])
            else:
                self._open[entry["index"]] = entry["request_id"]
            self._entries += 1
        self._run = run

    def close(self) -> None:
        """Let go of the checkpoint; nothing can be asked or told afterwards."""
        if self._run is not None:
            self._run.close()

    def _keep(self, entry: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.add("entry", self._entries, entry)
            self._entries += 1

    def run(
        self,
        query: Callable[..., float],
        steps: int,
        *,
        q: int = 1,
        executor: Executor | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> list[Answer]:
        """Ask and learn until ``steps`` questions are answered, earlier ones included.

        Args:
            query: Row index to value: ``curator.query``, a client's ``query``, or any function.
                If it takes ``request_id``, a question that was interrupted is repeated with the
                same id, so that the curator neither counts nor charges it twice.
            steps: Answers in the history when done.
            q: How many rows are asked for at once.
            executor: Where the questions of a batch are asked at the same time, such as a pool of
                threads; one after the other if None.
            checkpoint: File that keeps questions and answers: a modeler that is started again on
                the same rows goes on where the file ends. See :meth:`resume`.
            progress: Whether to show a progress bar.

        Returns:
            The history. What was answered before an error stays in :attr:`history`.
        """
        check_count("steps", steps)
        if checkpoint is not None:
            self.resume(checkpoint)
        named = "request_id" in inspect.signature(query).parameters
        check_integer("q", q, at_most=len(self.Z))
        bar = ProgressBar(
            desc="Outsourced search",
            unit="query",
            initial=len(self.history),
            total=steps,
            disable=not progress,
        )
        with bar:
            while (left := steps - len(self.history)) > 0:
                indices = self.ask_batch(min(q, left))
                calls = [
                    partial(query, index, **({"request_id": self._open[index]} if named else {}))
                    for index in indices
                ]
                pending: list[Callable[[], float]] = list(calls)
                if executor is not None:
                    pending = [executor.submit(call).result for call in calls]
                for index, answer in zip(indices, pending, strict=True):
                    self.tell(index, answer())
                    bar.update()
        return list(self.history)

    def _learn(self, index: int, y: float) -> None:
        self.history.append(Answer(index, y))
        enough = len(self.history) >= _FEWEST_TO_LEARN_FROM
        differ = len({answer.y for answer in self.history}) > 1
        if self.learns and enough and differ and len(self.history) % _REFIT_EVERY == 0:
            self._refit()
        elif self.learns and not self._fitted:
            # Until the scale of the answers is known, only where was looked counts.
            self._gp.observe(index, 0.0)
        else:
            self._gp.observe(index, (y - self._mean) / self._scale)

    def _refit(self) -> None:
        """Fit kernel, noise, mean and scale to the answers, and condition on them again."""
        indices = [answer.index for answer in self.history]
        X = self._rows[indices].double()
        Y = torch.tensor([[answer.y] for answer in self.history], dtype=X.dtype, device=X.device)
        spread = float(Y.std())
        standardized = (Y - Y.mean()) / spread
        with X.device:  # what BoTorch and GPyTorch make would be on the default device
            model = SingleTaskGP(X, standardized, outcome_transform=None)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        constant = float(model.mean_module.constant.detach())
        self._mean = float(Y.mean()) + spread * constant
        self._scale = spread
        self._fitted = True
        noise = float(model.likelihood.noise.detach()) ** 0.5
        self._gp = FiniteSetGP(self._rows, kernel=model.covar_module, noise_std=noise)
        for answer in self.history:
            self._gp.observe(answer.index, (answer.y - self._mean) / self._scale)


class InputNoiseRBF(Kernel):
    r"""RBF kernel averaged over the noise of the rows it compares.

    Released rows differ by their true difference plus Gaussian noise of variance ``2 s^2`` in
    each of ``d`` coordinates. Averaging an RBF of length-scale ``l`` over that noise gives

    ``k(z, z') = (l^2 / (l^2 + 2 s^2))^{d/2} exp(-|z - z'|^2 / (2 (l^2 + 2 s^2)))``,

    a longer length-scale, for two different rows; a row compared with itself is the same row, so
    ``k(z, z) = 1``. So what the noise hides becomes a variance of each row's own: if the noise is
    far above the length-scale, rows teach nothing about each other, as it should be.

    Args:
        lengthscale: Length-scale ``l`` in the units of the released rows.
        noise_std: Public standard deviation ``s`` of the noise on each coordinate.

    Example:
        >>> kernel = InputNoiseRBF(lengthscale=2.0, noise_std=0.5)
        >>> kernel(torch.zeros(1, 3), torch.ones(1, 3)).to_dense().item() < 1
        True
    """

    has_lengthscale = False

    def __init__(self, *, lengthscale: float, noise_std: float) -> None:
        super().__init__()
        check_positive("lengthscale", lengthscale)
        check_nonnegative("noise_std", noise_std)
        widened = lengthscale**2 + 2 * noise_std**2
        self._smooth = RBFKernel()
        shrinkage = self._smooth.lengthscale.detach().new_tensor(lengthscale**2 / widened)
        self.register_buffer("_shrinkage", shrinkage)
        self._smooth.lengthscale = math.sqrt(widened)
        self._smooth.requires_grad_(False)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Covariance of ``... x n x d`` with ``... x m x d`` rows: ``... x n x m`` (or ``n``)."""
        if diag:
            same = (x1 == x2).all(dim=-1)
            smooth = self._smooth(x1, x2, diag=True)
        else:
            same = (x1.unsqueeze(-2) == x2.unsqueeze(-3)).all(dim=-1)
            smooth = self._smooth(x1, x2).to_dense()
            # Squares of distances that overflow: such rows teach nothing about each other.
            unknown = x1.isnan().any(-1).unsqueeze(-1) | x2.isnan().any(-1).unsqueeze(-2)
            smooth = smooth.masked_fill(smooth.isnan() & ~unknown, 0.0)
        weight = self._shrinkage.to(x1) ** (x1.shape[-1] / 2)
        return torch.where(same, torch.ones_like(smooth), weight * smooth)
