"""The curator as a small HTTP service: the released rows, and answers by row index.

Needs the extra ``service`` (Starlette and uvicorn). Every request carries a bearer token. The
service speaks plain HTTP and listens on the loopback interface by default: put a proxy that
terminates TLS in front of it. Nothing but released values, row numbers and counts ever appears in
a response or in its log.

===================  ==========================================================================
``GET /status``      rows, columns, queries accepted and left, the guarantee in words
``GET /dataset``     the released rows as ``.npz``
``POST /query``      ``{"index": 3, "request_id": "..."}`` to ``{"y": ...}``; the same id is
                     answered the same, without being measured, counted or charged again
===================  ==========================================================================
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced.curator import Curator, InvalidIndex
from botorch_dp.outsourced.exchange import dataset_to_bytes
from botorch_dp.outsourced.query_log import QueryLimitReached, RequestConflict

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

_SHORTEST_TOKEN = 16
_LARGEST_BODY = 4096
_LONGEST_REQUEST_ID = 128


class _RateLimit:
    """Token bucket: ``rate`` requests a second on average, ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._last = float(burst), time.monotonic()
        self._lock = threading.Lock()

    def seconds_to_wait(self) -> float:
        """0 if a request may pass now (it is then counted)."""
        with self._lock:
            now = time.monotonic()
            self._level = min(self._burst, self._level + (now - self._last) * self._rate)
            self._last = now
            if self._level >= 1:
                self._level -= 1
                return 0.0
            return (1 - self._level) / self._rate


def curator_app(curator: Curator, *, token: str, rate: float = 20.0, burst: int = 40) -> Starlette:
    """An ASGI application that serves one curator.

    Args:
        curator: Answers the questions; give it a ``log`` file so that its count of queries
            survives a restart.
        token: Shared secret of at least 16 characters; compared in constant time.
        rate: Requests a second that are let through on average; more get status 429.
        burst: Requests that may come at once.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"`token` must be a string of at least {_SHORTEST_TOKEN} characters.")
    limit = _RateLimit(check_positive("rate", rate), check_integer("burst", burst))
    expected = f"Bearer {token}".encode()
    archive = dataset_to_bytes(curator.dataset)

    def refusal(status: int, reason: str, **headers: str) -> Response:
        return JSONResponse({"error": reason}, status, headers=headers)

    def admitted(request: Request) -> Response | None:
        given = request.headers.get("authorization", "").encode()
        # The flood check comes first: guesses of the token are limited too.
        wait = limit.seconds_to_wait()
        if wait > 0:
            return refusal(429, "Too many requests.", **{"Retry-After": f"{wait:.3f}"})
        if not hmac.compare_digest(given, expected):
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
                "guarantee": str(curator.guarantee),
            }
        )

    async def dataset(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        return Response(archive, media_type="application/octet-stream")

    async def query(request: Request) -> Response:
        if (refused := admitted(request)) is not None:
            return refused
        question = await _read_question(request)
        if question is None:
            return refusal(
                400, 'Send {"index": <integer>, "request_id": "<1 to 128 characters>"} as JSON.'
            )
        try:
            y = await run_in_threadpool(
                curator.query, question["index"], request_id=question["request_id"]
            )
        except InvalidIndex as error:
            return refusal(404, str(error))
        except RequestConflict:
            return refusal(409, "This request_id asked for another row before.")
        except QueryLimitReached as error:
            return refusal(403, str(error))
        except BudgetExhausted:
            return refusal(403, "The privacy budget is exhausted.")
        except Exception as error:
            # The type only: a message may quote sensitive values.
            logger.error("row %d: measurement failed (%s)", question["index"], type(error).__name__)
            return refusal(500, "The row could not be measured.")
        logger.info("row %d: answered, %d queries so far", question["index"], curator.num_queries)
        return JSONResponse({"y": y})

    return Starlette(
        routes=[
            Route("/status", status),
            Route("/dataset", dataset),
            Route("/query", query, methods=["POST"]),
        ]
    )


async def _read_question(request: Request) -> dict[str, Any] | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_BODY:
            return None
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(question, dict):
        return None
    index, request_id = question.get("index"), question.get("request_id")
    if isinstance(index, bool) or not isinstance(index, int):
        return None
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= _LONGEST_REQUEST_ID:
        return None
    return {"index": index, "request_id": request_id}


def serve(
    curator: Curator,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    rate: float = 20.0,
    burst: int = 40,
) -> None:
    """Serve a curator until interrupted.

    Args:
        curator: See :func:`curator_app`.
        token: Shared secret.
        host: Interface to listen on; the loopback one by default, for a proxy in front.
        port: Port to listen on.
        rate: Requests a second on average.
        burst: Requests at once.
    """
    import uvicorn

    app = curator_app(curator, token=token, rate=rate, burst=burst)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)
