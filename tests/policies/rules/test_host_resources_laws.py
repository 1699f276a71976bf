"""What holds of host-resources under any LimitRanges: the API server's LimitRanger accepts a pod that it would accept without us.

The model of LimitRanger is its source (k8s.io/kubernetes v1.37.2, plugin/pkg/admission/limitranger/admission.go), the QoS class
that of pkg/apis/core/v1/helper/qos; tests/cluster/test_host_resources.py asks the real ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from policies.pods.limit_ranges import decode_limit_range, namespace_limits
from policies.pods.patch import PodPatch
from policies.pods.pod import Container, Pod
from policies.pods.quantity import NANO, parse_quantity
from policies.pods.requests import at_one_time
from policies.rule import Phase
from policies.rules.host_resources import HostResourcesOptions, mutate
from tests.builders import CLASSES, JSON, apply, container, context, pod, view

NAMES = ("cpu", "memory")
SHARE = {"cpu": Fraction(12), "memory": Fraction(120 * 2**30)}
OPTIONS = HostResourcesOptions(max=None)
AMOUNTS = {
    "cpu": ["100m", "1", "4", "11", "12", "13", "24", "64"],
    "memory": ["64Mi", "1Gi", "119Gi", "120Gi", "200Gi", "1Ti"],
}


def value(raw: Any) -> Fraction:
    return Fraction(parse_quantity(raw).nano, NANO)


# ---- what is drawn


@st.composite
def bounds(draw: st.DrawFn, *fields: str) -> JSON:
    """Return what one item says of each resource in these fields, of which none may be less than the one before."""
    item: dict[str, dict[str, str]] = {field: {} for field in fields}
    for name in NAMES:
        for at, field in zip(sorted(draw(places(name, len(fields)))), fields, strict=True):
            if draw(st.booleans()):
                item[field][name] = AMOUNTS[name][at]
        if draw(st.integers(0, 4)) == 0:
            item.setdefault("maxLimitRequestRatio", {})[name] = draw(st.sampled_from(["1", "2", "8"]))
    return {field: amounts for field, amounts in item.items() if amounts}


def places(name: str, count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(AMOUNTS[name]) - 1), min_size=count, max_size=count)


@st.composite
def limit_items(draw: st.DrawFn) -> list[JSON]:
    items = []
    if draw(st.booleans()):
        items.append({"type": "Pod", **draw(bounds("min", "max"))})
    if draw(st.booleans()):
        items.append({"type": "Container", **draw(bounds("min", "defaultRequest", "default", "max"))})
    return [_with_defaults(each) for each in items]


def _with_defaults(item: JSON) -> JSON:
    """Return the item as it is stored (SetDefaults_LimitRangeItem)."""
    if item["type"] != "Container":
        return item
    default = {**item.get("max", {}), **item.get("default", {})}
    request = {**item.get("min", {}), **default, **item.get("defaultRequest", {})}
    return {**item, "default": default, "defaultRequest": request}


@st.composite
def containers(draw: st.DrawFn, name: str, *, is_init: bool = False) -> JSON:
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for resource in NAMES:
        low, high = sorted(draw(places(resource, 2)))
        written = draw(st.sampled_from(["", "", "", "request", "limit", "request and limit"]))
        if "request" in written:
            requests[resource] = AMOUNTS[resource][low]
        if "limit" in written:
            limits[resource] = AMOUNTS[resource][high]
    if gpus := draw(st.sampled_from([0, 1, 1, 2])):
        limits["nvidia.com/gpu"] = str(gpus)
    restart = {"restartPolicy": "Always"} if is_init and draw(st.booleans()) else {}
    return container(name, resources={"limits": limits, "requests": requests}, **restart)


@st.composite
def pods(draw: st.DrawFn) -> JSON:
    apps = [draw(containers(f"app-{at}")) for at in range(draw(st.integers(1, 3)))]
    inits = [draw(containers(f"init-{at}", is_init=True)) for at in range(draw(st.integers(0, 2)))]
    document = pod(*apps, nodeSelector={"accelerator": "nvidia-a100-80gb"})
    if inits:
        document["spec"]["initContainers"] = inits
    return document


# ---- the API server


def of_all(document: JSON) -> Iterator[tuple[str, JSON]]:
    for kind, field in (("container", "containers"), ("init container", "initContainers")):
        yield from ((kind, each) for each in document["spec"].get(field, ()))


def as_mutated(document: JSON, items: Sequence[JSON]) -> JSON:
    """Return the pod with the defaults of the API server and of LimitRanger, and its annotation."""
    document, listed = deepcopy(document), []
    for kind, each in of_all(document):
        resources = each["resources"]
        resources["requests"] = {**resources["limits"], **resources["requests"]}
        for item in items:
            for field, to, word in (
                ("defaultRequest", "requests", "request"),
                ("default", "limits", "limit"),
            ):
                new = {n: a for n, a in item.get(field, {}).items() if n not in resources[to]}
                resources[to] |= new
                listed += [f"{', '.join(sorted(new))} {word} for {kind} {each['name']}"] if new else []
    if listed:
        text = f"LimitRanger plugin set: {'; '.join(listed)}"
        document["metadata"]["annotations"] = {"kubernetes.io/limit-ranger": text}
    return document


def problems(document: JSON, items: Sequence[JSON]) -> list[str]:
    """Return what validation and LimitRanger refuse the pod for."""
    found = [
        f"request above limit {name}"
        for _, each in of_all(document)
        for name in NAMES
        if sorted(both := _both(name, each["resources"]["requests"], each["resources"]["limits"])) != both
    ]
    for item in items:
        if item["type"] == "Container":
            found += [
                p
                for _, each in of_all(document)
                for p in _problems(item, each["resources"]["requests"], each["resources"]["limits"])
            ]
        else:
            seen = view(document)
            found += _problems(item, _of_pod(seen, "requests"), _of_pod(seen, "limits"))
    return found


def _of_pod(seen: Pod, kind: str) -> dict[str, Fraction]:
    def amounts(each: Container) -> Mapping[str, Fraction]:
        of = each.requests if kind == "requests" else each.limits
        return {name: value(raw) for name, raw in of.items() if name in NAMES}

    return at_one_time(seen, amounts, {})


def _problems(item: JSON, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[str]:
    for name, raw in item.get("min", {}).items():
        if name not in requests or min(_both(name, requests, limits)) < value(raw):
            yield f"min {name}"
    for name, raw in item.get("max", {}).items():
        if name not in limits or max(_both(name, requests, limits)) > value(raw):
            yield f"max {name}"
    for name, raw in item.get("maxLimitRequestRatio", {}).items():
        both = _both(name, requests, limits)
        if len(both) < 2 or not all(both) or both[1] / both[0] > value(raw):
            yield f"ratio {name}"


def _both(name: str, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> list[Fraction]:
    amounts = [of[name] for of in (requests, limits) if name in of]
    return [each if isinstance(each, Fraction) else value(each) for each in amounts]


def qos(document: JSON) -> int:
    """Return the QoS class: 0 BestEffort, 1 Burstable, 2 Guaranteed."""
    every = [each["resources"] for _, each in of_all(document)]
    if not any(name in each[kind] for each in every for kind in each for name in NAMES):
        return 0
    equal = (
        name in each["limits"] and value(each["limits"][name]) == value(each["requests"][name])
        for each in every
        for name in NAMES
    )
    return 2 if all(equal) else 1


# ---- the laws


ONLY_MAX = [_with_defaults({"type": "Container", "max": {"cpu": "64"}})]
TWO = pod(
    container("app-0", resources={"limits": {"nvidia.com/gpu": "1"}, "requests": {}}),
    container("app-1", resources={"limits": {"nvidia.com/gpu": "2"}, "requests": {}}),
    nodeSelector={"accelerator": "nvidia-a100-80gb"},
)

MINIMUM_OF_BOTH = [{"type": "Pod", "min": {"memory": "200Gi"}, "maxLimitRequestRatio": {"memory": "1"}}]


@example(document=TWO, items=ONLY_MAX, is_readable=True)
@example(document=TWO, items=MINIMUM_OF_BOTH, is_readable=True)
@given(document=pods(), items=limit_items(), is_readable=st.booleans())
def test_a_pod_that_limit_ranges_allow_is_allowed_with_its_share(
    document: JSON, items: list[JSON], is_readable: bool
) -> None:
    before = as_mutated(document, items)
    after, again = completed(before, items, is_readable)

    assert again == []
    if not problems(before, items):
        assert problems(after, items) == []
    assert qos(after) >= qos(before)
    for name in NAMES:
        most = max(total(before, name), SHARE[name] * gpus(before))
        assert total(after, name) <= most
    for (_, written), (_, got) in zip(of_all(document), of_all(after), strict=True):
        for kind, amounts in written["resources"].items():
            assert {name: got["resources"][kind][name] for name in amounts} == amounts
        if "nvidia.com/gpu" not in written["resources"]["limits"]:
            assert got in [each for _, each in of_all(before)]


def completed(document: JSON, items: list[JSON], is_readable: bool) -> tuple[JSON, list[str]]:
    """Return the pod with what the rule adds, and what it would add to that."""
    stored = decode_limit_range(msgspec.json.encode({"spec": {"limits": items}}))
    known = namespace_limits([stored]) if is_readable else None
    rule_context = context(Phase.MUTATE, classes=CLASSES, limit_ranges=known)
    patch = PodPatch(view(document))
    assert list(mutate(patch, OPTIONS, rule_context)) == []
    after = apply(document, patch)
    again = PodPatch(view(after))
    list(mutate(again, OPTIONS, rule_context))
    return after, [each.what for each in again.changes]


def total(document: JSON, name: str) -> Fraction:
    return _of_pod(view(document), "requests").get(name, Fraction(0))


def gpus(document: JSON) -> Fraction:
    def of(each: Container) -> Mapping[str, Fraction]:
        return {"gpus": Fraction(str(each.limits.get("nvidia.com/gpu", 0)))}

    return at_one_time(view(document), of, {})["gpus"]
