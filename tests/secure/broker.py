"""A broker that lets nobody in without a login, nor do anything that no ACL allows; and what tests do with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port

PLAIN_USER, PLAIN_PASSWORD = "plain-user", "plain-password-4R"
_REAUTHENTICATION_MS = 3_600_000  # so that a session lasts for as long as its token


@dataclass(frozen=True, slots=True)
class Acl:
    """Something that a user is allowed to do. A star at a name's end means all names that begin so."""

    resource: str
    name: str
    operation: str

    @property
    def kind(self) -> str:
        """The resource as Kafka's tools spell it."""
        return self.resource.lower().replace("_", "-")

    def binding(self, user: str) -> AclBinding:
        beginning = self.name.removesuffix("*")
        is_prefix = beginning not in ("", self.name)
        return AclBinding(
            ResourceType[self.resource],
            beginning if is_prefix else self.name,
            ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[self.operation],
            AclPermissionType.ALLOW,
        )


class SecureKafka:
    """An embedded broker with three listeners: plain, for its administrator; SASL over TLS; tokens over TLS."""

    def __init__(self, folder: Path, *, classpath: str) -> None:
        self.folder = folder
        port, controller, self._secure_port, self._token_port = (free_port() for _ in range(4))
        self.authority = folder / "ca.pem"
        listeners = {
            "PLAINTEXT": ("PLAINTEXT", port),
            "SECURE": ("SASL_SSL", self._secure_port),
            "TOKEN": ("SASL_SSL", self._token_port),
        }
        addresses = {name: f"{name}://{LOOPBACK}:{number}" for name, (_, number) in listeners.items()}
        protocols = {**{name: protocol for name, (protocol, _) in listeners.items()}, "CONTROLLER": "PLAINTEXT"}
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        # For tests only: tokens that are not signed.
        token = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        self.server = EmbeddedKafka(
            folder / "server",
            classpath=classpath,
            port=port,
            heap="384m",
            properties={
                "listeners": ",".join([*addresses.values(), f"CONTROLLER://{LOOPBACK}:{controller}"]),
                "advertised.listeners": ",".join(addresses.values()),
                "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(folder / "server.pem"),
                "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
                "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
                "listener.name.secure.plain.sasl.jaas.config": f'{plain} user_{PLAIN_USER}="{PLAIN_PASSWORD}";',
                "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.token.oauthbearer.sasl.jaas.config": f'{token} unsecuredLoginStringClaim_sub="broker";',
                "listener.name.token.oauthbearer.connections.max.reauth.ms": str(_REAUTHENTICATION_MS),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "false",
                "super.users": "User:ANONYMOUS",  # who comes by the plain listener
            },
        )

    def __enter__(self) -> SecureKafka:
        self.folder.mkdir(parents=True)
        write_certificates(self.authority, self.folder / "server.pem")
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @cached_property
    def administrator(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})

    def login(self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """librdkafka settings, in goharvest's spelling."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self._secure_port}",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def token_login(self) -> dict[str, str]:
        """The same for who comes with a token, which is missing here."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self._token_port}",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": "OAUTHBEARER",
        }

    def add_user(self, user: str, password: str) -> None:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, credential, password.encode())
        self.administrator.alter_user_scram_credentials([change])[user].result()
        wait_until(lambda: self._knows(user))

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        allowed = [acl.binding(user) for acl in acls]
        for future in self.administrator.create_acls(allowed).values():
            future.result()
        wait_until(lambda: self._in_force(user) >= set(map(_permission, allowed)))  # the broker hears of it later

    def forbid(self, user: str, acls: Iterable[Acl]) -> None:
        forbidden = [acl.binding(user) for acl in acls]
        filters = [
            AclBindingFilter(
                binding.restype,
                binding.name,
                binding.resource_pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission_type,
            )
            for binding in forbidden
        ]
        for future in self.administrator.delete_acls(filters).values():
            assert len(future.result()) == 1
        wait_until(lambda: self._in_force(user).isdisjoint(map(_permission, forbidden)))

    @contextlib.contextmanager
    def without(self, user: str, acl: Acl) -> Iterator[None]:
        """Take one permission from a user for a while."""
        self.forbid(user, [acl])
        try:
            yield
        finally:
            self.allow(user, [acl])

    def make_topic(self, topic: str, *, partitions: int = 1, config: dict[str, Any] | None = None) -> None:
        new = NewTopic(topic, partitions, 1, config=config or {})
        self.administrator.create_topics([new])[topic].result()
        wait_until(lambda: topic in self.administrator.list_topics(timeout=PATIENCE).topics)

    def _knows(self, user: str) -> bool:
        """Whether the broker, and not only its controller, knows a user's password."""
        try:
            self.administrator.describe_user_scram_credentials([user])[user].result()
        except KafkaException:
            return False
        return True

    def _in_force(self, user: str) -> set[tuple[Any, ...]]:
        """What the broker allows a user."""
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return set(map(_permission, self.administrator.describe_acls(every).result()))


def _permission(binding: AclBinding) -> tuple[Any, ...]:
    return binding.restype, binding.name, binding.resource_pattern_type, binding.operation


def write_certificates(authority: Path, server: Path) -> None:
    """Write the certificate of an authority, and a server's key with a certificate of that authority, as PEM."""
    now = datetime.now(UTC)

    def certificate(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    of_authority = (
        certificate("test authority", "test authority", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    of_server = (
        certificate("test broker", "test authority", server_key)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOOPBACK))]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    authority.write_bytes(of_authority.public_bytes(pem))
    private = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server.write_bytes(private + of_server.public_bytes(pem) + of_authority.public_bytes(pem))
