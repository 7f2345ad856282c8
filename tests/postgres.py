"""A real PostgreSQL server for tests, where one is installed."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

PASSWORD = "se/cret@word"
#: Who must give a password; everybody else is let in, and owns the database.
LOCKED, OWNER = "locked", "owner"


class PostgresServer:
    """A server in a folder of its own, on the loopback interface."""

    def __init__(self, programs: Path, folder: Path, *, durable: bool) -> None:
        self._programs = programs
        self._durable = durable
        self._folder = folder
        # PostgreSQL refuses to run as root.
        self._account: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
        if self._account:
            shutil.chown(folder, "postgres")
        self._data = folder / "data"
        self._run("initdb", "-D", self._data, "-U", OWNER, "--auth=trust", "-E", "UTF8", "-N")
        rules = self._data / "pg_hba.conf"
        rules.write_text(
            f"host all {LOCKED} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.start()
        self.sql(f"CREATE ROLE {LOCKED} LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self._account)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start it, also again."""
        settings = f"-p {self.port} -h 127.0.0.1 -k {self._folder}"
        if not self._durable:
            settings += " -F -c full_page_writes=off"
        log = self._folder / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-t", "60", "-o", settings, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; at once, as if it had been killed."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def address(self, study: str = "study", *, user: str = OWNER, password: str = "") -> str:
        """Of a study in its database."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/postgres?study={study}"

    def sql(self, statement: str, *values: object) -> list[tuple]:
        """The rows of a statement, by the owner of everything."""
        import psycopg

        place = f"host=127.0.0.1 port={self.port} user={OWNER} dbname=postgres"
        with psycopg.connect(place, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def disconnect(self, number: int | None = None) -> int:
        """End the connections of studies (or one, by its number); returns how many there were."""
        ended = self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'botorch_dp' AND (%s::int IS NULL OR pid = %s)",
            number,
            number,
        )
        return len(ended)

    def drop(self, study: str) -> None:
        """Remove a study."""
        self.sql(f'DROP SCHEMA IF EXISTS "dpareto_{study}" CASCADE')


def programs() -> Path | None:
    """Where PostgreSQL's own programs are; Debian keeps them out of the way."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += map(Path, sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


@contextmanager
def server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A server, while this lasts; a test that asks for one is skipped where there is none.

    Args:
        durable: Whether it waits for the disk, as a server must that is not for tests.
    """
    place = programs()
    if place is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt install postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (pip install 'botorch_dp[postgres]')")
    folder = Path(tempfile.mkdtemp(prefix="botorch_dp_pg_"))
    running = None
    try:
        running = PostgresServer(place, folder, durable=durable)
        yield running
    finally:
        if running is not None:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
