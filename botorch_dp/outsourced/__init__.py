"""Outsourced optimization: a curator who holds the rows, a modeler who searches them."""

from botorch_dp.outsourced.client import CuratorClient, CuratorRefusal, UnreadableResponse
from botorch_dp.outsourced.credentials import read_token
from botorch_dp.outsourced.curator import (
    Curator,
    GaussianNoiseCurator,
    InvalidIndex,
    PrivateAnswers,
    RandomProjectionCurator,
    UnusableAnswer,
    choose_projection_dim,
    column_space_residual,
    singular_floor,
)
from botorch_dp.outsourced.exchange import (
    FileCurator,
    answer_questions,
    load_dataset,
    save_dataset,
)
from botorch_dp.outsourced.modeler import Answer, InputNoiseRBF, Modeler
from botorch_dp.outsourced.query_log import QueryLimitReached, RequestConflict
from botorch_dp.outsourced.service import curator_app, serve

__all__ = [
    "Answer",
    "Curator",
    "CuratorClient",
    "CuratorRefusal",
    "FileCurator",
    "GaussianNoiseCurator",
    "InputNoiseRBF",
    "InvalidIndex",
    "Modeler",
    "PrivateAnswers",
    "QueryLimitReached",
    "RandomProjectionCurator",
    "RequestConflict",
    "UnreadableResponse",
    "UnusableAnswer",
    "answer_questions",
    "choose_projection_dim",
    "column_space_residual",
    "curator_app",
    "load_dataset",
    "read_token",
    "save_dataset",
    "serve",
    "singular_floor",
]
