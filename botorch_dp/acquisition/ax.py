"""The acquisition functions in Ax: what Ax has to know to store and restore them.

They run in Ax's modular BoTorch generator as they are, see ``input_constructors``. Storing an
experiment whose generation strategy names them takes one call of ``register_with_ax``, both in
the process that saves and in the one that loads.
"""

from __future__ import annotations

from botorch_dp.acquisition.gradient_trace import GradientTrace
from botorch_dp.acquisition.hvpoi import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)
from botorch_dp.acquisition.ucb import PrivateUpperConfidenceBound, UCBSchedule


def register_with_ax() -> None:
    """Let Ax save and load generation strategies that use these acquisition functions.

    Calling it again does no harm.

    Example:
        >>> from ax.api.client import Client
        >>> from botorch_dp.acquisition.ax import register_with_ax
        >>> register_with_ax()
        >>> client = Client.load_from_json_file("experiment.json")
    """
    try:
        from ax.storage.botorch_modular_registry import register_acquisition_function
        from ax.storage.json_store.registry import CORE_DECODER_REGISTRY
    except ImportError as error:
        raise ImportError(
            "Ax is not installed; install the extra with `pip install 'botorch_dp[ax]'`."
        ) from error

    for acquisition_function in (
        GradientTrace,
        HypervolumeProbabilityOfImprovement,
        LogHypervolumeProbabilityOfImprovement,
        PrivateUpperConfidenceBound,
    ):
        register_acquisition_function(acquisition_function)
    # An option of PrivateUpperConfidenceBound; Ax writes any data class, but reads known ones only.
    CORE_DECODER_REGISTRY[UCBSchedule.__name__] = UCBSchedule
