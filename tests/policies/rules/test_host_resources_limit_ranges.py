"""host-resources beside LimitRanges: which amounts are defaults, what becomes of them, and what their bounds leave."""

from typing import Any

from policies.finding import Severity
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.patch import PodPatch
from policies.rules.host_resources import HostResourcesOptions, mutate
from tests.builders import JSON, context, pod, view
from tests.cases import cases
from tests.policies.rules.shares import A100, LISTED, NO_LIMITS, SHARES, limits, run, sidecar, trainer

SMALL_DEFAULTS = limits({"default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}, "max": {"cpu": "8"}})
BURSTABLE = limits({"default": {"cpu": "4"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "32"}})
ONLY_MAX = limits({"max": {"cpu": "64"}, "default": {"cpu": "64"}, "defaultRequest": {"cpu": "64"}})
BOTH = "LimitRanger plugin set: cpu request for container main; cpu limit for container main"


def defaulted(request: str, limit: str, annotation: str = BOTH, *others: JSON, **spec: Any) -> JSON:
    """Return a pod as the API server makes it where a LimitRange sets CPU by default; memory is its author's."""
    main = trainer(cpu=request, memory="1Gi", limit_cpu=limit)
    return pod(main, *others, annotations={LISTED: annotation}, nodeSelector=A100, **spec)


def two_defaulted(request: str, limit: str) -> JSON:
    amounts = {"cpu": request, "limit_cpu": limit, "memory": "1Gi"}
    listed = f"{BOTH}; cpu request for container other; cpu limit for container other"
    both = (trainer(**amounts), trainer(name="other", **amounts))
    return pod(*both, annotations={LISTED: listed}, nodeSelector=A100)


@cases(
    ("known", "document", "want"),
    both_become_the_share_within_the_max=(
        SMALL_DEFAULTS, defaulted("1", "1"), ["main: requests cpu=8", "main: limits cpu=8"],
    ),
    a_limit_above_the_request_is_raised_with_it=(
        BURSTABLE, defaulted("100m", "4"), ["main: requests cpu=12", "main: limits cpu=12"],
    ),
    a_limit_above_the_share_stays=(
        limits({"default": {"cpu": "16"}, "defaultRequest": {"cpu": "100m"}}), defaulted("100m", "16"), ["main: requests cpu=12"],
    ),
    an_equal_pair_above_the_share_is_lowered=(
        ONLY_MAX, defaulted("64", "64"), ["main: requests cpu=12", "main: limits cpu=12"],
    ),
    an_unequal_one_is_not=(
        limits({"default": {"cpu": "64"}, "defaultRequest": {"cpu": "32"}}), defaulted("32", "64"), [],
    ),
    never_below_the_min=(
        limits({"default": {"cpu": "64"}, "defaultRequest": {"cpu": "64"}, "min": {"cpu": "13"}}), defaulted("64", "64"), [],
    ),
    the_share_is_the_min=(
        limits({"default": {"cpu": "64"}, "defaultRequest": {"cpu": "64"}, "min": {"cpu": "12"}}),
        defaulted("64", "64"),
        ["main: requests cpu=12", "main: limits cpu=12"],
    ),
    nor_below_the_min_of_the_pod=(
        limits({"default": {"cpu": "64"}, "defaultRequest": {"cpu": "64"}}, {"type": "Pod", "min": {"cpu": "14"}}),
        defaulted("64", "64", BOTH, sidecar(requests={"cpu": "1"})),
        [],
    ),
    the_max_of_the_pod_counts_limits_of_the_others=(
        limits({"default": {"cpu": "1"}}, {"type": "Pod", "max": {"cpu": "10"}}),
        defaulted("1", "1", BOTH, sidecar(requests={"cpu": "1"}, limits={"cpu": "4"})),
        ["main: requests cpu=6", "main: limits cpu=6"],
    ),
    two_containers_share_what_the_pod_may_have=(
        limits({"default": {"cpu": "1"}}, {"type": "Pod", "max": {"cpu": "20"}}),
        two_defaulted("1", "1"),
        ["main: requests cpu=12", "main: limits cpu=12", "other: requests cpu=8", "other: limits cpu=8"],
    ),
    the_second_gets_what_the_first_no_longer_has=(
        limits({"default": {"cpu": "13"}}, {"type": "Pod", "max": {"cpu": "13"}}),
        two_defaulted("13", "13"),
        ["main: requests cpu=1", "main: limits cpu=1", "other: requests cpu=12", "other: limits cpu=12"],
    ),
    a_default_that_will_stay_leaves_less_for_the_others=(
        limits({"default": {"cpu": "64"}, "defaultRequest": {"cpu": "13"}}),
        two_defaulted("13", "64"),
        [],
    ),
    a_wish_is_no_default=(SMALL_DEFAULTS, defaulted("2", "2", ""), []),
    listed_but_no_default_of_the_namespace=(SMALL_DEFAULTS, defaulted("2", "2"), []),
    a_default_that_the_annotation_does_not_list=(
        SMALL_DEFAULTS, defaulted("1", "1", "LimitRanger plugin set: memory request for container main"), [],
    ),
    of_another_container=(
        SMALL_DEFAULTS, defaulted("1", "1", BOTH.replace("container", "init container")), [],
    ),
    a_limit_of_the_authors_beside_a_listed_request=(
        SMALL_DEFAULTS, defaulted("1", "1", "LimitRanger plugin set: cpu request for container main"), [],
    ),
    forged_where_there_is_no_limit_range=(NO_LIMITS, defaulted("1", "1"), []),
    not_readable=(None, defaulted("1", "1"), []),
    too_long_to_be_read=(SMALL_DEFAULTS, defaulted("1", "1", f"{BOTH}{'; x' * 6000}"), []),
    the_ratio_of_a_pod_bounds_what_we_do_not_compute=(
        limits({"default": {"cpu": "1"}}, {"type": "Pod", "maxLimitRequestRatio": {"cpu": "2"}}), defaulted("1", "1"), [],
    ),
    an_init_container=(
        SMALL_DEFAULTS,
        pod(
            trainer(cpu="1", memory="1Gi"),
            initContainers=[trainer(cpu="1", memory="1Gi", limit_cpu="1", name="warm")],
            annotations={LISTED: BOTH.replace("container main", "init container warm")},
            nodeSelector=A100,
        ),
        ["warm: requests cpu=8", "warm: limits cpu=8"],
    ),
)  # fmt: skip
def test_defaults_of_a_limit_range(known: NamespaceLimits | None, document: JSON, want: list[str]) -> None:
    changes, _, _ = run(document, HostResourcesOptions(max=None), known)

    assert changes == want


@cases(
    ("known", "want"),
    no_limit_range=(NO_LIMITS, ["main: requests cpu=11"]),
    the_max_of_the_pod=(limits({"type": "Pod", "max": {"cpu": "8"}}), ["main: requests cpu=6"]),
    of_the_container=(limits({"max": {"cpu": "4"}}), ["main: requests cpu=4"]),
    not_readable_and_a_limit_that_the_pod_may_have_to_keep=(None, []),
)
def test_missing_beside_a_container_with_a_limit(known: NamespaceLimits | None, want: list[str]) -> None:
    document = pod(
        trainer(memory="1Gi"),
        sidecar(requests={"cpu": "1"}, limits={"cpu": "2"}),
        nodeSelector=A100,
    )

    assert run(document, known=known)[0] == want


def test_missing_where_limit_ranges_are_not_readable() -> None:
    changes, _, _ = run(pod(trainer(), nodeSelector=A100), known=None)

    assert changes == ["main: requests cpu=12", "main: requests memory=120Gi"]


NOT_KNOWN = limits({"default": {"cpu": "64"}}, {"type": "Pod", "maxLimitRequestRatio": {"cpu": "1"}})


@cases(
    ("known", "document", "want"),
    not_readable=(None, defaulted("64", "64"), Severity.WARNING),
    the_ratio_of_a_pod=(NOT_KNOWN, defaulted("64", "64"), Severity.WARNING),
    beside_what_is_within_the_share=(None, defaulted("64", "64", BOTH, sidecar(requests={"cpu": "12"})), Severity.WARNING),
    beside_what_is_not=(None, defaulted("64", "64", BOTH, sidecar(requests={"cpu": "13"})), Severity.DENIAL),
    a_wish=(None, defaulted("64", "64", ""), Severity.DENIAL),
    a_wish_beside_a_default=(None, defaulted("64", "64", BOTH.partition(";")[0]), Severity.DENIAL),
    forged_and_no_default_of_the_namespace=(NOT_KNOWN, defaulted("65", "65"), Severity.DENIAL),
    of_a_container_without_gpus=(
        None, defaulted("1", "1", BOTH.replace("main", "proxy"), sidecar(requests={"cpu": "64"})), Severity.DENIAL,
    ),
    a_default_that_could_have_been_lowered_by_its_author=(BURSTABLE, defaulted("13", "16"), Severity.DENIAL),
)  # fmt: skip
def test_a_default_that_stays_is_no_denial(
    known: NamespaceLimits | None, document: JSON, want: Severity
) -> None:
    (found,) = mutate(
        PodPatch(view(document)), HostResourcesOptions(), context(classes=SHARES, limit_ranges=known)
    )

    verb = "should" if want is Severity.WARNING else "must"
    assert (found.severity, found.message.partition(" ")[0]) == (want, verb)
