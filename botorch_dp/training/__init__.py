"""Training with differential privacy: DP-SGD and DP-Adam, fast enough to be tuned.

What owns what, in the order in which a training passes through:

* ``trainer``: :class:`DPTrainer`, what a user calls. It charges, trains and publishes.
* ``plan``: the settings of one training, and what follows from them: noise, steps, guarantee.
* ``setup``: what is trained on what (model factory, loss, records, engine, metric). It
  keeps no model.
* ``run``: :class:`~.run.TrainingRun`, the only owner of the parameters. It draws batches, advances,
  pauses at epochs, saves and resumes; models are made from it at the end.
* ``engines``: one interface, ``clipped_sums``, and one file for each engine, which reads the
  parameters and never changes them.
* ``step_rules``: how the parameters move along a noisy sum, and what of that a checkpoint keeps.

``untuned`` says which settings a training gets that was given an epsilon and nothing else, and
``ranges`` finds the ranges of columns privately.

At the bottom: ``inputs`` (a tensor, or several by name), ``records`` (what the data may look like),
``calls`` (how a model is called, on a batch or on one record), ``isolation`` (which models and
losses are refused, and why) and ``randomness`` (where batches and noise come from). ``oracles``
makes a problem for DPareto of a trainer.
"""

from botorch_dp.training.networks import (
    accuracy,
    causal_lm_loss,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.output_perturbation import OutputPerturbedLogisticRegression
from botorch_dp.training.plan import TrainingPlan, TrainingSettings
from botorch_dp.training.ranges import Ranges, private_norm, private_ranges
from botorch_dp.training.records import TrainTest
from botorch_dp.training.trainer import DPTrainer, Trained
from botorch_dp.training.untuned import suggest_settings

__all__ = [
    "DPTrainer",
    "OutputPerturbedLogisticRegression",
    "Ranges",
    "TrainTest",
    "Trained",
    "TrainingPlan",
    "TrainingSettings",
    "accuracy",
    "causal_lm_loss",
    "cross_entropy_loss",
    "hinge_loss",
    "logistic_loss",
    "logistic_regression",
    "multilayer_perceptron",
    "private_norm",
    "private_ranges",
    "suggest_settings",
]
