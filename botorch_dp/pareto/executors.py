"""Executors of clusters: Dask's, and one for Ray."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Generic, TypeVar

from botorch_dp._checks import checked, needs_extra

T = TypeVar("T")


@checked
class RayExecutor(Executor):
    """Runs calls as tasks of a Ray cluster. Needs the extra ``ray``.

    Ray never begins a task of it a second time by itself: what becomes of a training whose node
    died is for the study to say, which trains the trial again with its own seeds, counts the
    attempt, and pays for it anew if it is paid for.

    Args:
        address: Of a cluster that runs: ``"auto"`` for one of this machine, or
            ``"ray://host:10001"``. None takes the one that ``ray.init`` has connected to, or
            starts one here.
        options: What each task needs, as ``ray.remote`` takes it: ``num_cpus``, ``num_gpus``,
            ``resources``, ``runtime_env``.

    Example:
        >>> study.run(100, batch_size=16, executor=RayExecutor("auto", num_cpus=2))
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        if "max_retries" in options:
            raise ValueError(
                "`max_retries` cannot be set: a training that Ray began again by itself would draw "
                "its noise twice. Use the study's `retries`."
            )
        with needs_extra("ray", "`RayExecutor`"):
            import ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self._ray = ray
        self._task = ray.remote(max_retries=0, **options)(_call)
        self._running: dict[Future[Any], Any] = {}
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call as soon as a node has room for it."""
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        reference = self._task.remote(fn, args, kwargs)
        self._running[future] = reference
        future.add_done_callback(self._forget)
        reference.future().add_done_callback(partial(_pass_on, future))
        return future

    def _forget(self, future: Future[Any]) -> None:
        reference = self._running.pop(future, None)
        if reference is not None and future.cancelled():
            self._ray.cancel(reference)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. The cluster goes on."""
        self._is_shut = True
        for future in list(self._running):
            if cancel_futures:
                future.cancel()
            elif wait:
                future.exception()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _pass_on(future: Future[Any], done: Future[Any]) -> None:
    """What came of Ray's future, to one that may have been cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)


class Once(Generic[T]):
    """A call on a Dask cluster that is made at most once, though Dask would make it again.

    Dask calls again what a worker had begun that is gone. Of a training that is paid for, this
    would be a second draw of noise for one charge. Who begins leaves a mark with the scheduler
    first; who finds one there returns something else.

    Args:
        call: What to call.
        otherwise: What to return if somebody has begun with it.
    """

    def __init__(self, call: Callable[[], T], otherwise: T) -> None:
        self._call, self._otherwise = call, otherwise
        self._name = f"botorch_dp-{uuid.uuid4().hex}"

    def __call__(self) -> T:
        """Make the call, on a worker."""
        from distributed import get_client

        client = get_client()
        if client.get_metadata([self._name], False):
            return self._otherwise
        client.set_metadata([self._name], True)
        return self._call()


def is_dask(executor: Executor) -> bool:
    """Whether an executor is that of a Dask client."""
    return type(executor).__module__.partition(".")[0] == "distributed"
