"""Addresses of studies in PostgreSQL databases: read, shown without their secrets, reached.

Nothing here loads more than the driver, so that a wrong address is noticed at once.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from botorch_dp._checks import needs_extra

#: Unless the address says otherwise. A host that went away is noticed within half a minute, by
#: either side.
_CONNECTION = {
    "application_name": "botorch_dp",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_SCHEMES = ("postgresql", "postgres")
_DEFAULT_NAME = "study"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,48}")
_EXAMPLE = "postgresql://user@host:5432/database?study=name"


def is_address(storage: object) -> bool:
    """Whether a study lives in a database: at an address, and not in a file.

    Raises:
        ValueError: It is the address of something else.
    """
    text = os.fspath(storage) if isinstance(storage, str | os.PathLike) else ""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(text))
    if scheme is None:
        return False
    if scheme[1] not in _SCHEMES or not isinstance(storage, str):
        given = f"{scheme[1]}:" if isinstance(storage, str) else type(storage).__name__
        raise ValueError(
            f"`storage` must be a file, or the address of a PostgreSQL database as a string "
            f"({_EXAMPLE!r}); got {given!r}."
        )
    return True


def driver() -> Any:
    """The module psycopg."""
    with needs_extra("postgres", "A study in a PostgreSQL database"):
        import psycopg
    return psycopg


@dataclass(frozen=True)
class Address:
    """Where a study is: settings of the connection, and the study's name.

    Args:
        shown: The address without any secret.
        study: The study's name.
        settings: Of the connection, for the driver.
    """

    shown: str
    study: str
    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def parsed(cls, address: str) -> Address:
        """Read an address.

        Raises:
            ValueError: It is none. What was given is not quoted, for it may hold a password.
        """
        is_address(address)  # or it is refused
        psycopg = driver()
        wrong = ValueError(
            f"`storage` is no address of a PostgreSQL database: write it as {_EXAMPLE!r}, with the "
            "special characters of a password as %40 and the like (or give it in ~/.pgpass or "
            "PGPASSWORD)."
        )
        try:
            parts = urlsplit(address)
            options = parse_qsl(parts.query, keep_blank_values=True)
            names = [value for name, value in options if name == "study"]
            rest = urlencode([pair for pair in options if pair[0] != "study"], quote_via=quote)
            place = address.partition("?")[0] + (f"?{rest}" if rest else "")
            given = psycopg.conninfo.conninfo_to_dict(place)
        except (ValueError, psycopg.Error):
            raise wrong from None
        user, host, port = (str(given.get(key, "")) for key in ("user", "host", "port"))
        ports_are_numbers = not port or all(map(str.isdigit, port.split(",")))
        if parts.fragment or "@" in host or not given.get("dbname") or not ports_are_numbers:
            raise wrong
        name = names[-1] if names else _DEFAULT_NAME
        if not _NAME.fullmatch(name):
            raise ValueError(
                "`storage`: the name after `study=` must be 1 to 48 letters, digits, '_' or '-', "
                f"got {name!r}."
            )
        shown = (f"{user}@" if user else "") + host + (f":{port}" if port else "")
        shown = f"postgresql://{shown}/{given['dbname']}?study={name}"
        return cls(shown, name, {**_CONNECTION, **given})

    def connected(self) -> Any:
        """A new connection.

        Raises:
            ConnectionError: It cannot be reached, or lets nobody in.
        """
        psycopg = driver()
        try:
            return psycopg.connect(**self.settings, autocommit=True)
        except psycopg.OperationalError as error:
            raise ConnectionError(
                f"`storage` {self.shown} cannot be reached ({self.said(error)}). Check host, port, "
                "database, user and password (in ~/.pgpass or PGPASSWORD), and that the server "
                "runs."
            ) from None

    def said(self, error: Any) -> str:
        """The first line of what the server or the driver says, without the password."""
        text = error.diag.message_primary or str(error) or type(error).__name__
        for secret in (self.settings.get("password"), os.environ.get("PGPASSWORD")):
            if secret:
                text = text.replace(str(secret), "***")
        return str(text).strip().splitlines()[0].rstrip(".")
