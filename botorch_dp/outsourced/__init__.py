"""Outsourced optimization: a curator who holds the rows, a modeler who searches them."""

from botorch_dp.outsourced.curator import (
    Curator,
    GaussianNoiseCurator,
    PrivateAnswers,
    QuestionRefused,
    RandomProjectionCurator,
)
from botorch_dp.outsourced.exchange import (
    FileCurator,
    answer_questions,
    load_dataset,
    save_dataset,
)
from botorch_dp.outsourced.modeler import Answer, InputNoiseRBF, Modeler
from botorch_dp.outsourced.transforms import (
    choose_projection_dim,
    column_space_residual,
    singular_floor,
)

__all__ = [
    "Answer",
    "Curator",
    "FileCurator",
    "GaussianNoiseCurator",
    "InputNoiseRBF",
    "Modeler",
    "PrivateAnswers",
    "QuestionRefused",
    "RandomProjectionCurator",
    "answer_questions",
    "choose_projection_dim",
    "column_space_residual",
    "load_dataset",
    "save_dataset",
    "singular_floor",
]
