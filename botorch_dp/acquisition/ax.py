"""The acquisition functions in Ax: what Ax has to know to store and restore them.

They run in Ax's modular BoTorch generator as they are, see ``input_constructors``. Storing an
experiment whose generation strategy names them needs one call of ``register_with_ax``, both in the
process that saves and in the one that loads.
"""

from __future__ import annotations

from botorch.acquisition.acquisition import AcquisitionFunction


def register_with_ax() -> None:
    """Let Ax save and load generation strategies that use these acquisition functions.

    Calling it again does no harm.

    Example:
        >>> from botorch_dp.acquisition.ax import register_with_ax
        >>> register_with_ax()
        >>> client.save_to_json_file("experiment.json")  # an `ax.Client`
    """
    try:
        from ax.storage.botorch_modular_registry import register_acquisition_function
        from ax.storage.json_store.registry import CORE_DECODER_REGISTRY
    except ImportError as error:
        raise ImportError(
            "Ax is not installed; install the extra with `pip install 'botorch_dp[ax]'`."
        ) from error

    from botorch_dp import acquisition

    for name in acquisition.__all__:
        exported = getattr(acquisition, name)
        if issubclass(exported, AcquisitionFunction):
            register_acquisition_function(exported)
    # An option of PrivateUpperConfidenceBound; Ax writes data classes, but reads only known ones.
    CORE_DECODER_REGISTRY[acquisition.UCBSchedule.__name__] = acquisition.UCBSchedule
