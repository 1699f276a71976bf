"""Start and stop of the process."""

import contextlib
import signal
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases
from tests.webhook.server.harness import WITHIN, Client, Server, request, serving, start_in_vain

pytestmark = pytest.mark.processes


class Load:
    """Clients that post one request after another, over connections that they keep, until they are to stop."""

    def __init__(self, server: Server, clients: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self.answered = self.lost = self.asked_to_leave = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._post) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _post(self) -> None:
        while not self._stop.is_set():
            try:
                client = self._server.client()
            except OSError:
                return  # nothing was asked of the server: a Service would have sent us elsewhere
            with client:
                self._post_until_asked_to_leave(client)

    def _post_until_asked_to_leave(self, client: Client) -> None:
        while not self._stop.is_set():
            try:
                answer = client.post("/sleep?0.01")
            except OSError:
                with self._lock:
                    self.lost += 1
                return
            with self._lock:
                self.answered += 1
            if answer.headers["connection"] == "close":
                with self._lock:
                    self.asked_to_leave += 1
                return


def test_stopping_under_load_loses_no_request(directory: Path) -> None:
    with serving(directory, drain_seconds=2) as server:
        load = Load(server, clients=8)
        while (before := load.answered) < 100:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        code = server.wait()
        load.stop()
        assert code == 0
        assert load.lost == 0
        assert load.answered > before
        assert load.asked_to_leave > 0


def test_draining_is_announced_while_new_connections_are_still_served_until_an_interrupt(
    directory: Path,
) -> None:
    with serving(directory, drain_seconds=60) as server, server.client() as before:
        assert before.post("/state").json()["draining"] is False
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining for")
        with server.client() as new:
            answer = new.post("/state")
        assert answer.json()["draining"] is True
        assert answer.headers["connection"] == "close"
        assert before.post("/state").headers["connection"] == "close"
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 40  # of the 60 that draining would have taken


def test_second_sigterm_changes_nothing(directory: Path) -> None:
    with serving(directory, drain_seconds=5) as server:
        load = Load(server, clients=4)
        began = time.monotonic()
        for _ in range(3):
            server.process.send_signal(signal.SIGTERM)
            server.worker().send_signal(signal.SIGTERM)  # as all of a process group get it
            time.sleep(0.3)
        assert server.wait() == 0
        load.stop()
        assert time.monotonic() - began > 5
        assert load.lost == 0
        assert [line for line in server.lines if ":gpu_admission.server:" in line][1:] == [
            "INFO:gpu_admission.server:draining for 5 s\n",
            "INFO:gpu_admission.server:stopped with 0 connections open\n",
        ]


def test_request_that_crosses_the_end_of_an_idle_connection_is_answered_try_again(directory: Path) -> None:
    with serving(directory) as server, server.client() as client:
        assert client.post("/body").status == 200
        server.process.send_signal(signal.SIGTERM)
        # The last word has been said, and the client, which looks at nothing that comes unasked, does not know.
        server.wait_for_metric("gpu_admission_connections_sent_away_total", 1)
        answer = client.post("/body")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.body == b"this replica of gpu-admission is stopping; try again\n"
        assert server.wait() == 0


def test_connections_that_the_kernel_has_taken_are_served_to_the_end(directory: Path) -> None:
    # One client asks on all of them, one after the other.
    with (
        serving(directory, handshake_seconds=60, graceful_seconds=60) as server,
        contextlib.ExitStack() as stack,
    ):
        context = ssl.create_default_context(cafile=server.ca)
        worker = server.worker()
        worker.suspend()
        waiting = [stack.enter_context(server.plain_socket()) for _ in range(200)]
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        worker.resume()
        for each in waiting:
            with context.wrap_socket(each, server_hostname="localhost") as spoken:
                spoken.sendall(request("/body"))
                assert spoken.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert server.wait() == 0


def test_request_in_flight_is_finished(directory: Path) -> None:
    with serving(directory) as server, server.client() as client:
        ended = directory / "ended"
        client.send(request(f"/sleep?{ended}"))
        server.wait_for_metric("gpu_admission_requests_held", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining for")
        ended.touch()
        assert client.answer().json() == {"slept": str(ended)}
        assert server.wait() == 0


@cases(
    ("settings", "number"),
    term_once_it_has_waited=({"graceful_seconds": 1}, signal.SIGTERM),
    int_at_once=({"drain_seconds": 60}, signal.SIGINT),
    quit_at_once=({"drain_seconds": 60}, signal.SIGQUIT),
)
def test_request_that_never_ends_is_given_up(directory: Path, settings: dict[str, Any], number: int) -> None:
    with serving(directory, **settings) as server, server.client() as client:
        client.send(request("/sleep?60"))
        server.wait_for_metric("gpu_admission_requests_held", 1)
        began = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began < 40  # of the 60 that the request or draining would have taken


def test_there_is_only_ever_one_worker(directory: Path) -> None:
    with serving(directory) as server:
        first = server.worker().pid
        for number in (signal.SIGTTIN, signal.SIGUSR2, signal.SIGWINCH):
            server.process.send_signal(number)
        time.sleep(1.5)
        assert server.worker().pid == first


def test_worker_that_dies_is_replaced_and_serves_metrics_again(directory: Path) -> None:
    with serving(directory) as server:
        server.worker().kill()
        end = time.monotonic() + WITHIN
        while len([line for line in server.lines if "Booting worker" in line]) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        with server.client() as client:
            assert client.post("/body").status == 200
        assert "gpu_admission_connections" in server.scrape()


def test_worker_does_not_outlive_its_master(directory: Path) -> None:
    with serving(directory) as server:
        worker = server.worker()
        server.process.kill()
        worker.wait(timeout=WITHIN)


def test_slow_scrapers_do_not_pile_up(directory: Path) -> None:
    with serving(directory) as server, contextlib.ExitStack() as slow:
        for _ in range(30):
            slow.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port)))
        time.sleep(0.5)
        assert server.worker().num_threads() < 32 + 8 + 5
        assert "gpu_admission_connections" in server.scrape()


def test_line_that_says_serving_comes_when_it_is_true(directory: Path) -> None:
    """Whoever waits for it connects, and may end the process, at once: the handlers of the signals must be there."""
    for _ in range(3):
        with serving(directory) as server:
            server.plain_socket().close()
            assert server.stop() == 0


@cases(
    ("settings", "want"),
    no_certificate=({"certificate": "/nowhere/tls.crt"}, "/nowhere/tls.crt: No such file or directory"),
    no_such_host=(
        {"metrics_host": "no such host"},
        "metrics_port: cannot listen on no such host port 0: Name or service not known",
    ),
)
def test_what_prevents_a_start_is_one_line(directory: Path, settings: dict[str, Any], want: str) -> None:
    assert start_in_vain(directory, **settings) == (2, f"gpu-admission: {want}\n")


def test_application_that_refuses_to_start_says_why(directory: Path) -> None:
    code, said = start_in_vain(directory, refuse=True)
    assert code == 2
    assert "gpu-admission: policies.yaml: spec.rules: unknown rule\n" in said
    assert "Traceback" not in said
    assert "serving https://" not in said, "the line waits for the application"
