"""Reconciles the certificate Secret and the caBundles, on every change of them and on a period.

Every controller runs it, leader or not: a replica that hangs must not prevent the others from repairing.
"""

import logging
import random
import threading
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from certs.reconciler import CertificateReconciler, RacedError
from certs.rotation import Terms, remaining_wait
from webhook.certificates.metrics import CertificateReconcilerMetrics
from webhook.certificates.objects import (
    ChangeSignal,
    ClusterConfigurations,
    ClusterSecret,
    SecretName,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between reconciliations without a change."""
RETRY = (0.5, 15.0)
"""First and longest pause after a failure; doubled in between."""


class CertificateLoop:
    """The reconciliation of one Secret; `run` is the body of a thread."""

    def __init__(self, api: ApiClient, secret: SecretName, terms: Terms, registry: CollectorRegistry) -> None:
        stores = ClusterSecret(api, secret), ClusterConfigurations(api)
        self._reconciler = CertificateReconciler(*stores, terms, _now)
        self._terms = terms
        self._changes = ChangeSignal(api, secret)
        self._metrics = CertificateReconcilerMetrics(registry)
        self._problem = ""

    def run(self, stopping: threading.Event) -> None:
        """Reconcile until `stopping`."""
        self._changes.start(stopping)
        retry = RETRY[0]
        while not stopping.is_set():
            if self._reconcile():
                retry = RETRY[0]
                self._changes.wait(self._pause())
            else:
                # Not the signal: a failing write may be its own change.
                stopping.wait(retry * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                retry = min(retry * 2, RETRY[1])

    def _reconcile(self) -> bool:
        """Do every step that is due; return whether that succeeded."""
        try:
            while True:
                result = self._reconciler.reconcile()
                self._metrics.record(result)
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
        self._metrics.reconciled.set(1)
        return True

    def _failed(self, problem: str) -> bool:
        if problem != self._problem:
            log.warning("certificates: reconciliation failed: %s", problem)
        self._problem = problem
        self._metrics.reconciled.set(0)
        self._metrics.failures.inc()
        return False

    def _pause(self) -> float:
        """Seconds to the next reconciliation: the period, jittered so that controllers do not run together, or a wait's end."""
        pause = PERIOD * random.uniform(0.8, 1.0)  # noqa: S311 - jitter
        known = self._reconciler.last_state
        rest = remaining_wait(known, self._terms, _now()) if known else None
        return pause if rest is None else min(pause, rest.total_seconds() + 0.05)


def _now() -> datetime:
    return datetime.now(UTC)
