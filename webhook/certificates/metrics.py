"""Prometheus metrics of the certificates in the Secret."""

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge

from certs.reconciler import ReconcileResult

LEAF, CA = "leaf", "ca"


def not_after_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the gauge that serve and controller share."""
    return Gauge(
        "gpu_admission_certificate_not_after_timestamp_seconds",
        "Expiry of the certificate: the leaf that is served, and the authority that issued it; 0 if there is none.",
        ["certificate"],
        registry=registry,
    )


def not_after(certificate: x509.Certificate | None) -> float:
    return certificate.not_valid_after_utc.timestamp() if certificate else 0.0


class CertificateReconcilerMetrics:
    """Results of the certificate loop of the controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._not_after = not_after_gauge(registry)
        self._phase = Gauge(
            "gpu_admission_certificate_rotation_phase",
            "Phase of the rotation of the authority: 0 none, 1 publishing, 2 propagating, 3 retiring.",
            registry=registry,
        )
        self._published = Counter(
            "gpu_admission_certificate_bundles_published",
            "Writes of caBundles that were missing or wrong.",
            ["kind"],
            registry=registry,
        )
        self._writes = Counter(
            "gpu_admission_certificate_secret_writes", "Writes of the Secret.", registry=registry
        )
        self.failures = Counter(
            "gpu_admission_certificate_failures",
            "Failed reconciliations of Secret and caBundles; the log has the reason.",
            registry=registry,
        )
        self.reconciled = Gauge(
            "gpu_admission_certificate_reconciled",
            "1 if the last reconciliation of Secret and caBundles succeeded, else 0.",
            registry=registry,
        )

    def record(self, result: ReconcileResult) -> None:
        state = result.state
        self._not_after.labels(LEAF).set(not_after(state.leaf.certificate if state.leaf else None))
        self._not_after.labels(CA).set(not_after(state.authority.certificate))
        self._phase.set(state.phase)
        if result.written:
            self._writes.inc()
        for kind in result.published:
            self._published.labels(kind).inc()
