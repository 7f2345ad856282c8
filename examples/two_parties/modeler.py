"""The modeler's side: fetches the released rows, and asks for the most promising ones.

``BOTORCH_DP_TOKEN=... python -m examples.two_parties.modeler http://127.0.0.1:8765``
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import httpx
import torch

from botorch_dp import Modeler, Release
from botorch_dp.outsourced import load_dataset

PATIENCE = 60.0  # seconds to wait for a service that is away


class Remote:
    """A curator's service. A question keeps its id: asking again is neither counted nor charged."""

    def __init__(self, url: str, *, token: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"})

    def dataset(self) -> Release[torch.Tensor]:
        """The released rows with their guarantee."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "released.npz"
            path.write_bytes(self._answer("GET", "/dataset").content)
            return load_dataset(path)

    def query(self, index: int, *, request_id: str) -> float:
        """The answer for one row."""
        question = {"index": index, "request_id": request_id}
        return float(self._answer("POST", "/query", question).json()["y"])

    def _answer(self, method: str, path: str, body: object = None) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                response = self._http.request(method, path, json=body)
            except httpx.TransportError:  # the service may be back soon
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
                continue
            if response.is_error:
                raise RuntimeError(f"The curator refused: {response.text[:200]!r}")
            return response


def main() -> None:
    """Search; called again after an interruption, go on."""
    remote = Remote(sys.argv[1], token=os.environ["BOTORCH_DP_TOKEN"])
    modeler = Modeler(remote.dataset(), delta=0.1)
    modeler.run(remote.query, steps=30, checkpoint="search.run")
    print(modeler.best)


if __name__ == "__main__":
    main()
