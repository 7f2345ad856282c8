"""The container file names what exists; building it needs an engine and a network."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from botorch_dp.cli import parser

ROOT = Path(__file__).parents[2]


def test_the_container_file_and_its_page_fit_the_package() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.M):
        assert all((ROOT / name).exists() for name in line.split()[:-1])
    command = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.M)[1])
    page = (ROOT / "docs" / "operations.md").read_text().replace("\\\n", " ")
    said = shlex.split(re.search(r"^podman run (.*)$", page, re.M)[1])
    options = parser().parse_args([*command[1:], *said[-said[::-1].index("curator") :]])
    assert (str(options.state), options.host, options.port) == ("/state", "0.0.0.0", 8765)
    assert "VOLUME /state" in text
    assert "127.0.0.1:8765/health" in text
