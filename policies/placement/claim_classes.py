"""The GPU classes of the devices that a ResourceClaim (DRA) may get, by its DeviceClasses and selectors."""

import json
from collections.abc import Collection, Iterator
from functools import cached_property

from policies.finding import ContactEdit, Edit, Finding, one_choice, separate_choices
from policies.gpus.cards import mig_profiles, weights_and_classes
from policies.gpus.claimed_devices import ClaimSpec, DeviceQuery, DeviceRequest, GPUCount
from policies.gpus.classes import GPUClasses
from policies.gpus.device_classes import CELSelector, DeviceSelector
from policies.gpus.device_selectors import MAX_SELECTOR_TEXT, SelectorBounds, possible_types
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import NO_TAINTS, DeviceTypeTaints
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_advice import ALLOWED_PATH, alternatives_in_words, first_few
from policies.placement.class_choice import CLASS_NOT_ALLOWED
from policies.placement.class_options import class_matches
from policies.pods.pod import Toleration
from policies.pods.tolerations import tolerated

NO_CLASS = ""
"""Stands for the class of devices that no GPUClass describes."""


class ClaimedClasses:
    """The classes of the devices that claims may get, in one review: its selectors are evaluated within `SelectorBounds`."""

    def __init__(
        self, mapping: ResourceMapping, gpu_classes: GPUClasses, taints: DeviceTypeTaints = NO_TAINTS
    ) -> None:
        self._mapping, self._gpu_classes, self._taints = mapping, gpu_classes, taints
        self._bounds = SelectorBounds(mapping.device_types)
        self._by_type: dict[str, dict[int, frozenset[str]]] = {}
        self._of_query: dict[DeviceQuery, frozenset[str] | None] = {}

    def of_claim(self, requested: Collection[DeviceQuery]) -> frozenset[str] | None:
        """Return the classes that the devices of a claim may be of, with NO_CLASS for devices of none.

        None if they are not known: the cluster has no such device, and no GPUClass names the DeviceClass.
        """
        within_bounds = self.add_selectors(requested)
        names = [
            self.of_query(query if within_bounds else query._replace(expressions=())) for query in requested
        ]
        known = [name for name in names if name is not None]
        return frozenset[str]().union(*known) if len(known) == len(names) else None

    def add_selectors(self, queries: Collection[DeviceQuery]) -> bool:
        """Add the selectors of a claim to those of this review; False if they would exceed its bounds."""
        return self._bounds.add_selectors(text for query in queries for text in query.expressions)

    def of_query(self, query: DeviceQuery) -> frozenset[str] | None:
        """Return the classes as `of_claim` does, of one query whose selectors fit. Empty for devices without GPUs."""
        if query not in self._of_query:
            names: frozenset[str] | None = frozenset()
            if self._mapping.device_class_pattern(query.device_class) is not None:
                named = self._classes_naming(query.device_class)
                names = frozenset[str]().union(*self.by_type(query).values()) or named or None
            self._of_query[query] = names
        return self._of_query[query]

    def by_type(self, query: DeviceQuery) -> dict[int, frozenset[str]]:
        """Return the classes of each type of device, by its index, that the DeviceClass and the expressions may select."""
        if query.device_class not in self._by_type:
            known = weights_and_classes(self._mapping.device_types, self._gpu_classes)
            named = self._classes_naming(query.device_class)
            indexes = self._mapping.types_by_class.get(query.device_class, ())
            of_type = {index: frozenset(gpu_class.name for gpu_class in known[index][1]) for index in indexes}
            self._by_type[query.device_class] = {
                index: names & named or named or names or frozenset((NO_CLASS,))
                for index, names in of_type.items()
            }
        by_type = self._by_type[query.device_class]
        selected = possible_types(query.expressions, self._mapping.device_types)
        return {index: names for index, names in by_type.items() if index in selected}

    def taints(self, requested: Collection[DeviceQuery]) -> tuple[Toleration, ...]:
        """Return the untolerated taints of the devices of all queries; empty if one present device could be allocated."""
        within_bounds, found = self._taints and self.add_selectors(requested), dict[Toleration, None]()
        for query in requested if self._taints else ():
            indexes = self.by_type(query if within_bounds else query._replace(expressions=()))
            for taints in dict.fromkeys(self._taints_by_type.get(index, ()) for index in indexes):
                untolerated = [taint for taint in taints if not tolerated(taint, query.tolerations)]
                if not untolerated:
                    return ()
                found |= dict.fromkeys(untolerated)
        return tuple(found)

    @cached_property
    def _taints_by_type(self) -> dict[int, tuple[Toleration, ...]]:
        """The taints of the types that have some, by the index of the type. A pod may name claims with thousands of requests."""
        types = enumerate(self._mapping.device_types.types)
        return {
            index: taints
            for index, device_type in types
            if (taints := self._taints.get(type_key(device_type)))
        }

    def gpu_count(self, requested: Collection[DeviceQuery]) -> GPUCount | None:
        """Return the GPUs of a claim with one request: cards, or else slices of the largest profile that it may get."""
        (query, *more), within_bounds = requested or (DeviceQuery(""),), self.add_selectors(requested)
        if more or not query.device_count:
            return None
        sizes = dict[str, int]()
        for index in self.by_type(query if within_bounds else query._replace(expressions=())):
            slices = [*mig_profiles(self._mapping.device_types.types[index], self._gpu_classes)]
            if not slices:
                return GPUCount(query.device_count)
            for gpu_class, name in slices:
                profile = self._gpu_classes.mig_profile(gpu_class, name)
                sizes[name] = max(sizes.get(name, 0), profile.memory_gib if profile else 0)
        return GPUCount(1, max(sizes, key=lambda name: sizes[name])) if sizes else None

    def _classes_naming(self, device_class: str) -> frozenset[str]:
        return frozenset(gpu_class.name for gpu_class in self._gpu_classes.of_device_class(device_class))


