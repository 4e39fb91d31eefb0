"""The HTTP endpoint of metrics and probes, over real sockets."""

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse

import pytest
from prometheus_client import CollectorRegistry, Gauge, Info

from horsies_worker.metrics import MetricsUnavailable
from horsies_worker.metrics.http import MAX_CONNECTIONS, MAX_SCRAPES, MetricsServer
from tests.support.waiting import eventually

LOCAL = "127.0.0.1"
HTTP = "horsies_worker.metrics.http"
PROBE_S = 5
"""The time-out of the probes in deploy/kubernetes."""


class Reasons:
    """What the probes answer."""

    health: str | None = None
    readiness: str | None = None


@pytest.fixture
def reasons() -> Reasons:
    return Reasons()


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("horsies_answer", "The answer.", registry=registry).set(42)
    return registry


@pytest.fixture
def server(registry: CollectorRegistry, reasons: Reasons) -> Iterator[MetricsServer]:
    started = MetricsServer(
        registry, host=LOCAL, health=lambda: reasons.health, readiness=lambda: reasons.readiness
    ).start()
    yield started
    started.close()


def ask(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(LOCAL, server.port, timeout=PROBE_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection((LOCAL, server.port), timeout=20)


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


# -- answers -------------------------------------------------------------------------------------


def test_metrics_as_text_and_as_openmetrics(server: MetricsServer) -> None:
    response, text = ask(server, "/metrics")
    assert (response.status, response.headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert "# TYPE horsies_answer gauge\nhorsies_answer 42.0\n" in text
    response, text = ask(server, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert response.headers["Content-Type"].split(";")[0] == "application/openmetrics-text"
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/openmetrics-text; version=x", ";,;", "text/plain; version=-"]
)
def test_any_accept_header_gets_metrics(server: MetricsServer, accept: str) -> None:
    response, text = ask(server, "/metrics", Accept=accept)
    assert (response.status, "horsies_answer 42.0" in text) == (200, True)


def test_probes_tell_the_reason(server: MetricsServer, reasons: Reasons) -> None:
    assert [ask(server, path)[1] for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    reasons.readiness = "the database does not answer\nat all"
    response, text = ask(server, "/readyz")
    assert (response.status, text) == (503, "the database does not answer\\nat all\n")
    assert ask(server, "/healthz")[0].status == 200
    reasons.health = "stuck"
    assert (ask(server, "/healthz")[0].status, ask(server, "/healthz")[1]) == (503, "stuck\n")


def test_other_paths_and_methods_are_refused_in_plain_text(server: MetricsServer) -> None:
    response, text = ask(server, "/")
    assert (response.status, text) == (404, "not found; there are /metrics, /healthz and /readyz\n")
    for method in ("POST", "PUT", "DELETE", "BREW"):
        response, text = ask(server, "/metrics", method)
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert text == "only GET and HEAD are allowed\n"


def test_head_has_no_body(server: MetricsServer) -> None:
    response, text = ask(server, "/metrics", "HEAD")
    assert (response.status, text) == (200, "")
    assert int(response.headers["Content-Length"]) == len(ask(server, "/metrics")[1])


def test_a_malformed_request_gets_a_short_answer(server: MetricsServer) -> None:
    with connect(server) as client:
        client.sendall(b"<script>\x00 /metrics HTTP/9.9 what\r\n\r\n")
        answer = client.makefile("rb").read()
    assert b" 400 " in answer
    assert b"<" not in answer
    assert ask(server, "/metrics")[0].status == 200


def test_a_registry_that_fails_is_an_answer_too(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    Gauge("broken", "x", registry=registry).set_function(lambda: 1 / 0)
    server = MetricsServer(registry, host=LOCAL, readiness=lambda: str(1 / 0)).start()
    try:
        response, text = ask(server, "/metrics")
        assert (response.status, text) == (500, "the metrics could not be collected; the log says why\n")
        assert ask(server, "/readyz")[0].status == 503
    finally:
        server.close()
    assert "ZeroDivisionError" in caplog.text


def test_requests_are_not_logged(server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(server, "/metrics")
    ask(server, "/nothing")
    assert caplog.records == []


# -- addresses -----------------------------------------------------------------------------------


def test_a_port_that_is_in_use_is_named(server: MetricsServer, registry: CollectorRegistry) -> None:
    with pytest.raises(MetricsUnavailable, match=f"port {server.port} is in use by another process; .* another port"):
        MetricsServer(registry, host=LOCAL, port=server.port).start()


@pytest.mark.parametrize(
    ("host", "told"), [("192.0.2.1", "does not have that address"), ("no.such.host.invalid", "cannot be served on no")]
)
def test_a_wrong_address_is_told(registry: CollectorRegistry, host: str, told: str) -> None:
    with pytest.raises(MetricsUnavailable, match=told):
        MetricsServer(registry, host=host).start()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_it_listens_on_ipv6(registry: CollectorRegistry) -> None:
    try:
        server = MetricsServer(registry, host="::1").start()
    except MetricsUnavailable as error:
        pytest.skip(str(error))
    try:
        with socket.create_connection(("::1", server.port), timeout=20) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"ok\n")
    finally:
        server.close()


def test_the_port_is_free_again_after_close(registry: CollectorRegistry) -> None:
    first = MetricsServer(registry, host=LOCAL).start()
    port = first.port
    first.close()
    first.close()
    second = MetricsServer(registry, host=LOCAL, port=port).start()
    assert (second.port, ask(second, "/healthz")[1]) == (port, "ok\n")
    second.close()


# -- clients that misbehave ----------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is disconnected because time has passed."""
    monkeypatch.setattr(f"{HTTP}.DEADLINE_S", 3_600)
    monkeypatch.setattr(f"{HTTP}.SILENCE_S", 3_600)


@pytest.mark.usefixtures("patient")
def test_the_oldest_silent_client_makes_room_for_a_new_one(server: MetricsServer) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(MAX_CONNECTIONS)]
        eventually(lambda: threads() == MAX_CONNECTIONS)
        extra = [stack.enter_context(connect(server)) for _ in range(10)]
        for client in silent[:10]:
            assert client.recv(1) == b"", "disconnected without an answer"
        eventually(lambda: threads() == MAX_CONNECTIONS)
        for client in [*silent[10:], *extra]:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"ok\n")
    eventually(lambda: threads() == 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("number", [64, 300])
@pytest.mark.parametrize(
    "begun", [b"", b"G", b"GET /healthz HTTP/1.1\r\nX-Slow: 1\r\n"], ids=["idle", "byte", "header"]
)
def test_probes_are_answered_beside_clients_that_do_not_finish_a_request(
    server: MetricsServer, number: int, begun: bytes
) -> None:
    """Otherwise an orchestrator would restart a healthy worker."""
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(connect(server)).sendall(begun)
        for _ in range(10):
            assert [ask(server, path)[0].status for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
            assert threads() <= MAX_CONNECTIONS + 1, "one of them may be ending"
    eventually(lambda: threads() == 0)


@pytest.mark.usefixtures("patient")
def test_probes_are_answered_while_clients_connect_again_and_again(server: MetricsServer) -> None:
    """Each of them is newer than the probe's connection when its turn comes."""
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(connect(server))

    with ThreadPoolExecutor(2) as pool:
        floods = [pool.submit(flood) for _ in range(2)]
        try:
            for _ in range(20):
                assert [ask(server, path)[0].status for path in ("/healthz", "/readyz")] == [200] * 2
        finally:
            ended.set()
        for one in floods:
            one.result(20)
    eventually(lambda: threads() == 0)


@pytest.mark.usefixtures("patient")
def test_a_connection_whose_answer_is_being_made_keeps_its_place(registry: CollectorRegistry) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        answer.wait(60)

    server = MetricsServer(registry, host=LOCAL, readiness=slow).start()
    try:
        with ExitStack() as stack:
            first = stack.enter_context(connect(server))
            first.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert asked.wait(20)
            for _ in range(4 * MAX_CONNECTIONS):
                stack.enter_context(connect(server))
            assert ask(server, "/healthz")[0].status == 200
            answer.set()
            assert first.makefile("rb").read().endswith(b"ok\n")
    finally:
        server.close()


@pytest.mark.usefixtures("patient")
def test_clients_that_do_not_read_large_answers_leave_places_for_probes(registry: CollectorRegistry) -> None:
    Info("large", "More than the buffers of a socket take.", registry=registry).info({"text": "x" * (16 << 20)})
    server = MetricsServer(registry, host=LOCAL).start()
    try:
        with ExitStack() as stack:
            for _ in range(2 * MAX_CONNECTIONS):
                stack.enter_context(connect(server)).sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            eventually(lambda: threads() == MAX_SCRAPES)
            for _ in range(10):
                assert [ask(server, path)[0].status for path in ("/healthz", "/readyz")] == [200] * 2
            response, text = ask(server, "/metrics")
            assert (response.status, text) == (503, "too many scrapes at once\n")
        eventually(lambda: threads() == 0)
        assert ask(server, "/metrics")[0].status == 200
    finally:
        server.close()


@pytest.mark.usefixtures("patient")
def test_a_connection_is_closed_after_its_answer(server: MetricsServer) -> None:
    """A client that wants to keep it would hold a thread."""
    with connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert client.makefile("rb").read().endswith(b"ok\n")
    eventually(lambda: threads() == 0)


def test_a_client_that_drips_is_disconnected(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time; the whole request does not."""
    monkeypatch.setattr(f"{HTTP}.DEADLINE_S", 0.5)
    monkeypatch.setattr(f"{HTTP}.SILENCE_S", 3_600)
    with connect(server) as client:
        eventually(lambda: not is_open(client), interval=0.05, describe="the server has closed the connection")
    eventually(lambda: threads() == 0)


def is_open(client: socket.socket) -> bool:
    """Send one more byte of a request that never ends."""
    try:
        client.sendall(b"G")
        client.setblocking(False)
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("limit", ["DEADLINE_S", "SILENCE_S"])
def test_a_silent_client_is_disconnected(server: MetricsServer, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    for name in ("DEADLINE_S", "SILENCE_S"):
        monkeypatch.setattr(f"{HTTP}.{name}", 0.1 if name == limit else 3_600)
    with connect(server) as client:
        assert client.recv(1) == b""


def test_close_does_not_wait_for_clients(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HTTP}.DEADLINE_S", 3_600)
    monkeypatch.setattr(f"{HTTP}.SILENCE_S", 3_600)
    server = MetricsServer(registry, host=LOCAL).start()
    with connect(server) as client:
        eventually(lambda: threads() == 1)
        server.close()
        assert client.recv(1) == b""
    eventually(lambda: threads() == 0)
