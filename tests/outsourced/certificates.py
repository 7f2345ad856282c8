"""Certificates for tests: an authority, what it signs, and what nobody should trust."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """One certificate with its key, in files."""

    certfile: Path
    keyfile: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificate(
    folder: Path,
    name: str,
    *,
    by: Certificate | None = None,
    days: float = 1.0,
    host: str = "127.0.0.1",
) -> Certificate:
    """A certificate for an address, signed by an authority or by itself (and then one itself)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(key if by is None else by.key, hashes.SHA256())
    )
    certfile, keyfile = folder / f"{name}.pem", folder / f"{name}.key"
    replace(certfile, built.public_bytes(serialization.Encoding.PEM))
    replace(keyfile, pem(key))
    return Certificate(certfile, keyfile, built, key)


def pem(key: ec.EllipticCurvePrivateKey, phrase: bytes | None = None) -> bytes:
    """A key as a file holds it."""
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if phrase is not None:
        how = serialization.BestAvailableEncryption(phrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def replace(path: Path, content: bytes) -> None:
    """Put a new file in the place of an old one, as who renews it should."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)
