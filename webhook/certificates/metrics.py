"""Prometheus metrics of the certificates in the Secret."""

from functools import partial

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


class CertificateReconcilerMetrics:
    """Results of the certificate loop of the controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._not_after = not_after_gauge(registry)
        self._phase = gauge(
            "gpu_admission_certificate_rotation_phase",
            "Phase of the rotation of the authority: 0 none, 1 publishing, 2 propagating, 3 retiring.",
        )
        self._published = counter(
            "gpu_admission_certificate_bundles_published",
            "Writes of caBundles that were missing or wrong.",
            ["kind"],
        )
        self._writes = counter("gpu_admission_certificate_secret_writes", "Writes of the Secret.")
        self.failures = counter(
            "gpu_admission_certificate_failures",
            "Failed reconciliations of Secret and caBundles; the log has the reason.",
        )
        self.reconciled = gauge(
            "gpu_admission_certificate_reconciled",
            "1 if the last reconciliation of Secret and caBundles succeeded, else 0.",
        )

    def record(self, result: ReconcileResult) -> None:
        state = result.state
        for label, pair in ((LEAF, state.leaf), (CA, state.authority)):
            at = pair.certificate.not_valid_after_utc.timestamp() if pair else 0.0
            self._not_after.labels(label).set(at)
        self._phase.set(state.phase)
        if result.written:
            self._writes.inc()
        for kind in result.published:
            self._published.labels(kind).inc()
