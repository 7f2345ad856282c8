"""Private gradient-informed optimization of many parameters."""

from botorch_dp.descent.dp_gibo import DPGIBO
from botorch_dp.descent.optimizers import NoiseAwareAdagrad
from botorch_dp.descent.plan import DescentPlan, gradient_noise_std
from botorch_dp.descent.result import DescentDiagnostics, DescentResult, StepRecord
from botorch_dp.descent.start import private_start, public_clip_norm

__all__ = [
    "DPGIBO",
    "DescentDiagnostics",
    "DescentPlan",
    "DescentResult",
    "NoiseAwareAdagrad",
    "StepRecord",
    "gradient_noise_std",
    "private_start",
    "public_clip_norm",
]
