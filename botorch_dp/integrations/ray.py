"""Trainings as tasks of a Ray cluster. Needs the extra ``ray``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from botorch_dp._checks import needs_extra


class RayExecutor(Executor):
    """A ``concurrent.futures`` executor on Ray, which never begins a call a second time by itself.

    What becomes of a training whose node died is then for its owner to say. In a study its trial
    has failed. A
    :class:`~botorch_dp.tuning.PrivateSelection` ends with Ray's error and goes on from its
    checkpoint, with one charge. Ray's dashboard shows how many trainings there were, which a
    selection must keep secret from those whom it protects against.

    Args:
        address: Of a running cluster, such as ``"auto"`` or ``"ray://host:10001"``. None takes the
            one that ``ray.init`` has connected to, or starts one here.
        options: What each call needs, as ``ray.remote`` takes it, such as ``num_cpus=2``.

    Example:
        >>> study.run(100, q=16, executor=RayExecutor("auto", num_cpus=2))
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        if "max_retries" in options:
            raise ValueError(
                "`max_retries` cannot be set: a training that Ray began again by itself would draw "
                "its noise twice."
            )
        with needs_extra("ray", "`RayExecutor`"):
            import ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self._task = ray.remote(max_retries=0, **options)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call as soon as a node has room for it."""
        future: Future[Any] = self._task.remote(fn, args, kwargs).future()
        return future


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
