"""Findings of rules about a pod, each one sentence with field path, value, remedy and severity."""

from enum import Enum

import msgspec
from msgspec.structs import replace


class Severity(Enum):
    """How serious a finding is while its rule is enforced; the rule's mode can only soften it."""

    DENIAL = "denial"
    WARNING = "warning"


PLATFORM_TEAM = "the platform team"
"""Who is asked where no policy says whom (`spec.help`)."""

VALUE_LENGTH = 120
"""The most characters of a value in a sentence; an annotation may hold 256 KiB."""


def truncate(value: str, length: int = VALUE_LENGTH) -> str:
    """Return the value, cut to so many characters."""
    return value if len(value) <= length else value[: length - 1] + "…"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of a pod, or advice.

    `path` is relative to the pod (`spec.containers[0]…`), `message` says what must hold, `remedy` what to write, and `ask` what
    to ask of the people who run the cluster, as an infinitive ("to raise spec.hard.gpus"); `whom` is filled in by the engine.
    """

    rule: str
    message: str
    severity: Severity = Severity.DENIAL
    path: str = ""
    container: str | None = None
    value: str | None = None
    remedy: str = ""
    ask: str = ""
    whom: str = PLATFORM_TEAM

    @property
    def whom_to_ask(self) -> str:
        """In words, e.g. `ask the platform team to raise spec.hard.gpus`; empty where nothing is to be asked."""
        return f"ask {self.whom} {self.ask}" if self.ask else ""

    def asking(self, whom: str) -> "Finding":
        """Return the finding with whom to ask for what it asks."""
        return replace(self, whom=whom) if self.ask and whom != self.whom else self

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
        if self.ask:
            text += f"{', or' if self.remedy else ';'} {self.whom_to_ask}"
        return f"{text} [{self.rule}]"
