"""A broker's listeners, some of which lead clients through a proxy."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port


def listening(listeners: Mapping[str, tuple[int, int]], *, between: str = "PLAINTEXT") -> dict[str, str]:
    """A broker's settings. Each listener, by name, has the port where it listens, and the one that it tells to clients:
    a proxy's. By `between` the broker asks itself.
    """
    controller = free_port()
    heard = {name: port for name, (port, _) in listeners.items()}
    told = {name: port for name, (_, port) in listeners.items()}
    return {
        "listeners": _addresses({**heard, "CONTROLLER": controller}),
        "advertised.listeners": _addresses(told),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in [*listeners, "CONTROLLER"]),
        "inter.broker.listener.name": between,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "group.min.session.timeout.ms": "1000",
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
