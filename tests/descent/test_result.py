"""Results: one guarantee for all that may be published, and nothing private in what is shown."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from botorch_dp.descent import DescentDiagnostics, DescentResult, StepRecord
from botorch_dp.descent.clipping import ClippedMean
from botorch_dp.descent.plan import descent_guarantee
from botorch_dp.privacy import PrivacyUnit, Release
from tests.descent.problems import descent, records, squared_distance


def test_diagnostics_know_what_was_dropped_and_do_not_show_it() -> None:
    def losses(X: Tensor) -> Tensor:
        values = squared_distance(records())(X)
        values[:, :7] = math.nan
        return values

    result = descent(losses, steps=2).run()
    assert result.diagnostics.not_finite == [7, 7]
    assert all(0 <= part <= 1 for part in result.diagnostics.clipped_fraction)
    assert "7" not in repr(result.diagnostics)
    assert "sensitive" in repr(result.diagnostics)


def test_a_result_can_be_read_at_a_glance() -> None:
    shown = repr(descent(steps=2, mu=0.5).run())
    assert "2 steps in 3 parameters" in shown
    assert "0.5-Gaussian differentially private" in shown


def test_diagnostics_by_hand() -> None:
    """Of four gradients one is too long, one no number: they are counted, per step."""
    diagnostics = DescentDiagnostics()
    gradients = torch.tensor([[0.5, 3.0, math.nan, 0.0], [0.0, 4.0, 1.0, 1.0]]).double()
    for columns in (gradients, gradients[:, [0, 3]]):
        mean = ClippedMean(2, columns.shape[1], 2.0)
        mean.add(columns)
        diagnostics.add(mean)
    assert diagnostics.clipped_fraction == [1 / 4, 0.0]
    assert diagnostics.not_finite == [1, 0]
    assert repr(diagnostics) == "DescentDiagnostics(2 steps; sensitive, not shown)"
    assert DescentDiagnostics().not_finite == []  # no list is shared between runs


def finished(steps: int, location: float) -> DescentResult:
    guarantee = descent_guarantee(0.5, steps=steps, taken=steps, unit=PrivacyUnit("one patient"))
    trajectory = torch.full((steps + 1, 2), location)
    return DescentResult(
        location=Release(trajectory[-1], guarantee),
        average=Release(trajectory[-1], guarantee),
        trajectory=Release(trajectory, guarantee),
        history=(StepRecord(3, 3, 0.1, 0.02),) * steps,
        diagnostics=DescentDiagnostics(clipped_fraction=[0.123] * steps),
    )


def test_all_releases_cost_one_guarantee() -> None:
    result = finished(4, 0.25)
    assert result.guarantee is result.location.guarantee
    assert result.guarantee.mu == 0.5


def test_a_result_shows_neither_iterates_nor_diagnostics() -> None:
    shown = repr(finished(4, 0.8125))
    assert shown.startswith("DescentResult(4 steps in 2 parameters; ")
    assert "one patient" in shown
    assert "0.8125" not in shown and "0.123" not in shown


def test_what_is_published_cannot_be_changed_afterwards() -> None:
    result = finished(1, 0.25)
    for record, name in ((result, "location"), (result.history[0], "trace")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)
