"""Finds the GPUs that an object names: amounts and names of resources, claims (DRA), and amounts of keys such as gpuCount."""

import re
from collections.abc import Collection, Iterator
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.unmapped import is_unmapped_accelerator
from policies.pods.field_paths import Parts
from policies.pods.limits import LONGEST_NAME
from policies.pods.quantity import parse_or_none
from policies.quota.spec import LIMITS, REQUESTS
from webhook.configuration.workload_kinds import WorkloadKinds

MAX_SEARCHED = 5_000
"""Values of an object that are searched."""
MAX_NAMES = 500
"""Names in an object that are compared with the resource patterns. Each takes 20 µs."""
MAX_DEPTH = 64
"""Steps of a path that are searched. Those of workloads have less than 20."""
LONGEST_FIELD = 63
"""Characters of a key that are read."""
MAX_CHARACTERS = 65_536
"""Characters in all texts of one object that are searched."""

PARAMETERS = ("{{", "${", "$(")
"""How the parameters of Argo, Katib and Tekton begin. `check` knows more placeholders (`tools.check.placeholders`)."""

_SKIPPED = re.compile(
    r"(annotation|label|(?<!gpu)(?<!accelerator)selector)s?$|^(status|description|message|notes|readme|documentation|key)$",
    re.IGNORECASE,
)
"""Fields that ask for nothing: node labels look like resources (nvidia.com/mig-1g.5gb.count), and so do taints (`key`).

A `gpuSelector` (AMD's AIMServiceTemplate) has the number of GPUs.
"""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_WORD = re.compile(r"[a-z]+")
_ACCELERATOR = re.compile(
    r"[cmqv]?gpus?|v?npus?|[thxi]pus?|v?dcus?|v?mlus?|accelerators?|neuron(core|device)s?"
)
_AMOUNT_WORD = re.compile(
    r"amount|capacity|cards?|container|cores?|count|devices?|executor|fraction|guarantee|hard|host|instance|job|limits?|machine|max|"
    r"maximum|mem|memory|milli|min|minimum|needed|nodes?|num|number|of|per|percent|percentage|pod|portion|process|quantity|quota|rank|"
    r"replica|request|requested|requests|required|role|selector|shared?|size|task|total|units|worker"
)
"""A word that may follow an accelerator in the key of an amount: gpuCount, gpus_per_node."""
_HINT = re.compile(r"[gntxhi]pu|dcu|mlu|accelerator|neuron", re.IGNORECASE)
"""A cheap first test: a key that does not fit names no accelerator."""
_NOT_OF_GPUS = re.compile(r"disable|exclude|id|index|non?|per|without")
"""A word before the accelerator where the amount is of something else: memoryPerGPU."""
_COUNT = re.compile(r"amount|count|limit|max|min|num|number|quantity|quota|requests?|value")
"""A word of the key of an amount in a map whose own key is an accelerator: gpu: {count: 2}."""

_NAME_AND_COUNT = re.compile(r"[\w.-]{1,100}:(?:[1-9]|1[0-6])")
"""A profile, and how many of it: nvidia-gpu-l4:1."""
_PROFILE = re.compile(r"profile|accelerator", re.IGNORECASE)
"""Keys of such values; those of images and addresses look alike."""
_LINE = re.compile(
    r"""(?<![\w./-])((?:[\w.-]{1,100}/)?[\w.-]{1,63})(?:["'][ \t]{0,9}:[ \t]{0,9}|[ \t]{0,9}:[ \t]{1,9})["']?"""
    r"""(\d[\w.]{0,20}|\{\{|\$\{)"""
)
"""A key with an amount in a text that is YAML or JSON."""
CLAIM_FIELDS = frozenset({"resourceClaimName", "resourceClaimTemplateName"})
_DEVICE_CLASS = "deviceClassName"
"""A device of a claim that a controller makes; of a claim that the object has for its own pods, these repeat it."""
_CLAIM_LINE = re.compile(r"resourceClaim(Template)?Name[\"']?[ \t]{0,9}:[ \t]{0,9}[\"']?[\w{$]")
"""A key with the name of a claim (DRA), in such a text."""