def class_names_text(names: Collection[str]) -> str:
    return ", ".join(name or "devices of no GPU class" for name in sorted(names))


class ClaimClassCheck:
    """Checks the classes of what a claim requests. allowed: globs of those that the namespace may use."""

    def __init__(
        self, namespace: str, allowed: Collection[str], mapping: ResourceMapping, gpu_classes: GPUClasses
    ) -> None:
        self._namespace, self._mapping, self._gpu_classes = namespace, mapping, gpu_classes
        self._classes = ClaimedClasses(mapping, gpu_classes)
        self._allowed = frozenset(each.name for each in gpu_classes if class_matches(each, allowed))

    def findings(self, spec: ClaimSpec | None, path: str) -> Iterator[Finding]:
        """Deny each request that may get devices of other classes. path: of the spec in the object."""
        requests = [each for alternatives in requests_by_path(spec, path) for each in alternatives]
        within_bounds = self._classes.add_selectors([request.query for _, request in requests])
        for request_path, request in requests:
            yield from self._denial(request, request_path, within_bounds=within_bounds)

    def _denial(self, request: DeviceRequest, path: str, *, within_bounds: bool) -> Iterator[Finding]:
        query = request.query if within_bounds else DeviceQuery(request.device_class_name)
        names = self._classes.of_query(query) or frozenset()
        if not (forbidden := names - self._allowed) or request.admin_access:
            return
        why = f"namespace {self._namespace} may not use {class_names_text(forbidden)}"
        selector = self._selector(query) if within_bounds else ""
        if any(request.expressions) and not (
            within_bounds and self._classes.add_selectors([DeviceQuery("", (selector,))])
        ):
            yield Finding(
                reason=CLASS_NOT_ALLOWED,
                path=f"{path}.selectors",
                message=f"must be few and short enough to be evaluated, {MAX_SELECTOR_TEXT} characters in a claim: {why}",
                remedy="write fewer or shorter selectors",
            )
            return
        if selector:
            yield Finding(
                reason=CLASS_NOT_ALLOWED,
                path=f"{path}.selectors",
                message=f"must select only devices of allowed classes: {why}",
                choices=one_choice(Edit(f"{path}.selectors[-]", DeviceSelector(CELSelector(selector)))),
                remedy=f"add cel.expression: {selector}",
            )
            return
        # The selectors of the request may be why no allowed device is possible.
        others = self._allowed_device_classes
        remedy = f"set deviceClassName: {alternatives_in_words(others)}" if others else ""
        asked = sorted(forbidden - {NO_CLASS})
        yield Finding(
            reason=CLASS_NOT_ALLOWED,
            path=f"{path}.deviceClassName",
            value=request.device_class_name,
            message=f"must have devices of allowed classes: {why}",
            choices=separate_choices(*(Edit(f"{path}.deviceClassName", name) for name in first_few(others)))
            if not query.expressions
            else (),
            remedy=f"{remedy}, without selectors" if remedy and query.expressions else remedy,
            ask_contact=f"to allow {alternatives_in_words(asked)} in namespace {self._namespace}"
            if asked
            else "",
            contact_choices=tuple(
                (ContactEdit("GPUPolicy", ALLOWED_PATH, name),) for name in first_few(asked)
            ),
        )

    @cached_property
    def _allowed_device_classes(self) -> list[str]:
        """The DeviceClasses all of whose devices are of allowed classes."""
        classes = {name: self._classes.of_query(DeviceQuery(name)) for name in self._mapping.types_by_class}
        return sorted(name for name, names in classes.items() if names and names <= self._allowed)

    def _selector(self, query: DeviceQuery) -> str:
        """Return a CEL expression that selects the allowed devices of the choice alone; "" if none does."""
        by_type, types = self._classes.by_type(query), self._mapping.device_types.types
        keys = {attribute.key for gpu_class in self._gpu_classes for attribute in gpu_class.device_attributes}
        for key in sorted(keys):
            # A selector that reads an attribute of a device without it is an error: no device is allocated.
            wanted, unwanted = set[str | None](), set[str | None]()
            for index, names in by_type.items():
                attribute = types[index].attributes.get(key)
                values = wanted if names <= self._allowed else unwanted
                values.add(attribute.string if attribute else None)
            if wanted and None not in wanted | unwanted and wanted.isdisjoint(unwanted):
                domain, _, name = key.partition("/")
                texts = [_quoted(text) for text in sorted(filter(None, wanted))]
                comparison = f"== {texts[0]}" if len(texts) == 1 else f"in [{', '.join(texts)}]"
                return f"device.attributes['{domain}'].{name} {comparison}"
        return ""


def requests_by_path(spec: ClaimSpec | None, path: str) -> Iterator[list[tuple[str, DeviceRequest]]]:
    """Yield the alternatives of each request, with their paths. path: of the spec in the object."""
    for index, request in enumerate((spec and spec.devices and spec.devices.requests) or ()):
        request_path = f"{path}.devices.requests[{index}]"
        if request.first_available:
            yield [
                (f"{request_path}.firstAvailable[{number}]", device_request)
                for number, device_request in enumerate(request.first_available)
            ]
        else:
            yield [
                (f"{request_path}.exactly", request.exactly)
                if request.exactly is not None
                else (request_path, request)
            ]


def _quoted(text: str) -> str:
    """Return a string of CEL, in the quotes that YAML need not escape."""
    return json.dumps(text, ensure_ascii=False) if "'" in text or "\\" in text else f"'{text}'"
