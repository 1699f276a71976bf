"""Findings of rules about a pod, each one sentence: the field and its value, what to write, why, a contact, and the rule."""

import re
from collections.abc import Callable
from enum import Enum

import msgspec
from msgspec.structs import replace


class Severity(Enum):
    """How serious a finding is while its rule is enforced; the rule's mode can only soften it."""

    DENIAL = "denial"
    WARNING = "warning"


class Reason(msgspec.Struct, frozen=True):
    """Why a finding was made: a stable name for programs, and its meaning for people.

    The name is in audit lines, metrics, Events, SARIF and `status.details.causes`. Each reason is declared in the file that uses
    it. `policies.registry` has all of them.
    """

    name: str
    meaning: str


UNREAD_GPUS = Reason("UnreadGPUs", "the object contains GPU resources that gpu-admission does not read")
TOO_LARGE = Reason("TooLarge", "an object has more or longer fields than are read")
INVALID_DOCUMENT = Reason("InvalidDocument", "a document of gpu-admission.dev is invalid, or not in force")
REASONS_OF_NO_RULE = (UNREAD_GPUS, TOO_LARGE, INVALID_DOCUMENT)


PLATFORM_TEAM = "the platform team"
"""The contact if the policy names none (`spec.help`)."""

VALUE_LENGTH = 120
"""Maximum of characters of a value in a sentence; an annotation may have 256 KiB."""

_TEMPLATE = re.compile(
    r"((?:[\w-]+(?:\[[^\]]*\])?\.)*)(?!jobTemplate\.)(\w*[tT]emplate)\.(spec|metadata)(\..+)?", re.DOTALL
)
"""A path in a pod template: the steps to the template, its field, `spec` or `metadata`, and the rest."""
_FIELD = re.compile(r"[^.\[\]]+\[\d+\]$|\[([^\]]*)\]$|[^.\[\]]+$")
"""The last field of a path: a key in brackets, an item with its list, or a name."""
_EVERY_WORKLOAD = frozenset({"spec", "template", "jobTemplate", "podTemplate"})
"""Steps of a path to a pod template that do not distinguish templates."""


def truncate(value: str, length: int = VALUE_LENGTH) -> str:
    """Return the value, cut to `length` characters."""
    return value if len(value) <= length else value[: length - 1] + "…"


def short_path(path: str) -> str:
    """Return the path without the steps to a pod template, except one that distinguishes several templates.

    `spec.template.spec.containers[0]` → `containers[0]`, `spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]` →
    `Worker…containers[0]`, `spec.template.metadata.annotations[x]` → `template.metadata.annotations[x]`.
    """
    match = _TEMPLATE.fullmatch(path)
    if match is None:
        return path
    way, template, part, rest = match.groups()
    steps = [step for step in (*way.split("."), template) if step and step not in _EVERY_WORKLOAD]
    inside = f"{part}{rest or ''}"
    below = inside.removeprefix("spec.") if inside != "spec" or steps else "template.spec"
    if part == "metadata" and (template == "template" or not steps):
        below = f"{template}.{below}"
    return f"{steps[-1]}…{below}" if steps else below


class Edit(msgspec.Struct, frozen=True):
    """One change of an object: the field at the path gets the value; None removes it. Missing parents become maps."""

    path: str
    value: str | float | None = None

    @property
    def words(self) -> str:
        """In words: `set nvidia.com/gpu: 1`, `remove env[2]`, `remove label x/y`."""
        field = _FIELD.search(self.path)
        name = field[1] or field[0] if field else self.path
        name = f"label {name}" if ".labels[" in self.path else name
        return f"remove {name}" if self.value is None else f"set {name}: {self.value}"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of a pod, or advice.

    path: relative to the pod (`spec.containers[0]…`). value: the value of the field; decimal: the same amount as a
      decimal number, if the value has a suffix (0.5 for "500m").
    message: what must hold and why. fix: edits of the object that remove the finding, and bring no other.
    remedy: what to write, in words; "" if the fix says it. ask: what the people who run the cluster can do, as an infinitive
      ("to raise spec.hard.gpus"). rule: its id. The evaluation fills in `rule` and `contact` if they are not set.
    details: further facts, for lines of their own in a denial.
    """

    reason: Reason
    message: str
    rule: str = ""
    severity: Severity = Severity.DENIAL
    path: str = ""
    container: str | None = None
    value: str | None = None
    decimal: str = ""
    fix: tuple[Edit, ...] = ()
    remedy: str = ""
    ask: str = ""
    details: tuple[str, ...] = ()
    contact: str = PLATFORM_TEAM

    @property
    def escalation(self) -> str:
        """In words, e.g. `ask the platform team to raise spec.hard.gpus`; empty without `ask`."""
        return f"ask {self.contact} {self.ask}" if self.ask else ""

    def of(self, rule: str, contact: str) -> "Finding":
        """Return the finding with this rule and contact, where it names none of its own."""
        rule = self.rule or rule
        contact = contact if self.ask and self.contact == PLATFORM_TEAM else self.contact
        is_complete = rule == self.rule and contact == self.contact
        return self if is_complete else replace(self, rule=rule, contact=contact)

    def at(self, path_of: Callable[[str], str]) -> "Finding":
        """Return the finding about the same fields of another object, such as a workload. `path_of` returns their paths there."""
        fix = tuple(Edit(path_of(edit.path), edit.value) for edit in self.fix)
        return replace(self, path=path_of(self.path), fix=fix)

    @property
    def advice(self) -> str:
        """What to write, in words: the remedy, or else the fix."""
        return self.remedy or self.fix_in_words

    @property
    def fix_in_words(self) -> str:
        return " and ".join(dict.fromkeys(edit.words for edit in self.fix))

    def sentence(self) -> str:
        """Return all of it as one line.

        `spec.containers[0].… (container "main") = "500m" (0.5): set …; must …; or ask … [gpu-requests]`
        """
        text, advice = self.message, self.advice
        if advice.endswith("?"):
            is_predicate = text.startswith(("must ", "should "))
            text = f"{advice} The value {text}" if is_predicate else f"{advice} {text[:1].upper()}{text[1:]}"
        elif advice:
            text = f"{advice}; {text}"
        if self.ask:
            text += f"; {'or ' if advice else ''}{self.escalation}"
        return self._line(text)

    def brief(self, length: int) -> str:
        """Return the line with only the advice. Without advice, return the whole sentence, cut to `length` characters."""
        return self._line(self.advice) if self.advice else truncate(self.sentence(), length)

    def _line(self, text: str) -> str:
        subject = short_path(self.path)
        if self.container is not None:
            subject += f' (container "{self.container}")'
        if self.value is not None:
            subject += f' = "{truncate(self.value)}"'
        if self.decimal:
            subject += f" ({self.decimal})"
        line = f"{subject.strip()}: {text}" if subject else text
        return f"{line} [{self.rule}]" if self.rule else line
