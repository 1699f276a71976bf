"""Prometheus metrics of the certificates in the Secret."""

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge

from certs.reconciler import ReconcileResult

LEAF, CA = "leaf", "ca"


def not_after_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the gauge that serve and controller have alike; 0 for what there is not."""
    return Gauge(
        "gpu_admission_certificate_not_after_timestamp_seconds",
        "When the certificate expires: the leaf that is served, the authority that vouches for it.",
        ["certificate"],
        registry=registry,
    )


def not_after(certificate: x509.Certificate | None) -> float:
    return certificate.not_valid_after_utc.timestamp() if certificate else 0.0


class CertificateReconcilerMetrics:
    """Of the loop that keeps them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._not_after = not_after_gauge(registry)
        self._step = Gauge(
            "gpu_admission_certificate_rotation_step",
            "Of a rotation of the authority: 0 none, 1 publishing, 2 settling, 3 retiring.",
            registry=registry,
        )
        self._published = Counter(
            "gpu_admission_certificate_bundles_published",
            "How often a caBundle was missing or wrong and was written.",
            ["kind"],
            registry=registry,
        )
        self._writes = Counter(
            "gpu_admission_certificate_secret_writes", "How often the Secret was written.", registry=registry
        )
        self.failures = Counter(
            "gpu_admission_certificate_failures",
            "How often the Secret or a caBundle could not be looked after; the log says why.",
            registry=registry,
        )
        self.well = Gauge(
            "gpu_admission_certificate_kept",
            "1 if the last look found or made Secret and caBundles right, 0 if it failed.",
            registry=registry,
        )

    def kept(self, kept: ReconcileResult) -> None:
        state = kept.state
        self._not_after.labels(LEAF).set(not_after(state.leaf.certificate if state.leaf else None))
        self._not_after.labels(CA).set(not_after(state.authority.certificate))
        self._step.set(state.step)
        if kept.written:
            self._writes.inc()
        for kind in kept.published:
            self._published.labels(kind).inc()
