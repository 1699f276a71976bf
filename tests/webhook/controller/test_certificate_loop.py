from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from certs.reconciler import RacedError
from certs.rotation import Terms
from tests.cases import cases
from webhook.certificates.objects import SecretName
from webhook.cluster import errors
from webhook.controller.certificate_loop import CertificateLoop


def raised(error: Exception) -> Callable[[], None]:
    def reconcile() -> None:
        raise error

    return reconcile


@cases(
    ("error", "want"),
    {
        "another-controller-was-faster": (
            RacedError("version 7"),
            "other controllers write at the same time: version 7",
        ),
        "no-answer": (errors.Unreachable("no answer"), "no answer"),
        "a-bug-does-not-end-the-loop": (RuntimeError("a bug"), "RuntimeError"),
    },
)
def test_a_failure_is_counted_logged_once_and_retried(
    error: Exception, want: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, api = CollectorRegistry(), Any
    secret = SecretName("gpu-admission", "gpu-admission-certificates")
    loop = CertificateLoop(api, secret, Terms(names=("host",)), registry)  # type: ignore[arg-type]
    loop._reconciler = SimpleNamespace(reconcile=raised(error))  # type: ignore[assignment]

    assert [loop._reconcile(), loop._reconcile()] == [False, False], "so `run` makes a pause and tries again"

    failed = [each for each in caplog.messages if each == f"certificates: reconciliation failed: {want}"]
    assert len(failed) == 1
    assert registry.get_sample_value("gpu_admission_certificate_failures_total") == 2
    assert registry.get_sample_value("gpu_admission_certificate_reconciled") == 0
