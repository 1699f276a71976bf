"""GPU classes (models of accelerator), the labels of their nodes, and the weight of their slices.

A class belongs to a family (`nvidia-a100-80gb` to `nvidia-a100`). Users may write the name of a family instead of a class.
"""

import difflib
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import msgspec
from msgspec.structs import asdict, replace

from policies.gpus.device_types import DeviceType
from policies.gpus.mapping_spec import NVIDIA_GPU
from policies.pods.names import (
    is_class_name,
    is_dns_subdomain,
    is_label_value,
    is_qualified_name,
    is_resource_name,
)
from policies.pods.pod import StrictView, Toleration
from policies.pods.quantity import NANO, QuantityError, QuantityText, parse_quantity
from policies.pods.tolerations import toleration_problems

K = TypeVar("K", bound=Hashable)
Problem = tuple[str, str]
"""Path in the document, such as `spec.migProfiles[1g.10gb].weight`, and the message."""

SEVENTHS = 7
"""MIG divides the compute of a card into sevenths. Of an A30, which has four, the share of memory is larger (`mig_weight`)."""

_MIG_PROFILE = re.compile(
    r"(?:(?P<compute>[1-7])c\.)?(?P<gpu>[1-7])g\.(?P<memory>[1-9][0-9]{0,3})gb([+-][a-z]+(\.[a-z]+)*)?"
)
_SHARE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}|/[0-9]{1,9})?")
_MAX_WORD = 63
_MAX_ATTRIBUTE = 64
"""`DeviceAttributeMaxValueLength` in k8s.io/api v0.37.2, `resource/v1`."""
_EXAMPLES = {"cpu": "12", "memory": "120Gi"}
_MIN_SHARE = {"cpu": NANO // 10, "memory": NANO * 2**26}
"""A tenth of a core and 64Mi for each GPU, in nano units. Less is a mistake in the unit."""


class NodeLabel(StrictView, frozen=True):
    """A node label that identifies the class, and its possible values."""

    key: str
    values: tuple[str, ...]


class DeviceAttributeValues(NodeLabel, frozen=True):
    """An attribute of DRA devices that identifies the class, by its qualified name, and its possible values."""


class MigProfile(StrictView, frozen=True):
    """A MIG slice: its compute in sevenths of a card, its memory, and the maximum on one card.

    `weight` is the demand of one slice in whole cards, such as "1/4". Its default is `GPUClasses.mig_weight`.
    """

    sevenths: int
    memory_gib: int = msgspec.field(name="memoryGiB")
    per_gpu: int = msgspec.field(name="perGPU")
    weight: int | str | None = None


class HostShare(StrictView, frozen=True):
    """The CPU and memory of a node that belong to each of its cards, as quantities. None: not stated."""

    cpu: QuantityText = None
    memory: QuantityText = None

    def of(self, resource: str) -> int | None:
        """Return the share of `cpu` or `memory` in nano units. None if it is not stated."""
        raw = self.cpu if resource == "cpu" else self.memory
        return None if raw is None else parse_quantity(raw).nano


class GPUClassSpec(StrictView, frozen=True):
    """Spec of a GPUClass document. `problems` validates what its types do not.

    `family` defaults to the name of the class. `memory_gib` is the nominal size. `resource` is the extended resource of whole
    cards. `gpus_per_node` is the maximum on a node, None if it is not known. `equivalents` are resources whose unit is not one
    card: "1/4" if four pods share a card under an unchanged resource name. The DeviceClasses (DRA) in `device_classes` have only
    devices of this class. `per_gpu` is for rule host-resources.
    """

    memory_gib: int = msgspec.field(name="memoryGiB")
    family: str = ""
    resource: str = NVIDIA_GPU
    gpus_per_node: int | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_labels: tuple[NodeLabel, ...] = ()
    device_attributes: tuple[DeviceAttributeValues, ...] = ()
    mig_profiles: dict[str, MigProfile] = msgspec.field(default_factory=dict)
    equivalents: dict[str, int | str] = msgspec.field(default_factory=dict)
    device_classes: tuple[str, ...] = ()
    per_gpu: HostShare | None = msgspec.field(name="perGPU", default=None)


class GPUClass(GPUClassSpec, frozen=True, kw_only=True):
    """A class with its name. `family` is never empty."""

    name: str

    @classmethod
    def of(cls, name: str, spec: GPUClassSpec) -> "GPUClass":
        return cls(**{**asdict(spec), "name": name, "family": spec.family or name})

    def __hash__(self) -> int:
        # Dicts have no hash. The name is unique among GPUClasses.
        return hash(self.name)


def parse_share(raw: int | str) -> Fraction:
    """Read a share of a card, such as 1, "1/4" or "0.25": more than 0, at most 1. Raises ValueError."""
    text = str(raw)
    numerator, _, denominator = text.partition("/")
    if _SHARE.fullmatch(text) and int(denominator or "1"):
        share = Fraction(numerator) / int(denominator or "1")
        if 0 < share <= 1:
            return share
    expected = 'a share of a card such as "1/4" or "0.25", more than 0 and at most 1'
    raise ValueError(f'must be {expected}, not "{text[:40]}"')


class GPUClasses:
    """All classes, sorted by name. A later class replaces an earlier one of the same name."""

    def __init__(self, classes: Iterable[GPUClass]) -> None:
        by_name = {gpu_class.name: gpu_class for gpu_class in classes}
        self._classes = {name: by_name[name] for name in sorted(by_name)}
        self._families = _grouped((c.family, c) for c in self)
        labels = ((label.key, value, c) for c in self for label in c.node_labels for value in label.values)
        self._labels = _grouped(((key, value), c) for key, value, c in labels)
        self._device_classes = _grouped((name, c) for c in self for name in c.device_classes)
        devices = (
            (values.key, value, c) for c in self for values in c.device_attributes for value in values.values
        )
        self._device_attributes = _grouped(((key, value), c) for key, value, c in devices)
        self._profiles = {
            (gpu_class.name, offered): profile
            for gpu_class in self
            for name, profile in gpu_class.mig_profiles.items()
            # A resource name has no "+": a 1g.10gb+me is offered as nvidia.com/mig-1g.10gb.me.
            for offered in (name, name.replace("+", "."))
        }
        self._with_profile = _grouped((profile, self._classes[name]) for name, profile in self._profiles)
        self.label_keys = frozenset(key for key, _ in self._labels)
        self.equivalents = frozenset(name for c in self for name in c.equivalents)
        """Resources whose unit is not a whole card of at least one class."""

    def __iter__(self) -> Iterator[GPUClass]:
        return iter(self._classes.values())

    def get(self, name: str) -> GPUClass | None:
        return self._classes.get(name)

    def named(self, names: Collection[str]) -> tuple[GPUClass, ...]:
        """Return the classes of these names, without names that no class has."""
        return tuple(self._classes[name] for name in sorted(names) if name in self._classes)

    def of_family(self, name: str) -> tuple[GPUClass, ...]:
        return self._families.get(name, ())

    def resolve(self, name: str) -> tuple[GPUClass, ...]:
        """Return the class of that name, or else the classes of that family."""
        gpu_class = self._classes.get(name)
        return (gpu_class,) if gpu_class is not None else self.of_family(name)

    def matching_label(self, key: str, value: str) -> tuple[GPUClass, ...]:
        """Return the classes whose nodes may have this label: several if it names only the family."""
        return self._labels.get((key, value), ())

    def of_device_class(self, name: str) -> tuple[GPUClass, ...]:
        return self._device_classes.get(name, ())

    def of_device(self, device_type: DeviceType) -> tuple[GPUClass, ...]:
        """Return the classes that a DRA device may be of: several if an attribute names only the family."""
        values = (
            (name, each.string) for name, each in device_type.attributes.items() if each.string is not None
        )
        classes = {c.name: c for value in values for c in self._device_attributes.get(value, ())}
        return tuple(classes[name] for name in sorted(classes))

    def mig_profile(self, gpu_class: GPUClass, profile: str) -> MigProfile | None:
        """Return the profile by NVIDIA's name (`1g.10gb+me`) or by the resource's (`1g.10gb.me`)."""
        return self._profiles.get((gpu_class.name, profile))

    def with_profile(self, profile: str) -> tuple[GPUClass, ...]:
        """Return the classes that list the MIG profile."""
        return self._with_profile.get(profile, ())

    def is_unlisted(self, profile: str | None) -> bool:
        """Whether no class lists the MIG profile."""
        return profile is not None and not self.with_profile(profile)

    def mig_weight(self, gpu_class: GPUClass, profile: str) -> Fraction:
        """Return the demand of a slice in whole cards: its weight, or else the larger of its shares of compute and memory.

        So a 1g.20gb of an 80 GB card is a quarter, not a seventh. Raises KeyError if the class lacks the profile.
        """
        profile_spec = self._profiles[gpu_class.name, profile]
        if profile_spec.weight is not None:
            return parse_share(profile_spec.weight)
        return max(
            Fraction(profile_spec.sevenths, SEVENTHS), Fraction(profile_spec.memory_gib, gpu_class.memory_gib)
        )

    def nearest(self, word: str) -> str | None:
        """Return the class or family that the word seems to mean. A list means none: its author has to choose."""
        if "," in word:
            return None
        word = word.strip().lower()[:_MAX_WORD]
        if word in self._names_by_label_value:
            return self._names_by_label_value[word]
        # Shortest first: "a100" means the family, not one of its classes.
        names = sorted({*self._families, *self._classes}, key=lambda name: (len(name), name))
        for name in names:
            if word and f"-{word}-" in f"-{name}-":
                return name
        close = difflib.get_close_matches(word, names, n=1)
        return close[0] if close else None

    def suggestion(self, word: str, prefix: str = "") -> str:
        """Return "did you mean …?" with the nearest class or family, or "" if no name is near."""
        nearest = self.nearest(word)
        return f"{prefix}did you mean {nearest}?" if nearest else ""

    @cached_property
    def _names_by_label_value(self) -> dict[str, str]:
        """Names by label values in lower case, because people write these: `Tesla-T4` means the class nvidia-t4.

        A value of several classes means their family: `a100` is the 40 GB card under one key, and any A100 under another.
        """
        by_value = _grouped(
            (value.lower(), c) for (_, value), members in self._labels.items() for c in members
        )
        meanings: dict[str, str] = {}
        for value, members in by_value.items():
            names = {c.name for c in members}
            names = names if len(names) == 1 else {c.family for c in members}
            if len(names) == 1:
                meanings[value] = names.pop()
        return meanings

    @cached_property
    def document(self) -> bytes:
        """All classes as JSON: the same for the same classes in any order, in any process.

        It omits the size of nodes. Demand does not depend on it, and an older release can read the document while both run.
        """
        classes = [replace(gpu_class, gpus_per_node=None, per_gpu=None) for gpu_class in self]
        return msgspec.json.encode(classes, order="deterministic")

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.document).hexdigest()


