"""DeviceClasses (DRA) of a cluster: which of them have GPUs, and by which names pods may request those.

Administrators write DeviceClasses. Their CEL selectors are read only as text. A quoted name of a GPU driver means GPUs. If a
selector holds only for other drivers by name, the class has no GPUs. So a class whose selectors have `!=` may count as GPUs
although it has none.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from policies.gpus.device_selectors import possible_types
from policies.gpus.device_types import NO_DEVICE_TYPES, NO_TAINTS, DeviceTypes, DeviceTypeTaints
from policies.gpus.mapping_spec import DerivedMappingSpec, DeviceClassPattern, Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import StoredObject, View

_DRIVER = r"\bdevice\s*\.\s*driver\b"
_QUOTED_NAME = r"(?:\"[^\"\\]{1,253}\"|'[^'\\]{1,253}')"
_DRIVER_TEST = re.compile(
    rf"{_DRIVER}\s*==\s*({_QUOTED_NAME})|({_QUOTED_NAME})\s*==\s*{_DRIVER}|{_DRIVER}\s+in\s*\[([^\]]*)\]"
)
"""`device.driver == "x"`, the other way round, and `device.driver in ["x", 'y']`."""
_STRING = r"\"[^\"\\]*\"|'[^'\\]*'"
_TOKEN = re.compile(rf"{_STRING}|&&|\|\||[()\[\]{{}}]")
_UNSUPPORTED = re.compile(rf"""(?:{_STRING})|(//|\\|(?<![.\[])\?|['"])""")
"""The group matches what is not read: comments, strings with escapes or of several lines, and conditional expressions."""
MAX_PARENTHESES = 50
_QUOTED = re.compile(_QUOTED_NAME)


class CELSelector(View, frozen=True):
    expression: str = ""


class DeviceSelector(View, frozen=True):
    cel: CELSelector | None = None


class DeviceClassSpec(View, frozen=True):
    selectors: tuple[DeviceSelector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(StoredObject, frozen=True):
    """The fields of a DeviceClass of resource.k8s.io v1, v1beta2 or v1beta1 that are read."""

    spec: DeviceClassSpec | None = None

    @property
    def extended_resource_name(self) -> str:
        """The resource name by which pods may request its devices, besides the implicit name; "" if it has none."""
        return (self.spec and self.spec.extended_resource_name) or ""

    @property
    def expressions(self) -> Iterator[str]:
        """The selectors: at most 32 of 10 KiB (API server)."""
        for selector in (self.spec and self.spec.selectors) or ():
            if selector.cel is not None:
                yield selector.cel.expression


class ClusterDevices(msgspec.Struct, frozen=True):
    """The DeviceClasses of a cluster, and the types of devices in its ResourceSlices, with their taints."""

    device_classes: tuple[DeviceClass, ...] = ()
    device_types: DeviceTypes = NO_DEVICE_TYPES
    taints: DeviceTypeTaints = NO_TAINTS


NO_DEVICES = ClusterDevices()

decode_device_class = msgspec.json.Decoder(DeviceClass).decode
"""Returns the view of an object in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type."""


def device_class_mapping(
    device_classes: Iterable[DeviceClass],
    documents: ResourceMapping,
    known: ResourceMapping,
    types: DeviceTypes = NO_DEVICE_TYPES,
) -> DerivedMappingSpec:
    """Return the mapping from DeviceClasses, with the types of devices. It comes between documents and built-in patterns.

    documents: the cluster's own documents. They take precedence for the names of classes.
    known: the documents and the built-in patterns. They know GPU drivers, and names of classes with other selectors.
    """
    ordered = sorted(device_classes, key=lambda device_class: device_class.name)
    return DerivedMappingSpec(
        device_classes=tuple(_class_pattern(device_class, documents, known) for device_class in ordered),
        device_types=types,
        types_by_class={
            device_class.name: tuple(sorted(possible_types(device_class.expressions, types)))
            for device_class in ordered
            if types.types
        },
    )


def _class_pattern(
    device_class: DeviceClass, documents: ResourceMapping, known: ResourceMapping
) -> DeviceClassPattern:
    pattern = (
        documents.stated_class_pattern(device_class.name)
        or _gpu_pattern(device_class, known)
        or known.stated_class_pattern(device_class.name)
        or DeviceClassPattern(
            pattern=device_class.name, measure=Measure.NOTHING if _class_drivers(device_class) else None
        )
    )
    return replace(
        pattern, pattern=device_class.name, extended_resource_name=device_class.extended_resource_name
    )


def _gpu_pattern(device_class: DeviceClass, known: ResourceMapping) -> DeviceClassPattern | None:
    """Return the pattern of the GPU driver in the selectors. With drivers of several vendors, it has no vendor."""
    texts = {text[1:-1] for expression in device_class.expressions for text in _QUOTED.findall(expression)}
    stated = (known.stated_class_pattern(text) for text in sorted(texts))
    of_gpus = [pattern for pattern in stated if pattern is not None and pattern.measure is Measure.DEVICES]
    resources = {pattern.resource for pattern in of_gpus}
    if not of_gpus:
        return None
    return DeviceClassPattern(
        pattern=device_class.name, resource=resources.pop() if len(resources) == 1 else None
    )


def _class_drivers(device_class: DeviceClass) -> frozenset[str]:
    """Return the drivers that the selectors allow; empty if they may allow any."""
    return next(filter(None, map(_allowed_drivers, device_class.expressions)), frozenset())


def _allowed_drivers(expression: str) -> frozenset[str]:
    """Return the drivers that the expression allows; empty if it may allow any."""
    is_unsupported = any(_UNSUPPORTED.findall(expression)) or expression.count("(") > MAX_PARENTHESES
    return frozenset() if is_unsupported else _drivers_allowed_by(expression.strip())


def _drivers_allowed_by(text: str) -> frozenset[str]:
    disjuncts, conjuncts = _split(text, "||"), _split(text, "&&")
    if len(disjuncts) > 1:
        allowed = [_drivers_allowed_by(disjunct) for disjunct in disjuncts]
        return frozenset[str]().union(*allowed) if all(allowed) else frozenset()
    if len(conjuncts) > 1:
        return next(filter(None, map(_drivers_allowed_by, conjuncts)), frozenset())
    match = _DRIVER_TEST.fullmatch(text)
    has_only_names = match and not _QUOTED.sub("", match[3] or "").strip(", \n")
    if match and has_only_names:
        return frozenset(quoted[1:-1] for quoted in _QUOTED.findall(" ".join(match.groups(default=""))))
    # One pair of parentheses around all: only the last character closes the first.
    is_enclosed = text.startswith("(") and [*map(bool, _split(text, ")"))] == [True, False]
    return _drivers_allowed_by(text[1:-1].strip()) if is_enclosed else frozenset()


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of the text between separators that are in no parentheses."""
    parts, depth, start = list[str](), 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if token[0] == separator and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    return [*parts, text[start:].strip()]


def unmapped_device_classes(
    device_classes: Iterable[DeviceClass], known: ResourceMapping, in_force: ResourceMapping
) -> tuple[str, ...]:
    """Return the DeviceClasses whose devices do not count as GPUs, although no document or built-in pattern says so."""

    def is_stated(device_class: DeviceClass) -> bool:
        drivers = _class_drivers(device_class) or {device_class.name}
        return any(known.stated_class_pattern(name) for name in (device_class.name, *drivers))

    unstated = (device_class.name for device_class in device_classes if not is_stated(device_class))
    return tuple(sorted(name for name in unstated if in_force.device_class_pattern(name) is None))
