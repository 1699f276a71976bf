"""
What the application may know of the process it runs in.

One process is one server, so this is module state; readiness reads it on every probe.
"""

from webhook.server.tls import CertificateState, ServingCertificate


class StartupError(Exception):
    """The application cannot start, for a reason its operator can act on: one line and exit code 2."""


class _Process:
    draining = False
    certificate: ServingCertificate | None = None


def draining() -> bool:
    """Whether the process has been asked to stop; readiness must fail from then on."""
    return _Process.draining


def certificate() -> CertificateState | None:
    """Describe what new connections are given; None where no server runs (tests of the app)."""
    return _Process.certificate.state if _Process.certificate else None


def begin(serving: ServingCertificate) -> None:
    """Enter service; called by the worker once, before the application is made."""
    _Process.draining = False
    _Process.certificate = serving


def begin_draining() -> None:
    """Take note that the process stops soon. Safe in a signal handler: no lock is taken."""
    _Process.draining = True
