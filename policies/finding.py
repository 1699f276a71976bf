"""What a rule has to say about a pod: the sentence, where it applies, and how serious it is."""

from enum import Enum

import msgspec


class Severity(Enum):
    """How serious a finding is while its rule is enforced; the rule's mode can only soften it."""

    DENIAL = "denial"
    WARNING = "warning"


VALUE_SHOWN = 120
"""Characters of a value that are told; an annotation may hold 256 KiB."""


def shown(value: str) -> str:
    """Return the value, cut where nobody would read on."""
    return value if len(value) <= VALUE_SHOWN else value[: VALUE_SHOWN - 1] + "…"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, or worth knowing.

    `path` is relative to the pod (`spec.containers[0]…`), `message` says what is wrong, `remedy` what its author can do.
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
            subject += f' = "{shown(self.value)}"'
        text = f"{subject.strip()}: {self.message}" if subject else self.message
        if self.remedy:
            text += f"; {self.remedy}"
        return f"{text} [{self.rule}]"
