"""The shared token and the certificate files: checked before anything starts.

No error, no log line and no ``repr`` shows anything of a token or a key.
"""

from __future__ import annotations

import os
import ssl
import stat
from typing import IO

_SHORTEST_TOKEN = 16


def check_token(token: object, name: str = "`token`") -> str:
    """Return ``token``, or raise if it is too short or cannot stand in a header."""
    plain = isinstance(token, str) and all("!" <= character <= "~" for character in token)
    if not isinstance(token, str) or not plain or len(token) < _SHORTEST_TOKEN:
        raise ValueError(
            f"{name} must be at least {_SHORTEST_TOKEN} printable ASCII characters without spaces: "
            'draw one by python -c "import secrets; print(secrets.token_urlsafe(32))".'
        )
    return token


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file that nobody but its owner can read (mode 0600).

    Example:
        >>> serve(curator, token=read_token("token"))
    """
    name = f"`token_file` {os.fspath(path)}"
    with _opened("token_file", path) as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ValueError(f"{name} can be read by others: chmod 600 {os.fspath(path)}.")
        content = file.read(4096)
    return check_token(content.decode("ascii", "replace").strip(), name)


def check_certificate(
    certfile: str | os.PathLike[str], keyfile: str | os.PathLike[str] | None
) -> None:
    """Raise a ``ValueError`` that names the file if a service cannot show this certificate."""
    key_name, key = ("certfile", certfile) if keyfile is None else ("keyfile", keyfile)
    for name, path in (("certfile", certfile), (key_name, key)):
        _opened(name, path).close()

    def no_phrase() -> str:  # otherwise OpenSSL asks for one at the terminal
        raise ValueError(f"`{key_name}` {os.fspath(key)} has a pass phrase: store it without one.")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, no_phrase)
    except ssl.SSLError as error:
        raise ValueError(
            f"`certfile` {os.fspath(certfile)} and `{key_name}` {os.fspath(key)} are no "
            f"certificate in PEM with its key ({error.reason or 'no PEM'})."
        ) from None


def client_context(cafile: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """How a client checks a service's certificate."""
    if cafile is None:
        return ssl.create_default_context()
    _opened("cafile", cafile).close()
    try:
        return ssl.create_default_context(cafile=cafile)
    except ssl.SSLError:
        raise ValueError(f"`cafile` {os.fspath(cafile)} holds no certificate in PEM.") from None


def _opened(name: str, path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise ValueError(f"`{name}` {os.fspath(path)} cannot be read ({error.strerror}).") from None
