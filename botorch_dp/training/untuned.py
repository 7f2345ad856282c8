r"""Default settings of a training, from public numbers: no record is read.

The rule takes the number of records and of weights, the depth of the model and the norm of a
record's features, and gives what :class:`~.trainer.DPTrainer` needs. It rests on steps whose length
is set by the whole training (:class:`.step_rules.ScaleFree`), which leave one number to choose in
place of a learning rate: the distance ``D`` that the weights may go. Why each setting is what it
is:

*Clipping.* A score of a linear model is a row of weights times ``(x, 1)``, which is
``R' = sqrt(R^2 + 1)`` long for features of norm ``R``, and a record's gradient is ``R'`` times its
error. It is clipped at a quarter of ``R'``: records that are clearly wrong count alike, and those
that are nearly right count by their error, so that classes and margins settle at scores of a few
units. Normalized gradients lose that, and were worse by up to 0.03 where the classes are many. In a
regression clipping pulls predictions from the mean to the median, and is worth that only while
there is noise to save: its clipping norm rises, up to ``R'``, until the noise of all steps together
(see below) is a hundredth of ``R'``.

*Distance.* With ``T`` steps of root mean square length ``D / sqrt(T)``, noise moves the weights by
about ``D`` altogether, in all directions alike, and a steady gradient as long as the noise moves
them by ``D sqrt(T)``. Each of ``p`` weights gets noise of ``D / sqrt(p)``, so that a unit whose
input is ``R'`` long gets noise of ``D R' / sqrt(p)``. Less than that leaves scores, or the units of
a network, about where they began; much more dominates the hidden units, and a training does not
converge. Scores shall get two units of noise, targets of about unit size half a unit, and the
``L`` layers of a network share it in squares: ``D = 2 sqrt(p / L) / R'`` and a quarter of that.
Distances without ``p`` were tried before: they lost 0.05 on wide networks where epsilon is small.

*Epsilon and the dimension.* The noise of all steps together is ``S sqrt(p) / (n mu)`` times as
long as the longest gradient, for ``p`` parameters and the ``mu`` of (epsilon, delta); ``S`` is 2 if
a record is replaced and 1 if it is added or removed. Neither the steps nor the batches change this
number. In the noisy case ``D`` scales noise and signal alike, so it does not depend on epsilon.
Where the number is above 1, little can be learnt, and a warning says what it would take.

*Batches and epochs.* Batches of a twelfth of the records have as much noise altogether as whole
ones and take much less time. 24 passes are 288 steps; 6 to 48 passes differed by 0.01 at most
where epsilon is small, and fewer than 24 lose up to 0.03 where it is large.

The constants were measured on fourteen tasks and three more regressions;
``benchmarks/nothing_to_tune.py`` compares the result with tuning on the fourteen and on six others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch_dp._checks import (
    check_count,
    check_delta,
    check_integer,
    check_positive,
)
from botorch_dp.privacy import NeighboringRelation, gaussian_epsilon, gaussian_mu
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.training.plan import (
    DELTA,
    LARGEST_PUBLISHED_BATCH,
    REPLACE_ONE,
    TrainingSettings,
)

#: The noise that a score gets in the whole training, and that a prediction of a regression gets.
_SCORES, _TARGETS = 2.0, 0.5
#: Batches that make a pass, passes, and clipping norms in the norm of a record.
_PARTS, _EPOCHS, _CLIP = 12, 24, 0.25
#: The noise up to which a regression is clipped less, in the norm of a record.
_SPARED = 0.01
_ANY_NORM = (
    "`feature_norm` was not given. The records are taken to have a root mean square norm of {norm} "
    "(features of about unit size). If theirs is far from that, pass feature_norm=: 'private' for "
    "tables, or what the bounds of your preprocessing give (pixels between 0 and 1: a third of the "
    "root of their number; token ids need none); or divide each record by its own norm and pass 1. "
    "It is not read from the records without noise."
)


@dataclass(frozen=True, kw_only=True)
class SuggestedSettings:
    """Settings of a training that follow from public numbers; ``print`` says why.

    Args:
        learning_rate: The distance of ``optimizer="scale_free"``.
        clip_norm: See :class:`~botorch_dp.training.TrainingSettings`.
        batch_size: Expected records in a step.
        epochs: Passes over the records.
        reasons: Why each setting has its value, one sentence each.
        outlook: How much noise there is; empty without an epsilon.
        warnings: What was assumed, and whether anything can be learned.
    """

    learning_rate: float
    clip_norm: float
    batch_size: int
    epochs: int
    reasons: tuple[str, ...]
    outlook: str
    warnings: tuple[str, ...]

    @property
    def settings(self) -> TrainingSettings:
        """What ``fit`` and ``plan`` of a trainer with the scale-free rule take."""
        return {
            "learning_rate": self.learning_rate,
            "clip_norm": self.clip_norm,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
        }

    def __str__(self) -> str:
        lines = (*self.reasons, self.outlook, *(f"Warning: {each}" for each in self.warnings))
        return "\n".join(line for line in lines if line)


def suggest_settings(
    *,
    num_records: int,
    num_features: int,
    epsilon: float | None = None,
    delta: float = DELTA,
    num_outputs: int = 1,
    num_parameters: int | None = None,
    layers: int = 1,
    feature_norm: float | None = None,
    regression: bool = False,
    relation: NeighboringRelation = REPLACE_ONE,
) -> SuggestedSettings:
    """The default settings of one training, from public numbers alone.

    ``DPTrainer.fit(target_epsilon=...)`` uses them wherever a setting is left out. They are for
    models that are trained from scratch, for linear models on fixed features, and for networks some
    of whose layers come from public records.

    Args:
        num_records: Training records.
        num_features: Numbers in a record.
        epsilon: Of the training. Without it, the noise-to-signal ratio is unknown, and regressions
            are clipped as if the noise were large.
        delta: See ``epsilon``.
        num_outputs: Logits of a record: 1, or the number of classes.
        num_parameters: Trained parameters; those of a linear model if None.
        layers: Layers with weight matrices.
        feature_norm: Root mean square norm of a record's features. It must be public: what the
            bounds of the preprocessing give, 1 where each record is divided by its own norm, or a
            value that was released with noise. If None, ``sqrt(num_features)`` is assumed, and a
            warning says so.
        regression: Whether targets are numbers of about unit size and not classes.
        relation: Which two data sets must be hard to tell apart.

    Example:
        >>> suggested = suggest_settings(
        ...     num_records=24_000, num_features=123, epsilon=1.0, feature_norm=3.7
        ... )
        >>> suggested.batch_size, suggested.epochs, round(suggested.learning_rate, 1)
        (2000, 24, 5.8)
    """
    n = check_integer("num_records", num_records)
    d = check_count("num_features", num_features)
    k = check_count("num_outputs", num_outputs)
    depth = check_count("layers", layers)
    p = k * (d + 1) if num_parameters is None else check_count("num_parameters", num_parameters)
    delta = check_delta("delta", delta)
    warnings = []
    if feature_norm is None:
        feature_norm = math.sqrt(d)
        warnings.append(_ANY_NORM.format(norm=f"{feature_norm:.3g}"))
    else:
        feature_norm = check_positive("feature_norm", feature_norm)
    length = math.hypot(feature_norm, 1.0)
    distance = (_TARGETS if regression else _SCORES) * math.sqrt(p / depth) / length
    batch = max(1, min(round(n / _PARTS), LARGEST_PUBLISHED_BATCH))
    ratio = None
    if epsilon is not None:
        epsilon = check_positive("epsilon", epsilon)
        mu = gaussian_mu(epsilon, delta)
        ratio = relation.sum_sensitivity * math.sqrt(p) / (n * mu)
    share = _CLIP
    if regression and ratio is not None:
        share = min(1.0, max(_CLIP, _SPARED / ratio))
    clip_norm = share * length
    moved = "predictions by about 0.5" if regression else "the logits by about 2"
    part = {_CLIP: "a quarter of ", 1.0: ""}.get(share, f"{share:.2g} of ")
    reasons = (
        f"Step scale {distance:.3g} (used instead of a learning rate): chosen so that noise alone "
        f"shifts {moved}, for records of norm {feature_norm:.3g}.",
        f"Batch size {batch:,} (n/{_PARTS}): larger batches are slower and barely reduce the "
        "noise.",
        f"{_EPOCHS} epochs: more change little.",
        f"Clipping norm {clip_norm:.3g}, {part}a record's norm (with the intercept)"
        + (
            ", as large as noise allows: clipping pulls predictions from the mean to the median."
            if share > _CLIP
            else f": gradients of records predicted with an error above {share:.2g} are clipped."
        ),
    )
    outlook = ""
    if ratio is not None:
        outlook = (
            f"Noise-to-signal ratio over the whole run: {ratio:.2g} ({p:,} parameters). Above 1, "
            "little can be learned."
        )
        if ratio > 1:
            enough = rounded_up(gaussian_epsilon(ratio * mu, delta), 2)
            warnings.append(
                f"Little can be learned: with {p:,} parameters and {n:,} records the "
                f"noise-to-signal ratio is {ratio:.2g}. You need at least "
                f"{rounded_up(n * ratio, 2)} records, epsilon = {enough}, or fewer parameters."
            )
    return SuggestedSettings(
        learning_rate=distance,
        clip_norm=clip_norm,
        batch_size=batch,
        epochs=_EPOCHS,
        reasons=reasons,
        outlook=outlook,
        warnings=tuple(warnings),
    )
