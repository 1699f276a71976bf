"""Reconciles both Secrets and the caBundles, in every controller: a leader that hangs must not stop repairs."""

import logging
import random
import threading
from datetime import UTC, datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from certs.reconciler import CertificateReconciler, RacedError, ReconcileResult
from certs.rotation import RotationSettings, remaining_wait
from webhook.certificates.objects import ChangeSignal, ClusterConfigurations, ClusterSecret, SecretName
from webhook.certificates.serving import CA_LABEL, LEAF_LABEL, not_after_gauge
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Pauses

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between reconciliations without a change."""
RETRY = (0.5, 15.0)
"""First and longest pause after a failure."""
_now = partial(datetime.now, UTC)


class CertificateLoop:
    """`secret` is the Secret that servers read. The Secret of its authority is reconciled, too."""

    def __init__(
        self, api: ApiClient, secret: SecretName, terms: RotationSettings, registry: CollectorRegistry
    ) -> None:
        state, serving = ClusterSecret(api, secret.ca_secret), ClusterSecret(api, secret)
        self._reconciler = CertificateReconciler(state, serving, ClusterConfigurations(api), terms, _now)
        self._terms = terms
        self._changes = ChangeSignal(api, secret, secret.ca_secret)
        self._problem = ""
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._not_after = not_after_gauge(registry)
        self._phase = gauge(
            "gpu_admission_certificate_rotation_phase",
            "Phase of the rotation of the CA: 0 none, 1 publishing, 2 propagating, 3 retiring.",
        )
        self._published = counter(
            "gpu_admission_certificate_bundles_published",
            "Writes of caBundles that were missing or wrong.",
            ["kind"],
        )
        self._writes = counter("gpu_admission_certificate_secret_writes", "Writes of the two Secrets.")
        self._failures = counter(
            "gpu_admission_certificate_failures",
            "Failed reconciliations of Secrets and caBundles; the log has the reason.",
        )
        self._reconciled = gauge(
            "gpu_admission_certificate_reconciled",
            "1 if the last reconciliation of Secrets and caBundles succeeded, else 0.",
        )

    def run(self, stopping: threading.Event) -> None:
        """Reconcile until `stopping`; the body of a thread."""
        self._changes.start(stopping)
        pauses = Pauses(*RETRY)
        while not stopping.is_set():
            if self._reconcile():
                pauses.reset()
                self._changes.wait(self._pause())
            else:
                # Do not wait for a change: the writes of the failed attempt are changes themselves.
                stopping.wait(pauses.next())

    def _reconcile(self) -> bool:
        try:
            while True:
                result = self._reconciler.reconcile()
                self._record(result)
                if not result.written:
                    break
        except RacedError as error:
            return self._failed(f"other controllers write at the same time: {error}")
        except errors.ApiError as error:
            return self._failed(str(error))
        except Exception as error:  # a bug must not end the loop: certificates would expire
            log.exception("certificates: reconciliation failed")
            return self._failed(type(error).__name__)
        if self._problem:
            log.info("certificates: reconciled again")
        self._problem = ""
        self._reconciled.set(1)
        return True

    def _record(self, result: ReconcileResult) -> None:
        state = result.state
        for label, pair in ((LEAF_LABEL, state.leaf), (CA_LABEL, state.authority)):
            at = pair.certificate.not_valid_after_utc.timestamp() if pair else 0.0
            self._not_after.labels(label).set(at)
        self._phase.set(state.phase)
        self._writes.inc(result.written)
        for kind in result.updated_kinds:
            self._published.labels(kind).inc()

    def _failed(self, problem: str) -> bool:
        if problem != self._problem:
            log.warning("certificates: reconciliation failed: %s", problem)
        self._problem = problem
        self._reconciled.set(0)
        self._failures.inc()
        return False

    def _pause(self) -> float:
        """Return the seconds to the next reconciliation: the period, or the rest of a wait of the rotation."""
        pause = PERIOD * random.uniform(0.8, 1.0)  # noqa: S311 - so that controllers do not all run at once
        last_state = self._reconciler.last_state
        remaining = remaining_wait(last_state, self._terms, _now()) if last_state else None
        return pause if remaining is None else min(pause, remaining.total_seconds() + 0.05)
