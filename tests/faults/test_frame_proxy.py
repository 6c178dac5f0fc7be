"""The frame proxy itself, between a client and a broker that answers every request with its number and no error."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from faults.frame_proxy import FrameProxy
from faults.frames import Api, Frames, error_in, read_request
from faults.treatments import Cut, Delay, Drop, Hold, Late, Twice
from support.harvesting import PATIENCE, wait_until

QUIET = 0.15  # seconds in which nothing comes
DELAY = 0.5


class StubBroker(socketserver.ThreadingTCPServer):
    """Keeps the correlation ids it was sent, each with the number of the connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.connections = 0
        self.ended = 0
        super().__init__(("127.0.0.1", 0), FrameHandler)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.heard]


class FrameHandler(socketserver.BaseRequestHandler):
    server: StubBroker

    def handle(self) -> None:
        self.server.connections += 1
        connection, frames = self.server.connections, Frames()
        try:
            while data := self.request.recv(1000):
                for frame in frames.add(data):
                    number = read_request(frame, connection=0, at=0).correlation_id
                    self.server.heard.append((connection, number))
                    self.request.sendall(frame_of(struct.pack(">iih", number, 0, 0)))
        except OSError:
            pass
        self.server.ended += 1


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def compact(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def header(api: int, version: int, number: int, client: str | None = "client") -> bytes:
    return struct.pack(">hhi", api, version, number) + text(client)


def end(number: int, transactional_id: str = "id", *, commits: bool = True) -> bytes:
    return frame_of(header(Api.END, 1, number) + text(transactional_id) + struct.pack(">qh?", 7, 0, commits))


def produce(number: int, transactional_id: str = "id") -> bytes:
    return frame_of(header(Api.PRODUCE, 7, number) + text(transactional_id) + b"records")


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(broker: StubBroker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.server_address[1]) as proxy:
        yield proxy


class FrameClient:
    def __init__(self, proxy: FrameProxy) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)
        self._frames = Frames()

    def ask(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def answers(self, count: int, within: float = PATIENCE) -> list[int]:
        """The numbers of so many answers, or of those that come in time, or before the connection ends."""
        found: list[int] = []
        deadline = time.monotonic() + within
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1000)
            except (TimeoutError, ConnectionResetError):
                break
            if not data:
                break
            found += [struct.unpack_from(">i", frame, 4)[0] for frame in self._frames.add(data)]
        return found

    def is_cut(self) -> bool:
        self.socket.settimeout(PATIENCE)
        try:
            return self.socket.recv(1000) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def connect(proxy: FrameProxy) -> Iterator[Callable[[], FrameClient]]:
    made: list[FrameClient] = []

    def connect() -> FrameClient:
        made.append(FrameClient(proxy))
        return made[-1]

    yield connect
    for client in made:
        client.socket.close()


Connect = Callable[[], FrameClient]


@pytest.mark.parametrize(
    ("frame", "transactional_id", "commits"),
    [
        (end(1, "a"), "a", True),
        (end(1, "a", commits=False), "a", False),
        (frame_of(header(Api.END, 3, 1) + b"\0" + compact("a") + struct.pack(">qh?", 7, 0, True) + b"\0"), "a", True),
        (frame_of(header(Api.ADD_PARTITIONS, 0, 1) + text("a") + bytes(10)), "a", None),
        (frame_of(header(Api.ADD_PARTITIONS, 5, 1) + b"\0\2" + compact("a") + bytes(10)), None, None),
        (frame_of(header(Api.INIT_PRODUCER_ID, 1, 1) + text("a") + bytes(4)), "a", None),
        (frame_of(header(Api.INIT_PRODUCER_ID, 4, 1) + b"\0" + compact("a") + bytes(4)), "a", None),
        (frame_of(header(Api.INIT_PRODUCER_ID, 4, 1) + b"\1\5\2xy" + compact(None) + bytes(4)), None, None),
        (produce(1, "a"), "a", None),
        (frame_of(header(Api.PRODUCE, 10, 1) + b"\0" + compact("a" * 100) + bytes(4)), "a" * 100, None),
        (frame_of(header(Api.WRITE_MARKERS, 1, 1) + b"\0\2" + bytes(10)), None, None),
        (frame_of(header(18, 3, 1, client=None) + b"\0"), None, None),
    ],
)
def test_it_reads_what_a_request_is_and_whose(frame: bytes, transactional_id: str | None, commits: bool | None) -> None:
    request = read_request(frame, connection=3, at=4.0)
    assert (request.correlation_id, request.connection, request.at) == (1, 3, 4.0)
    assert (request.transactional_id, request.commits) == (transactional_id, commits)
    assert request.client_id == ("" if request.api == 18 else "client")


@pytest.mark.parametrize("version", [1, 3])
def test_it_reads_the_error_of_an_answer(version: int) -> None:
    tags, name = (b"\0", compact("a")) if version == 3 else (b"", text("a"))
    asked = frame_of(header(Api.END, version, 5) + tags + name + struct.pack(">qh?", 7, 0, True) + tags)
    request = read_request(asked, connection=0, at=0)
    for error in (0, 51):
        answer = frame_of(struct.pack(">i", 5) + tags + struct.pack(">ih", 0, error) + tags)
        assert error_in(answer, request) == error


def test_frames_are_found_however_the_bytes_come() -> None:
    frames, sent = Frames(), [end(1), produce(2), end(3)]
    found = [frame for byte in b"".join(sent) for frame in frames.add(bytes([byte]))]
    assert found == sent == Frames().add(b"".join(sent))


