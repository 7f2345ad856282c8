"""The sockets of a curator's service: TLS, limits against strangers, workers on one port."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from botorch_dp._checks import check_integer, check_positive, checked
from botorch_dp.outsourced.credentials import SHAKING, TLS, Tokens
from botorch_dp.outsourced.curator import Curator
from botorch_dp.outsourced.service import Metrics, check_limits, curator_app

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

logger = logging.getLogger(__name__)

#: Connections that the system keeps for us; one round of the loop accepts no more, so that
#: descriptors stay few.
_BACKLOG = 128
#: Seconds that a worker is given to end.
_END_WITHIN = 10.0


@checked
def serve(
    curator: Curator | Callable[[], Curator],
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    tls: TLS | None = None,
    workers: int = 1,
    rate: float = 20.0,
    burst: int = 40,
    measurements: int = 8,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a curator until interrupted (SIGINT or SIGTERM).

    Args:
        curator: A curator; for several workers, a function of a module that makes one.
        token: Shared secret.
        token_file: In its place, a file of tokens that may be replaced; see :func:`curator_app`.
        host: Interface to listen on; the loopback one by default, for a proxy in front.
        port: Port to listen on; 0 for any.
        tls: Certificate and key. By default the service speaks plain HTTP, and a proxy ends TLS.
        workers: Processes that share the port, and the curator's ``log`` and ledgers, which must
            be files. One that ends is replaced. Limits hold for each of them.
        rate: Requests a second for each address, on average.
        burst: Requests at once.
        measurements: Rows measured at once.
        ready: Called with the address before the first request is answered.
    """
    check_integer("workers", workers)
    check_limits(rate, burst, measurements)
    Tokens(token, token_file)
    metrics = Metrics(workers)
    settings: dict[str, Any] = {
        "token": token,
        "token_file": token_file,
        "rate": rate,
        "burst": burst,
        "measurements": measurements,
        "metrics": metrics,
    }
    if workers > 1:
        _check_function(curator)
    with listen(host, port) as listener:
        house = curator if isinstance(curator, Curator) else curator()
        if not isinstance(house, Curator):
            raise TypeError(f"`curator` must be or make a Curator, got {type(house).__name__}.")
        scheme, where = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
        url = f"{scheme}://{where}:{listener.getsockname()[1]}"
        if workers == 1:
            server = curator_server(curator_app(house, **settings), tls=tls)
            metrics.begin()
            ready(url)
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
            return
        _check_shared(house)
        house.close()
        context = multiprocessing.get_context("spawn")

        def launch(worker: int) -> BaseProcess:
            process = context.Process(
                target=_work,
                args=(curator, settings, tls, listener, worker),
                name=f"worker {worker}",
            )
            process.start()
            return process

        ready(url)
        _supervise(launch, workers, metrics)


def _check_function(curator: object) -> None:
    if isinstance(curator, Curator):
        raise TypeError(
            "`curator` must be a function that makes one: each of several workers has its own."
        )
    try:
        pickle.dumps(curator)
    except Exception as error:
        raise TypeError(
            f"`curator` must be a function that workers can import, at the top of a module: {error}"
        ) from None


def _check_shared(house: Curator) -> None:
    """Raise unless workers that each make this curator answer as one."""
    ledger = None if house.answers is None else house.answers.ledger
    if house.log_path is None or (ledger is not None and ledger.path == ":memory:"):
        raise ValueError(
            "`curator` must have a file as its `log`, and so must the ledger of its answers: "
            "several workers know of each other's answers through them only."
        )


