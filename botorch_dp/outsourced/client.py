"""The modeler's client of a curator's service. It trusts nothing that it is sent."""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import uuid
from contextlib import suppress
from typing import Any

from torch import Tensor

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.outsourced.credentials import client_context
from botorch_dp.outsourced.curator import check_request_id
from botorch_dp.outsourced.exchange import (
    LARGEST_DATASET,
    check_answer,
    dataset_from_bytes,
    printable,
)
from botorch_dp.privacy import Release

#: The service's own refusals: asking again changes nothing.
_FINAL = {400, 401, 403, 404, 405, 409, 413, 422}
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


class CuratorClient:
    """Asks a curator's service; its :meth:`query` goes into ``Modeler.run``.

    What passes is waited out, with the same request id, so nothing is counted twice: an unknown
    or silent host, a refused or lost connection, a restart of the service, its rate limit, a proxy
    without a service behind it. A curator that stays away ends in ``ConnectionError``; run again
    with the same checkpoint to go on. What asking again does not change is final at once: a wrong
    token or question is a :class:`CuratorRefusal`, a certificate that one side does not trust a
    ``ConnectionError``. Redirects are not followed: the token goes to ``url`` only (or to the proxy
    that the environment names). What is no answer of a curator ends in
    :class:`UnreadableResponse`.

    Args:
        url: Where the service is, such as ``"https://curator.example"``.
        token: The shared secret.
        timeout: Seconds that one exchange may take as a whole, and seconds to wait for a row
            that the curator says it is still measuring.
        patience: Seconds to keep trying before giving up.
        largest: Bytes of the largest data set to accept, packed or unpacked.
        cafile: Authorities that sign the service's certificate, in PEM; by default those that this
            machine knows.
        certfile: Certificate that this client shows to a service that asks for one, in PEM.
        keyfile: Its key without a pass phrase; by default it stands in ``certfile``.

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
        cafile: str | os.PathLike[str] | None = None,
        certfile: str | os.PathLike[str] | None = None,
        keyfile: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_url(url)
        context = None
        if url.startswith("https:"):
            context = client_context(cafile, certfile, keyfile)
        elif cafile is not None or certfile is not None or keyfile is not None:
            raise ValueError("`cafile`, `certfile` and `keyfile` need a `url` of https.")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ValueError("`token` must be a string of printable ASCII characters.")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = check_positive("timeout", timeout)
        self._patience = check_positive("patience", patience)
        self._largest = check_integer("largest", largest)
        self._connections = _connections(self._url, context)

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
        """The content of an answer; what passes is waited out here.

        The retries of urllib3 count attempts, each in a deeper call; what a search waits for is
        counted in hours.
        """
        start = time.monotonic()
        deadline = start + self._patience
        pause = 0.1
        while True:
            try:
                status, headers, content = self._exchange(path, body, largest)
            except _Passing as error:
                problem = str(error)
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

    def _exchange(self, path: str, body: bytes | None, largest: int) -> tuple[int, Any, bytes]:
        """Status, headers and content of one request that takes ``timeout`` at most, as a whole."""
        limit = _NOW.limit = _Limit(self._timeout)
        try:
            response = self._connections.request(
                "GET" if body is None else "POST",
                self._url + path,
                body=body,
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                },
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                content = _content(response, largest)
            except BaseException:
                response.close()
                raise
            if limit.passed.is_set():
                raise TimeoutError
            return response.status, response.headers, content
        except Exception as error:
            if limit.passed.is_set():
                raise _Passing(f"no whole answer in {self._timeout:g} s") from None
            raise _told_apart(error, self._url) from None
        finally:
            limit.end()

    def __repr__(self) -> str:
        return f"CuratorClient({self._url!r})"


class _Passing(Exception):
    """What may be over when asked again."""


def _told_apart(error: Exception, url: str) -> Exception:
    """What passes, what is final, and what is no answer."""
    from urllib3 import exceptions

    if isinstance(error, UnreadableResponse):
        return error
    cause = next((part for part in reversed(error.args) if isinstance(part, Exception)), error)
    ended = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    if isinstance(error, exceptions.SSLError) and not isinstance(cause, ended):
        return ConnectionError(f"{_words(cause, url)} Asking again does not change that.")
    junk = http.client.HTTPException, UnicodeError
    lost = OSError, http.client.IncompleteRead
    if isinstance(cause, junk) and not isinstance(cause, lost):
        # The message of each kind quotes what was sent.
        return UnreadableResponse(f"This is no answer of HTTP ({type(cause).__name__}).")
    if isinstance(error, exceptions.HTTPError | OSError):
        reason = getattr(cause, "reason", None) or getattr(cause, "strerror", None) or cause
        return _Passing(str(reason) or type(cause).__name__)
    return UnreadableResponse(f"This is no answer of HTTP ({type(error).__name__}).")


def _words(error: Exception, url: str) -> str:
    """What is wrong with TLS, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"The certificate of {url} is not trusted ({error.verify_message}). Have it signed by "
            "an authority that this machine knows, or name the one that signed it by `cafile`."
        )
    reason = str(getattr(error, "reason", None) or type(error).__name__)
    if "ALERT" in reason:
        return (
            f"{url} ended the encrypted connection ({reason}). If it asks for certificates, name "
            "one that it trusts by `certfile` and `keyfile`."
        )
    return f"No encrypted connection to {url} is possible ({reason}); does it speak plain HTTP?"


