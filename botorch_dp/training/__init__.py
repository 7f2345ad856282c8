"""Training with differential privacy: DP-SGD and DP-Adam, fast enough to be tuned."""

from botorch_dp.training.canaries import TrainingAuditReport, audit_training
from botorch_dp.training.networks import (
    accuracy,
    cross_entropy_loss,
    hinge_loss,
    linear_svm,
    logistic_loss,
    logistic_regression,
    mlp1,
    mlp2,
    multilayer_perceptron,
)
from botorch_dp.training.output_perturbation import (
    OutputPerturbedLogisticRegression,
    PerturbedModel,
)
from botorch_dp.training.plan import TrainingPlan, TrainingSettings
from botorch_dp.training.records import TrainTest
from botorch_dp.training.trainer import CurvePoint, DPTrainer, Trained, TrainingDiagnostics
