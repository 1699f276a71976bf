"""Authentication of callers by client certificate, required for all pages but the probes.

The certificate is verified in the handshake and read once for each connection. Every request checks the authorities in use and
the certificate's end, so neither a kept connection nor a resumed session outlives them: OpenSSL resumes a session without another
look at the certificate.
"""

import contextlib
import logging
import time
from collections.abc import Collection

from webhook.server.connection import Connection
from webhook.server.dispatcher import ServerMetrics
from webhook.server.http import RETRY, RefusedError, text
from webhook.server.tls import ServingCertificate

# A name in a certificate has no bound; of a common name X.509 allows 64 characters.
_MAX_NAMES_SHOWN, _NAME_LIMIT = 3, 128

# 403 and not 401: kube-apiserver drops the body of a 401 ("the server has asked for the client to provide credentials"),
# and shows that of a 403 (client-go, NewGenericServerResponse).
NO_CERTIFICATE = text(
    403,
    "gpu-admission takes reviews only from callers with a client certificate: see its docs/operate/security.md",
)
# kube-apiserver repeats the call on a new connection, with the certificate that its files hold by then.
VERIFY_AGAIN = text(503, "the client certificate must be verified again; try again", RETRY)

log = logging.getLogger("gpu_admission.server")


class CallerAuthentication:
    """Allows callers with a certificate of the CAs in use and an allowed name, not a pattern. For the poller's thread only."""

    def __init__(self, names: Collection[str], serving: ServingCertificate, metrics: ServerMetrics) -> None:
        self._allowed_names, self._serving, self._metrics = frozenset(names), serving, metrics

    def check(self, connection: Connection) -> None:
        """Raise RefusedError for a request on this connection that must not be worked on."""
        caller = connection.caller
        if caller is None:
            self.record_refusal(connection, "no certificate", "without a client certificate")
            raise RefusedError(NO_CERTIFICATE)
        if caller.ca_bundle != self._serving.ca_bundle or caller.not_after < time.time():
            self.record_refusal(connection, "no longer valid", "whose client certificate is no longer valid")
            raise RefusedError(VERIFY_AGAIN)
        if not caller.is_client:
            problem = "with a certificate that is not for clients: its extended key usage lacks clientAuth"
            self.record_refusal(connection, "not for clients", problem)
            raise RefusedError(text(403, f"gpu-admission was called {problem}"))
        if self._allowed_names.isdisjoint(caller.names):
            names = (
                ", ".join(ascii(name[:_NAME_LIMIT]) for name in sorted(caller.names)[:_MAX_NAMES_SHOWN])
                or "nobody"
            )
            problem = f"with a client certificate of {names}, which --client-name does not allow"
            self.record_refusal(connection, "name not allowed", problem)
            raise RefusedError(text(403, f"gpu-admission was called {problem}"))

    def record_refusal(self, connection: Connection, reason: str, which: str) -> None:
        self._metrics.callers_refused.labels(reason).inc()
        with contextlib.suppress(OSError):  # it has gone
            log.warning("refusing a caller: %s, %s", connection.socket.getpeername()[0], which)
