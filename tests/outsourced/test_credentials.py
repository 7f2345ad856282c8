"""The token and the certificates: who is let in, and what is said of a wrong file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from botorch_dp.outsourced import CuratorClient, read_token
from botorch_dp.outsourced.credentials import check_certificate
from tests.outsourced.certificates import Certificate, certificate, pem
from tests.outsourced.serving import TOKEN, make_curator, measure, serving


def client(url: str, **settings) -> CuratorClient:
    return CuratorClient(url, token=TOKEN, **{"patience": 60.0, "timeout": 30.0, **settings})


def refused_at_once(remote: CuratorClient, match: str) -> None:
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=match):
        remote.status()
    assert time.monotonic() - start < 30


class TestToken:
    def test_a_file_of_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "token"
        path.touch(0o600)
        path.write_text(f"{TOKEN}\n")
        assert read_token(path) == TOKEN

    @pytest.mark.parametrize(
        ("content", "mode", "words"),
        [
            (f"{TOKEN}\n", 0o640, "can be read by others: chmod 600"),
            (f"{TOKEN}\n", 0o604, "can be read by others: chmod 600"),
            ("", 0o600, "at least 16 printable ASCII characters"),
            ("short", 0o600, "at least 16 printable"),
            (f"{TOKEN}\n{TOKEN}\n", 0o600, "without spaces"),
            ("schl\u00fcssel-im-klartext", 0o600, "ASCII"),
            (None, 0o600, "cannot be read"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, content: str | None, mode: int, words: str) -> None:
        path = tmp_path / "a_file"
        if content is not None:
            path.write_text(content)
            path.chmod(mode)
        with pytest.raises(ValueError, match=rf"`token_file` .*a_file .*{words}") as refused:
            read_token(path)
        assert TOKEN not in str(refused.value)


@pytest.fixture
def authority(tmp_path: Path) -> Certificate:
    return certificate(tmp_path, "authority")


@pytest.fixture
def own(tmp_path: Path, authority: Certificate) -> Certificate:
    return certificate(tmp_path, "service", by=authority)


@pytest.fixture
def url(own: Certificate) -> Iterator[str]:
    with serving(make_curator(), certificate=own) as url:
        yield url


class TestService:
    """What is wrong with a certificate or an address is said at once."""

    def test_a_client_that_knows_the_authority(self, authority: Certificate, url: str) -> None:
        remote = client(url, cafile=authority.certfile)
        assert [remote.query(index) for index in range(3)] == [measure(i) for i in range(3)]

    def test_an_unknown_authority(self, url: str) -> None:
        refused_at_once(client(url), r"is not trusted \(.*`cafile` \(--cafile ")

    def test_a_self_signed_certificate_unless_it_is_named(self, tmp_path: Path) -> None:
        own = certificate(tmp_path, "own")
        with serving(make_curator(), certificate=own) as url:
            refused_at_once(client(url), r"is not trusted \(self-signed certificate")
            assert client(url, cafile=own.certfile).query(1) == measure(1)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [({"days": -1.0}, "has expired"), ({"host": "192.0.2.1"}, "IP address mismatch")],
    )
    def test_a_wrong_certificate(
        self, authority: Certificate, tmp_path: Path, settings, words: str
    ) -> None:
        bad = certificate(tmp_path, "bad", by=authority, **settings)
        with serving(make_curator(), certificate=bad) as url:
            refused_at_once(client(url, cafile=authority.certfile), words)

    def test_https_to_a_plain_service(self) -> None:
        with serving(make_curator()) as url:
            remote = client(url.replace("http:", "https:"))
            refused_at_once(remote, "write http:// in place of https://")

    def test_http_to_an_encrypted_service(self, url: str) -> None:
        remote = client(url.replace("https:", "http:"))
        refused_at_once(remote, "speaks HTTPS: write https:// in place of http://")


def test_key_and_certificate_in_one_file(tmp_path: Path, own: Certificate) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(own.keyfile.read_bytes() + own.certfile.read_bytes())
    check_certificate(both, None)


def test_wrong_files_of_a_service(tmp_path: Path, own: Certificate, authority: Certificate) -> None:
    junk, locked, none = tmp_path / "junk", tmp_path / "locked.key", tmp_path / "none"
    junk.write_bytes(b"\x00\xff no certificate")
    locked.write_bytes(pem(own.key, b"phrase"))
    for certfile, keyfile, words in [
        (none, own.keyfile, r"`certfile` .*none cannot be read \(No such file"),
        (own.certfile, none, r"`keyfile` .*none cannot be read \(No such file"),
        (tmp_path, own.keyfile, r"`certfile` .* cannot be read \(Is a directory"),
        (junk, own.keyfile, "`certfile` .*junk and `keyfile` .* are no certificate"),
        (own.certfile, junk, "`keyfile` .*junk are no certificate"),
        (own.certfile, None, "are no certificate in PEM with its key"),
        (own.certfile, authority.keyfile, "MISMATCH"),
        (own.certfile, locked, "`keyfile` .* has a pass phrase"),
    ]:
        with pytest.raises(ValueError, match=words) as refused:
            check_certificate(certfile, keyfile)
        assert "PRIVATE KEY" not in str(refused.value)


def test_wrong_files_of_a_client(tmp_path: Path, own: Certificate) -> None:
    (tmp_path / "junk").write_bytes(b"\x00\xff no certificate")
    for name, words in [
        ("none", r"`cafile` .*none cannot be read \(No such file"),
        ("junk", "`cafile` .*junk holds no certificate"),
    ]:
        with pytest.raises(ValueError, match=words):
            client("https://127.0.0.1:1", cafile=tmp_path / name)
    with pytest.raises(ValueError, match="`url` of https"):
        client("http://127.0.0.1:1", cafile=own.certfile)
