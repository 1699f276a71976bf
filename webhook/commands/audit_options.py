"""Option of `serve` and `controller` for the audit log: a file, standard output, or none."""

import atexit
from collections.abc import Callable

import click

from webhook.server.settings import StartupError
from webhook.serving.audit import AuditLog

NO_AUDIT = "none"

audit_log_option = click.option(
    "--audit-log",
    default="-",
    show_default=True,
    help='File for the audit log; "-" is stdout, "none" is none.',
)


def open_audit_log(target: str, lost: Callable[[int], object]) -> AuditLog | None:
    """Start and return the log, None for no log; at exit it is flushed. Raises StartupError."""
    if target == NO_AUDIT:
        return None
    try:
        audit = AuditLog.to(target, lost)
    except OSError as error:
        raise StartupError(f"the audit log {target} cannot be written: {error.strerror}") from None
    audit.start()
    atexit.register(audit.stop)
    return audit
