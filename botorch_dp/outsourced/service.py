"""The curator as a small HTTP service: the released rows, and answers by row index.

Needs the extra ``service`` (Starlette and uvicorn). Every request carries a bearer token. Nothing
but released values, row numbers and counts ever appears in a response or in the log.

===================  ==========================================================================
``GET /status``      rows, columns, queries accepted and left, the guarantees in words
``GET /dataset``     the released rows as ``.npz``
``POST /query``      ``{"index": 3, "request_id": "..."}`` to ``{"y": ...}``; the same id is
                     answered the same, without being measured, counted or charged again. 202
                     says that the row is still being measured: ask again with the same id
===================  ==========================================================================

What is done against strangers, by whom:

* *uvicorn* bounds a request's head, closes idle connections and drops what is not HTTP.
* *This module* closes connections whose request is not whole in time, and when too many wait for
  theirs, the oldest one of the busiest address. Requests are counted for each address, those with
  a wrong token apart from those with the right one: a flood of guesses is refused, and does not
  lock out the owner of the token, not even at the same address. A token must therefore resist
  unlimited guessing: draw it at random, by ``python -c "import secrets;
  print(secrets.token_urlsafe(32))"``.
* *A proxy* in front must do the rest. The service speaks plain HTTP and listens on the loopback
  interface by default; the proxy terminates TLS, withstands floods that fill the line, and sets
  ``X-Forwarded-For``, without which all of its clients count as one address.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from botorch_dp._checks import check_integer, check_positive, checked
from botorch_dp.outsourced.curator import Curator, check_request_id
from botorch_dp.outsourced.exchange import answer_to, dataset_to_bytes

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

_SHORTEST_TOKEN = 16
_LARGEST_BODY = 4096
#: Addresses whose requests are counted; the one that was silent for longest is forgotten.
_ADDRESSES = 1024
#: Seconds until a question whose row is still being measured is answered with 202.
_ANSWER_WITHIN = 15.0


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


def check_token(token: object) -> str:
    """Return ``token``, or raise if it is too short or cannot stand in a header."""
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not _is_plain(token):
        raise ValueError(
            f"`token` must be a string of at least {_SHORTEST_TOKEN} printable ASCII characters "
            "without spaces."
        )
    return token


def _is_plain(token: str) -> bool:
    return all("!" <= character <= "~" for character in token)


@checked
def curator_app(
    curator: Curator, *, token: str, rate: float = 20.0, burst: int = 40, measurements: int = 8
) -> Starlette:
    """An ASGI application that serves one curator.

    Args:
        curator: Answers the questions; give it a ``log`` file so that its count of queries
            survives a restart.
        token: Shared secret of at least 16 characters; compared in constant time.
        rate: Requests a second that each address may send on average; more get status 429.
        burst: Requests that may come at once.
        measurements: Rows that are measured at once, each in a thread of its own. A measurement
            that hangs holds one of these places; further questions get status 503.
    """
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    if not isinstance(curator, Curator):
        raise TypeError(f"`curator` must be a Curator, got {type(curator).__name__}.")
    check_integer("measurements", measurements)
    check_positive("rate", rate)
    check_integer("burst", burst)
    owners, strangers = _RateLimits(rate, burst), _RateLimits(rate, burst)
    expected = f"Bearer {check_token(token)}".encode()
    archive = dataset_to_bytes(curator.dataset)
    measured_now: dict[tuple[object, str], asyncio.Future[tuple[int, dict[str, Any]]]] = {}

    def refusal(status: int, reason: str, **headers: str) -> Response:
        return JSONResponse({"error": reason}, status, headers=headers)

    def admitted(request: Request) -> Response | None:
        given = request.headers.get("authorization", "").encode()
        is_owner = hmac.compare_digest(given, expected)
        wait = (owners if is_owner else strangers).seconds_to_wait(_address(request))
        if wait > 0:
            return refusal(429, "Too many requests.", **{"Retry-After": f"{wait:.3f}"})
        if not is_owner:
            return refusal(
                401, "A valid bearer token is required.", **{"WWW-Authenticate": "Bearer"}
            )
        return None

    async def status(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        asked = curator.num_queries
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
            answer.add_done_callback(lambda _: measured_now.pop(question))
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
            Route("/status", status),
            Route("/dataset", dataset),
            Route("/query", query, methods=["POST"]),
        ]
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


def curator_server(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    request_seconds: float = 10.0,
    connections: int = 100,
) -> uvicorn.Server:
    """A uvicorn server whose connections are limited; see :func:`serve`.

    Args:
        app: From :func:`curator_app`.
        host: Interface to listen on.
        port: Port to listen on.
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
            host=host,
            port=check_integer("port", port, at_least=0, at_most=65535),
            http=_limited_protocol(request_seconds, connections),
            ws="none",
            lifespan="off",
            # A line for every request that is not HTTP would let strangers fill the disk.
            log_level="error",
            access_log=False,
            server_header=False,
            # One round of the loop accepts no more than this: descriptors stay few.
            backlog=128,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


def _limited_protocol(request_seconds: float, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which itself waits for ever for the rest of a request."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    #: Connections without a whole request, oldest first.
    waiting: dict[Limited, None] = {}

    class Limited(H11Protocol):
        deadline: asyncio.TimerHandle | None = None
        unsent, gone = 0, False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()
            if len(waiting) > connections:
                crowd = Counter(other.host for other in waiting).most_common(1)[0][0]
                next(other for other in waiting if other.host == crowd).drop()

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except h11.LocalProtocolError:
                # uvicorn answers junk after its answer, which the protocol forbids.
                self.drop()
            self.watch()

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

    return Limited


@checked
def serve(
    curator: Curator,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    rate: float = 20.0,
    burst: int = 40,
    measurements: int = 8,
) -> None:
    """Serve a curator until interrupted.

    Args:
        curator: See :func:`curator_app`.
        token: Shared secret.
        host: Interface to listen on; the loopback one by default, for a proxy in front.
        port: Port to listen on.
        rate: Requests a second for each address, on average.
        burst: Requests at once.
        measurements: Rows measured at once.
    """
    app = curator_app(curator, token=token, rate=rate, burst=burst, measurements=measurements)
    with suppress(KeyboardInterrupt):
        curator_server(app, host=host, port=port).run()
