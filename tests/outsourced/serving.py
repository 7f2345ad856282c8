"""A curator's service on a real socket of the loopback interface."""

from __future__ import annotations

import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from botorch_dp.outsourced import Curator, GaussianNoiseCurator, curator_app
from botorch_dp.outsourced.service import curator_server, listen

if TYPE_CHECKING:
    from tests.outsourced.certificates import Certificate

pytest.importorskip("uvicorn")

TOKEN = "a-long-enough-shared-secret"
X = torch.randn(30, 3, dtype=torch.double, generator=torch.Generator().manual_seed(2))


def measure(index: int) -> float:
    return float(X[index, 0])


def make_curator(evaluate=measure, **kwargs) -> GaussianNoiseCurator:
    return GaussianNoiseCurator(X, evaluate, epsilon=2.0, delta=1e-6, **kwargs)


#: Ports that nobody else is given: bound, which keeps nobody here from listening at them.
_KEPT: list[socket.socket] = []


def free_port() -> int:
    """A port of this process, where nothing listens until a test does."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: a thousand commits to a disk take half a minute."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as name:
        yield Path(name)


@contextmanager
def serving(
    curator: Curator,
    *,
    port: int = 0,
    request_seconds: float = 10.0,
    waiting: int = 100,
    certificate: Certificate | None = None,
    **settings: Any,
) -> Iterator[str]:
    """The address of a service in a thread of this process."""
    files = {}
    if certificate is not None:
        files = {"certfile": certificate.certfile, "keyfile": certificate.keyfile}
    app = curator_app(curator, token=TOKEN, **settings)
    server = curator_server(app, request_seconds=request_seconds, waiting=waiting, **files)
    listener = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        scheme = "http" if certificate is None else "https"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def raw(
    url: str, method: str, path: str, body: bytes | None = None, token: str = TOKEN, **headers: str
):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}", **headers})
    response = connection.getresponse()
    return response.status, response.read(), response.headers


def connected(url: str, sent: bytes = b"") -> socket.socket:
    """A connection that has sent so much."""
    host, port = url.rpartition("/")[2].split(":")
    stranger = socket.create_connection((host, int(port)), timeout=20)
    stranger.sendall(sent)
    return stranger


def drained(stranger: socket.socket) -> bytes:
    """Everything until the other side closes."""
    received = b""
    with suppress(ConnectionError):
        while chunk := stranger.recv(2**16):
            received += chunk
    return received


def question(index, request_id="q") -> bytes:
    return json.dumps({"index": index, "request_id": request_id}).encode()
