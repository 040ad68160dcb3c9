"""Keys and certificates of a federation: who the server is, and who a lab is."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bottlegan.core.errors import InputError

YEARS = 3
LOOPBACK = ("localhost", "127.0.0.1")
"""Names by which the operator's commands and nginx reach the server on its own machine."""
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True)
class Authority:
    """A certificate that signs others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_authority(host: str) -> Authority:
    """Make a certificate authority for one federation."""
    key = _make_key()
    name = _name(f"BottleGAN federation at {host}"[:64])
    builder = _begin(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return Authority(builder.sign(key, hashes.SHA384()), key)


def make_server(host: str, authority: Authority) -> Authority:
    """Make a certificate for the server, valid for `host` and on its own machine, and its key."""
    key = _make_key()
    issuer = authority.certificate.subject
    public = authority.key.public_key()
    builder = _begin(_name(host[:64]), issuer, key.public_key())
    names = [_alternative(name) for name in dict.fromkeys((host, *LOOPBACK))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    return Authority(builder.sign(authority.key, hashes.SHA384()), key)


def write_authority(authority: Authority, certificate: Path, key: Path) -> None:
    """Write a certificate, and its key, which only the owner can read."""
    certificate.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    encoded = authority.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_secret(key, encoded)


def read_authority(certificate: Path, key: Path) -> Authority:
    """Return a certificate and its key, as `write_authority` wrote them."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
        secret = serialization.load_pem_private_key(key.read_bytes(), None)
    except ValueError:
        raise InputError(f"{key}: is not the key for {certificate}, or one of them is damaged") from None
    if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != parsed.public_key():
        raise InputError(f"{key}: is not the key for {certificate}")
    return Authority(parsed, secret)


def read_host(certificate: Path) -> str:
    """Return the host of a server's certificate."""
    server_certificate = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = server_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    first = names[0].value
    return str(first)


def write_node_key(private: Path, *public: Path) -> None:
    """Write a new key for a lab's node, in the format of `ssh-keygen -t ecdsa -b 384`, which Flower needs."""
    key = _make_key()
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(private, encoded)
    for path in public:
        line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        path.write_bytes(line + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _begin(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    # Valid from yesterday, because a lab's clock may be slow.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start)
    builder = builder.not_valid_after(start + datetime.timedelta(days=365 * YEARS))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in wanted for name in USAGES})