class Form(Enum):
    """How GPUs are named. If a text names them in several ways, the first one here counts."""

    RESOURCE = "resource"
    """The key is the name of a resource, as in the resources of a container, or names a claim."""
    KEY = "key"
    """The key says that its amount is one of GPUs. Some fields only repeat what the pods request."""
    NAME = "name"
    """The value is the name of a resource."""


class FoundGPUs(msgspec.Struct, frozen=True):
    at: Parts
    form: Form
    in_text: bool = False


def gpu_amounts(
    data: Any, resource_mapping: ResourceMapping, kinds: WorkloadKinds, pods: Collection[Parts] = ()
) -> Iterator[FoundGPUs]:
    """Yield the GPUs in the object; skip the pods at `pods`, and inner objects of kinds that have no GPUs."""
    names, characters = _Names(resource_mapping), MAX_CHARACTERS
    for at, value in islice(_values(data, kinds, pods), MAX_SEARCHED):
        is_text = isinstance(value, str) and ("\n" in value or value.startswith('{"'))
        if is_text:
            characters -= len(value)
            lines = _LINE.findall(value) if characters >= 0 else ()
            forms = {names.form((*at, key), amount) for key, amount in lines}
            form = next((form for form in Form if form in forms), None)
            if characters >= 0 and _CLAIM_LINE.search(value):
                form = Form.RESOURCE
        elif isinstance(value, list) or (isinstance(value, dict) and at[-3:-1] != _PARAMETERS):
            continue  # its members come next
        else:
            form = names.form(*_parameter(at, value))
        if form is not None:
            yield FoundGPUs(at, form, is_text)


class _Names:
    """Compares names with the mapping, at most MAX_NAMES of one object."""

    def __init__(self, resource_mapping: ResourceMapping) -> None:
        self._mapping, self._left = resource_mapping, MAX_NAMES
        patterns = tuple(pattern.pattern for pattern in resource_mapping.patterns)
        self._domains, self._listed = _domains_and_names(patterns)

    def form(self, at: Parts, value: Any) -> Form | None:
        """Return how the value names GPUs, if it does."""
        key = str(at[-1]) if at else ""
        if key in CLAIM_FIELDS and value and isinstance(value, str):
            return Form.RESOURCE
        name = key.removeprefix(REQUESTS).removeprefix(LIMITS)
        if "/" in name and _is_positive(value):
            return Form.RESOURCE if self._is_gpu(name) else None
        if any(map(_is_hint, at[-3:])) and _is_positive(value):
            return Form.KEY if self._spend_one(key) and _is_of_gpus(at) else None
        if not isinstance(value, str):
            return None
        if key == _DEVICE_CLASS or (_PROFILE.search(key) and _NAME_AND_COUNT.fullmatch(value)):
            return Form.KEY if self._spend_one(value) and self._is_accelerator(key, value) else None
        return Form.NAME if self._is_mapped(value) and self._listed.fullmatch(value) else None

    def _is_accelerator(self, key: str, value: str) -> bool:
        """Whether it is a DeviceClass of GPUs, or a profile of an accelerator."""
        if key == _DEVICE_CLASS:
            return bool(value) and self._mapping.device_class_pattern(value) is not None
        return _end_of_accelerator(_words(value)) > 0

    def _is_gpu(self, name: str) -> bool:
        return self._is_mapped(name) or (
            self._spend_one(name) and is_unmapped_accelerator(name, self._mapping)
        )

    def _is_mapped(self, name: str) -> bool:
        domain, slash, _ = name.partition("/")
        is_near = slash and domain in self._domains and self._spend_one(name)
        return bool(is_near) and self._mapping.resource(name) is not None

    def _spend_one(self, name: str) -> bool:
        """Count one more name as compared; return whether the limit allows it."""
        self._left -= 1
        return self._left >= 0 and len(name) <= LONGEST_NAME


