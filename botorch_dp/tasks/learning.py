"""Private learning as problems for DPareto: which privacy buys which accuracy.

Domains, sampling distributions and the anti-ideal point are those of [Avent2020], except for the
learning rates of the bundled data sets. ``noise_variance`` is the noise's *standard deviation*
over *twice* the clipping norm; :func:`training_settings` converts it. The paper's text calls it a
variance (Table 1), and its authors' code uses it as a standard deviation, as 24 of 32 recorded
epsilons confirm. Real parameters and counts are shown to the models in log scale, which the paper
does not do and which helps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal

from torch import Tensor, nn

from botorch_dp import datasets
from botorch_dp._checks import check_choice
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.privacy.accounting import Sampling
from botorch_dp.space import (
    Config,
    Integer,
    Real,
    SearchSpace,
    ShiftedExponential,
    TruncatedNormal,
    Uniform,
)
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.oracles import TrainingOracles, problem_of

BinaryData = Literal["adult", "breast_cancer"]
ImageData = Literal["mnist", "digits"]

#: How far a training goes, and how far its noise does.
_PRODUCTS = (
    {"learning_rate": 1, "epochs": 1, "batch_size": -1},
    {"learning_rate": 1, "clip_norm": 1, "noise_variance": 1, "epochs": 0.5, "batch_size": -1.5},
)
#: The delta of all DP-SGD and DP-Adam settings of the paper.
DELTA = 1e-5

_LOADERS: dict[str, Callable[[], TrainTest]] = {
    "adult": datasets.adult,
    "breast_cancer": datasets.breast_cancer,
    "mnist": datasets.mnist,
    "digits": datasets.digits,
}
#: The bundled sets are a hundred times smaller: as many epochs are far fewer steps, which have to
#: be longer.
_BUNDLED_RATE = Real(1e-2, 5.0, log=True)
#: Linear models start at zero, as in the paper's Algorithms 3 and 4; a network cannot.
_MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[Tensor, Tensor], Tensor]]] = {
    "logistic": (partial(logistic_regression, zero=True), logistic_loss),
    "svm": (partial(logistic_regression, zero=True), hinge_loss),
    "mlp1": (partial(multilayer_perceptron, num_classes=10, hidden=(1000,)), cross_entropy_loss),
    "mlp2": (partial(multilayer_perceptron, num_classes=10, hidden=(128, 64)), cross_entropy_loss),
}


def training_settings(config: Config) -> Any:
    """What :class:`DPTrainer` is told of a config: its noise over the clipping norm, and delta.

    The only place where the paper's unit of noise is converted.
    """
    settings = {name: value for name, value in config.items() if name != "noise_variance"}
    return {**settings, "noise_multiplier": 2 * config["noise_variance"], "delta": DELTA}


@lru_cache(maxsize=4)
def _data(name: str) -> TrainTest:
    return _LOADERS[name]()


@lru_cache(maxsize=4)
def _trainer(model: str, data_name: str, optimizer: str, sampling: Sampling) -> DPTrainer:
    data = _data(data_name)
    factory, loss = _MODELS[model]
    return DPTrainer(
        partial(factory, data.train_X.shape[1]),
        loss,
        data,
        optimizer=optimizer,
        sampling=sampling,
    )


def adult_logistic_sgd(
    *, data: BinaryData = "adult", replicates: int = 1, publish: bool = False
) -> PrivacyUtilityProblem:
    """Logistic regression with DP-SGD: the paper's "LogReg+SGD".

    Args:
        data: ``"adult"``, or ``"breast_cancer"``, which is always at hand.
        replicates: Trainings whose accuracies one trial averages (10 in the paper).
        publish: Whether to train with noise from the operating system instead of seeds, for a study
            with a budget (``DPareto(budget=...)``).

    Example:
        >>> problem = adult_logistic_sgd(data="breast_cancer")
        >>> front = DPareto(problem, seed=0).run(32)
    """
    return _problem("logistic", data, "sgd", replicates, publish)


def adult_logistic_adam(
    *, data: BinaryData = "adult", replicates: int = 1, publish: bool = False
) -> PrivacyUtilityProblem:
    """Logistic regression with DP-Adam: the paper's "LogReg+ADAM".

    Arguments as in :func:`adult_logistic_sgd`.
    """
    return _problem("logistic", data, "adam", replicates, publish)


def adult_svm_sgd(
    *, data: BinaryData = "adult", replicates: int = 1, publish: bool = False
) -> PrivacyUtilityProblem:
    """Linear support vector machine with DP-SGD: the paper's "SVM+SGD".

    Arguments as in :func:`adult_logistic_sgd`.
    """
    return _problem("svm", data, "sgd", replicates, publish)


def mnist_mlp1_sgd(
    *, data: ImageData = "mnist", replicates: int = 1, publish: bool = False
) -> PrivacyUtilityProblem:
    """One hidden layer of 1000 units with DP-SGD: the paper's "MLP1+SGD".

    Args:
        data: ``"mnist"``, or ``"digits"`` (8 x 8 pixels), which is always at hand.
        replicates: Trainings whose accuracies one trial averages (10 in the paper).
        publish: As in :func:`adult_logistic_sgd`.
    """
    return _problem("mlp1", data, "sgd", replicates, publish)


def mnist_mlp2_sgd(
    *, data: ImageData = "mnist", replicates: int = 1, publish: bool = False
) -> PrivacyUtilityProblem:
    """Hidden layers of 128 and 64 units with DP-SGD: the paper's "MLP2+SGD".

    Arguments as in :func:`mnist_mlp1_sgd`.
    """
    return _problem("mlp2", data, "sgd", replicates, publish)


def training_oracles(
    model: str, data: str, optimizer: str, *, publish: bool = False
) -> TrainingOracles:
    """The privacy and the utility of training one model on one data set, as in the paper.

    Args:
        model: ``"logistic"``, ``"svm"``, ``"mlp1"`` or ``"mlp2"``.
        data: Name of the data set, which is loaded where it is needed, once in each process.
        optimizer: ``"sgd"`` or ``"adam"``.
        publish: Whether noise comes from the operating system, whatever the seeds.
    """
    maker = partial(_trainer, model, data, optimizer, "without_replacement")
    return TrainingOracles(maker, training_settings, publish)


def _problem(
    model: str, data: str, optimizer: str, replicates: int, publish: bool
) -> PrivacyUtilityProblem:
    images = model.startswith("mlp")
    check_choice("data", data, ("mnist", "digits") if images else ("adult", "breast_cancer"))
    num_records, bundled = len(_data(data).train_X), data in ("breast_cancer", "digits")
    rate = Real(1e-3, 0.5, log=True, distribution=ShiftedExponential(10.0))
    batch_size = Integer(
        16, min(4000, num_records), log=True, distribution=TruncatedNormal(800, 800)
    )
    if not images:
        rate = Real(5e-4, 5e-2, log=True, distribution=ShiftedExponential(10.0))
        batch_size = Integer(
            8, min(512, num_records), log=True, distribution=TruncatedNormal(128, 64)
        )
    noise = ShiftedExponential(0.5 if images else 0.1)
    space = SearchSpace(
        epochs=Integer(1, 400 if images else 64, log=True, distribution=Uniform()),
        batch_size=batch_size,
        learning_rate=_BUNDLED_RATE if bundled else rate,
        clip_norm=Real(0.1, 12.0 if images else 4.0, log=True, distribution=noise),
        noise_variance=Real(0.1, 16.0, log=True, distribution=noise),
        products=_PRODUCTS,
    )
    return problem_of(
        training_oracles(model, data, optimizer, publish=publish),
        space,
        delta=DELTA,
        replicates=replicates,
        name=f"{model} with DP-{optimizer.upper()} on {data}",
        # Poisson batches cost less than the paper's.
        publisher=partial(_trainer, model, data, optimizer, "poisson"),
    )
