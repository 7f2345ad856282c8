"""Private gradient-informed optimization of many parameters.

How to choose the settings, all of which are public (measured in ``benchmarks/dp_gibo_*.py``):

- *Coordinates.* The unit cube, with the logarithm of whatever is a scale. A Matern-5/2 kernel with
  a length-scale of 0.2 to 0.5 of the cube.
- *Clip norm B.* The noise is proportional to it. The median gradient length on public records of
  the same kind (:func:`public_clip_norm`) suits bounded and convex losses; heavy tails want
  several times that, since clipping moves the minimum.
- *Steps T.* The noise of a step grows as ``sqrt(T)``: 15 to 30 steps of AdaGrad with ``lr`` 0.1 to
  0.2 are usually better than many small ones. :meth:`DPGIBO.plan` shows noise against clip norm.
- *Batch size b* of the :class:`Design`. A full stencil, ``d + 1``. More points or mirrored pairs
  give better gradients of single records, but no less privacy noise.
- *Radius* of the design. None (the smallest trace) for smooth losses. ``(1.5, 0.15)`` length-scales
  costs little there, steps over ripples and finds its way off plateaus.
- *Start.* :func:`private_start` helps only where a few random points can be expected to leave a
  plateau: few parameters and a start that is known to be bad.
- *What to publish.* The average of the iterates once the run has converged, else the last one.
  Both are covered by the one guarantee.
"""

from botorch_dp.descent.designs import Design
from botorch_dp.descent.dp_gibo import DPGIBO
from botorch_dp.descent.settings import DescentPlan, DescentResult
from botorch_dp.descent.start import private_start, public_clip_norm

__all__ = ["DPGIBO", "DescentPlan", "DescentResult", "Design", "private_start", "public_clip_norm"]
