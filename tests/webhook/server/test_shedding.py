"""More requests than the server takes: the rest hear at once when to ask again, and probes are answered all the same."""

import contextlib
from collections import Counter
from pathlib import Path

import pytest

from tests.webhook.server.harness import Client, Server, request, serving

pytestmark = pytest.mark.processes

MEBIBYTE = 1024 * 1024


def held(server: Server, stack: contextlib.ExitStack, count: int, sent: bytes) -> list[Client]:
    """Return clients that wait for the answers to what they have sent, one after the other."""
    clients = [stack.enter_context(server.client()) for _ in range(count)]
    for number, client in enumerate(clients, 1):
        client.send(sent)
        server.wait_for_metric("gpu_admission_requests_held", number)
    return clients


def test_one_more_than_may_be_held_hears_when_to_ask_again(directory: Path) -> None:
    with (
        serving(directory, threads=2, max_concurrent=4) as server,
        contextlib.ExitStack() as stack,
        server.client() as late,
        server.client() as kubelet,
    ):
        ended = directory / "ended"
        waiting = held(server, stack, 4, request(f"/sleep?{ended}"))
        answer = late.post("/body")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.body == b"too many requests at once; try again\n"
        assert answer.headers["connection"] == "close"
        assert late.is_closed(within=30)
        assert kubelet.post("/healthz").status == 200
        assert all(client.is_waiting() for client in waiting)
        ended.touch()
        assert [client.answer().status for client in waiting] == [200] * 4
        server.wait_for_metric("gpu_admission_requests_shed_total", 1)
        server.wait_for_metric("gpu_admission_requests_held", 0)
        server.wait_for("shedding: 4 requests at once are held already (--max-concurrent)")
        assert waiting[0].post("/body").status == 200


def test_requests_that_the_poller_answers_itself_are_shed_as_well(directory: Path) -> None:
    with (
        serving(directory, max_concurrent=4) as server,
        contextlib.ExitStack() as stack,
        server.client() as kubelet,
    ):
        clients = [stack.enter_context(server.client()) for _ in range(10)]
        assert clients[-1].post("/body").status == 200  # by now all handshakes are done
        server.wait_for_metric("gpu_admission_requests_held", 0)
        ended = directory / "ended"
        # The poller is at it, and sees the others together afterwards.
        held(server, stack, 1, request(f"/at-once?{ended}"))
        for client in clients:
            client.send(request("/at-once?1.5"))
        kubelet.send(request("/healthz"))
        ended.touch()
        assert kubelet.answer().status == 200
        # After the one under way, and one more at most; six of the ten are shed, and three at work or waiting.
        assert any(client.is_waiting() for client in clients)
        assert Counter(client.answer().status for client in clients) == {200: 4, 503: 6}
        server.wait_for_metric("gpu_admission_requests_shed_total", 6)


def test_shed_requests_hold_no_memory(directory: Path) -> None:
    with serving(directory, threads=2, max_concurrent=24) as server, contextlib.ExitStack() as stack:
        worker, large = server.worker(), request(f"/sleep?{directory / 'never'}", b"x" * MEBIBYTE)
        clients = [stack.enter_context(server.client()) for _ in range(92)]
        before = worker.memory_info().rss
        held(server, stack, 8, large)  # two are worked on, a quarter of 24 wait
        # One after the other: all at once are cut for the bytes of what is not whole yet.
        for client in clients:
            client.send(large)
            assert client.answer().status == 503
        server.wait_for_metric("gpu_admission_requests_shed_total", 92)
        server.wait_for("shedding: 6 large requests wait already (a quarter of --max-concurrent)")
        # 100 MiB have come. 8 are held, each in a buffer that grew as it came and copied once; the allocator keeps some more.
        assert worker.memory_info().rss - before < 60 * MEBIBYTE


def test_large_requests_leave_the_other_threads_alone(directory: Path) -> None:
    with (
        serving(directory, threads=2, max_concurrent=64) as server,
        contextlib.ExitStack() as stack,
        server.client() as small,
        server.client() as at_once,
    ):
        ended = directory / "ended"
        clients = held(server, stack, 8, request(f"/sleep?{ended}", b"x" * MEBIBYTE))
        assert small.post("/body", b"12345").json()["length"] == 5
        assert at_once.post("/at-once?0").status == 200
        assert all(client.is_waiting() for client in clients)
        ended.touch()


def test_what_may_wait_leaves_those_that_are_answered_at_once_alone(directory: Path) -> None:
    with serving(directory, threads=2) as server, contextlib.ExitStack() as stack, server.client() as at_once:
        ended = directory / "ended"
        waiting = held(server, stack, 2, request(f"/sleep?{ended}", b"x"))
        assert at_once.post("/at-once?0").status == 200
        assert all(client.is_waiting() for client in waiting)

        ended.touch()
        assert [client.answer().json() for client in waiting] == [{"slept": str(ended)}] * 2
        server.wait_for_metric("gpu_admission_requests_held", 0)