def _grouped(pairs: Iterable[tuple[K, GPUClass]]) -> dict[K, tuple[GPUClass, ...]]:
    groups: dict[K, list[GPUClass]] = defaultdict(list)
    for key, gpu_class in pairs:
        groups[key].append(gpu_class)
    return {key: tuple(members) for key, members in groups.items()}


def problems(name: str, spec: GPUClassSpec) -> Iterator[Problem]:
    """Yield the problems of a GPUClass that its field types do not catch."""
    for path, each in (("metadata.name", name), *((("spec.family", spec.family),) if spec.family else ())):
        if not is_class_name(each):
            yield path, f'must be at most 63 of a-z, 0-9, "-" and ".", such as nvidia-t4, not "{each}"'
    for path, number in (("spec.memoryGiB", spec.memory_gib), ("spec.gpusPerNode", spec.gpus_per_node)):
        if number is not None and number < 1:
            yield path, f"must be at least 1, not {number}"
    resources = {f"spec.equivalents[{resource}]": resource for resource in spec.equivalents}
    for path, resource in {"spec.resource": spec.resource, **resources}.items():
        if not is_resource_name(resource):
            yield path, f'must be an extended resource such as nvidia.com/gpu, not "{resource}"'
    for index, toleration in enumerate(spec.tolerations):
        yield from toleration_problems(toleration, f"spec.tolerations[{index}]")
    yield from _label_problems(spec)
    for profile_name, profile in spec.mig_profiles.items():
        yield from _profile_problems(f"spec.migProfiles[{profile_name}]", profile_name, profile, spec)
    for resource, share in spec.equivalents.items():
        yield from _share_problems(f"spec.equivalents[{resource}]", share)
    expected = "the name of a DeviceClass such as h100.example.com"
    yield from _list_problems("spec.deviceClasses", spec.device_classes, is_dns_subdomain, expected)
    yield from _host_share_problems(spec.per_gpu)


