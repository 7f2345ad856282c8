"""The curator as a small HTTP service: its requests, and the sockets that they come from.

Needs the extra ``service`` (Starlette and uvicorn). Every request but the first carries a bearer
token. Nothing but released values, row numbers and counts ever appears in a response or in the log.

===================  ==========================================================================
``GET /health``      ``{"status": "alive"}``, for a balancer; without a token, and not limited
``GET /metrics``     counts and times of requests in the text format of Prometheus
``GET /status``      rows, columns, queries accepted and left, the guarantees in words
``GET /dataset``     the released rows as ``.npz``
``POST /query``      ``{"index": 3, "request_id": "..."}`` to ``{"y": ...}``; the same id is
                     answered the same, without being measured, counted or charged again. 202
                     says that the row is still being measured: ask again with the same id
===================  ==========================================================================

What is done against strangers, by whom:

* *uvicorn* bounds a request's head, closes idle connections and drops what is not HTTP.
* :func:`serve` closes connections whose request is not whole in time, and when too many wait for
  theirs, the oldest one of the busiest address.
* :func:`curator_app` counts requests for each address, those with a wrong token apart from those
  with the right one: a flood of guesses is refused, and does not lock out the owner of the token,
  not even at the same address. A token must therefore resist unlimited guessing: draw it at random,
  by ``python -c "import secrets; print(secrets.token_urlsafe(32))"``.
* *A proxy* in front must withstand floods that fill the line, and set ``X-Forwarded-For``, without
  which all of its clients count as one address. The service listens on the loopback interface by
  default; TLS is ended by the proxy or, with :class:`~botorch_dp.outsourced.TLS`, by the service.

The metrics hold nothing sensitive: they count requests and statuses, and the times they took, all
of which the modeler sees at its own end. When and whether a measurement fails is a function of its
row as far as the curator's own function makes it one; that it depends on no single record is a
condition of :class:`~botorch_dp.outsourced.PrivateAnswers`. Strangers are still not told how far a
search has come, so the metrics need a token: any valid one, or one that opens nothing else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.outsourced.credentials import SHAKING, TLS, Tokens
from botorch_dp.outsourced.curator import Curator, check_request_id
from botorch_dp.outsourced.exchange import answer_to, dataset_to_bytes

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

_LARGEST_BODY = 4096
#: Addresses whose requests are counted; the one that was silent for longest is forgotten.
_ADDRESSES = 1024
#: Seconds until a question whose row is still being measured is answered with 202.
_ANSWER_WITHIN = 15.0
_PATHS = ("/health", "/metrics", "/status", "/dataset", "/query", "other")
_STATUSES = (200, 202, 400, 401, 403, 404, 405, 409, 422, 429, 500, 503)
#: Upper ends of the classes that times of requests are counted in, in seconds.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Connections that the system keeps for us; one round of the loop accepts no more, so that
#: descriptors stay few.
_BACKLOG = 128
#: Seconds that a worker is given to end.
_END_WITHIN = 10.0


# --- Requests: who may send how many, what is counted of them, and their answers. ---


class _RateLimits:
    """One token bucket for each address: ``rate`` a second on average, ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, address: str) -> float:
        """0 if a request may pass now (it is then counted)."""
        now = time.monotonic()
        level, last = self._buckets.pop(address, (float(self._burst), now))
        level = min(self._burst, level + (now - last) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._buckets[address] = (level if wait else level - 1, now)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return wait


class Metrics:
    """What was asked of a service, and how long it took, in memory that its workers share.

    Each worker writes a row of its own, so that nothing is locked and a killed worker leaves no
    count behind that is half made. Only the event loop of the worker writes.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int = 1) -> None:
        self._shape = (workers, len(_PATHS), len(_STATUSES) + len(_SECONDS) + 2)
        shared = multiprocessing.get_context("spawn").RawArray
        self._requests = shared("d", int(np.prod(self._shape)))
        self._levels = shared("d", 3 * workers)
        self._worker = 0

    def begin(self, worker: int = 0) -> None:
        """Count a worker that starts; what its predecessor was at is over."""
        self._worker = worker
        self._level(0, 1.0)
        self._levels[3 * worker + 1] = self._levels[3 * worker + 2] = 0.0

    def starts(self) -> int:
        """How many workers have started so far."""
        return int(sum(self._levels[::3]))

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        place = _PATHS.index(path) if path in _PATHS else len(_PATHS) - 1
        if status not in _STATUSES:
            status = 500 if status >= 500 else 400
        first = (self._worker * self._shape[1] + place) * self._shape[2]
        for number, more in (
            (_STATUSES.index(status), 1.0),
            (len(_STATUSES) + bisect_left(_SECONDS, seconds), 1.0),
            (self._shape[2] - 1, seconds),
        ):
            self._requests[first + number] += more

    def in_flight(self, more: int) -> None:
        """Count requests that are being answered up or down."""
        self._level(1, more)

    def measuring(self, more: int) -> None:
        """Count rows that are being measured up or down."""
        self._level(2, more)

    def _level(self, number: int, more: float) -> None:
        self._levels[3 * self._worker + number] += more

    def __str__(self) -> str:
        """All workers' sums in the text format of Prometheus."""
        table = np.reshape(self._requests, self._shape).sum(axis=0)
        starts, in_flight, measuring = np.reshape(self._levels, (-1, 3)).sum(axis=0)
        lines: list[str] = []

        def family(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
            name = f"botorch_dp_{name}"
            lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}"))
            lines.extend(f"{name}{labels} {value:.15g}" for labels, value in values)

        counts, times = table[:, : len(_STATUSES)], table[:, len(_STATUSES) :]
        family(
            "requests_total",
            "counter",
            "Requests answered, by path and status.",
            *(
                (f'{{path="{path}",status="{status}"}}', count)
                for path, row in zip(_PATHS, counts, strict=True)
                for status, count in zip(_STATUSES, row, strict=True)
                if count
            ),
        )
        family(
            "request_seconds",
            "histogram",
            "Seconds until a request was answered.",
            *(
                value
                for path, row in zip(_PATHS, times, strict=True)
                if row.any()
                for value in (
                    *(
                        (f'_bucket{{path="{path}",le="{end}"}}', below)
                        for end, below in zip((*_SECONDS, "+Inf"), np.cumsum(row[:-1]), strict=True)
                    ),
                    (f'_count{{path="{path}"}}', row[:-1].sum()),
                    (f'_sum{{path="{path}"}}', row[-1]),
                )
            ),
        )
        family("requests_in_flight", "gauge", "Requests being answered.", ("", in_flight))
        family("rows_being_measured", "gauge", "Rows being measured.", ("", measuring))
        family("worker_starts_total", "counter", "Workers started so far.", ("", starts))
        return "\n".join((*lines, ""))


class _Counted:
    """An ASGI application whose requests are counted."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, start = 500, time.perf_counter()

        async def noted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._metrics.in_flight(1)
        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.in_flight(-1)
            self._metrics.count(scope["path"], status, time.perf_counter() - start)


def check_limits(rate: float, burst: int, measurements: int) -> None:
    """Raise if a service cannot be limited so."""
    check_positive("rate", rate)
    check_integer("burst", burst)
    check_integer("measurements", measurements)


def curator_app(
    curator: Curator,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    rate: float = 20.0,
    burst: int = 40,
    measurements: int = 8,
    metrics: Metrics | None = None,
) -> Starlette:
    """An ASGI application that serves one curator.

    Args:
        curator: Answers the questions; give it a ``log`` file so that its count of queries
            survives a restart.
        token: Shared secret of at least 16 characters; compared in constant time.
        token_file: In its place, a file of one token a line, all of them valid; read again when it
            changes. ``metrics`` before a token lets it see ``/metrics`` and nothing else.
        rate: Requests a second that each address may send on average; more get status 429.
        burst: Requests that may come at once.
        measurements: Rows that are measured at once, each in a thread of its own. A measurement
            that hangs holds one of these places; further questions get status 503.
        metrics: Where to count, if several workers share it.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    if not isinstance(curator, Curator):
        raise TypeError(f"`curator` must be a Curator, got {type(curator).__name__}.")
    check_limits(rate, burst, measurements)
    owners, strangers = _RateLimits(rate, burst), _RateLimits(rate, burst)
    tokens = Tokens(token, token_file)
    if metrics is None:
        metrics = Metrics()
        metrics.begin()
    counts = metrics
    archive = dataset_to_bytes(curator.dataset)
    measured_now: dict[tuple[object, str], asyncio.Future[tuple[int, dict[str, Any]]]] = {}

    def refusal(status: int, reason: str, **headers: str) -> Response:
        return JSONResponse({"error": reason}, status, headers=headers)

    def admitted(request: Request, *watchers: str) -> Response | None:
        sender = tokens.sender(request.headers.get("authorization", ""))
        limits = strangers if sender is None else owners
        wait = limits.seconds_to_wait(_address(request))
        if wait > 0:
            return refusal(429, "Too many requests.", **{"Retry-After": f"{wait:.3f}"})
        if sender is None:
            return refusal(
                401, "A valid bearer token is required.", **{"WWW-Authenticate": "Bearer"}
            )
        if sender not in ("owner", *watchers):
            return refusal(403, "This token opens the metrics only.")
        return None

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def shown_metrics(request: Request) -> Response:
        if (refused := admitted(request, "watcher")) is not None:
            return refused
        return Response(str(counts), media_type="text/plain; version=0.0.4")

    async def status(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        try:
            # In a thread: another process may be writing to the log.
            asked = await asyncio.to_thread(lambda: curator.num_queries)
        except Exception as error:
            logger.error("The log cannot be read (%s).", type(error).__name__)
            return refusal(503, "The curator's log cannot be read.")
        most = curator.max_queries
        return JSONResponse(
            {
                "rows": curator.num_rows,
                "columns": curator.dataset.value.shape[1],
                "queries": asked,
                "remaining": None if most is None else max(0, most - asked),
                "guarantee": curator.promise,
            }
        )

    async def dataset(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        return Response(archive, media_type="application/octet-stream")

    async def query(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        try:
            question = await _read_question(request)
        except ClientDisconnect:
            logger.warning("A client left in the middle of its question.")
            return refusal(400, "The question was not sent to its end.")
        if question is None:
            return refusal(
                400, 'Send {"index": <integer>, "request_id": "<1 to 128 characters>"} as JSON.'
            )
        answer = measured_now.get(question)
        if answer is None:
            if len(measured_now) >= measurements:
                return refusal(503, "Too many rows are being measured.", **{"Retry-After": "1"})
            answer = measured_now[question] = _in_thread(curator, *question)
            counts.measuring(1)

            def measured(_: object) -> None:
                measured_now.pop(question)
                counts.measuring(-1)

            answer.add_done_callback(measured)
        await asyncio.wait({answer}, timeout=_ANSWER_WITHIN)
        if not answer.done():
            return JSONResponse(
                {"error": "The row is still being measured: ask again with the same request_id."},
                202,
                headers={"Retry-After": "0.5"},
            )
        code, content = answer.result()
        return JSONResponse(content, code)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", shown_metrics),
            Route("/status", status),
            Route("/dataset", dataset),
            Route("/query", query, methods=["POST"]),
        ],
        middleware=[Middleware(_Counted, metrics=counts)],
    )


def _address(request: Request) -> str:
    """Whom to count a request for; one customer owns 2^64 addresses of IPv6."""
    host = request.client.host if request.client is not None else ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return str(ipaddress.ip_network((host, 64), strict=False))
    return host


async def _read_question(request: Request) -> tuple[int, str] | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_BODY:
            return None
    try:
        question = json.loads(body)
        index, request_id = question["index"], check_request_id(question["request_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(index, bool) or not isinstance(index, int):
        return None
    return index, request_id


def _in_thread(
    curator: Curator, index: int, request_id: str
) -> asyncio.Future[tuple[int, dict[str, Any]]]:
    """Answer in a thread of its own, one that does not keep the process alive if it hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[int, dict[str, Any]]] = loop.create_future()

    def settle(answer: tuple[int, dict[str, Any]]) -> None:
        if not future.done():
            future.set_result(answer)

    def work() -> None:
        answer = answer_to(curator, index, request_id)
        with suppress(RuntimeError):  # the service has ended meanwhile
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=work, name=f"row {index}", daemon=True).start()
    return future


# --- Sockets: TLS, limits against strangers, and workers on one port. ---


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

        def shutdown(self) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            idle = idle and self.transport.get_write_buffer_size() == 0
            super().shutdown()
            if idle:  # said goodbye; with TLS asyncio would wait for the other end to do so too
                self.transport.abort()

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
