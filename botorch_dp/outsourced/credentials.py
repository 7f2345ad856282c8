"""Who may connect: tokens and certificates, checked before anything starts, replaced while it runs.

Nothing of a token or a key is ever logged, shown or part of an error.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SHORTEST_TOKEN = 16
#: Stands before a token that opens the metrics only.
_METRICS = "metrics "


#: The descriptor of the connection whose handshake an asyncio task is at.
SHAKING: ContextVar[int] = ContextVar("SHAKING")


class _Telling(ssl.SSLObject):
    """Tells a client why its handshake failed: asyncio closes the connection without a word."""

    outgoing: ssl.MemoryBIO
    descriptor: int

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError:
            with suppress(OSError):
                os.write(self.descriptor, self.outgoing.read())
            raise


class _Context(ssl.SSLContext):
    sslobject_class = _Telling

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **settings: Any
    ) -> ssl.SSLObject:
        wrapped: Any = super().wrap_bio(incoming, outgoing, *more, **settings)
        wrapped.outgoing, wrapped.descriptor = outgoing, SHAKING.get()
        return wrapped


@dataclass(frozen=True)
class TLS:
    """The files of an encrypted service, all PEM; replaced ones serve the next connection.

    Args:
        certfile: The service's certificate, followed by those between it and the authority's.
        keyfile: Its key without a pass phrase; by default it stands in ``certfile``.
        client_cafile: Authorities that sign clients' certificates. With it a client must show one
            (mutual TLS), besides its token.

    Example:
        >>> serve(curator, token_file="tokens", tls=TLS("service.pem", "service.key"))
    """

    certfile: str | os.PathLike[str]
    keyfile: str | os.PathLike[str] | None = None
    client_cafile: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        self.context()

    def context(self) -> ssl.SSLContext:
        """What the files say now; a ``ValueError`` names the one that is missing or wrong."""
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        _show_certificate(context, self.certfile, self.keyfile)
        if self.client_cafile is not None:
            _trust(context, "client_cafile", self.client_cafile)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def watched(self) -> Watched[ssl.SSLContext]:
        """The context of the files as they are at each connection."""
        files = [self.certfile, self.keyfile, self.client_cafile]
        return Watched([file for file in files if file is not None], self.context)


def client_context(
    cafile: str | os.PathLike[str] | None,
    certfile: str | os.PathLike[str] | None,
    keyfile: str | os.PathLike[str] | None,
) -> ssl.SSLContext:
    """How a client checks the service, and what it shows of itself."""
    context = ssl.create_default_context()
    if cafile is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, "cafile", cafile)
    if certfile is not None:
        _show_certificate(context, certfile, keyfile)
    elif keyfile is not None:
        raise ValueError("`keyfile` needs the `certfile` that it belongs to.")
    return context


def _show_certificate(
    context: ssl.SSLContext,
    certfile: str | os.PathLike[str],
    keyfile: str | os.PathLike[str] | None,
) -> None:
    key_name, key = ("certfile", certfile) if keyfile is None else ("keyfile", keyfile)
    if b"-----BEGIN CERTIFICATE-----" not in _content("certfile", certfile):
        raise ValueError(f"`certfile` {os.fspath(certfile)} holds no certificate in PEM.")
    if b"PRIVATE KEY-----" not in _content(key_name, key):
        raise ValueError(
            f"`{key_name}` {os.fspath(key)} holds no key in PEM: name it by `keyfile`."
        )

    def no_phrase() -> str:
        raise ValueError(
            f"`{key_name}` {os.fspath(key)} needs a pass phrase, which nobody is there to type: "
            "store the key without one, for its owner only (mode 0600)."
        )

    try:
        context.load_cert_chain(certfile, keyfile, password=no_phrase)
    except ssl.SSLError as error:
        wrong = "do not belong together" if "MISMATCH" in str(error.reason) else "cannot be used"
        raise ValueError(
            f"`certfile` {os.fspath(certfile)} and its key in {os.fspath(key)} {wrong} "
            f"({error.reason})."
        ) from None


def _trust(context: ssl.SSLContext, name: str, path: str | os.PathLike[str]) -> None:
    _content(name, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ValueError(f"`{name}` {os.fspath(path)} holds no certificate in PEM.") from None


def _content(name: str, path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"`{name}` {os.fspath(path)} cannot be read ({error.strerror}).") from None


def check_token(token: object) -> str:
    """Return ``token``, or raise if it is too short or cannot stand in a header."""
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not _is_plain(token):
        raise ValueError(
            f"`token` must be a string of at least {_SHORTEST_TOKEN} printable ASCII characters "
            "without spaces."
        )
    return token


def _is_plain(token: str) -> bool:
    return all("!" <= character <= "~" for character in token)


def read_tokens(path: str | os.PathLike[str], *, for_metrics: bool = True) -> list[str]:
    """The lines of a token file that are neither empty nor comments.

    Each is a token of 16 characters or more, or (if asked ``for_metrics``) ``metrics`` and a token
    for the metrics only.
    """
    content = _content("token_file", path)
    lines = [line.strip() for line in content.decode("ascii", "replace").splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    for number, token in enumerate(tokens, 1):
        try:
            check_token(token.removeprefix(_METRICS).strip())
        except ValueError:
            raise ValueError(
                f"`token_file` {os.fspath(path)} must hold one token a line, of at least "
                f"{_SHORTEST_TOKEN} printable ASCII characters without spaces (`metrics` may stand "
                f"before it); token {number} is none."
            ) from None
    questions = [token for token in tokens if not token.startswith(_METRICS)]
    if not questions:
        raise ValueError(f"`token_file` {os.fspath(path)} holds no token for questions.")
    return tokens if for_metrics else questions


class Tokens:
    """Whom a request's token makes its sender; several tokens may be valid at once.

    Args:
        token: The only one, or None.
        file: Where they stand; read again when it changes.
    """

    def __init__(self, token: str | None, file: str | os.PathLike[str] | None) -> None:
        if (token is None) == (file is None):
            raise ValueError("Give exactly one of `token` and `token_file`.")
        self._now: Callable[[], list[str]]
        if file is None:
            fixed = [check_token(token)]
            self._now = lambda: fixed
        else:
            path = file
            self._now = Watched([path], lambda: read_tokens(path)).value

    def sender(self, authorization: str) -> Literal["owner", "watcher"] | None:
        """Who sent a header: who may ask, who may see the metrics only, or a stranger.

        Each token is compared, in a time that depends on lengths only.
        """
        given, found = authorization.encode(), None
        for line in self._now():
            token = line.removeprefix(_METRICS).strip()
            if hmac.compare_digest(given, f"Bearer {token}".encode()):
                found = "watcher" if line.startswith(_METRICS) else "owner"
        return found  # type: ignore[return-value]


class Watched(Generic[T]):
    """What files say, read again when one of them has changed.

    While they are missing or wrong, what they said before still holds, and one line of the log
    says so: a slip while a token or a certificate is replaced locks nobody out.

    Args:
        paths: The files.
        read: Reads them; raises ``ValueError`` if they are wrong.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], read: Callable[[], T]) -> None:
        self._paths, self._read = paths, read
        self._lock = threading.Lock()
        self._stamp = self._stamped()
        self._value = read()
        self._complaint = ""

    def value(self) -> T:
        """What the files say now."""
        with self._lock:
            stamp = self._stamped()
            if stamp != self._stamp or stamp is None:
                try:
                    self._value = self._read()
                except ValueError as error:
                    if str(error) != self._complaint:
                        logger.error("%s What was read before still holds.", error)
                    self._complaint = str(error)
                else:
                    self._complaint = ""
                    self._stamp = stamp
            return self._value

    def _stamped(self) -> list[tuple[int, ...]] | None:
        """Tells one state of the files from another; None while that cannot be told."""
        try:
            found = [os.stat(path) for path in self._paths]
        except OSError:
            return None
        # Within one tick of a file system's clock a file may change twice.
        if any(abs(time.time() - status.st_mtime) < 1 for status in found):
            return None
        return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]