def _list_problems(
    path: str, values: Sequence[str], is_valid: Callable[[str], bool], expected: str
) -> Iterator[Problem]:
    for index, value in enumerate(values):
        if not value or not is_valid(value):
            yield f"{path}[{index}]", f'must be {expected}, not "{value}"'
        elif value in values[:index]:
            yield f"{path}[{index}]", f'duplicates "{value}"'


def _label_problems(spec: GPUClassSpec) -> Iterator[Problem]:
    labels = (is_qualified_name, "a label key", is_label_value, "a label value")
    yield from _values_problems("spec.nodeLabels", spec.node_labels, *labels)
    a_name, a_value = (
        "a qualified name such as gpu.example.com/productName",
        f"a value of 1 to {_MAX_ATTRIBUTE} characters",
    )
    attributes = (is_resource_name, a_name, _is_attribute_value, a_value)
    yield from _values_problems("spec.deviceAttributes", spec.device_attributes, *attributes)


def _is_attribute_value(text: str) -> bool:
    return len(text) <= _MAX_ATTRIBUTE


def _values_problems(
    field: str,
    entries: Sequence[NodeLabel],
    is_key: Callable[[str], bool],
    a_key: str,
    is_value: Callable[[str], bool],
    a_value: str,
) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        path = f"{field}[{index}]"
        if not is_key(entry.key):
            yield f"{path}.key", f'must be {a_key}, not "{entry.key}"'
        if entry.key in seen:
            yield f"{path}.key", f'duplicates "{entry.key}": put all its values into one entry'
        seen.add(entry.key)
        if not entry.values:
            yield f"{path}.values", "must not be empty"
        yield from _list_problems(f"{path}.values", entry.values, is_value, a_value)


