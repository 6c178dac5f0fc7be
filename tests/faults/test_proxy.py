"""The proxy itself, between a client and a server that answers each line with the same line."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from faults.proxy import Proxy, Way
from support.harvesting import PATIENCE, wait_until

FOREVER = 10 * PATIENCE


class Echo(socketserver.ThreadingTCPServer):
    """Keeps what it heard."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.ended = 0
        super().__init__(("127.0.0.1", 0), LineHandler)


class LineHandler(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.heard.append(line)
                self.wfile.write(line)
        except OSError:
            pass
        self.server.ended += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.server_address[1]) as proxy:
        yield proxy


class LineClient:
    def __init__(self, proxy: Proxy, name: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)
        self.ask(name)
        assert self.answer() == name

    def ask(self, line: bytes) -> None:
        self.socket.sendall(line + b"\n")

    def answer(self, within: float = PATIENCE) -> bytes | None:
        """A line without its end; b"" when the connection has ended, None when nothing comes."""
        self.socket.settimeout(within)
        try:
            return self.socket.recv(1000).removesuffix(b"\n")
        except ConnectionResetError:
            return b""
        except TimeoutError:
            return None


@pytest.fixture
def clients(proxy: Proxy) -> Iterator[tuple[LineClient, LineClient]]:
    pair = LineClient(proxy, b"one"), LineClient(proxy, b"other")
    yield pair
    for client in pair:
        client.socket.close()


Clients = tuple[LineClient, LineClient]


def test_it_forwards_both_ways_and_passes_on_the_end(echo: Echo, proxy: Proxy, clients: Clients) -> None:
    for client in clients:
        client.ask(b"x" * 500)
        assert client.answer() == b"x" * 500
    assert proxy.connections() == 2
    assert proxy.connections(b"other") == 1
    clients[0].socket.close()
    wait_until(lambda: echo.ended == 1 and proxy.connections() == 1)


def test_cut_ends_those_that_match(echo: Echo, proxy: Proxy, clients: Clients) -> None:
    assert proxy.cut(b"one") == 1
    assert clients[0].answer() == b""
    clients[1].ask(b"a")
    assert clients[1].answer() == b"a"
    wait_until(lambda: echo.ended == 1)


def test_delays_add_up_and_keep_the_order(proxy: Proxy, clients: Clients) -> None:
    proxy.delay(1.0, b"one")
    begun = time.monotonic()
    for line in (b"a", b"b", b"c"):
        clients[0].ask(line)
    assert clients[0].answer() is not None
    assert time.monotonic() - begun >= 2.0


def test_others_are_not_delayed(proxy: Proxy, clients: Clients) -> None:
    proxy.delay(FOREVER, b"one")
    clients[0].ask(b"a")
    clients[1].ask(b"a")
    assert clients[1].answer() == b"a"
    assert clients[0].answer(0.1) is None


def test_what_was_held_arrives_at_the_healing_though_the_client_is_gone(
    echo: Echo, proxy: Proxy, clients: Clients
) -> None:
    proxy.hold(b"one")
    clients[0].ask(b"late")
    clients[1].ask(b"a")
    assert clients[1].answer() == b"a"
    assert clients[0].answer(0.1) is None
    clients[0].socket.close()
    assert b"late\n" not in echo.heard
    proxy.heal()
    wait_until(lambda: b"late\n" in echo.heard and echo.ended == 1)


@pytest.mark.parametrize("way", list(Way))
def test_a_half_open_connection_never_works_again(echo: Echo, proxy: Proxy, clients: Clients, way: Way) -> None:
    hit = proxy.swallow(b"one", ways=(way,))
    assert not hit.is_set()
    clients[0].ask(b"lost")
    assert clients[0].answer(0.2) is None
    wait_until(hit.is_set)
    if way is Way.REPLIES:
        wait_until(lambda: b"lost\n" in echo.heard)
    else:
        assert b"lost\n" not in echo.heard
    wait_until(lambda: proxy.connections(b"one") == 0)
    proxy.heal()
    wait_until(lambda: echo.ended == 1)
    clients[0].ask(b"after")
    assert clients[0].answer(0.2) is None
    assert b"after\n" not in echo.heard
    clients[1].ask(b"a")
    assert clients[1].answer() == b"a"


def test_a_new_connection_is_half_open_from_its_beginning(proxy: Proxy) -> None:
    proxy.swallow(b"new")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as client:
        client.sendall(b"new\n")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(10)


def test_a_rule_strikes_a_connection_from_its_first_request_of_a_kind_on(
    echo: Echo, proxy: Proxy, clients: Clients
) -> None:
    hit = proxy.hold(kind=lambda data: b"go" in data)
    clients[0].ask(b"a")
    assert clients[0].answer() == b"a"
    assert not hit.is_set()
    clients[0].ask(b"go")
    assert hit.wait(PATIENCE)
    clients[0].ask(b"b")
    assert clients[0].answer(0.1) is None
    clients[1].ask(b"a")
    assert clients[1].answer() == b"a"
    proxy.heal()
    wait_until(lambda: echo.heard[-2:] == [b"go\n", b"b\n"])


@pytest.mark.parametrize("before", [True, False])
def test_cut_at_a_request(echo: Echo, proxy: Proxy, clients: Clients, before: bool) -> None:
    struck: list[int] = []
    proxy.on_hit = lambda: struck.append(len(echo.heard))
    hit = proxy.cut_at(kind=lambda data: b"fatal" in data, before=before)
    clients[0].ask(b"harmless")
    assert clients[0].answer() == b"harmless"
    assert not hit.is_set()
    clients[0].ask(b"fatal")
    assert clients[0].answer() == b""
    assert hit.wait(PATIENCE)
    assert struck == [3 if before else 4]
    assert (b"fatal\n" in echo.heard) == (not before)
    clients[1].ask(b"fatal")
    assert clients[1].answer() == b"fatal"


def test_a_server_that_is_not_there_ends_the_connection(proxy: Proxy, echo: Echo) -> None:
    with Proxy(1) as nowhere, socket.create_connection(("127.0.0.1", nowhere.port), timeout=PATIENCE) as client:
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(10) == b""
        wait_until(lambda: nowhere.connections() == 0)