class _Limit:
    """Cuts the connection of an exchange after some seconds, in whatever state it is.

    A timeout of a socket is counted anew for every byte that trickles in.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = threading.Event()
        self._sockets: list[Any] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, sock: Any) -> None:
        """Cut this one too."""
        self._sockets.append(sock)
        if self.passed.is_set():
            self._cut()

    def end(self) -> None:
        """The exchange is over."""
        self._timer.cancel()

    def _cut(self) -> None:
        self.passed.set()
        for sock in self._sockets:
            with suppress(OSError):
                # Not the method of an encrypted socket, which another thread is reading.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


#: The limit of the exchange that a thread is at.
_NOW = threading.local()


def _connections(url: str, context: ssl.SSLContext | None) -> Any:
    """urllib3's pool of connections, through the proxy that the environment names, if any."""
    import urllib3
    from urllib3 import connection, connectionpool

    def limited(kind: Any) -> Any:
        class Limited(kind):
            def _new_conn(self) -> Any:
                sock = super()._new_conn()
                _NOW.limit.watch(sock)  # a proxy may be slow to say that the way is open
                return sock

            def connect(self) -> None:
                super().connect()
                _NOW.limit.watch(self.sock)

            def request(self, *arguments: Any, **settings: Any) -> None:
                if self.sock is not None:  # a connection that was used before
                    _NOW.limit.watch(self.sock)
                super().request(*arguments, **settings)

        return Limited

    class Plain(connectionpool.HTTPConnectionPool):
        ConnectionCls = limited(connection.HTTPConnection)

    class Encrypted(connectionpool.HTTPSConnectionPool):
        ConnectionCls = limited(connection.HTTPSConnection)

    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        pool: Any = urllib3.ProxyManager(proxy, ssl_context=context)
    else:
        pool = urllib3.PoolManager(ssl_context=context)
    pool.pool_classes_by_scheme = {"http": Plain, "https": Encrypted}
    return pool


def _content(response: Any, largest: int) -> bytes:
    """All of an answer; of an error page the beginning is enough."""
    is_error = response.status >= 300
    chunks, size = [], 0
    for chunk in response.stream(2**16, decode_content=False):
        chunks.append(chunk)
        size += len(chunk)
        if is_error and size > _LARGEST_MESSAGE:
            response.close()
            break
        if size > largest:
            raise UnreadableResponse(f"The answer is larger than {largest} bytes.")
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
    """What an error page says."""
    try:
        return printable(_parsed(content)["error"])
    except (UnreadableResponse, KeyError, ValueError, RecursionError):
        return "no reason given"


def _check_url(url: object) -> None:
    try:
        if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError
        parts = urllib.parse.urlsplit(url)
        (parts.hostname or "").encode("idna")
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
