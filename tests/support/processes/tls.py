"""Private servers that are reached over TLS, with certificates of their own authority."""

import asyncio
import ipaddress
import multiprocessing
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sqlalchemy import make_url

from harness.servers import free_ports


@dataclass(frozen=True)
class Tls:
    """A certificate, used by servers and clients, and the port on which RabbitMQ is reached with it."""

    authority: Path
    certificate: Path
    key: Path
    port: int

    @property
    def rabbitmq_settings(self) -> list[str]:
        """The settings of a RabbitMQ that is also reached over TLS, by clients with a certificate of the authority."""
        return [
            f"listeners.ssl.1 = 127.0.0.1:{self.port}",
            f"ssl_options.cacertfile = {self.authority}",
            f"ssl_options.certfile = {self.certificate}",
            f"ssl_options.keyfile = {self.key}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
        ]

    @property
    def mariadb_options(self) -> list[str]:
        """The options of a MariaDB that is also reached over TLS."""
        return [f"ssl-ca={self.authority}", f"ssl-cert={self.certificate}", f"ssl-key={self.key}"]

    def of_rabbitmq(self, url: str, **options: str) -> str:
        """Return the URL of a broker over TLS for its URL without TLS."""
        files = {"ca": self.authority, "cert": self.certificate, "key": self.key}
        query = {"ssl": "true", **{f"ssl_{name}_file": str(file) for name, file in files.items()}, **options}
        return make_url(url).set(port=self.port, query=query).render_as_string(hide_password=False)


def issue(folder: Path, address: str) -> Tls:
    """Write a certificate of a new authority, for an IP address, into a folder."""
    [port] = free_ports(1)
    files = Tls(folder / "ca.pem", folder / "cert.pem", folder / "key.pem", port)
    authority, authority_key = _certificate(f"authority of {address}", x509.BasicConstraints(ca=True, path_length=0))
    named = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    own, own_key = _certificate("server", named, authority, authority_key)
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


@contextmanager
def terminated(tls: Tls, address: str, port: int) -> Iterator[None]:
    """Accept connections over TLS at an address and the port of ``tls``; forward them to a local port without TLS."""
    # In a process of its own, whose end closes all connections at once.
    process = multiprocessing.get_context("spawn").Process(
        target=_terminate, args=(tls, address, port), daemon=True, name="TLS"
    )
    process.start()
    try:
        while process.is_alive():
            with suppress(ConnectionRefusedError), socket.create_connection((address, tls.port)):
                break
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.join()
        process.close()


def _terminate(tls: Tls, address: str, port: int) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.key)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()

    async def forward(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(client, to_server), copy(server, to_client))

    async def serve() -> None:
        await (await asyncio.start_server(forward, address, tls.port, ssl=context)).serve_forever()

    asyncio.run(serve())


def _certificate(
    name: str,
    extension: x509.ExtensionType,
    authority: x509.Certificate | None = None,
    authority_key: ec.EllipticCurvePrivateKey | None = None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a certificate that is valid for some days, and its key; without an authority it is an authority itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The tests of clocks set the clock back and forward by some hours.
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now + timedelta(days=3))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    )
    return builder.sign(authority_key or key, hashes.SHA256()), key
