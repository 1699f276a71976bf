"""Findings about GPUs that a LimitRange gives, and about what it refuses: what they tell people to write, works."""

import json
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from policies.finding import ContactEdit, Finding
from policies.gpus.limit_range_findings import (
    GPUS_BY_DEFAULT,
    default_gpu_warnings,
    gpus_by_default,
    limit_ranges_giving_gpus,
    refusal_findings,
    with_limit_range_named,
)
from policies.pods.field_paths import path_parts, with_edits
from policies.pods.limit_ranges import as_admitted, decode_limit_range, namespace_limits, refusals
from tests.builders import JSON, container, gpu_container, pod, view
from tests.cases import cases
from tests.oracle import oracle
from tests.policies.pods.limit_cases import draw_case, read_limits
from tests.seed import SAID, SEED
from webhook.configuration.loader import load_objects

MAPPING = load_objects([]).resource_mapping
GPU = "nvidia.com/gpu"
ANNOTATION = "kubernetes.io/limit-ranger"


def limit_range(name: str, **item: JSON | str) -> JSON:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}


GPUS = limit_range("gpus", default={GPU: "1"})
CPU = limit_range("z-cpu", default={"cpu": "1"})
OF_MAIN = f"LimitRanger plugin set: {GPU} request for container main; {GPU} limit for container main"
OF_CPU = "LimitRanger plugin set: cpu request for container main; cpu limit for container main"
OF_OURS = (
    f"LimitRanger plugin set: {GPU} request for init container fetch; {GPU} limit for init container fetch"
)
INJECTED = {"gpu-admission.dev/injected": "model-warming: initContainer fetch"}


@cases(
    ("document", "stored", "want"),
    listed=(pod(gpu_container(), annotations={ANNOTATION: OF_MAIN}), [GPUS], ["containers[0]"]),
    without_the_annotation=(pod(gpu_container()), [GPUS], []),
    a_forged_annotation=(pod(gpu_container(), annotations={ANNOTATION: OF_MAIN}), [CPU], []),
    another_amount=(pod(gpu_container("2"), annotations={ANNOTATION: OF_MAIN}), [GPUS], []),
    only_what_is_listed=(
        pod(gpu_container(), gpu_container(name="own"), annotations={ANNOTATION: OF_MAIN}), [GPUS], ["containers[0]"],
    ),
    whose_author_wrote_the_request=(
        pod(gpu_container(), annotations={ANNOTATION: f"LimitRanger plugin set: {GPU} limit for container main"}), [GPUS], [],
    ),
    the_next_limit_range_overwrote_it=(
        pod(gpu_container(), annotations={ANNOTATION: OF_CPU}), [GPUS, CPU], ["containers[0]"],
    ),
    so_did_an_injected_container=(
        pod(gpu_container(), initContainers=[gpu_container(name="fetch")], annotations={ANNOTATION: OF_OURS, **INJECTED}), [GPUS],
        ["containers[0]", "initContainers[0]"],
    ),
)  # fmt: skip
def test_which_gpus_of_a_pod_are_defaults(document: JSON, stored: list[JSON], want: list[str]) -> None:
    limits = namespace_limits(decode_limit_range(json.dumps(each).encode()) for each in stored)
    found = gpus_by_default(view(document), limits, MAPPING)

    assert list(dict.fromkeys(each.path.removeprefix("spec.").partition(".")[0] for each in found)) == want


def findings(document: JSON, stored: list[JSON]) -> list[Finding]:
    limits = namespace_limits(decode_limit_range(json.dumps(each).encode()) for each in stored)
    given = as_admitted(view(document), limits)
    return [
        *default_gpu_warnings(given, limits, MAPPING),
        *refusal_findings(given, limits, MAPPING, is_partial=False),
    ]


TO_GIVE = "LimitRange gpus gives nvidia.com/gpu: 1 to each container that requests none"
MAIN = 'spec.containers[0].resources.{}[{}] (container "main")'