def _profile_problems(path: str, name: str, profile: MigProfile, spec: GPUClassSpec) -> Iterator[Problem]:
    match = _MIG_PROFILE.fullmatch(name)
    if match is None:
        yield path, f'must be a MIG profile such as 1g.10gb, 1g.10gb+me or 1c.2g.20gb, not "{name}"'
    for field, value, in_name, limit in (
        ("sevenths", profile.sevenths, match and (match["compute"] or match["gpu"]), SEVENTHS),
        ("memoryGiB", profile.memory_gib, match and match["memory"], spec.memory_gib),
        ("perGPU", profile.per_gpu, None, SEVENTHS),
    ):
        if in_name and value != int(in_name):
            yield f"{path}.{field}", f"must be {in_name}, as in the name of the profile, not {value}"
        if not 1 <= value <= limit:
            yield f"{path}.{field}", f"must be from 1 to {limit}, not {value}"
    if profile.weight is not None:
        yield from _share_problems(f"{path}.weight", profile.weight)


def _host_share_problems(share: HostShare | None) -> Iterator[Problem]:
    if share is None:
        return
    stated = {name: raw for name, raw in (("cpu", share.cpu), ("memory", share.memory)) if raw is not None}
    if not stated:
        yield "spec.perGPU", "must have cpu, memory, or both"
    for name, raw in stated.items():
        path, must = f"spec.perGPU.{name}", f"must be a quantity such as {_EXAMPLES[name]}"
        try:
            if parse_quantity(raw).nano < _MIN_SHARE[name]:
                yield path, f'{must}, not "{raw}"'
        except QuantityError as error:
            yield path, f"{must}: {error}"


def _share_problems(path: str, share: int | str) -> Iterator[Problem]:
    try:
        parse_share(share)
    except ValueError as error:
        yield path, str(error)
