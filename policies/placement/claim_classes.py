"""The GPU classes of the devices that a ResourceClaim (DRA) may get, by its DeviceClasses and selectors."""

import json
from collections.abc import Collection, Iterator
from functools import lru_cache

from policies.finding import ContactEdit, Edit, Finding, either, together
from policies.gpus.claimed_devices import ClaimSpec, DeviceChoice, DeviceRequest, RequestedDevices
from policies.gpus.classes import GPUClasses
from policies.gpus.device_classes import CELSelector, DeviceSelector
from policies.gpus.device_kinds import DeviceKind
from policies.gpus.device_selectors import possible_kinds
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_advice import ALLOWED_PATH, alternatives_in_words, listed
from policies.placement.class_choice import CLASS_NOT_ALLOWED
from policies.placement.class_use import class_matches

NO_CLASS = ""
"""Stands for the class of devices that no GPUClass describes."""


def classes_of_devices(
    devices: RequestedDevices, mapping: ResourceMapping, gpu_classes: GPUClasses
) -> frozenset[str] | None:
    """Return the classes that the devices may be of, with NO_CLASS for devices of none.

    None if they are not known: the cluster has no such device, and no GPUClass names the DeviceClass.
    """
    names = [classes_of_choice(each, mapping, gpu_classes) for each in devices]
    known = [each for each in names if each is not None]
    return frozenset[str]().union(*known) if len(known) == len(names) else None


@lru_cache(maxsize=1024)
def classes_of_choice(
    choice: DeviceChoice, mapping: ResourceMapping, gpu_classes: GPUClasses
) -> frozenset[str] | None:
    """Return the classes as `classes_of_devices` does. Empty for devices without GPUs."""
    if mapping.device_class(choice.device_class) is None:
        return frozenset()
    listing = frozenset(each.name for each in gpu_classes.of_device_class(choice.device_class))
    kinds = kinds_of_choice(choice, mapping)
    return (
        frozenset[str]().union(*(_classes(kind, listing, gpu_classes) for kind in kinds)) or listing or None
    )


def kinds_of_choice(choice: DeviceChoice, mapping: ResourceMapping) -> list[DeviceKind]:
    """Return the kinds of devices that the DeviceClass and the expressions may select."""
    selected = possible_kinds(choice.expressions, mapping.device_kinds)
    of_class = mapping.kinds_by_class.get(choice.device_class, ())
    return [mapping.device_kinds.kinds[index] for index in of_class if index in selected]


def _classes(kind: DeviceKind, listing: frozenset[str], gpu_classes: GPUClasses) -> frozenset[str]:
    names = frozenset(each.name for each in gpu_classes.of_device(kind))
    return names & listing or listing or names or frozenset((NO_CLASS,))


def in_words(names: Collection[str]) -> str:
    """Return the classes in words."""
    return ", ".join(name or "devices of no GPU class" for name in sorted(names))


class ClaimJudge:
    """Judges what claims request by the classes that a namespace may use: `allowed` are globs."""

    def __init__(
        self, namespace: str, allowed: Collection[str], mapping: ResourceMapping, gpu_classes: GPUClasses
    ) -> None:
        self._namespace, self._mapping, self._gpu_classes = namespace, mapping, gpu_classes
        self._allowed = frozenset(each.name for each in gpu_classes if class_matches(each, allowed))

    def findings(self, spec: ClaimSpec | None, path: str) -> Iterator[Finding]:
        """Deny each request that may get devices of other classes. path: of the spec in the object."""
        for index, request in enumerate((spec and spec.devices and spec.devices.requests) or ()):
            at = f"{path}.devices.requests[{index}]"
            if request.first_available:
                for number, each in enumerate(request.first_available):
                    yield from self._denial(each, f"{at}.firstAvailable[{number}]")
            elif request.exactly is not None:
                yield from self._denial(request.exactly, f"{at}.exactly")
            else:
                yield from self._denial(request, at)

    def _denial(self, request: DeviceRequest, path: str) -> Iterator[Finding]:
        choice = DeviceChoice(request.device_class_name, tuple(request.expressions))
        names = classes_of_choice(choice, self._mapping, self._gpu_classes) or frozenset()
        if not (forbidden := names - self._allowed) or request.admin_access:
            return
        why = f"namespace {self._namespace} may not use {in_words(forbidden)}"
        if selector := self._selector(choice):
            yield Finding(
                reason=CLASS_NOT_ALLOWED,
                path=f"{path}.selectors",
                message=f"must select only devices of allowed classes: {why}",
                choices=together(Edit(f"{path}.selectors[-]", DeviceSelector(CELSelector(selector)))),
                remedy=f"add cel.expression: {selector}",
            )
            return
        # The selectors of the request may be why no allowed device is possible.
        others = [name for name in sorted(self._mapping.kinds_by_class) if self._has_only_allowed(name)]
        remedy = f"set deviceClassName: {alternatives_in_words(others)}" if others else ""
        asked = sorted(forbidden - {NO_CLASS})
        yield Finding(
            reason=CLASS_NOT_ALLOWED,
            path=f"{path}.deviceClassName",
            value=request.device_class_name,
            message=f"must have devices of allowed classes: {why}",
            choices=either(*(Edit(f"{path}.deviceClassName", name) for name in listed(others)))
            if not choice.expressions
            else (),
            remedy=f"{remedy}, without selectors" if remedy and choice.expressions else remedy,
            ask_contact=f"to allow {alternatives_in_words(asked)} in namespace {self._namespace}"
            if asked
            else "",
            contact_choices=tuple((ContactEdit("GPUPolicy", ALLOWED_PATH, name),) for name in listed(asked)),
        )

    def _has_only_allowed(self, device_class: str) -> bool:
        names = classes_of_choice(DeviceChoice(device_class), self._mapping, self._gpu_classes)
        return bool(names) and names is not None and names <= self._allowed

    def _selector(self, choice: DeviceChoice) -> str:
        """Return a CEL expression that selects the allowed devices of the choice alone; "" if none does."""
        listing = frozenset(each.name for each in self._gpu_classes.of_device_class(choice.device_class))
        kinds = kinds_of_choice(choice, self._mapping)
        is_allowed = [_classes(kind, listing, self._gpu_classes) <= self._allowed for kind in kinds]
        keys = {each.key for gpu_class in self._gpu_classes for each in gpu_class.device_attributes}
        for key in sorted(keys):
            # A selector that reads an attribute of a device without it is an error, for which no device is allocated.
            texts = [each.attributes[key].string if key in each.attributes else None for each in kinds]
            wanted = {text for text, allowed in zip(texts, is_allowed, strict=True) if allowed}
            unwanted = {text for text, allowed in zip(texts, is_allowed, strict=True) if not allowed}
            if wanted and None not in wanted | unwanted and wanted.isdisjoint(unwanted):
                domain, _, name = key.partition("/")
                values = [_quoted(text) for text in sorted(filter(None, wanted))]
                comparison = f"== {values[0]}" if len(values) == 1 else f"in [{', '.join(values)}]"
                return f"device.attributes['{domain}'].{name} {comparison}"
        return ""


def _quoted(text: str) -> str:
    """Return a string of CEL, in the quotes that YAML need not escape."""
    return json.dumps(text, ensure_ascii=False) if "'" in text or "\\" in text else f"'{text}'"
