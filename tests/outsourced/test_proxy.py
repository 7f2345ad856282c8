"""The example of a proxy, tried with a real nginx where one is installed."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from botorch_dp.outsourced import CuratorClient, CuratorRefusal
from tests.outsourced.certificates import certificate
from tests.outsourced.serving import (
    TOKEN,
    connected,
    free_port,
    make_curator,
    measure,
    serving,
)

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
EXAMPLE = Path(__file__).parents[2] / "deploy" / "nginx.conf"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@contextmanager
def proxy(folder: Path, service: str, changes: dict[str, str] | None = None) -> Iterator[str]:
    """nginx with the example, its address and files replaced; the address it listens at."""
    authority = certificate(folder, "authority")
    own = certificate(folder, "service", by=authority)
    port = free_port()
    text = EXAMPLE.read_text()
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/curator/service.pem": str(own.certfile),
        "/etc/curator/service.key": str(own.keyfile),
        "server 127.0.0.1:8765;": f"server {service.removeprefix('http://')};",
        **(changes or {}),
    }.items():
        assert old in text
        text = text.replace(old, new)
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}\n{text}\n}}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", folder, "-c", folder / "nginx.conf"])
    try:
        deadline = time.monotonic() + 20
        while not (folder / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, (folder / "error.log").read_text()
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def client(url: str, folder: Path, **settings) -> CuratorClient:
    settings = {"token": TOKEN, "patience": 20.0, **settings}
    return CuratorClient(url, cafile=folder / "authority.pem", **settings)


def get(url: str, folder: Path, **headers: str) -> int:
    """The status of one request."""
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), context=context, timeout=20
        ) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_example_is_valid(tmp_path: Path) -> None:
    with proxy(tmp_path, "127.0.0.1:1"):
        assert "warn" not in (tmp_path / "error.log").read_text()


def test_questions_pass(tmp_path: Path) -> None:
    with serving(make_curator()) as service, proxy(tmp_path, service) as url:
        remote = client(url, tmp_path)
        assert [remote.query(index) for index in range(3)] == [measure(i) for i in range(3)]
        assert remote.dataset().value.shape == (30, 3)
        assert get(f"{url}/health", tmp_path) == 200
        with pytest.raises(CuratorRefusal) as refused:
            client(url, tmp_path, token="x" * 20).status()
        assert refused.value.status == 401
        with pytest.raises(CuratorRefusal) as refused:
            remote._request("/query", {"index": "x" * 5000})
        assert refused.value.status == 413
        plain = CuratorClient(url.replace("https:", "http:"), token=TOKEN)
        with pytest.raises(CuratorRefusal, match="plain HTTP request was sent to HTTPS port"):
            plain.status()


def test_floods_and_half_sent_requests_end_at_the_proxy(tmp_path: Path) -> None:
    changes = {"rate=50r/s": "rate=1r/s", "burst=100": "burst=5", "timeout 10s": "timeout 1s"}
    with serving(make_curator()) as service, proxy(tmp_path, service, changes=changes) as url:
        codes = [get(f"{url}/health", tmp_path) for _ in range(30)]
        assert codes.count(200) >= 6
        assert codes.count(429) >= 4
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        start = time.monotonic()
        with (
            connected(url) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as half,
        ):
            half.sendall(b"GET /status HTTP/1.1\r\nHo")
            while half.recv(1000):
                pass
        assert time.monotonic() - start < 8


@pytest.mark.slow
def test_the_client_waits_for_a_service_behind_the_proxy(tmp_path: Path) -> None:
    port = free_port()
    with proxy(tmp_path, f"127.0.0.1:{port}") as url:
        with pytest.raises(ConnectionError, match="502 Bad Gateway"):
            client(url, tmp_path, patience=0.5).status()
        answers: list[float] = []
        remote = client(url, tmp_path, patience=60.0)
        asking = threading.Thread(target=lambda: answers.append(remote.query(2)))
        asking.start()
        time.sleep(0.5)
        with serving(make_curator(), port=port):
            asking.join(timeout=60)
        assert answers == [measure(2)]
