"""The two programs of ``examples/two_parties``, over a real socket."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from examples.two_parties import modeler as modelers_program  # noqa: E402
from examples.two_parties.curator import LARGEST_REQUEST  # noqa: E402
from examples.two_parties.modeler import Remote  # noqa: E402

TOKEN = "a-long-enough-shared-secret"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def service(folder: Path, port: int) -> Iterator[str]:
    """The curator's program; it is killed in the end."""
    program = [sys.executable, "-m", "examples.two_parties.curator", str(folder)]
    with subprocess.Popen([*program, str(port)], cwd=Path(__file__).parents[1]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def test_a_killed_service_repeats_its_rows_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("BOTORCH_DP_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    port = free_port()
    with service(tmp_path / "state", port) as url:
        remote = Remote(url, token=TOKEN)
        rows = remote.dataset()
        assert rows.guarantee.status == "proven" and rows.value.shape == (300, 3)
        answer = remote.query(7, request_id="seven")
        refused_requests(url)
    with service(tmp_path / "state", port) as url:
        monkeypatch.setattr(sys, "argv", ["modeler", url])
        modelers_program.main()
        assert "Answer(index=" in capsys.readouterr().out
        assert torch.equal(Remote(url, token=TOKEN).dataset().value, rows.value)
        assert Remote(url, token=TOKEN).query(7, request_id="seven") == answer
        with pytest.raises(RuntimeError, match="asked for row 7 before"):
            Remote(url, token=TOKEN).query(8, request_id="seven")


def refused_requests(url: str) -> None:
    """Strangers, and questions that are none: no row leaves."""

    def ask(content: bytes, token: str = TOKEN) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return int(httpx.post(f"{url}/query", content=content, headers=headers).status_code)

    question = b'{"index": 1, "request_id": "one"}'
    assert ask(question) == 200
    assert ask(question, token="guess" * 5) == 401
    assert httpx.get(f"{url}/dataset").status_code == 401
    assert ask(question + b" " * LARGEST_REQUEST) == 413
    for junk in (b"", b"[1]", b"\xff", b'{"index": 1'):
        assert ask(junk) == 400
    for wrong in (b"-1", b"300", b"true", b'"1"', b"1.5", b"[1]", b"null"):
        assert ask(b'{"index": %s, "request_id": "two"}' % wrong) == 403
    for wrong in (b"1", b'""', b'"\\ud800"', b"null"):
        assert ask(b'{"index": 1, "request_id": %s}' % wrong) == 403
