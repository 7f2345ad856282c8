"""The curator's side: serves the released rows, and answers questions by row number.

``BOTORCH_DP_TOKEN=... python -m examples.two_parties.curator state 8765``

After a restart it serves the same rows and repeats its answers. It speaks plain HTTP on the
loopback interface: between machines, put a proxy in front that speaks HTTPS and cuts off who sends
nothing, or tunnel the port through ssh.
"""

from __future__ import annotations

import hmac
import logging
import os
import sys
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from botorch_dp import GaussianNoiseCurator
from botorch_dp.outsourced import Curator, save_dataset
from botorch_dp.outsourced.exchange import answer_to

LARGEST_REQUEST = 4096  # bytes


def curator_app(curator: Curator, *, token: str, folder: Path) -> Starlette:
    """An application that serves one curator to whoever has the token."""
    if len(token) < 16:
        raise ValueError("The token needs 16 characters or more: secrets.token_urlsafe(32).")
    save_dataset(folder / "released.npz", curator.dataset)

    def refusal(request: Request) -> Response | None:
        given = request.headers.get("authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return None
        return JSONResponse({"error": "A valid bearer token is required."}, 401)

    async def dataset(request: Request) -> Response:
        return refusal(request) or FileResponse(folder / "released.npz")

    async def query(request: Request) -> Response:
        if refused := refusal(request):
            return refused
        if int(request.headers.get("content-length", LARGEST_REQUEST + 1)) > LARGEST_REQUEST:
            return JSONResponse({"error": "The question is too large."}, 413)
        try:
            question = dict(await request.json())
        except (ValueError, TypeError):
            return JSONResponse({"error": "Send index and request_id as JSON."}, 400)
        asked = question.get("index"), question.get("request_id")
        answer = await run_in_threadpool(answer_to, curator, *asked)
        return JSONResponse(answer, 200 if "y" in answer else 403)

    return Starlette(routes=[Route("/dataset", dataset), Route("/query", query, methods=["POST"])])


def main() -> None:
    """Serve 300 rows of an example until interrupted."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(mode=0o700, exist_ok=True)
    logging.basicConfig(level=logging.INFO)  # row numbers and counts, never a value
    rows = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * 5  # yours: sensitive
    curator = GaussianNoiseCurator(
        rows,
        lambda index: -float(rows[index].norm()),  # yours: what is measured of a row
        epsilon=3.0,
        delta=1e-5,
        row_distance=1.0,
        log=folder / "curator.sqlite",
    )
    print(curator.statement)
    app = curator_app(curator, token=os.environ["BOTORCH_DP_TOKEN"], folder=folder)
    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    main()
