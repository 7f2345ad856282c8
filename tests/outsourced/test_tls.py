"""TLS of the service and its client: who is let in, what is final, what is renewed."""

from __future__ import annotations

import asyncio.sslproto
import gc
import logging
import ssl
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from botorch_dp.outsourced import TLS, CuratorClient
from botorch_dp.outsourced.service import curator_server
from tests.outsourced.certificates import Certificate, certificate, pem, replace
from tests.outsourced.serving import TOKEN, connected, make_curator, measure, serving


@dataclass(frozen=True)
class House:
    authority: Certificate
    service: Certificate
    tls: TLS


@pytest.fixture
def house(tmp_path: Path) -> House:
    authority = certificate(tmp_path, "authority")
    service = certificate(tmp_path, "service", by=authority)
    return House(authority, service, TLS(service.certfile, service.keyfile))


@pytest.fixture
def url(house: House) -> Iterator[str]:
    with serving(make_curator(), tls=house.tls) as url:
        yield url


def client(url: str, **settings) -> CuratorClient:
    return CuratorClient(url, token=TOKEN, **{"patience": 20.0, "timeout": 5.0, **settings})


def refused_at_once(remote: CuratorClient, match: str) -> None:
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=match):
        remote.status()
    assert time.monotonic() - start < 15


