"""Findings of rules about a pod, each one sentence with field path, value, remedy and severity."""

from enum import Enum

import msgspec


class Severity(Enum):
    """How serious a finding is while its rule is enforced; the rule's mode can only soften it."""

    DENIAL = "denial"
    WARNING = "warning"


VALUE_LENGTH = 120
"""The most characters of a value in a sentence; an annotation may hold 256 KiB."""


def truncate(value: str, length: int = VALUE_LENGTH) -> str:
    """Return the value, cut to so many characters."""
    return value if len(value) <= length else value[: length - 1] + "…"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of a pod, or advice.

    `path` is relative to the pod (`spec.containers[0]…`), `message` says what must hold, `remedy` what to write.
    """

    rule: str
    message: str
    severity: Severity = Severity.DENIAL
    path: str = ""
    container: str | None = None
    value: str | None = None
    remedy: str = ""

    def sentence(self) -> str:
        """All of it as one line, e.g. `spec.containers[0].… (container "main") = "500m": …; … [gpu-requests]`."""
        subject = self.path
        if self.container is not None:
            subject += f' (container "{self.container}")'
        if self.value is not None:
            subject += f' = "{truncate(self.value)}"'
        text = f"{subject.strip()}: {self.message}" if subject else self.message
        if self.remedy:
            text += f"; {self.remedy}"
        return f"{text} [{self.rule}]"
