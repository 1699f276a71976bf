"""Prometheus metrics of the admission path. Labels are chosen by us, never by tenants: cardinality stays bounded."""

from collections.abc import Callable
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from webhook.certificates.serving import CA_LABEL, CLIENT_CA_LABEL, LEAF_LABEL, not_after_gauge
from webhook.evaluation.decision import Decision
from webhook.quota.metrics import dry_run_label
from webhook.server.tls import CertificateState, ClientCA

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All metrics of the admission path, on a registry that the caller chooses: tests have several in one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter = partial(Counter, registry=registry)
        requests = counter(
            "gpu_admission_requests", "Admission requests answered.", ["phase", "verdict", "dry_run"]
        )
        findings = counter(
            "gpu_admission_findings",
            "Findings, by rule, reason, and what became of them.",
            ["phase", "rule", "reason", "outcome", "dry_run"],
        )
        injections = counter("gpu_admission_injections", "Pods that a rule changed.", ["rule", "dry_run"])
        duration = Histogram(
            "gpu_admission_request_duration_seconds",
            "Time from the whole body to the answer.",
            ["phase", "dry_run"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.bad_requests = counter(
            "gpu_admission_bad_requests", "HTTP requests that were no admission review.", ["code"]
        )
        self.errors = counter(
            "gpu_admission_internal_errors", "Requests that failed through a defect of ours."
        )
        self.audit_lost = counter("gpu_admission_audit_lines_lost", "Audit lines that could not be written.")
        self.events_lost = counter(
            "gpu_admission_events_lost", "Events of denials that could not be written."
        )
        self._certificate_not_after = not_after_gauge(registry)
        self._certificate_valid = Gauge(
            "gpu_admission_certificate_valid",
            "1 if the newest certificate is served, 0 if it could not be used and an older one is, or none.",
            registry=registry,
        )
        # prometheus_client checks and locks in `labels`, so the children that every request needs are kept.
        self._requests, self._findings = cache(requests.labels), cache(findings.labels)
        self._injections, self._duration = cache(injections.labels), cache(duration.labels)

    def watch_certificate(
        self, state: Callable[[], CertificateState | None], authority: Callable[[], float] | None = None
    ) -> None:
        """Read the certificate's state at every scrape, and when its authority expires where that is known."""
        expiry = self._certificate_not_after
        expiry.labels(LEAF_LABEL).set_function(lambda: s.not_after.timestamp() if (s := state()) else 0.0)
        if authority is not None:
            expiry.labels(CA_LABEL).set_function(authority)
        self._certificate_valid.set_function(lambda: float(bool((s := state()) and s.last_error is None)))

    def watch_client_ca(self, authorities: ClientCA) -> None:
        """Read at every scrape when the authorities of callers expire, and whether the newest ones are in use."""
        expiry = self._certificate_not_after.labels(CLIENT_CA_LABEL)
        expiry.set_function(lambda: authorities.state.not_after.timestamp())  # noqa: PLW0108 - another one after a reload
        valid = Gauge(
            "gpu_admission_client_ca_valid",
            "1 if the newest --client-ca is in use, 0 if it could not be used and an older one is; absent without one.",
            registry=self.registry,
        )
        valid.set_function(lambda: float(authorities.state.last_error is None))

    def record(
        self, phase: str, verdict: str, seconds: float, decisions: list[Decision], *, dry_run: bool
    ) -> None:
        dry = dry_run_label(dry_run)
        self._requests(phase, verdict, dry).inc()
        self._duration(phase, dry).observe(seconds)
        for decision in decisions:
            for violation in decision.violations:
                finding, outcome = violation.finding, violation.outcome.value
                self._findings(phase, finding.rule, finding.reason.name, outcome, dry).inc()
            if verdict == "patched":
                for rule in dict.fromkeys(change.rule for change in decision.changes):
                    self._injections(rule, dry).inc()
