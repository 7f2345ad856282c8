"""The modeler's client of a curator's service. It trusts nothing that it is sent."""

from __future__ import annotations

import asyncio
import json
import math
import os
import ssl
import time
import uuid
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, needs_extra, printable
from botorch_dp.outsourced.credentials import client_context
from botorch_dp.outsourced.curator import check_request_id
from botorch_dp.outsourced.exchange import (
    LARGEST_DATASET,
    check_answer,
    dataset_from_bytes,
)
from botorch_dp.privacy import Release

#: The service's own refusals, and redirects: asking again changes nothing.
_FINAL = {300, 301, 302, 303, 305, 307, 308, 400, 401, 403, 404, 405, 409, 413, 422}
#: Bytes of the largest answer that is no data set.
_LARGEST_MESSAGE = 2**16
#: Seconds to find out whether a service that does not speak HTTP speaks HTTPS.
_PROBE_SECONDS = 2.0


class CuratorRefusal(RuntimeError):
    """The curator answered that it will not answer; :attr:`status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreadableResponse(RuntimeError):
    """What came back is not what a curator's service sends."""


class CuratorClient:
    """Asks a curator's service; its :meth:`query` goes into ``Modeler.run``.

    Troubles that may pass are waited out, with the same request id, so that nothing is counted
    twice: an unknown or silent host, a refused or lost connection, a restart of the service, a
    proxy's limits or a proxy without a service behind it. A curator that stays away ends in
    ``ConnectionError``; run again with the same checkpoint to go on. A wrong token or question is
    a :class:`CuratorRefusal` at once, and a certificate that is not trusted is a
    ``ConnectionError`` at once. Redirects are not followed: the token goes to ``url`` only (or to
    the proxy that the environment names). Anything that a curator's service would not send ends
    in :class:`UnreadableResponse`.

    Args:
        url: Where the service is, such as ``"https://curator.example"``.
        token: The shared secret.
        timeout: Seconds that one exchange may take as a whole, and seconds to wait for a row that
            the curator says it is still measuring.
        patience: Seconds to keep trying before giving up.
        largest: Bytes of the largest data set to accept, packed or unpacked.
        cafile: Certificate of the authority that signed the service's, in PEM; by default the
            authorities that this machine trusts.

    Example:
        >>> remote = CuratorClient("https://curator.example", token=read_token("token"))
        >>> modeler = Modeler(remote.dataset(), delta=0.1)
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
    ) -> None:
        with needs_extra("service", "`CuratorClient`"):
            import httpx
        self._httpx = httpx
        self._url = self._checked_url(url)
        if cafile is not None and not url.startswith("https:"):
            raise ValueError("`cafile` needs a `url` of https.")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ValueError("`token` must be a string of printable ASCII characters.")
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        self._timeout = check_positive("timeout", timeout)
        self._patience = check_positive("patience", patience)
        self._largest = check_integer("largest", largest)
        self._context = client_context(cafile)

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
        answer = _parsed(self._request("/query", {"index": index, "request_id": request}))
        try:
            return check_answer(answer.get("y"))
        except ValueError as error:
            raise UnreadableResponse(str(error)) from None

    def _request(
        self, path: str, body: dict[str, Any] | None = None, *, largest: int = _LARGEST_MESSAGE
    ) -> bytes:
        """The content of an answer; troubles that may pass are waited out here."""
        from anyio.from_thread import start_blocking_portal  # httpx needs anyio, too

        start = time.monotonic()
        deadline, pause = start + self._patience, 0.1
        while True:
            try:
                # An event loop in a thread of its own, since the caller may be in a loop already.
                with start_blocking_portal() as portal:
                    status, headers, content = portal.call(self._exchange, path, body, largest)
            except TimeoutError:
                problem = f"no whole answer in {self._timeout:g} s"
            except self._httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            else:
                if status == 200:
                    return content
                problem = _reason(content)
                if status in _FINAL:
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

    async def _exchange(
        self, path: str, body: dict[str, Any] | None, largest: int
    ) -> tuple[int, Any, bytes]:
        """Status, headers and content of one request that takes ``timeout`` at most, as a whole.

        The limit is the event loop's: time limits of sockets begin anew with every byte.
        """
        method, content = "GET" if body is None else "POST", bytearray()
        client = self._httpx.AsyncClient(
            verify=self._context, headers=self._headers, timeout=None, follow_redirects=False
        )
        try:
            async with (
                asyncio.timeout(self._timeout),
                client,
                client.stream(method, self._url + path, json=body) as response,
            ):
                async for chunk in response.aiter_raw():
                    content += chunk
                    if response.status_code >= 300 and len(content) > _LARGEST_MESSAGE:
                        break  # of an error page the beginning is enough
                    if len(content) > largest:
                        raise UnreadableResponse(f"The answer is larger than {largest} bytes.")
                return response.status_code, response.headers, bytes(content)
        except self._httpx.TransportError as error:
            await self._raise_final(error)
            raise

    async def _raise_final(self, error: Exception) -> None:
        """Raise a better error if asking again does not change this one."""
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConnectionError(
                    f"The certificate of {self._url} is not trusted ({cause.verify_message}). Have "
                    "it signed by an authority that this machine trusts, or name the one that "
                    "signed it by `cafile` (--cafile on the command line)."
                ) from None
            ended = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ended):
                raise ConnectionError(
                    f"No encrypted connection to {self._url} is possible ({cause.reason}). If it "
                    "speaks plain HTTP, write http:// in place of https://."
                ) from None
        if isinstance(error, self._httpx.RemoteProtocolError | self._httpx.ReadError):
            if await self._speaks_tls():
                raise ConnectionError(
                    f"{self._url} speaks HTTPS: write https:// in place of http://."
                ) from None
            lost = "disconnected" in str(error) or "peer closed" in str(error)
            if isinstance(error, self._httpx.RemoteProtocolError) and not lost:
                raise UnreadableResponse("This is no answer of HTTP.") from None

    async def _speaks_tls(self) -> bool:
        """Whether a service expects encryption at an address that says http."""
        url = self._httpx.URL(self._url)
        if url.scheme != "http":
            return False
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                _, writer = await asyncio.open_connection(url.host, url.port or 80, ssl=context)
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return True

    def _checked_url(self, url: str) -> str:
        try:
            if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
                raise ValueError
            parts = self._httpx.URL(url)
            if parts.scheme not in ("http", "https") or not parts.host:
                raise ValueError
            if parts.userinfo or parts.query or parts.fragment:
                raise ValueError
            if not 0 < (parts.port or 443) < 2**16 or parts.port == 0:
                raise ValueError
        except (ValueError, self._httpx.InvalidURL):
            raise ValueError(
                "`url` must look like https://curator.example:8765, without a user name or a query."
            ) from None
        return url.rstrip("/")

    def __repr__(self) -> str:
        return f"CuratorClient({self._url!r})"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise UnreadableResponse("The answer is no JSON object.")
    return message


def _reason(content: bytes) -> str:
    """What an error page says: a curator's reason, or the beginning of a proxy's page."""
    try:
        return printable(str(_parsed(content)["error"])[:200])
    except (UnreadableResponse, KeyError, ValueError, RecursionError):
        return printable(content[:200].decode(errors="replace")).strip() or "no reason given"


def _retry_after(headers: Any) -> float:
    """Seconds; a date or junk counts as a second."""
    try:
        seconds = float(headers.get("Retry-After", 0))
    except ValueError:
        return 1.0
    return seconds if math.isfinite(seconds) and seconds >= 0 else 1.0
