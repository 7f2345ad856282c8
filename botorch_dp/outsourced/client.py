"""The modeler's client of a curator's service."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

from torch import Tensor

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.outsourced.exchange import dataset_from_bytes
from botorch_dp.privacy import Release

#: The service's own refusals: asking again changes nothing.
_FINAL = {400, 401, 403, 404, 405, 409}


class CuratorRefusal(RuntimeError):
    """The curator answered that it will not answer; :attr:`status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class CuratorClient:
    """Asks a curator's service; its :meth:`query` goes into ``Modeler.run``.

    A lost connection, a restart of the service and its rate limit are waited out, with the same
    request id, so nothing is counted twice. A curator that stays away ends in
    ``ConnectionError``; run again with the same checkpoint to go on.

    Args:
        url: Where the service is, such as ``"https://curator.example"``.
        token: The shared secret.
        timeout: Seconds to wait for one response.
        patience: Seconds to keep trying before giving up.

    Example:
        >>> remote = CuratorClient("http://127.0.0.1:8765", token="a long shared secret")
        >>> modeler = Modeler(remote.dataset().value, delta=0.1)
        >>> history = modeler.run(remote.query, steps=50, checkpoint="search.jsonl")
    """

    def __init__(
        self, url: str, *, token: str, timeout: float = 60.0, patience: float = 60.0
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"`url` must start with http:// or https://, got {url!r}.")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = check_positive("timeout", timeout)
        self._patience = check_positive("patience", patience)

    def dataset(self) -> Release[Tensor]:
        """The released rows with their guarantee."""
        return dataset_from_bytes(self._request("/dataset"))

    def status(self) -> dict[str, Any]:
        """Rows, columns, queries accepted and left, and the guarantee in words."""
        return dict(json.loads(self._request("/status")))

    def query(self, index: int, *, request_id: str | None = None) -> float:
        """Ask for one row."""
        check_integer("index", index, at_least=0)
        request = uuid.uuid4().hex if request_id is None else request_id
        body = json.dumps({"index": index, "request_id": request}).encode()
        return float(json.loads(self._request("/query", body))["y"])

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=body,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        deadline = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                with urllib.request.urlopen(request, timeout=self._timeout) as response:
                    return bytes(response.read())
            except urllib.error.HTTPError as error:
                problem = _reason(error)
                if error.code in _FINAL:
                    raise CuratorRefusal(
                        f"The curator refused {path} ({error.code}): {problem}", status=error.code
                    ) from None
                try:
                    pause = max(pause, float(error.headers.get("Retry-After", 0)))
                except ValueError:
                    pause = max(pause, 1.0)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            if time.monotonic() + pause > deadline:
                raise ConnectionError(
                    f"No answer from {self._url}{path} within {self._patience:g} s ({problem})."
                )
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def __repr__(self) -> str:
        return f"CuratorClient({self._url!r})"


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return error.reason if isinstance(error.reason, str) else "no reason given"