class TestService:
    def test_a_client_that_knows_the_authority(self, house: House, url: str) -> None:
        assert url.startswith("https://")
        remote = client(url, cafile=house.authority.certfile)
        assert [remote.query(index) for index in range(3)] == [measure(i) for i in range(3)]

    def test_key_and_certificate_in_one_file(self, house: House, tmp_path: Path) -> None:
        both = tmp_path / "both.pem"
        both.write_bytes(house.service.keyfile.read_bytes() + house.service.certfile.read_bytes())
        with serving(make_curator(), tls=TLS(both)) as url:
            assert client(url, cafile=house.authority.certfile).query(1) == measure(1)

    def test_an_unknown_authority_is_final(self, url: str) -> None:
        refused_at_once(client(url), r"is not trusted \(.*`cafile`")

    def test_a_self_signed_certificate_is_final_unless_it_is_named(self, tmp_path: Path) -> None:
        own = certificate(tmp_path, "own")
        with serving(make_curator(), tls=TLS(own.certfile, own.keyfile)) as url:
            refused_at_once(client(url), r"is not trusted \(self-signed certificate")
            assert client(url, cafile=own.certfile).query(1) == measure(1)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [({"days": -1.0}, "has expired"), ({"host": "192.0.2.1"}, "IP address mismatch")],
    )
    def test_a_wrong_certificate_is_final(
        self, house: House, tmp_path: Path, settings, words: str
    ) -> None:
        bad = certificate(tmp_path, "bad", by=house.authority, **settings)
        with serving(make_curator(), tls=TLS(bad.certfile, bad.keyfile)) as url:
            refused_at_once(client(url, cafile=house.authority.certfile), words)

    def test_a_plain_service_is_final_for_an_encrypted_client(self, house: House) -> None:
        with serving(make_curator()) as url:
            remote = client(url.replace("http:", "https:"), cafile=house.authority.certfile)
            refused_at_once(remote, "does it speak plain HTTP")

    def test_a_plain_client_gets_nothing(self, url: str) -> None:
        with pytest.raises(ConnectionError):
            client(url.replace("https:", "http:"), patience=0.3).status()

    def test_old_versions_are_refused(self, house: House, url: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(house.authority.certfile)
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with connected(url.replace("https:", "http:")) as raw, pytest.raises(ssl.SSLError):
            context.wrap_socket(raw, server_hostname="127.0.0.1")


class TestMutual:
    @pytest.fixture
    def url(self, house: House, tmp_path: Path) -> Iterator[str]:
        clients = certificate(tmp_path, "clients")
        certificate(tmp_path, "modeler", by=clients)
        certificate(tmp_path, "expired", by=clients, days=-1.0)
        tls = TLS(house.service.certfile, house.service.keyfile, clients.certfile)
        with serving(make_curator(), tls=tls) as url:
            yield url

    def test_a_client_with_a_trusted_certificate(
        self, house: House, url: str, tmp_path: Path
    ) -> None:
        remote = client(
            url,
            cafile=house.authority.certfile,
            certfile=tmp_path / "modeler.pem",
            keyfile=tmp_path / "modeler.key",
        )
        assert remote.query(2) == measure(2)

    @pytest.mark.parametrize("name", [None, "service", "expired"])
    def test_others_are_final(
        self, house: House, url: str, tmp_path: Path, name: str | None
    ) -> None:
        shown = {}
        if name is not None:
            shown = {"certfile": tmp_path / f"{name}.pem", "keyfile": tmp_path / f"{name}.key"}
        refused_at_once(client(url, cafile=house.authority.certfile, **shown), "`certfile`")


class TestFiles:
    """A wrong file is an error before anything starts; a wrong replacement is one line."""

    @pytest.mark.parametrize(
        "make",
        [
            TLS,
            lambda *files: client(
                "https://127.0.0.1:1",
                **dict(zip(("certfile", "keyfile", "cafile"), files, strict=False)),
            ),
        ],
        ids=["service", "client"],
    )
    def test_wrong_files(self, house: House, tmp_path: Path, make) -> None:
        own, key = house.service.certfile, house.service.keyfile
        junk, locked = tmp_path / "junk", tmp_path / "locked.key"
        junk.write_bytes(b"\x00\xff no certificate")
        locked.write_bytes(pem(house.service.key, b"phrase"))
        for files, words in [
            ((tmp_path / "none", key), r"`certfile` .*none cannot be read \(No such file"),
            ((own, tmp_path / "none"), r"`keyfile` .*none cannot be read \(No such file"),
            ((tmp_path, key), r"`certfile` .* cannot be read \(Is a directory"),
            ((junk, key), "`certfile` .*junk holds no certificate"),
            ((own, junk), "`keyfile` .*junk holds no key"),
            ((own,), "`certfile` .* holds no key in PEM: name it by `keyfile`"),
            ((own, house.authority.keyfile), "do not belong together"),
            ((own, locked), "needs a pass phrase"),
            ((own, key, tmp_path / "none"), r"cafile` .*none cannot be read"),
            ((own, key, junk), "cafile` .*junk holds no certificate"),
        ]:
            with pytest.raises(ValueError, match=words) as refused:
                make(*files)
            assert "PRIVATE KEY" not in str(refused.value)

    def test_files_need_an_encrypted_url(self, house: House) -> None:
        with pytest.raises(ValueError, match="`url` of https"):
            client("http://127.0.0.1:1", cafile=house.authority.certfile)
        with pytest.raises(ValueError, match="`keyfile` needs the `certfile`"):
            client("https://127.0.0.1:1", keyfile=house.service.keyfile)

    def test_a_renewed_certificate_serves_the_next_connection(
        self, house: House, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def seen() -> int:
            context = ssl.create_default_context(cafile=str(house.authority.certfile))
            with connected(url.replace("https:", "http:")) as plain:
                shown = context.wrap_socket(plain, server_hostname="127.0.0.1").getpeercert()
            return int(shown["serialNumber"], 16)

        assert seen() == house.service.certificate.serial_number
        # Half of a renewal: the old pair still serves, and the log says why.
        aside = tmp_path / "aside"
        aside.mkdir()
        renewed = certificate(aside, "service", by=house.authority)
        replace(house.service.certfile, renewed.certfile.read_bytes())
        with caplog.at_level(logging.ERROR):
            assert [seen() for _ in range(3)] == [house.service.certificate.serial_number] * 3
        assert caplog.text.count("do not belong together") == 1
        replace(house.service.keyfile, renewed.keyfile.read_bytes())
        assert seen() == renewed.certificate.serial_number


class TestStrangers:
    """A handshake that never ends holds nothing up."""

    def test_it_times_out(self, house: House) -> None:
        with serving(make_curator(), tls=house.tls, request_seconds=0.4) as url:
            for half in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"):
                start = time.monotonic()
                with connected(url.replace("https:", "http:"), half) as stranger:
                    assert len(stranger.recv(1000)) < 100
                    stranger.settimeout(5)
                    while stranger.recv(1000):
                        pass
                assert time.monotonic() - start < 15

    def test_the_owner_gets_in_among_many(
        self, house: House, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            serving(make_curator(), tls=house.tls, connections=10, request_seconds=20) as url,
            caplog.at_level(logging.INFO),
        ):
            plain = url.replace("https:", "http:")
            crowd = [connected(plain, b"\x16\x03\x01") for _ in range(60)]
            remote = client(url, cafile=house.authority.certfile)
            start = time.monotonic()
            assert [remote.query(index) for index in range(3)] == [measure(i) for i in range(3)]
            assert time.monotonic() - start < 15
            crowd[0].settimeout(5)
            with suppress(ConnectionResetError):
                assert crowd[0].recv(1) == b""
            for stranger in crowd:
                stranger.close()
        assert "rror" not in caplog.text

    def test_what_never_shook_hands_leaves_nothing_behind(self, house: House) -> None:
        """asyncio sets 256 kB aside for each connection: cycles would keep hundreds of them."""
        buffers: weakref.WeakSet[asyncio.sslproto.SSLProtocol] = weakref.WeakSet()

        class Counted(asyncio.sslproto.SSLProtocol):
            def __init__(self, *args, **settings) -> None:
                super().__init__(*args, **settings)
                buffers.add(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.sslproto, "SSLProtocol", Counted)
            with serving(make_curator(), tls=house.tls, connections=10) as url:
                plain = url.replace("https:", "http:")
                gc.collect()
                gc.disable()
                try:
                    for start in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
                        crowd = [connected(plain, start) for _ in range(30)]
                        deadline = time.monotonic() + 5
                        while not buffers and time.monotonic() < deadline:
                            time.sleep(0.01)
                        for stranger in crowd:
                            stranger.close()
                        while buffers and time.monotonic() < deadline:
                            time.sleep(0.01)
                        assert not buffers
                finally:
                    gc.enable()


def test_the_end_does_not_wait_for_idle_clients(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told that it ends; nobody waits until they have said so too."""

    def patient(*arguments, **settings):
        server = curator_server(*arguments, **settings)
        server.config.timeout_graceful_shutdown = 60  # the usual 5 pass on a busy machine as well
        return server

    monkeypatch.setattr("tests.outsourced.serving.curator_server", patient)
    context = ssl.create_default_context(cafile=str(house.authority.certfile))
    with serving(make_curator(), tls=house.tls, request_seconds=60.0) as url:
        idle = context.wrap_socket(
            connected(url.replace("https", "http")),
            server_hostname="127.0.0.1",
            suppress_ragged_eofs=False,
        )
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while b"alive" not in answer:
            answer += idle.recv(4096)
        start = time.monotonic()
    assert time.monotonic() - start < 15
    with idle:
        while idle.recv(4096):  # an error, if the connection just broke off
            pass


def test_sockets_are_closed(house: House) -> None:
    """What a client holds open is one connection, used again."""
    with serving(make_curator(), tls=house.tls) as url:
        remote = client(url, cafile=house.authority.certfile)
        before = open_sockets()
        for index in range(10):
            remote.query(index)
        assert open_sockets() <= before + 2


def open_sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += "socket" in str(entry.readlink())
        except OSError:
            continue
    return count
