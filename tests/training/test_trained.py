from __future__ import annotations

import math

from botorch_dp.training import DPTrainer, cross_entropy_loss
from tests.training.helpers import FLOAT_DATA, NETWORK, SETTINGS, trainer, weights


def test_unusable_records_are_counted_for_the_owner_only() -> None:
    X = FLOAT_DATA.train_X.clone()
    X[:2, 0] = math.nan
    each = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA._replace(train_X=X))
    fitted = each.fit(**{**SETTINGS, "lot_size": 60}, seed=0)
    assert fitted.diagnostics.unusable_records == 2
    assert fitted.diagnostics.dropped_gradients == 6
    assert repr(fitted.diagnostics) == "TrainingDiagnostics(not private)"
    assert weights(fitted.model).isfinite().all()


def test_nothing_private_is_shown() -> None:
    fitted = trainer().fit(**SETTINGS, seed=0)
    assert "accuracy" not in repr(fitted)
    assert str(fitted.accuracy) not in repr(fitted)
