"""The modeler's client of a curator's service. It trusts nothing that it is sent."""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, checked
from botorch_dp.outsourced.curator import check_request_id
from botorch_dp.outsourced.exchange import LARGEST_DATASET, check_answer, dataset_from_bytes
from botorch_dp.privacy import Release

#: The service's own refusals: asking again changes nothing.
_FINAL = {400, 401, 403, 404, 405, 409, 422}
_REDIRECTS = {300, 301, 302, 303, 305, 307, 308}
#: Bytes of an answer that is no data set.
_LARGEST_MESSAGE = 2**16


class CuratorRefusal(RuntimeError):
    """The curator answered that it will not answer; :attr:`status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreadableResponse(RuntimeError):
    """What came back is not what a curator's service sends."""


@checked
class CuratorClient:
    """Asks a curator's service; its :meth:`query` goes into ``Modeler.run``.

    A lost connection, a restart of the service and its rate limit are waited out, with the same
    request id, so nothing is counted twice. A curator that stays away ends in
    ``ConnectionError``; run again with the same checkpoint to go on. Redirects are not followed:
    the token goes to ``url`` only (or to the proxy that the environment names). What is no answer
    of a curator ends in :class:`UnreadableResponse`.

    Args:
        url: Where the service is, such as ``"https://curator.example"``.
        token: The shared secret.
        timeout: Seconds that one exchange may take as a whole, and seconds to wait for a row
            that the curator says it is still measuring.
        patience: Seconds to keep trying before giving up.
        largest: Bytes of the largest data set to accept, packed or unpacked.

    Example:
        >>> remote = CuratorClient("http://127.0.0.1:8765", token="a-long-shared-secret")
        >>> modeler = Modeler(remote.dataset().value, delta=0.1)
        >>> history = modeler.run(remote.query, steps=50, checkpoint="search.run")
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        timeout: float = 60.0,
        patience: float = 60.0,
        largest: int = LARGEST_DATASET,
    ) -> None:
        _check_url(url)
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ValueError("`token` must be a string of printable ASCII characters.")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = check_positive("timeout", timeout)
        self._patience = check_positive("patience", patience)
        self._largest = check_integer("largest", largest)

    def dataset(self) -> Release[Tensor]:
        """The released rows with their guarantee."""
        data = self._request("/dataset", largest=self._largest)
        try:
            return dataset_from_bytes(data, largest=self._largest)
        except ValueError as error:
            raise UnreadableResponse(str(error)) from None

    def status(self) -> dict[str, Any]:
        """Rows, columns, queries accepted and left, and the guarantees in words."""
        return _parsed(self._request("/status"))

    def query(self, index: int, *, request_id: str | None = None) -> float:
        """Ask for one row."""
        check_integer("index", index, at_least=0)
        request = uuid.uuid4().hex if request_id is None else check_request_id(request_id)
        body = json.dumps({"index": index, "request_id": request}).encode()
        answer = _parsed(self._request("/query", body))
        try:
            return check_answer(answer.get("y"))
        except ValueError as error:
            raise UnreadableResponse(str(error)) from None

    def _request(
        self, path: str, body: bytes | None = None, *, largest: int = _LARGEST_MESSAGE
    ) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=body,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        start = time.monotonic()
        deadline = start + self._patience
        pause = 0.1
        while True:
            try:
                status, headers, content = _exchange(request, self._timeout, largest)
            except (OSError, http.client.IncompleteRead) as error:
                if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                    raise ConnectionError(
                        f"The certificate of {self._url} is not trusted, and asking again does not "
                        "change that. Have it signed by an authority that this machine knows, or "
                        "set SSL_CERT_FILE to the file of the one that signed it."
                    ) from None
                problem = str(error) or type(error).__name__
            else:
                if status == 200:
                    return content
                problem = _reason(content)
                if status in _FINAL | _REDIRECTS:
                    raise CuratorRefusal(
                        f"The curator refused {path} ({status}): {problem}", status=status
                    )
                if status == 202:  # the row is being measured
                    deadline, pause = max(deadline, start + self._timeout), 0.1
                pause = max(pause, _retry_after(headers))
            if time.monotonic() + pause > deadline:
                raise ConnectionError(
                    f"No answer from {self._url}{path} within {deadline - start:g} s ({problem})."
                )
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def __repr__(self) -> str:
        return f"CuratorClient({self._url!r})"


def _exchange(
    request: urllib.request.Request, seconds: float, largest: int
) -> tuple[int, Any, bytes]:
    """Status, headers and content of one request that takes ``seconds`` at most, as a whole.

    A timeout of a socket is counted anew for every byte that trickles in. So a timer cuts the
    connection, in whatever state it is.
    """
    sockets: list[socket.socket] = []
    late = threading.Event()

    def keep(sock: socket.socket) -> None:
        sockets.append(sock)
        if late.is_set():
            cut()

    def cut() -> None:
        late.set()
        for sock in sockets:
            with suppress(OSError):
                # Not the method of an encrypted socket, which another thread is reading.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        with _opener(keep).open(request, timeout=seconds) as response:
            content = _content(response, largest)
            if late.is_set():
                raise TimeoutError
            return response.status, response.headers, content
    except Exception as error:
        if late.is_set():
            raise TimeoutError(f"no whole answer in {seconds:g} s") from None
        if isinstance(error, OSError | http.client.IncompleteRead | UnreadableResponse):
            raise
        # Other errors are junk where HTTP should be, each kind with a message that quotes it.
        raise UnreadableResponse(f"This is no answer of HTTP ({type(error).__name__}).") from None
    finally:
        timer.cancel()


def _opener(keep: Callable[[socket.socket], None]) -> urllib.request.OpenerDirector:
    """An opener that returns whatever status comes, and shows each socket to ``keep``."""

    def connects(kind: type[http.client.HTTPConnection]) -> Any:
        class Connection(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                keep(self.sock)

        return Connection

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(connects(http.client.HTTPConnection), request)

    class Encrypted(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(connects(http.client.HTTPSConnection), request)

    class AsItIs(urllib.request.HTTPErrorProcessor):
        """Redirects are followed, and errors raised, by what this one replaces."""

        def http_response(self, request: urllib.request.Request, response: Any) -> Any:
            return response

        https_response = http_response

    return urllib.request.build_opener(Plain, Encrypted, AsItIs)


def _content(response: http.client.HTTPResponse, largest: int) -> bytes:
    """All of an answer; of an error page the beginning is enough."""
    is_error = response.status >= 300
    chunks, size = [], 0
    while chunk := response.read1(2**16):
        chunks.append(chunk)
        size += len(chunk)
        if is_error and size > _LARGEST_MESSAGE:
            return b"".join(chunks)
        if size > largest:
            raise UnreadableResponse(f"The answer is larger than {largest} bytes.")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(chunks)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise UnreadableResponse("The answer is no JSON object.")
    return message


def _reason(content: bytes) -> str:
    """What an error page says, in a few printable words."""
    try:
        reason = str(_parsed(content)["error"])
    except (UnreadableResponse, KeyError, ValueError, RecursionError):
        return "no reason given"
    return "".join(c if c.isprintable() else " " for c in reason[:200])


def _check_url(url: object) -> None:
    try:
        if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise ValueError(
            "`url` must look like https://curator.example:8765, without a user name or a query."
        ) from None


def _retry_after(headers: Any) -> float:
    """Seconds; a date or junk counts as a second."""
    try:
        seconds = float(headers.get("Retry-After", 0))
    except ValueError:
        return 1.0
    return seconds if math.isfinite(seconds) and seconds >= 0 else 1.0
