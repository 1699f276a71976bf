import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from certs.reconciler import RacedError, ReconcileResult
from certs.secret import decode
from tests.cases import cases
from tests.certs.world import BEGIN, KINDS, SECOND, TERMS, Controller, World
from webhook.certificates.objects import SecretName
from webhook.cluster import errors
from webhook.controller.certificate_loop import CertificateLoop


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def loop(registry: CollectorRegistry) -> CertificateLoop:
    api: Any = None
    return CertificateLoop(api, SecretName("gpu-admission", "certificates"), TERMS, registry)


def test_a_success_says_what_was_written(
    registry: CollectorRegistry, loop: CertificateLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World()
    Controller(world).settle()
    assert world.stored is not None
    state = decode(world.stored.content)
    results = [
        ReconcileResult(state, 2, ("Mutating", "Mutating")),
        ReconcileResult(state, 0, ("Validating",)),
    ]
    loop._failed("away")
    loop._reconciler = SimpleNamespace(reconcile=lambda: results.pop(0))  # type: ignore[assignment]

    assert loop._reconcile(), "again after each write, until there is none"

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpu_admission_certificate_{name}", labels)

    assert (value("secret_writes_total"), value("failures_total"), value("reconciled")) == (2, 1, 1)
    assert [value("bundles_published_total", kind=each) for each in KINDS] == [2, 1]
    assert value("rotation_phase") == 0
    assert caplog.messages[-1] == "certificates: reconciled again"
    assert state.leaf is not None
    ends = registry.collect()
    shown = {each.value for family in ends if "not_after" in family.name for each in family.samples}
    assert shown == {
        pair.certificate.not_valid_after_utc.timestamp() for pair in (state.leaf, state.authority)
    }


@cases(("waited", "want"), no_rotation=(None, 24.0), its_wait=(4, 6.05), it_is_over=(60, 0.05))
def test_the_next_one_comes_as_soon_as_a_rotation_has_waited(
    loop: CertificateLoop, monkeypatch: pytest.MonkeyPatch, waited: int | None, want: float
) -> None:
    world = World()
    Controller(world).settle()
    assert world.stored is not None
    steady = decode(world.stored.content)
    since = None if waited is None else BEGIN - waited * SECOND
    state = replace(steady, since=since, upcoming=steady.authority if since else None)
    loop._reconciler = SimpleNamespace(last_state=state)  # type: ignore[assignment]
    monkeypatch.setattr("webhook.controller.certificate_loop._now", lambda: BEGIN)
    monkeypatch.setattr("webhook.controller.certificate_loop.random.uniform", lambda least, _most: least)

    assert loop._pause() == pytest.approx(want)


def test_pauses_between_failures_double_until_one_succeeds(
    loop: CertificateLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, stopping, pauses = [*[False] * 7, True, False], threading.Event(), list[float]()

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if not outcomes:
            stopping.set()

    loop._changes = SimpleNamespace(start=lambda _: None, wait=lambda _: None)  # type: ignore[assignment]
    monkeypatch.setattr(loop, "_reconcile", lambda: outcomes.pop(0))
    monkeypatch.setattr(loop, "_pause", lambda: 60.0)
    monkeypatch.setattr(stopping, "wait", wait)
    monkeypatch.setattr("webhook.controller.certificate_loop.random.uniform", lambda _least, most: most)

    loop.run(stopping)

    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 0.5]


@cases(
    ("error", "want"),
    another_was_faster=(RacedError("version 7"), "other controllers write at the same time: version 7"),
    no_answer=(errors.Unreachable("no answer"), "no answer"),
    a_bug_does_not_end_the_loop=(RuntimeError("a bug"), "RuntimeError"),
)
def test_a_failure_is_counted_logged_once_and_retried(
    registry: CollectorRegistry,
    loop: CertificateLoop,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    want: str,
) -> None:
    loop._reconciler = SimpleNamespace(reconcile=Mock(side_effect=error))  # type: ignore[assignment]

    logged = []
    for _ in range(2):
        assert not loop._reconcile(), "so `run` makes a pause and tries again"
        logged.append(caplog.messages.count(f"certificates: reconciliation failed: {want}"))

    assert logged == [1, 1]
    assert registry.get_sample_value("gpu_admission_certificate_failures_total") == 2
    assert registry.get_sample_value("gpu_admission_certificate_reconciled") == 0
