"""The modeler's client waits out what passes and reports what does not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from botorch_dp.outsourced import CuratorClient, CuratorRefusal, UnreadableResponse
from tests.outsourced.serving import (
    TOKEN,
    free_port,
    make_curator,
    measure,
    serving,
)


def test_client_survives_a_curator_that_comes_back() -> None:
    port = free_port()
    remote = CuratorClient(f"http://127.0.0.1:{port}", token=TOKEN, patience=30)
    answers: list[float] = []
    thread = threading.Thread(target=lambda: answers.append(remote.query(2)))
    thread.start()
    time.sleep(0.5)
    with serving(make_curator(), port=port):
        thread.join(timeout=30)
    assert answers == [measure(2)]


def test_it_may_be_called_inside_an_event_loop() -> None:
    """As in a notebook."""

    async def cell() -> float:
        return CuratorClient(url, token=TOKEN).query(3)

    with serving(make_curator()) as url:
        assert asyncio.run(cell()) == measure(3)


def test_unknown_host() -> None:
    with pytest.raises(ConnectionError):
        CuratorClient(f"http://127.0.0.1:{free_port()}", token=TOKEN, patience=0.2).status()
    assert TOKEN not in repr(CuratorClient("http://127.0.0.1:1", token=TOKEN))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://curator",
        "http://",
        "http://curator:99999",
        "http://user:word@curator",
        "http://curator/?to=there",
        "http://cur ator",
        "http://curator\r\nX: y",
        5,
        None,
    ],
)
def test_bad_urls(url) -> None:
    with pytest.raises((TypeError, ValueError), match="`url`") as refused:
        CuratorClient(url, token=TOKEN)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("token", ["line\nbreak in a token", "schlüssel-im-klartext", None])
def test_bad_tokens(token) -> None:
    with pytest.raises((TypeError, ValueError), match="`token`") as refused:
        CuratorClient("http://127.0.0.1:1", token=token)
    assert "break in" not in str(refused.value)


@contextmanager
def bad_server(*parts: bytes, pause: float = 0.0, forever: bool = False) -> Iterator[str]:
    """Sends the same bytes to whoever asks; its ``requests`` are kept on the function."""
    stop = threading.Event()
    bad_server.requests = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            bad_server.requests.append(connection.recv(2**16))
            for part in parts:
                connection.sendall(part)
                stop.wait(pause)
            while forever and not stop.wait(pause):
                connection.sendall(parts[-1])
            # If something were left unread, closing would also take back what was sent.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(2**16):
                pass

    def accept() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        thread.join()
        listener.close()


def page(content: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(head).encode() + content


def client(url: str, **settings) -> CuratorClient:
    return CuratorClient(url, token=TOKEN, **{"patience": 0.3, "timeout": 30.0, **settings})


class TestBadServers:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_no_redirect_carries_the_token_elsewhere(self, status: int) -> None:
        with bad_server(page(b'{"y": 1.0}')) as elsewhere:
            bad_server_requests = bad_server.requests
            moved = page(b"", f"{status} Moved", f"Location: {elsewhere}/query")
            with bad_server(moved) as url:
                with pytest.raises(CuratorRefusal) as refused:
                    client(url).query(1)
                with pytest.raises(CuratorRefusal):
                    client(url).status()
                assert TOKEN.encode() in bad_server.requests[0]
            assert refused.value.status == status
            assert bad_server_requests == []

    @pytest.mark.parametrize(
        "y",
        [
            *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" + b"0" * 400, b"1" * 5000),
            *(b"true", b"null", b'"1.0"', b"[1.0]", b"{}"),
        ],
    )
    def test_only_finite_numbers_are_answers(self, y: bytes) -> None:
        with (
            bad_server(page(b'{"y": ' + y + b"}")) as url,
            pytest.raises(UnreadableResponse),
        ):
            client(url).query(1)

    @pytest.mark.parametrize(
        "answer",
        [
            *(page(b""), page(b"{"), page(b"[]"), page(b"\xff\xfe"), page(b"[" * 60_000)),
            page(b"{}"),
            b"\0" * 100 + b"\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        ],
    )
    def test_junk_is_one_error(self, answer: bytes) -> None:
        with bad_server(answer) as url:
            with pytest.raises(UnreadableResponse) as caught:
                client(url).query(1)
            assert len(str(caught.value)) < 300
            with pytest.raises(UnreadableResponse):
                client(url).dataset()

    @pytest.mark.parametrize(
        "answer",
        [page(b"x" * 100)[:-50], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b""],
    )
    def test_a_torn_answer_is_a_lost_connection(self, answer: bytes) -> None:
        with bad_server(answer) as url, pytest.raises((ConnectionError, UnreadableResponse)):
            client(url).status()

    @pytest.mark.parametrize("declared", [True, False])
    def test_sizes_are_bounded(self, declared: bool) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 4000000000\r\n" if declared else b"")
        tracemalloc.start()
        with bad_server(head + b"\r\n", b"x" * 2**16, forever=True) as url:
            for ask in (client(url).status, client(url, largest=10**6).dataset):
                with pytest.raises(UnreadableResponse, match="larger than"):
                    ask()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2e7

    @pytest.mark.parametrize(
        "start",
        [
            b"HTTP/1.1 200 OK\r\nX: ",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            b"HTTP/1.1 500 Oops\r\n\r\n",
            b"",
        ],
        ids=["head", "body", "body of known length", "error page", "status line"],
    )
    def test_deadlines_are_whole(self, start: bytes) -> None:
        """A byte now and then does not start the clock again."""
        with bad_server(start, b"x", pause=0.05, forever=True) as url:
            began = time.monotonic()
            with pytest.raises(ConnectionError, match="no whole answer"):
                client(url, timeout=0.4, patience=0.2).status()
            assert time.monotonic() - began < 15

    def test_a_proxy_that_is_slow_to_say_that_the_way_is_open(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with bad_server(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", pause=0.05, forever=True) as proxy:
            monkeypatch.setenv("https_proxy", proxy)
            monkeypatch.setenv("no_proxy", "")
            began = time.monotonic()
            with pytest.raises(ConnectionError, match="no whole answer"):
                client("https://curator.example", timeout=0.4, patience=0.2).status()
            assert time.monotonic() - began < 15

    @pytest.mark.parametrize("start", [b"", b"1;", b"1\r\nx", b"0\r\n"])
    def test_the_lines_of_a_chunked_answer_are_bounded(self, start: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + start
        endless = bad_server(head, b"a" * 2**16, forever=True)
        with endless as url, pytest.raises(UnreadableResponse, match="no answer of HTTP"):
            client(url, patience=0.2).status()

    def test_endless_interim_answers_end(self) -> None:
        with bad_server(b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.001, forever=True) as url:
            began = time.monotonic()
            with pytest.raises(ConnectionError):
                client(url, timeout=0.4, patience=0.2).status()
            assert time.monotonic() - began < 15

    @pytest.mark.parametrize("after", ["nan", "inf", "-5", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT"])
    def test_pauses_are_within_the_patience(self, after: str) -> None:
        with bad_server(page(b"", "429 Too Many", f"Retry-After: {after}")) as url:
            began = time.monotonic()
            with pytest.raises(ConnectionError, match="no reason given"):
                client(url).status()
            assert time.monotonic() - began < 15

    @pytest.mark.parametrize("begin", [b'{"error": "\\u001b[2J', b"<html>\x1b[2J", b"\xff\x1b"])
    def test_reasons_are_short_and_printable(self, begin: bytes) -> None:
        reason = begin + b"x" * 1000 + b'"}'
        with bad_server(page(reason, "403 No")) as url:
            with pytest.raises(CuratorRefusal, match="xxx") as refused:
                client(url).status()
            assert "\x1b" not in str(refused.value)
            assert len(str(refused.value)) < 300
