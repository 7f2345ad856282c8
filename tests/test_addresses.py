"""Addresses of studies: read, refused without quoting a secret, given up in time."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from botorch_dp._addresses import Address, is_address
from tests.cli.calling import SCRIPT
from tests.postgres import PASSWORD, PostgresServer

pytest.importorskip("psycopg", reason="needs the extra `postgres`")


def opened(address: str) -> None:
    is_address(address)
    Address.parsed(address).connected().close()


@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql://user@host",
        "postgresql://user:top-secret@host:port/db",
        "postgresql://user:top-secret@host/db?nonsense=1",
        "postgresql://user:top-secret#1@host/db",
        "postgresql://user:top@secret@host:x/db",
        "postgresql://user:top-secret@[::1/db",
        "postgresql+psycopg://user:top-secret@host/db",
        "mysql://user:top-secret@host/db",
        "postgresql://user:top-secret@host/db?study=a b",
    ],
)
def test_wrong(wrong: str) -> None:
    with pytest.raises(ValueError, match="`storage`") as caught:
        opened(wrong)
    chain = (caught.value, caught.value.__cause__, caught.value.__context__)
    shown = " ".join(str(e) for e in chain[:2])
    assert "secret" not in shown and caught.value.__suppress_context__ | (not chain[2])


def test_a_path_is_no_address() -> None:
    with pytest.raises(ValueError, match="as a string"):
        is_address(Path("postgresql://user@host/db"))
    assert not is_address(Path("studies/one.sqlite")) and not is_address("C:/studies/one")


def test_what_is_shown() -> None:
    address = Address.parsed("postgresql://me:top-secret@host:7/db?study=one&sslmode=require")
    assert address.shown == "postgresql://me@host:7/db?study=one" and address.study == "one"
    assert address.settings["password"] == "top-secret"
    assert address.settings["sslmode"] == "require" and address.settings["port"] == "7"
    assert "secret" not in repr(address)
    assert Address.parsed("postgresql:///db").shown == "postgresql:///db?study=study"


def test_a_password_with_special_characters(postgres_server: PostgresServer) -> None:
    opened(postgres_server.address(user="locked", password=PASSWORD))
    with pytest.raises(ConnectionError, match="password authentication failed"):
        opened(postgres_server.address(user="locked", password=PASSWORD + "!"))


def test_unreachable() -> None:
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"`storage` .* cannot be reached .*refused"):
        opened("postgresql://user:secret@127.0.0.1:9/db")
    assert time.monotonic() - start < 5


def test_silent() -> None:
    """Something that answers nothing is given up after the time that the address says."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(ConnectionError, match=r"cannot be reached .*timeout"):
            opened(f"postgresql://user@127.0.0.1:{port}/db?connect_timeout=2")
    assert time.monotonic() - start < 5


def test_the_command_line_says_so_at_once() -> None:
    """Before anything heavy is loaded."""
    for place, words in (
        ("mysql://host/db", "must be a file"),
        ("postgresql://me@127.0.0.1:9/db", "cannot be reached"),
    ):
        program = [SCRIPT, "recommend", "adult_logistic_sgd", "--storage", place, "--epsilon", "1"]
        done = subprocess.run(program, capture_output=True, text=True)
        assert done.returncode == 1 and words in done.stderr
    loaded = "import sys, botorch_dp._addresses; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded]).returncode == 0
