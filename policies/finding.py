"""Findings of rules about a pod, each one sentence: the field and its value, what to write, why, a contact, and the rule."""

import json
import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

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
    hides_others: bool = False
    """Whether other findings on this field show only after this one is corrected, because nothing reads the field until then."""


UNREAD_GPUS = Reason("UnreadGPUs", "the object contains GPU resources that gpu-admission does not read")
TOO_LARGE = Reason("TooLarge", "an object has more or longer fields than are read")
INVALID_DOCUMENT = Reason("InvalidDocument", "a document of gpu-admission.dev is invalid, or not in force")
LIMIT_RANGE_REJECTS = Reason("LimitRangeRejects", "a LimitRange rejects the pod")
INVALID_LIMIT_RANGE = Reason(
    "InvalidLimitRange", "the API server rejects the amounts of GPUs in a LimitRange"
)
NOT_STARTED_BY_KUEUE = Reason("NotStartedByKueue", "Kueue does not start the object by its LocalQueue")
REASONS_OUTSIDE_RULES = (
    UNREAD_GPUS,
    TOO_LARGE,
    INVALID_DOCUMENT,
    LIMIT_RANGE_REJECTS,
    INVALID_LIMIT_RANGE,
    NOT_STARTED_BY_KUEUE,
)

PLATFORM_TEAM = "the platform team"
"""The contact if the policy names none (`spec.help`)."""

VALUE_LENGTH = 120
"""Maximum of characters of a value in a sentence; an annotation may have 256 KiB."""

_TEMPLATE = re.compile(
    r"((?:[\w-]+(?:\[[^\]]*\])?\.)*)(?!jobTemplate\.)(\w*[tT]emplate)\.(spec|metadata)(\..+)?", re.DOTALL
)
"""A path in a pod template: the steps to the template, its field, `spec` or `metadata`, and the rest."""
_LAST_FIELD = re.compile(r"[^.\[\]]+\[\d+\]$|\[([^\]]*)\]$|[^.\[\]]+$")
"""The last field of a path: a key in brackets, an item with its list, or a name."""
_COMMON_STEPS = frozenset({"spec", "template", "jobTemplate", "podTemplate"})
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
    above, template, member, rest = match.groups()
    steps = [step for step in (*above.split("."), template) if step and step not in _COMMON_STEPS]
    inside = f"{member}{rest or ''}"
    below = inside.removeprefix("spec.") if inside != "spec" or steps else "template.spec"
    if member == "metadata" and (template == "template" or not steps):
        below = f"{template}.{below}"
    return f"{steps[-1]}…{below}" if steps else below


Value = Any
"""What an edit writes: a scalar, a map as its struct, a list as a tuple, or JSON. None removes the field. Hashable."""


class Json(msgspec.Struct, frozen=True):
    """A value in JSON, where there is no struct for it."""

    text: str


_PLAIN_TEXT = re.compile(
    r"(?!(?:true|false|yes|no|on|off|null|y|n)$)(?:[a-z]|(?!0[xob])\d+(?:\.\d+)?[a-df-z])[\w./-]*",
    re.IGNORECASE,
)
"""Text that every reader of YAML takes for text without quotes."""
_TEXT_FIELD = re.compile(r"\.(?:annotations|labels|nodeSelector|matchLabels)\[|\.value$")
"""Fields whose values are text, also where these look like numbers."""


def as_plain_data(value: Value) -> Any:
    """Return what an edit writes as plain data."""
    data = msgspec.json.decode(value.text) if isinstance(value, Json) else msgspec.to_builtins(value)
    return list(data) if isinstance(data, tuple) else data