def test_it_forwards_both_ways_and_passes_on_the_end(broker: StubBroker, proxy: FrameProxy, connect: Connect) -> None:
    client = connect()
    client.ask(end(1), produce(2))
    assert client.answers(2) == [1, 2]
    assert [request.api for request in proxy.seen] == [Api.END, Api.PRODUCE]
    client.socket.close()
    wait_until(lambda: broker.ended == 1 and not proxy.wires)


def test_a_rule_chooses_by_kind_and_id_and_strikes_as_often_as_it_says(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    fault = proxy.strike(Api.END, Drop(), times=2, where=lambda request: request.transactional_id == "a")
    client = connect()
    client.ask(end(1, "b"), produce(2, "a"), end(3, "a"), end(4, "a"), end(5, "a"))
    assert client.answers(3) == [1, 2, 5]
    assert broker.numbers == [1, 2, 5]
    assert [strike.request.correlation_id for strike in fault.strikes] == [3, 4]
    assert fault.struck.is_set()


@pytest.mark.parametrize("answered", [False, True])
def test_it_cuts_a_connection_before_a_request_or_before_its_answer(
    broker: StubBroker, proxy: FrameProxy, connect: Connect, answered: bool
) -> None:
    other = connect()
    fault = proxy.strike(Api.END, Cut(answered=answered))
    client = connect()
    client.ask(produce(1))
    assert client.answers(1) == [1]
    client.ask(end(2))
    assert client.is_cut()
    wait_until(lambda: broker.numbers == ([1, 2] if answered else [1]))
    assert fault.strikes[0].answered.is_set() == answered
    other.ask(end(3))
    assert other.answers(1) == [3]


def test_a_doubled_request_is_heard_twice_and_answered_once(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    proxy.strike(Api.END, Twice())
    client = connect()
    client.ask(end(1), produce(2))
    assert client.answers(2) == [1, 2]
    assert client.answers(1, within=QUIET) == []
    assert broker.numbers == [1, 1, 2]


def test_what_is_held_keeps_back_what_comes_after_it_on_its_connection(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    fault = proxy.strike(Api.END, Hold())
    client, other = connect(), connect()
    client.ask(produce(1), end(2), produce(3))
    assert client.answers(1) == [1]
    assert client.answers(1, within=QUIET) == []
    other.ask(produce(4))
    assert other.answers(1) == [4]
    assert not fault.strikes[0].delivered.is_set()
    fault.strikes[0].deliver()
    assert client.answers(2) == [2, 3]
    assert broker.numbers == [1, 4, 2, 3]


def test_what_is_delayed_keeps_back_what_comes_after_it_on_its_connection(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    fault = proxy.strike(Api.END, Delay(DELAY))
    client = connect()
    begun = time.monotonic()
    client.ask(produce(1), end(2), produce(3))
    assert client.answers(3) == [1, 2, 3]
    assert time.monotonic() - begun >= DELAY
    assert fault.strikes[0].delivered.is_set()
    assert broker.numbers == [1, 2, 3]


def test_a_late_request_arrives_on_its_old_connection_when_told(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    fault = proxy.strike(Api.END, Late())
    client = connect()
    client.ask(produce(1))
    assert client.answers(1) == [1]
    client.ask(end(2))
    assert client.is_cut()
    again = connect()
    again.ask(end(3))
    assert again.answers(1) == [3]
    assert broker.heard == [(1, 1), (2, 3)]
    fault.strikes[0].deliver()
    wait_until(lambda: broker.heard == [(1, 1), (2, 3), (1, 2)])
    assert fault.strikes[0].answered.wait(PATIENCE)
    wait_until(lambda: broker.ended == 1)
    assert again.answers(1, within=QUIET) == []


def test_a_late_request_arrives_after_so_many_answers_of_its_transactional_id(
    broker: StubBroker, proxy: FrameProxy, connect: Connect
) -> None:
    fault = proxy.strike(Api.END, Late(((Api.END, 1), (Api.PRODUCE, 2))), times=2)
    client = connect()
    client.ask(end(1, "a"))
    assert client.is_cut()
    again = connect()
    for number, frame in enumerate([produce(2, "a"), end(3, "b"), produce(4, "a"), produce(5, "a")]):
        again.ask(frame)
        assert again.answers(1) == [number + 2]
    again.ask(end(6, "a"))  # its own copy: not late as well
    assert again.answers(1) == [6]
    again.ask(produce(7, "b"), produce(8, "a"))
    assert again.answers(2) == [7, 8]
    assert not fault.strikes[0].delivered.is_set()
    again.ask(produce(9, "a"))
    assert again.answers(1) == [9]
    wait_until(lambda: broker.heard[-1] == (1, 1))
    again.ask(end(10, "a"))  # the next one
    assert again.is_cut()
    assert [strike.request.correlation_id for strike in fault.strikes] == [1, 10]


def test_at_the_healing_everything_arrives(broker: StubBroker, proxy: FrameProxy, connect: Connect) -> None:
    proxy.strike(Api.END, Late(((Api.END, 100),)))
    proxy.strike(Api.PRODUCE, Hold())
    clients = connect(), connect()
    clients[0].ask(end(1))
    assert clients[0].is_cut()
    clients[1].ask(produce(2))
    assert clients[1].answers(1, within=QUIET) == []
    assert broker.numbers == []
    proxy.heal()
    assert clients[1].answers(1) == [2]
    wait_until(lambda: sorted(broker.numbers) == [1, 2])
    clients[1].ask(end(3))
    assert clients[1].answers(1) == [3]


def test_a_broker_that_is_not_there_ends_the_connection(proxy: FrameProxy) -> None:
    with FrameProxy(1) as nowhere:
        client = FrameClient(nowhere)
        assert client.is_cut()
        client.socket.close()
