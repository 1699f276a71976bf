"""The controller's part: keeps Secret and caBundles right, on every change of them and on a period.

Every controller runs it, leader or not: a replica that hangs must not keep the others from repairing.
"""

import logging
import random
import threading
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from certs.reconciler import CertificateReconciler, RacedError
from certs.rotation import Terms, left
from webhook.certificates.metrics import CertificateReconcilerMetrics
from webhook.certificates.objects import (
    ChangeSignal,
    ClusterConfigurations,
    ClusterSecret,
    SecretName,
    configuration_resources,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between looks that nothing gave cause for."""
RETRY = (0.5, 15.0)
"""Seconds after the first look that failed, and at most; doubled in between."""


class CertificateLoop:
    """`run` is the body of a thread."""

    def __init__(self, api: ApiClient, secret: SecretName, terms: Terms, registry: CollectorRegistry) -> None:
        self._keeper = CertificateReconciler(
            ClusterSecret(api, secret), ClusterConfigurations(api), terms, _now
        )
        self._terms = terms
        self._bell = ChangeSignal(api, [secret.resource, *configuration_resources()])
        self._metrics = CertificateReconcilerMetrics(registry)
        self._problem = ""

    def run(self, stopping: threading.Event) -> None:
        """Keep the certificates until `stopping`."""
        self._bell.start(stopping)
        retry = RETRY[0]
        while not stopping.is_set():
            if self._look():
                retry = RETRY[0]
                self._bell.wait(self._pause())
            else:
                # Not the bell: what fails may ring it.
                stopping.wait(retry * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                retry = min(retry * 2, RETRY[1])

    def _look(self) -> bool:
        """Do all that is due now; return whether that worked."""
        try:
            while True:
                kept = self._keeper.keep()
                self._metrics.kept(kept)
                if not kept.written:
                    break
        except RacedError as error:
            return self._failed(f"others are always faster: {error}")
        except errors.ApiError as error:
            return self._failed(str(error))
        except Exception as error:  # a defect must not end the loop: certificates would expire
            log.exception("the certificates cannot be kept")
            return self._failed(type(error).__name__)
        if self._problem:
            log.info("the certificates are kept again")
        self._problem = ""
        self._metrics.well.set(1)
        return True

    def _failed(self, problem: str) -> bool:
        if problem != self._problem:
            log.warning("the certificates cannot be kept: %s", problem)
        self._problem = problem
        self._metrics.well.set(0)
        self._metrics.failures.inc()
        return False

    def _pause(self) -> float:
        """Seconds to the next look: the period, jittered so that controllers do not look together, or the end of a wait."""
        pause = PERIOD * random.uniform(0.8, 1.0)  # noqa: S311 - jitter
        known = self._keeper.known
        rest = left(known, self._terms, _now()) if known else None
        return pause if rest is None else min(pause, rest.total_seconds() + 0.05)


def _now() -> datetime:
    return datetime.now(UTC)