def inline_yaml(value: Any) -> str:
    """Return plain data as YAML in one line: `{key: nvidia.com/gpu, operator: Exists}`."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{inline_yaml(key)}: {inline_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline_yaml, value))}]"
    is_plain = isinstance(value, str) and _PLAIN_TEXT.fullmatch(value)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


class Edit(msgspec.Struct, frozen=True):
    """One change of an object: the field at the path gets the value; None removes it.

    Missing parents become maps. A path that ends in `[-]` appends the value to a list, which may be missing, too.
    """

    path: str
    value: Value = None

    @property
    def field(self) -> str:
        """The last step of the path, as words name it."""
        found = _LAST_FIELD.search(self.path)
        return found[1] or found[0] if found else self.path

    @property
    def words(self) -> str:
        """In words: `set nvidia.com/gpu: 1`, `remove env[2]`, `remove label x/y`, `add {key: a} to spec.tolerations`."""
        if self.path.endswith("[-]"):
            return (
                f"add {inline_yaml(as_plain_data(self.value))} to {short_path(self.path.removesuffix('[-]'))}"
            )
        name = f"label {self.field}" if ".labels[" in self.path else self.field
        is_map = isinstance(self.value, msgspec.Struct | tuple)
        is_text = isinstance(self.value, str) and _TEXT_FIELD.search(self.path)
        value = inline_yaml(as_plain_data(self.value)) if is_map or is_text else self.value
        return f"remove {name}" if self.value is None else f"set {name}: {value}"


Edits = tuple[Edit, ...]
"""What is changed together."""


def one_choice(*edits: Edit) -> tuple[Edits, ...]:
    """Return the only choice: all of the edits. Without edits, there is none."""
    return (edits,) if edits else ()


def separate_choices(*edits: Edit) -> tuple[Edits, ...]:
    """Return one choice for each of the edits."""
    return tuple((edit,) for edit in edits)


def choices_text(choices: Iterable[Edits]) -> str:
    """Return the choices as text: `set a: 1 and remove b`, `set a: 1 or 2, or remove b`."""
    phrases: list[str] = []
    for text in dict.fromkeys(" and ".join(dict.fromkeys(edit.words for edit in edits)) for edits in choices):
        field, separator, value = text.rpartition(": ")
        is_in_map = "}" in value  # `add {name: gpu} to …`
        if phrases and separator and not is_in_map and phrases[-1].startswith(f"{field}: "):
            phrases[-1] += f" or {value}"
        else:
            phrases.append(text)
    return ", or ".join(phrases)


class Wait(msgspec.Struct, frozen=True):
    """What is awaited: amounts of a quota that are released, by key, or a moment (ms since 1970), or some seconds.

    by_own: pods of the same controller release them. beside_choice: only a choice and the wait together remove the finding.
    """

    by_own: bool = False
    beside_choice: bool = False
    amounts: tuple[tuple[str, str], ...] = ()
    until: int = 0
    seconds: float = 0


class ContactEdit(msgspec.Struct, frozen=True):
    """A change that the contact can make: the field of an object of this kind gets the value. Without a path: a new object."""

    kind: str
    path: str = ""
    value: Value = None


ContactChange = tuple[ContactEdit | Edit, ...]
"""What the contact changes together, and what the author then edits."""


def edits_of(change: ContactChange) -> Edits:
    return tuple(edit for edit in change if isinstance(edit, Edit))


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of a pod, or advice.

    path: relative to the pod (`spec.containers[0]…`). value: the value of the field; decimal: the same amount as a
      decimal number, if the value has a suffix (0.5 for "500m").
    message: what must hold and why.
    choices: alternatives. Each is a set of edits that removes the finding by itself, and causes no other one. is_example: only
      the author knows the right value, so nothing may write it unasked.
    awaits: what removes the finding if it is awaited.
    remedy: choices and wait in words; "" if the edits say it. ask_contact: what to ask the contact, after "ask NAME"
      ("to raise spec.hard.gpus"); contact_choices: the same as data. Each change of it removes the finding by itself.
    rule: its id. The evaluation fills in `rule` and `contact` if they are not set.
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
    choices: tuple[Edits, ...] = ()
    is_example: bool = False
    awaits: Wait | None = None
    remedy: str = ""
    ask_contact: str = ""
    contact_choices: tuple[ContactChange, ...] = ()
    details: tuple[str, ...] = ()
    contact: str = PLATFORM_TEAM

    @property
    def escalation(self) -> str:
        """In words, e.g. `ask the platform team for nodes of nvidia-l4, then set a: b`; empty without `ask_contact`."""
        then = choices_text(filter(None, map(edits_of, self.contact_choices)))
        return f"ask {self.contact} {self.ask_contact}{then and f', then {then}'}" if self.ask_contact else ""

    def with_origin(self, rule: str, contact: str) -> "Finding":
        """Return the finding with this rule and contact, where it names none of its own."""
        rule = self.rule or rule
        contact = contact if self.ask_contact and self.contact == PLATFORM_TEAM else self.contact
        is_complete = rule == self.rule and contact == self.contact
        return self if is_complete else replace(self, rule=rule, contact=contact)

    def located(
        self, path_of: Callable[[str], str], path_of_edit: Callable[[str], str] | None = None
    ) -> "Finding":
        """Return the finding about the same fields of another object, such as a workload. `path_of` returns their paths there.

        path_of_edit: the same for fields to edit, "" for one that the object does not have: its choice is left out. The
        remedy is dropped if a choice is, or if a field that it names has another name there: then the choices say it.
        """

        def moved(change: ContactChange) -> ContactChange:
            steps = tuple(
                Edit((path_of_edit or path_of)(edit.path), edit.value) if isinstance(edit, Edit) else edit
                for edit in change
            )
            return steps if all(step.path for step in steps if isinstance(step, Edit)) else ()

        choices = tuple(filter(None, (edits_of(moved(edits)) for edits in self.choices)))
        pairs = zip(chain(*self.choices), chain(*choices), strict=False)
        remedy_holds = len(choices) == len(self.choices) and not any(
            before.field != after.field and before.field in self.remedy for before, after in pairs
        )
        remedy = self.remedy if remedy_holds else ""
        contact_choices = tuple(filter(None, map(moved, self.contact_choices)))
        return replace(
            self, path=path_of(self.path), choices=choices, remedy=remedy, contact_choices=contact_choices
        )

    @property
    def fix(self) -> Edits:
        """The edits of the only choice. Empty if there are several, if only the author knows the value, or beside a wait."""
        is_alone = not self.is_example and not (self.awaits and self.awaits.beside_choice)
        return self.choices[0] if len(self.choices) == 1 and is_alone else ()

    @property
    def advice(self) -> str:
        """What to write, in words: the remedy, or else the choices."""
        return self.remedy or choices_text(self.choices)

    def sentence(self) -> str:
        """Return all of it as one line.

        `spec.containers[0].… (container "main") = "500m" (0.5): set …; must …; or ask … [gpu-requests]`
        """
        text, advice = self.message, self.advice
        if advice.endswith("?"):  # `did you mean x?` ends a sentence: the next needs a subject
            is_predicate = text.startswith(("must ", "should "))
            text = f"{advice} The value {text}" if is_predicate else f"{advice} {text[:1].upper()}{text[1:]}"
        elif advice:
            text = f"{advice}; {text}"
        if self.ask_contact:
            text += f"; {'or ' if advice else ''}{self.escalation}"
        return self._with_subject(text)

    def brief(self, length: int) -> str:
        """Return the line with only the advice. Without advice, return the whole sentence, cut to `length` characters."""
        return self._with_subject(self.advice) if self.advice else truncate(self.sentence(), length)

    def _with_subject(self, text: str) -> str:
        subject = short_path(self.path)
        if self.container is not None:
            subject += f' (container "{self.container}")'
        if self.value is not None:
            subject += f' = "{truncate(self.value)}"'
        if self.decimal:
            subject += f" ({self.decimal})"
        line = f"{subject.strip()}: {text}" if subject else text
        return f"{line} [{self.rule}]" if self.rule else line


warning = partial(Finding, severity=Severity.WARNING)
