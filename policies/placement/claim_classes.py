"""The GPU classes of the devices that a ResourceClaim (DRA) may get, by its DeviceClasses and selectors."""

import json
from collections.abc import Collection, Iterator
from functools import cached_property

from policies.finding import ContactEdit, Edit, Finding, either, together
from policies.gpus.cards import classified_weights, mig_profiles
from policies.gpus.claimed_devices import ClaimSpec, DeviceChoice, DeviceRequest, GPUNumber
from policies.gpus.classes import GPUClasses
from policies.gpus.device_classes import CELSelector, DeviceSelector
from policies.gpus.device_kinds import NO_TAINTS, KindTaints
from policies.gpus.device_selectors import MAX_SELECTOR_TEXT, SelectorBounds, possible_kinds
from policies.gpus.device_slices import kind_key
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_advice import ALLOWED_PATH, alternatives_in_words, listed
from policies.placement.class_choice import CLASS_NOT_ALLOWED
from policies.placement.class_use import class_matches
from policies.pods.pod import Toleration
from policies.pods.tolerations import tolerated

NO_CLASS = ""
"""Stands for the class of devices that no GPUClass describes."""


class ClaimedClasses:
    """The classes of the devices that claims may get, in one review: its selectors are evaluated within `SelectorBounds`."""

    def __init__(
        self, mapping: ResourceMapping, gpu_classes: GPUClasses, taints: KindTaints = NO_TAINTS
    ) -> None:
        self._mapping, self._gpu_classes, self._taints = mapping, gpu_classes, taints
        self._bounds = SelectorBounds(mapping.device_kinds)
        self._by_kind: dict[str, dict[int, frozenset[str]]] = {}
        self._of_choice: dict[DeviceChoice, frozenset[str] | None] = {}

    def of_claim(self, choices: Collection[DeviceChoice]) -> frozenset[str] | None:
        """Return the classes that the devices of a claim may be of, with NO_CLASS for devices of none.

        None if they are not known: the cluster has no such device, and no GPUClass names the DeviceClass.
        """
        are_read = self.include(choices)
        names = [self.of_choice(each if are_read else each._replace(expressions=())) for each in choices]
        known = [each for each in names if each is not None]
        return frozenset[str]().union(*known) if len(known) == len(names) else None

    def include(self, choices: Collection[DeviceChoice]) -> bool:
        """Whether the selectors of the claim with these choices may be evaluated, too."""
        return self._bounds.include(text for each in choices for text in each.expressions)

    def of_choice(self, choice: DeviceChoice) -> frozenset[str] | None:
        """Return the classes as `of_claim` does, of a choice that is included. Empty for devices without GPUs."""
        if choice not in self._of_choice:
            names: frozenset[str] | None = frozenset()
            if self._mapping.device_class(choice.device_class) is not None:
                listing = self._listing(choice.device_class)
                names = frozenset[str]().union(*self.by_kind(choice).values()) or listing or None
            self._of_choice[choice] = names
        return self._of_choice[choice]

    def by_kind(self, choice: DeviceChoice) -> dict[int, frozenset[str]]:
        """Return the classes of each kind of device, by its index, that the DeviceClass and the expressions may select."""
        if choice.device_class not in self._by_kind:
            known = classified_weights(self._mapping.device_kinds, self._gpu_classes)
            listing = self._listing(choice.device_class)
            indexes = self._mapping.kinds_by_class.get(choice.device_class, ())
            of_kind = {index: frozenset(each.name for each in known[index][1]) for index in indexes}
            self._by_kind[choice.device_class] = {
                index: names & listing or listing or names or frozenset((NO_CLASS,))
                for index, names in of_kind.items()
            }
        by_kind = self._by_kind[choice.device_class]
        selected = possible_kinds(choice.expressions, self._mapping.device_kinds)
        return {index: names for index, names in by_kind.items() if index in selected}

    def taints(self, choices: Collection[DeviceChoice]) -> tuple[Toleration, ...]:
        """Return the taints that keep all of these choices from each present device; empty unless they do."""
        are_read, found = self._taints and self.include(choices), dict[Toleration, None]()
        for choice in choices if self._taints else ():
            indexes = self.by_kind(choice if are_read else choice._replace(expressions=()))
            for taints in dict.fromkeys(self._taints_by_kind.get(index, ()) for index in indexes):
                against = [each for each in taints if not tolerated(each, choice.tolerations)]
                if not against:
                    return ()
                found |= dict.fromkeys(against)
        return tuple(found)

    @cached_property
    def _taints_by_kind(self) -> dict[int, tuple[Toleration, ...]]:
        """The taints of the kinds that have some, by the index of the kind. A pod may name claims with thousands of choices."""
        kinds = enumerate(self._mapping.device_kinds.kinds)
        return {index: taints for index, kind in kinds if (taints := self._taints.get(kind_key(kind)))}

    def number(self, choices: Collection[DeviceChoice]) -> GPUNumber | None:
        """Return how many GPUs a claim with one request gets: cards, or slices with the most memory if it can only get slices."""
        (choice, *more), are_read = choices or (DeviceChoice(""),), self.include(choices)
        if more or not choice.number:
            return None
        sizes = dict[str, int]()
        for index in self.by_kind(choice if are_read else choice._replace(expressions=())):
            slices = [*mig_profiles(self._mapping.device_kinds.kinds[index], self._gpu_classes)]
            if not slices:
                return GPUNumber(choice.number)
            for gpu_class, name in slices:
                profile = self._gpu_classes.mig_profile(gpu_class, name)
                sizes[name] = max(sizes.get(name, 0), profile.memory_gib if profile else 0)
        return GPUNumber(1, max(sizes, key=lambda name: sizes[name])) if sizes else None

    def _listing(self, device_class: str) -> frozenset[str]:
        return frozenset(each.name for each in self._gpu_classes.of_device_class(device_class))