def _work(
    make: Callable[[], Curator],
    settings: dict[str, Any],
    tls: TLS | None,
    listener: socket.socket,
    worker: int,
) -> None:
    """One worker: a curator of its own, the port of all."""
    server = curator_server(curator_app(make(), **settings), tls=tls)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    settings["metrics"].begin(worker)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _supervise(launch: Callable[[int], BaseProcess], workers: int, metrics: Metrics) -> None:
    """Replace workers that end, until interrupted."""
    ending = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ending.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    running = [launch(worker) for worker in range(workers)]
    try:
        while not ending.is_set():
            connection.wait([process.sentinel for process in running], timeout=0.5)
            for worker, process in enumerate(running):
                if process.exitcode is None or ending.is_set():
                    continue
                if metrics.starts() == 0:
                    raise RuntimeError("The workers cannot start; their errors are printed above.")
                logger.error(
                    "Worker %d ended (exit code %d); another one takes its place.",
                    process.pid,
                    process.exitcode,
                )
                ending.wait(0.5)
                running[worker] = launch(worker)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join(_END_WITHIN)
            process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    check_integer("port", port, at_least=0, at_most=65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ValueError(
            f"`host` {host} and `port` {port} cannot be listened on ({error.strerror})."
        ) from None


def curator_server(
    app: Starlette,
    *,
    tls: TLS | None = None,
    request_seconds: float = 10.0,
    connections: int = 100,
) -> uvicorn.Server:
    """A uvicorn server whose connections are limited; run it on a socket of :func:`listen`.

    Args:
        app: From :func:`curator_app`.
        tls: Certificate and key.
        request_seconds: Seconds within which a connection must send a whole request.
        connections: Connections that may wait for a whole request at once. Those whose row is
            being measured do not count.
    """
    import uvicorn

    check_positive("request_seconds", request_seconds)
    check_integer("connections", connections)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_limited_protocol(request_seconds, connections, tls),
            # The other loops do not pause a connection before its handshake.
            loop="asyncio",
            ws="none",
            lifespan="off",
            # A line for every request that is not HTTP would let strangers fill the disk.
            log_level="error",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


def _limited_protocol(
    request_seconds: float, connections: int, tls: TLS | None
) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which itself waits for ever for the rest of a request.

    With TLS a connection counts as waiting from its start on, so that a handshake that never ends
    is no way around the limits; uvicorn's own TLS would not tell of it.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    #: Connections without a whole request, oldest first.
    waiting: dict[Limited, None] = {}

    class Limited(H11Protocol):
        deadline: asyncio.TimerHandle | None = None
        unsent, gone = 0, False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.admit()

        def admit(self) -> None:
            self.watch()
            if len(waiting) > connections:
                crowd = Counter(other.host for other in waiting).most_common(1)[0][0]
                next(other for other in waiting if other.host == crowd).drop()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def send_400_response(self, msg: str) -> None:
            # One answer for each request: not this one beside that of the request before.
            if self.cycle is None:
                super().send_400_response(msg)
            else:
                self.drop()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.gone = True
            self.rest()
            super().connection_lost(exc)

        @property
        def host(self) -> str:
            return self.client[0] if self.client else ""

        def watch(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.rest()
            elif self not in waiting and not self.gone:
                waiting[self] = None
                self.deadline = self.loop.call_later(request_seconds, self.expire)

        def rest(self) -> None:
            waiting.pop(self, None)
            if self.deadline is not None:
                self.deadline.cancel()

        def drop(self) -> None:
            self.gone = True
            self.rest()
            self.transport.abort()

        def expire(self) -> None:
            unsent = self.transport.get_write_buffer_size()
            if 0 < unsent and unsent != self.unsent:  # still reading the answer before
                self.unsent = unsent
                self.deadline = self.loop.call_later(request_seconds, self.expire)
            else:
                self.drop()

    if tls is None:
        return Limited
    certificates = tls.watched()

    class Encrypted(asyncio.Protocol):
        """Counts among those that wait; after the handshake it hands over to the protocol."""

        def __init__(self, **settings: Any) -> None:
            self.http = Limited(**settings)
            self.early, self.lost, self.handed_over = b"", False, False

        def connection_made(self, transport: Any) -> None:
            transport.pause_reading()
            self.http.transport, self.http.client = transport, transport.get_extra_info("peername")
            self.http.admit()
            self.shaking = asyncio.get_running_loop().create_task(self.shake_hands(transport))

        async def shake_hands(self, transport: Any) -> None:
            encrypted = None
            if self.http.gone:  # made room for another one already
                return
            SHAKING.set(transport.get_extra_info("socket").fileno())
            try:
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    certificates.value(),
                    server_side=True,
                    ssl_handshake_timeout=request_seconds,
                    ssl_shutdown_timeout=request_seconds,
                )
            except OSError as error:
                # No TLS, another version, no trusted certificate, too late, or gone. asyncio's
                # 256 kB for a connection would live until cycles are collected.
                traceback.clear_frames(error.__traceback__)
            if encrypted is None or self.lost:
                self.http.drop()
                return
            self.handed_over = True
            encrypted.set_protocol(self.http)
            self.http.connection_made(encrypted)
            if self.early:
                self.http.data_received(self.early)

        def data_received(self, data: bytes) -> None:
            """What came with the end of the handshake."""
            self.early += data

        def connection_lost(self, error: Exception | None) -> None:
            self.lost = True
            if self.handed_over:
                self.http.connection_lost(error)

    return Encrypted
