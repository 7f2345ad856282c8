"""A dashboard: the report of a study that is running, on this machine and for who has the token.

The study's file is read as a copy of what is committed; its lock, and whoever holds it, are left
alone. Needs the extras ``report`` and ``service``.

===============  ===============================================================================
``GET /``        the report of what the file holds now; ``?token=`` is needed
``GET /state``   a word that changes when the file does; the page asks every two seconds
===============  ===============================================================================
"""

from __future__ import annotations

import hmac
import os
import threading
from typing import TYPE_CHECKING

from botorch_dp.report.study import StudyView, study_page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_LOOPBACK = "127.0.0.1"


def dashboard_app(path: str | os.PathLike[str], *, token: str) -> Starlette:
    """An ASGI application that shows one study.

    Args:
        path: The study's file; read only.
        token: Shared secret of at least 16 characters; compared in constant time.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    if not isinstance(token, str) or len(token) < 16:
        raise ValueError("`token` must be a string of at least 16 characters.")
    lock = threading.Lock()
    made: dict[str, str] = {}

    def state() -> str:
        status = os.stat(path)
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def page() -> str:
        with lock:  # the models are fitted once for several who look
            now = state()
            if now not in made:
                view = study_page(StudyView.of_file(path))
                view.data["state"] = now
                made.clear()
                made[now] = view.html(live=True)
            return made[now]

    def admitted(request: Request) -> bool:
        given = request.query_params.get("token", "")
        return hmac.compare_digest(given.encode(), token.encode())

    async def show(request: Request) -> Response:
        if not admitted(request):
            return HTMLResponse("The address must end in ?token= and the token.", 401)
        return HTMLResponse(await run_in_threadpool(page), headers=_PRIVATE)

    async def tell_state(request: Request) -> Response:
        if not admitted(request):
            return JSONResponse({"error": "A valid token is required."}, 401)
        return JSONResponse({"state": await run_in_threadpool(state)}, headers=_PRIVATE)

    return Starlette(
        routes=[Route("/", show), Route("/state", tell_state)],
        # A name that another site points at this machine is not ours.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[_LOOPBACK, "localhost"])],
    )


#: Nothing is kept by the browser, and no other page learns the address, which holds the token.
_PRIVATE = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def serve_dashboard(path: str | os.PathLike[str], *, token: str, port: int = 8766) -> None:
    """Serve a dashboard on the loopback interface until it is interrupted."""
    import uvicorn

    app = dashboard_app(path, token=token)
    # The log of requests would hold the token.
    uvicorn.run(app, host=_LOOPBACK, port=port, log_level="warning", access_log=False)
