"""The curator as a small HTTP service, run by uvicorn.

Needs the extra ``service``. Every request but ``/health`` carries a bearer token. Nothing but
released values, row numbers and counts appears in a response or in the log.

===================  ==========================================================================
``GET /health``      ``{"status": "alive"}``, for a balancer; without a token
``GET /status``      rows, columns, queries accepted and left, the guarantees in words
``GET /dataset``     the released rows as ``.npz``
``POST /query``      ``{"index": 3, "request_id": "..."}`` to ``{"y": ...}``; the same id is
                     answered the same, without being measured, counted or charged again. 202
                     says that the row is still being measured: ask again with the same id
===================  ==========================================================================

Strangers who connect and send nothing, or half a request, are cut off: after ten seconds, and the
oldest one at once when more than a hundred wait. The service does not count requests and does not
limit TLS handshakes. In the open net, put a proxy in front that does, such as the one of
``deploy/nginx.conf``, and let the service listen on the loopback interface (the default).

Tokens may be guessed without a limit, so draw the token at random; see :func:`read_token`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from botorch_dp._checks import check_integer, check_positive, needs_extra
from botorch_dp.outsourced.credentials import check_certificate, check_token
from botorch_dp.outsourced.curator import Curator, check_request_id
from botorch_dp.outsourced.exchange import answer_to, dataset_to_bytes

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

_LARGEST_BODY = 4096
_LARGEST_HEAD = 16 * 1024
#: Seconds until a question whose row is still being measured is answered with 202.
_ANSWER_WITHIN = 15.0


def curator_app(curator: Curator, *, token: str, measurements: int = 8) -> Starlette:
    """An ASGI application that serves one curator.

    Args:
        curator: Answers the questions; give it a ``log`` file so that its count of queries
            survives a restart.
        token: Shared secret of at least 16 characters; compared in constant time.
        measurements: Rows that are measured at once, each in a thread of its own. A measurement
            that hangs holds one of these places; further questions get status 503.
    """
    with needs_extra("service", "A curator's service"):
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.requests import ClientDisconnect
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

    if not isinstance(curator, Curator):
        raise TypeError(f"`curator` must be a Curator, got {type(curator).__name__}.")
    expected = f"Bearer {check_token(token)}".encode()
    check_integer("measurements", measurements)
    archive = dataset_to_bytes(curator.dataset)
    measured_now: dict[tuple[int, str], asyncio.Future[tuple[int, dict[str, Any]]]] = {}

    def refusal(status: int, reason: str, **headers: str) -> Response:
        return JSONResponse({"error": reason}, status, headers=headers)

    class Admission:
        """Lets requests with the token pass, and those for ``/health``."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            answer = self._app
            if scope["type"] == "http" and scope["path"] != "/health":
                given = dict(scope["headers"]).get(b"authorization", b"")
                if not hmac.compare_digest(given, expected):
                    reason = "A valid bearer token is required."
                    answer = refusal(401, reason, **{"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def status(request: Request) -> Response:
        try:
            # In a thread, because a thread that writes an answer may hold the log.
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
        return Response(archive, media_type="application/octet-stream")

    async def query(request: Request) -> Response:
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
            answer.add_done_callback(lambda _: measured_now.pop(question))
        await asyncio.wait({answer}, timeout=_ANSWER_WITHIN)
        if not answer.done():
            reason = "The row is still being measured: ask again with the same request_id."
            return refusal(202, reason, **{"Retry-After": "0.5"})
        code, content = answer.result()
        return JSONResponse(content, code)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/status", status),
            Route("/dataset", dataset),
            Route("/query", query, methods=["POST"]),
        ],
        middleware=[Middleware(Admission)],
    )


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
    return (index, request_id) if type(index) is int else None


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


def serve(
    curator: Curator,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    certfile: str | os.PathLike[str] | None = None,
    keyfile: str | os.PathLike[str] | None = None,
    measurements: int = 8,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a curator until interrupted (SIGINT or SIGTERM).

    Args:
        curator: Answers the questions.
        token: Shared secret.
        host: Interface to listen on; the loopback one by default, for a proxy in front.
        port: Port to listen on; 0 for any.
        certfile: The service's certificate in PEM, to speak HTTPS; by default a proxy does so.
        keyfile: Its key without a pass phrase; by default it stands in ``certfile``.
        measurements: Rows measured at once.
        ready: Called with the address before the first request is answered.

    Example:
        >>> serve(curator, token=read_token("token"))
    """
    app = curator_app(curator, token=token, measurements=measurements)
    server = curator_server(app, certfile=certfile, keyfile=keyfile)
    with listen(host, port) as listener:
        where = f"[{host}]" if ":" in host else host
        scheme = "http" if certfile is None else "https"
        ready(f"{scheme}://{where}:{listener.getsockname()[1]}")
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    check_integer("port", port, at_least=0, at_most=65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ValueError(
            f"`host` {host} and `port` {port} cannot be listened on ({error.strerror})."
        ) from None


def curator_server(
    app: Starlette,
    *,
    certfile: str | os.PathLike[str] | None = None,
    keyfile: str | os.PathLike[str] | None = None,
    request_seconds: float = 10.0,
    waiting: int = 100,
) -> uvicorn.Server:
    """A uvicorn server that waits for requests within limits; run it on a socket of :func:`listen`.

    Args:
        app: From :func:`curator_app`.
        certfile: Certificate in PEM, if the service speaks HTTPS.
        keyfile: Its key.
        request_seconds: Seconds within which a connection must send a whole request.
        waiting: Connections without a whole request that may be open at once.
    """
    import uvicorn

    if certfile is not None:
        check_certificate(certfile, keyfile)
    elif keyfile is not None:
        raise ValueError("`keyfile` needs the `certfile` that it belongs to.")
    check_positive("request_seconds", request_seconds)
    check_integer("waiting", waiting)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            # uvicorn's `limit_concurrency` is not used: it would refuse the owner of the token too.
            http=_impatient_protocol(request_seconds, waiting),
            ws="none",
            lifespan="off",
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
            # A line for every request that is not HTTP would let strangers fill the disk.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=128,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
    )


def _impatient_protocol(seconds: float, most: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which by itself waits without an end for the rest of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    #: Connections without a whole request, oldest first, and when they are cut off.
    waiting: dict[Impatient, asyncio.TimerHandle] = {}

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()
            if len(waiting) > most:
                oldest = next(iter(waiting))
                oldest.rest()
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.rest()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            if self.cycle is None:
                super().send_400_response(msg)
            else:  # a second answer to the request before would be an error of uvicorn's, logged
                self.transport.abort()

        def watch(self) -> None:
            """Run the clock while a request is incomplete. uvicorn's own ends idle connections."""
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.rest()
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = self.loop.call_later(seconds, self.transport.abort)

        def rest(self) -> None:
            if (timer := waiting.pop(self, None)) is not None:
                timer.cancel()

    return Impatient