@cases(
    ("document", "stored", "want"),
    a_default=(
        pod(container()),
        GPUS,
        [f"{MAIN.format('limits', GPU)} = \"1\": set nvidia.com/gpu: 0 in resources.limits if it needs none; {TO_GIVE}"],
    ),
    that_must_be=(
        pod(container()),
        limit_range("gpus", default={GPU: "1"}, min={GPU: "1"}),
        [f"{MAIN.format('limits', GPU)} = \"1\": {TO_GIVE}; ask the platform team to take nvidia.com/gpu out of LimitRange gpus"],
    ),
    too_many=(
        pod(gpu_container("4")),
        limit_range("gpus", max={GPU: "2"}),
        [
            f"{MAIN.format('limits', GPU)}: set nvidia.com/gpu: 2; must satisfy LimitRange gpus: maximum nvidia.com/gpu "
            "usage per Container is 2, but limit is 4; or ask the platform team to remove spec.limits[0].max[nvidia.com/gpu] "
            "from LimitRange gpus [limit-range]"
        ],
    ),
    too_much_memory=(
        pod(gpu_container(resources={"limits": {GPU: "1", "memory": "64Gi"}})),
        limit_range("gpus", max={"memory": "16Gi"}),
        [
            f"{MAIN.format('limits', 'memory')}: set memory: 16Gi; must satisfy LimitRange gpus: maximum memory usage "
            "per Container is 16Gi, but limit is 64Gi; or ask the platform team "
            "to remove spec.limits[0].max[memory] from LimitRange gpus [limit-range]"
        ],
    ),
    too_far_apart=(
        pod(gpu_container(resources={"limits": {GPU: "1", "cpu": "8"}, "requests": {"cpu": "1"}})),
        limit_range("gpus", maxLimitRequestRatio={"cpu": "2"}),
        [
            f"{MAIN.format('limits', 'cpu')}: set cpu: 8; must satisfy LimitRange gpus: cpu max limit to request ratio "
            "per Container is 2, but provided ratio is 8.000000; or ask the platform team "
            "to remove spec.limits[0].maxLimitRequestRatio[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    a_limit_alone_far_from_no_request=(
        pod(gpu_container(resources={"limits": {GPU: "1", "cpu": "8"}, "requests": {"cpu": "0"}})),
        limit_range("gpus", maxLimitRequestRatio={"cpu": "2"}),
        [
            f"{MAIN.format('limits', 'cpu')}: set cpu: 8; must satisfy LimitRange gpus: cpu max limit to request ratio "
            "per Container is 2, but no request is specified or request is 0; or ask the platform team "
            "to remove spec.limits[0].maxLimitRequestRatio[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    a_request_without_a_limit=(
        pod(gpu_container(resources={"limits": {GPU: "1"}, "requests": {"cpu": "1"}})),
        limit_range("gpus", maxLimitRequestRatio={"cpu": "2"}),
        [
            f"{MAIN.format('requests', 'cpu')}: must satisfy LimitRange gpus: cpu max limit to request ratio "
            "per Container is 2, but no limit is specified or limit is 0; ask the platform team "
            "to remove spec.limits[0].maxLimitRequestRatio[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    two_bounds_are_about_one_field=(
        pod(gpu_container(resources={"limits": {GPU: "1", "cpu": "16"}, "requests": {"cpu": "3"}})),
        limit_range("gpus", max={"cpu": "8"}, maxLimitRequestRatio={"cpu": "2"}),
        [
            f"{MAIN.format('limits', 'cpu')}: set cpu: 8; must satisfy LimitRange gpus: maximum cpu usage per Container is 8, "
            "but limit is 16; or ask the platform team to remove spec.limits[0].max[cpu] from LimitRange gpus [limit-range]",
            f"{MAIN.format('limits', 'cpu')}: must satisfy LimitRange gpus: cpu max limit to request ratio per Container is 2, "
            "but provided ratio is 5.333333; ask the platform team to remove spec.limits[0].maxLimitRequestRatio[cpu] "
            "from LimitRange gpus [limit-range]",
        ],
    ),
    a_request_above_the_limit_that_it_gives=(
        pod(gpu_container(resources={"limits": {GPU: "1"}, "requests": {"cpu": "1", "memory": "1Gi"}})),
        limit_range("gpus", default={"cpu": "500m", "memory": "2Gi"}, defaultRequest={"cpu": "100m"}),
        [
            f"{MAIN.format('requests', 'cpu')} = \"1\": add cpu: 1 to resources.limits; must be at most the limit, and "
            "LimitRange gpus gives 500m [limit-range]"
        ],
    ),
    a_request_above_a_limit_of_its_own=(
        pod(gpu_container(resources={"limits": {GPU: "1", "cpu": "500m"}, "requests": {"cpu": "1"}})),
        limit_range("gpus", default={"cpu": "500m"}),
        [],
    ),
    neither_request_nor_limit=(
        pod(gpu_container()),
        limit_range("gpus", maxLimitRequestRatio={"cpu": "2"}),
        [
            f"{MAIN.format('requests', 'cpu')}: must satisfy LimitRange gpus: cpu max limit to request ratio "
            "per Container is 2, but no request is specified or request is 0; ask the platform team "
            "to remove spec.limits[0].maxLimitRequestRatio[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    more_gpus_of_two_containers_than_a_pod_may_have=(
        pod(gpu_container("3"), gpu_container("4", name="other")),
        limit_range("gpus", type="Pod", max={GPU: "6"}),
        [
            "spec: request nvidia.com/gpu: 6 or less in all containers together; must satisfy LimitRange gpus: maximum "
            "nvidia.com/gpu usage per Pod is 6, but limit is 7; or ask the platform team to remove "
            "spec.limits[0].max[nvidia.com/gpu] from LimitRange gpus [limit-range]"
        ],
    ),
    no_limit_of_the_pod=(
        pod(gpu_container(resources={"limits": {GPU: "1"}, "requests": {"cpu": "1"}})),
        limit_range("gpus", type="Pod", maxLimitRequestRatio={"cpu": "2"}),
        [
            "spec: must satisfy LimitRange gpus: cpu max limit to request ratio per Pod is 2, but no limit is specified or limit "
            "is 0; ask the platform team to remove spec.limits[0].maxLimitRequestRatio[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    no_request_of_the_pod=(
        pod(gpu_container()),
        limit_range("gpus", type="Pod", min={"cpu": "1"}),
        [
            "spec: must satisfy LimitRange gpus: minimum cpu usage per Pod is 1.  No request is specified; ask the platform team "
            "to remove spec.limits[0].min[cpu] from LimitRange gpus [limit-range]"
        ],
    ),
    of_a_pod_without_gpus_nothing_is_said=(
        pod(container(resources={"limits": {"cpu": "8"}})), limit_range("gpus", max={"cpu": "2"}), [],
    ),
)  # fmt: skip
def test_what_is_said_of_a_new_pod(document: JSON, stored: JSON, want: list[str]) -> None:
    assert [each.sentence() for each in findings(document, [stored])] == want


def test_each_of_two_containers_can_request_fewer_gpus() -> None:
    document = pod(gpu_container("3"), gpu_container("4", name="other"))
    (found,) = findings(document, [limit_range("gpus", type="Pod", max={GPU: "6"})])

    amounts = [(edit.path, edit.value) for edits in found.choices for edit in edits]
    assert amounts == [
        (f"spec.containers[{at}].resources.limits[{GPU}]", less) for at, less in ((0, 2), (1, 3))
    ]


def test_a_forged_annotation_of_a_limit_that_the_pod_lacks() -> None:
    limits = namespace_limits([decode_limit_range(json.dumps(CPU).encode())])
    resources = {"limits": {GPU: "1"}, "requests": {"cpu": "2"}}
    forged = view(pod(gpu_container(resources=resources), annotations={ANNOTATION: OF_CPU}))

    assert not [*refusal_findings(forged, limits, MAPPING, is_partial=False)]


def test_two_limit_ranges_that_give_different_amounts() -> None:
    stored = [limit_range("a", defaultRequest={GPU: "1"}), limit_range("b", default={GPU: "2"})]
    (found,) = findings(pod(container()), stored)

    given = "LimitRange {} gives {} nvidia.com/gpu: {} to each container that requests none".format
    assert found.message == f"{given('a', 'requests', 1)}; {given('b', 'limits', 2)}"


LIMITS = "spec.containers[0].resources.limits[nvidia.com/gpu]"
QUOTA = Finding(reason=GPUS_BY_DEFAULT, path=LIMITS, message="must have a quota")
ORIGIN = f"must have a quota; {TO_GIVE}"
TO_TAKE = "ask the platform team to take nvidia.com/gpu out of LimitRange gpus"


@cases(
    ("finding", "all_of_pod", "admitted_without", "want"),
    without_them_it_is_not_denied=(
        QUOTA,
        True,
        True,
        f"{LIMITS}: set nvidia.com/gpu: 0 in resources.limits if it needs no GPU; {ORIGIN}",
    ),
    or_what_the_denial_says=(
        replace(QUOTA, remedy="Wait until tomorrow"),
        False,
        True,
        f"{LIMITS}: set nvidia.com/gpu: 0 in resources.limits if it needs no GPU, or wait until tomorrow; {ORIGIN}",
    ),
    without_them_it_is_denied_likewise=(QUOTA, True, False, f"{LIMITS}: {ORIGIN}"),
    limit_ranges_refuse_it_without_them=(QUOTA, True, None, f"{LIMITS}: {ORIGIN}; {TO_TAKE}"),
    the_denial_asks_already=(
        replace(QUOTA, ask_contact="to grant one"),
        True,
        None,
        f"{LIMITS}: {ORIGIN}; ask the platform team to grant one",
    ),
    the_pod_has_other_gpus=(QUOTA, False, False, f"{LIMITS}: {ORIGIN}"),
    about_an_amount_that_its_author_wrote=(
        replace(QUOTA, path="spec.initContainers[0].resources.limits[nvidia.com/gpu]"),
        True,
        None,
        "spec.initContainers[0].resources.limits[nvidia.com/gpu]: must have a quota",
    ),
    about_another_field=(
        replace(QUOTA, path="spec.nodeName"),
        False,
        True,
        "spec.nodeName: must have a quota",
    ),
)
def test_a_denial_names_the_limit_range(
    finding: Finding, all_of_pod: bool, admitted_without: bool | None, want: str
) -> None:
    limits = namespace_limits([decode_limit_range(json.dumps(GPUS).encode())])
    defaults = gpus_by_default(as_admitted(view(pod(container())), limits), limits, MAPPING)

    found = with_limit_range_named(
        finding, defaults, limits, all_of_pod=all_of_pod, admitted_without=admitted_without
    )

    assert found.sentence() == want


def test_a_denial_of_one_of_two_resources_asks_to_take_that_one() -> None:
    stored = limit_range("gpus", default={GPU: "1", f"{GPU}.shared": "1"})
    limits = namespace_limits([decode_limit_range(json.dumps(stored).encode())])
    defaults = gpus_by_default(as_admitted(view(pod(container())), limits), limits, MAPPING)
    asked = []
    for path in (LIMITS, LIMITS.replace("/gpu", "/gpu.shared"), "spec"):
        finding = replace(QUOTA, path=path)
        asked.append(
            with_limit_range_named(
                finding, defaults, limits, all_of_pod=True, admitted_without=None
            ).ask_contact
        )

    assert asked == [
        "to take nvidia.com/gpu out of LimitRange gpus",
        "to take nvidia.com/gpu.shared out of LimitRange gpus",
        "to take nvidia.com/gpu and nvidia.com/gpu.shared out of LimitRange gpus",
    ]


def test_all_limit_ranges_that_bound_it_are_named() -> None:
    others = limit_range("more", default={GPU: "2"}), limit_range("bounds", type="Pod", min={GPU: "1"}), CPU
    limits = namespace_limits(decode_limit_range(json.dumps(each).encode()) for each in (GPUS, *others))
    defaults = gpus_by_default(as_admitted(view(pod(container())), limits), limits, MAPPING)

    found = with_limit_range_named(QUOTA, defaults, limits, all_of_pod=True, admitted_without=None)

    assert found.ask_contact == (
        "to take nvidia.com/gpu out of LimitRange bounds and LimitRange gpus and LimitRange more"
    )
    fields = ("min", "default", "defaultRequest", "default", "defaultRequest")
    asked = tuple(ContactEdit("LimitRange", f"spec.limits[0].{field}[{GPU}]") for field in fields)
    assert found.contact_choices == (asked,)


EACH_GETS_IT = "each container that requests none gets it, also sidecars and init containers"
TO_0 = f"set default[{GPU}] and defaultRequest[{GPU}] to 0"
IN = "LimitRange/gpus in lab"


@cases(
    ("item", "want"),
    a_default=({"default": {GPU: "1"}}, f'spec.limits[0].default[{GPU}] = "1": {TO_0}; {EACH_GETS_IT}'),
    a_default_request=(
        {"defaultRequest": {GPU: "1"}},
        f'spec.limits[0].defaultRequest[{GPU}] = "1": {TO_0}; {EACH_GETS_IT}',
    ),
    a_maximum=(
        {"max": {GPU: "4"}},
        f'spec.limits[0].max[{GPU}] = "4": {TO_0}; {EACH_GETS_IT}: max is the default where nobody writes one',
    ),
    a_minimum_and_a_ratio=(
        {"min": {GPU: "1"}, "maxLimitRequestRatio": {GPU: "1"}},
        f'spec.limits[0].min[{GPU}] = "1": {TO_0}, and remove min[{GPU}] and maxLimitRequestRatio[{GPU}]; {EACH_GETS_IT}: '
        "min is the default where nobody writes one",
    ),
    no_gpus=({"default": {GPU: "0", "cpu": "1"}}, None),
    of_whole_pods=({"type": "Pod", "max": {GPU: "4"}}, None),
)
def test_a_limit_range_that_gives_gpus(item: JSON, want: str | None) -> None:
    limits = {"lab": namespace_limits([decode_limit_range(json.dumps(limit_range("gpus", **item)).encode())])}

    found = [(name, each.sentence()) for name, each in limit_ranges_giving_gpus(limits, MAPPING)]

    assert found == ([(IN, f"{want} [limit-range]")] if want else [])


@pytest.mark.processes
def test_what_they_tell_people_to_write_works() -> None:
    followed: Counter[str] = Counter()
    for seed in range(SEED, SEED + 600):
        world, said = draw_case(seed), f"{SAID}, world {seed}"
        if oracle().ask(world).code not in {201, 403}:
            continue
        for finding in findings(world.pod, world.limit_ranges):
            for edits in finding.choices:
                edited = with_edits(world.pod, [(path_parts(edit.path), edit.value) for edit in edits])
                identity = finding.reason, finding.container, finding.message
                left = findings(edited, world.limit_ranges)
                assert identity not in {(each.reason, each.container, each.message) for each in left}, said
                answer = oracle().ask(msgspec.structs.replace(world, pod=edited))
                limits = read_limits(world)
                is_refused = refusals(as_admitted(view(edited), limits), limits)  # for another reason
                assert answer.code == (403 if is_refused else 201), (said, answer.message, edits)
                followed[finding.reason.name] += 1

    assert min(followed["GPUsByDefault"], followed["LimitRangeRejects"]) > 20, followed