@lru_cache(maxsize=4)
def _domains_and_names(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return the domains of the patterns, and an expression for the names without `domain/*`: API groups and labels fit these."""
    listed = (translate(pattern) for pattern in patterns if not pattern.endswith("/*"))
    return frozenset(pattern.partition("/")[0] for pattern in patterns), re.compile("|".join(listed))


@lru_cache(maxsize=4096)
def _is_hint(step: str | int) -> bool:
    return isinstance(step, str) and _HINT.search(step[:LONGEST_FIELD]) is not None


_PARAMETERS = ("helm", "parameters")


def _parameter(at: Parts, value: Any) -> tuple[Parts, Any]:
    """Return the path and the value that a parameter of a chart (Argo CD) sets; of anything else, the same."""
    if not isinstance(value, dict):
        return at, value
    name = str(value.get("name"))[:LONGEST_NAME].replace("\\.", "\0")  # an escaped dot is one of the key
    return (*at, name.rpartition(".")[2].replace("\0", ".")), value.get("value")


def _is_positive(value: Any) -> bool:
    """Whether the value is an amount above 0, or a parameter."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    text = str(value)
    quantity = parse_or_none(text)
    return quantity.nano > 0 if quantity is not None else text.startswith(PARAMETERS)


def _words(key: str) -> list[str]:
    """Return the words in lower case: numGPUs → num, gpus."""
    return _WORD.findall(_CAMEL.sub("-", key[:LONGEST_FIELD]).lower())


def _end_of_accelerator(words: list[str]) -> int:
    """Return the number of words up to the last one that means an accelerator; 0 without one."""
    return max((n for n, word in enumerate(words, 1) if _ACCELERATOR.fullmatch(word)), default=0)


def _is_of_gpus(at: Parts) -> bool:
    """Whether an amount at the path is one of GPUs: gpuCount, num-gpus, gpu: {count}, accelerators: [{count}]."""
    keys = [_words(key) for key in at[-3:] if isinstance(key, str)]
    if not keys:
        return False
    own, above = keys[-1], keys[-2] if len(keys) > 1 else []
    is_below = bool(own) and not _end_of_accelerator(own) and all(map(_COUNT.fullmatch, own))
    words = above if is_below else own
    end = _end_of_accelerator(words)
    is_amount = end > 0 and all(map(_AMOUNT_WORD.fullmatch, words[end:]))
    return is_amount and not any(map(_NOT_OF_GPUS.fullmatch, words[:end]))


def _values(data: Any, kinds: WorkloadKinds, pods: Collection[Parts]) -> Iterator[tuple[Parts, Any]]:
    """Yield every value with its path, without recursion: the author chooses the depth."""
    yield (), data
    stack = [_items((), data)]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            continue
        yield item
        at, inner = item
        is_whole = isinstance(inner, dict) and (at in pods or _has_no_gpus(inner, kinds))
        if isinstance(inner, dict | list) and not is_whole and len(at) < MAX_DEPTH:
            stack.append(_items(at, inner))


def _has_no_gpus(value: dict[str, Any], kinds: WorkloadKinds) -> bool:
    """Whether the value is an object of a kind that is known to have neither pods nor quotas."""
    version, kind = value.get("apiVersion"), value.get("kind")
    if not (isinstance(version, str) and isinstance(kind, str)):
        return False
    workload_kind = kinds.get((version.rpartition("/")[0], kind))
    return workload_kind is not None and workload_kind.has_no_gpus


def _items(at: Parts, value: Any) -> Iterator[tuple[Parts, Any]]:
    if isinstance(value, dict):
        return (((*at, key), member) for key, member in value.items() if not _is_skipped(str(key)))
    return (((*at, index), member) for index, member in enumerate(value if isinstance(value, list) else ()))


@lru_cache(maxsize=1024)
def _is_skipped(key: str) -> bool:
    return len(key) <= LONGEST_FIELD and _SKIPPED.search(key) is not None