def in_words(names: Collection[str]) -> str:
    return ", ".join(name or "devices of no GPU class" for name in sorted(names))


class ClaimJudge:
    """Judges what a claim requests by the classes that a namespace may use: `allowed` are globs."""

    def __init__(
        self, namespace: str, allowed: Collection[str], mapping: ResourceMapping, gpu_classes: GPUClasses
    ) -> None:
        self._namespace, self._mapping, self._gpu_classes = namespace, mapping, gpu_classes
        self._classes = ClaimedClasses(mapping, gpu_classes)
        self._allowed = frozenset(each.name for each in gpu_classes if class_matches(each, allowed))

    def findings(self, spec: ClaimSpec | None, path: str) -> Iterator[Finding]:
        """Deny each request that may get devices of other classes. path: of the spec in the object."""
        requests = [each for alternatives in requests_by_path(spec, path) for each in alternatives]
        are_read = self._classes.include([each.choice for _, each in requests])
        for at, each in requests:
            yield from self._denial(each, at, are_read=are_read)

    def _denial(self, request: DeviceRequest, path: str, *, are_read: bool) -> Iterator[Finding]:
        choice = request.choice if are_read else DeviceChoice(request.device_class_name)
        names = self._classes.of_choice(choice) or frozenset()
        if not (forbidden := names - self._allowed) or request.admin_access:
            return
        why = f"namespace {self._namespace} may not use {in_words(forbidden)}"
        selector = self._selector(choice) if are_read else ""
        if any(request.expressions) and not (are_read and self._classes.include([_selecting(selector)])):
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
                choices=together(Edit(f"{path}.selectors[-]", DeviceSelector(CELSelector(selector)))),
                remedy=f"add cel.expression: {selector}",
            )
            return
        # The selectors of the request may be why no allowed device is possible.
        others = self._allowed_alone
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

    @cached_property
    def _allowed_alone(self) -> list[str]:
        """The DeviceClasses whose devices are all of allowed classes."""
        classes = {name: self._classes.of_choice(DeviceChoice(name)) for name in self._mapping.kinds_by_class}
        return sorted(name for name, names in classes.items() if names and names <= self._allowed)

    def _selector(self, choice: DeviceChoice) -> str:
        """Return a CEL expression that selects the allowed devices of the choice alone; "" if none does."""
        by_kind, kinds = self._classes.by_kind(choice), self._mapping.device_kinds.kinds
        keys = {each.key for gpu_class in self._gpu_classes for each in gpu_class.device_attributes}
        for key in sorted(keys):
            # A selector that reads an attribute of a device without it is an error: no device is allocated.
            texts: dict[bool, set[str | None]] = {True: set(), False: set()}
            for index, names in by_kind.items():
                attribute = kinds[index].attributes.get(key)
                texts[names <= self._allowed].add(attribute.string if attribute else None)
            wanted, unwanted = texts[True], texts[False]
            if wanted and None not in wanted | unwanted and wanted.isdisjoint(unwanted):
                domain, _, name = key.partition("/")
                values = [_quoted(text) for text in sorted(filter(None, wanted))]
                comparison = f"== {values[0]}" if len(values) == 1 else f"in [{', '.join(values)}]"
                return f"device.attributes['{domain}'].{name} {comparison}"
        return ""


def requests_by_path(spec: ClaimSpec | None, path: str) -> Iterator[list[tuple[str, DeviceRequest]]]:
    """Yield the alternatives of each request, with their paths. path: of the spec in the object."""
    for index, request in enumerate((spec and spec.devices and spec.devices.requests) or ()):
        at = f"{path}.devices.requests[{index}]"
        if request.first_available:
            yield [
                (f"{at}.firstAvailable[{number}]", each)
                for number, each in enumerate(request.first_available)
            ]
        else:
            yield [(f"{at}.exactly", request.exactly) if request.exactly is not None else (at, request)]


def _selecting(expression: str) -> DeviceChoice:
    return DeviceChoice("", (expression,))


def _quoted(text: str) -> str:
    """Return a string of CEL, in the quotes that YAML need not escape."""
    return json.dumps(text, ensure_ascii=False) if "'" in text or "\\" in text else f"'{text}'"
