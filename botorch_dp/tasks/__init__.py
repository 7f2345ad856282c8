"""Ready problems from the papers, each with a version that needs no download."""

from botorch_dp.tasks.learning import (
    adult_logistic_adam,
    adult_logistic_sgd,
    adult_svm_sgd,
    mnist_mlp1_sgd,
    mnist_mlp2_sgd,
)
from botorch_dp.tasks.queries import sparse_vector, sparse_vector_epsilon

__all__ = [
    "adult_logistic_adam",
    "adult_logistic_sgd",
    "adult_svm_sgd",
    "mnist_mlp1_sgd",
    "mnist_mlp2_sgd",
    "sparse_vector",
    "sparse_vector_epsilon",
]
