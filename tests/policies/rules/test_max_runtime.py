"""max-runtime: pods that run to completion get a deadline, the author's before the policy's, and servers get none."""

from typing import Any

from policies.finding import Severity
from policies.pods.patch import PodPatch
from policies.pods.workload import NO_OWNER, Owner
from policies.rule import Phase
from policies.rules.max_runtime import Exempt, MaxRuntimeOptions, Runtimes, check_workload, mutate
from tests.builders import (
    CLASSES,
    JSON,
    apply,
    container,
    context,
    gpu_container,
    manifest,
    pod,
    view,
    workload,
)
from tests.cases import cases

WISH = "gpu-admission.dev/max-runtime"
BOTH = MaxRuntimeOptions(default="8h", max="72h")
ONLY_MAX = MaxRuntimeOptions(max="72h")
NOTHING = MaxRuntimeOptions()
BY_CLASS = MaxRuntimeOptions(
    default="8h",
    max="72h",
    by_class={"nvidia-t4": Runtimes(max="4h"), "nvidia-a100": Runtimes(default="24h", max="168h")},
)
JOB = Owner(kind="Job", completes=True)
UNREAD = Owner(
    kind="Job", completes=True, name="Job/train", deadline_is_known=False, problem="no time was left"
)
EIGHT, THREE_DAYS = 28_800, 259_200
PORTS = [{"containerPort": 8888}]
PROBE = {"tcpSocket": {"port": 8888}}
DENIED = "must be at most 259200 (72h), the longest runtime that the policy allows"


def run(wish: str | None = None, *containers: JSON, **spec: Any) -> JSON:
    """Return a GPU pod that does not always restart, with the annotation."""
    annotations = {WISH: wish} if wish is not None else None
    made = containers or (gpu_container(),)
    return pod(*made, annotations=annotations, **{"restartPolicy": "Never", **spec})


def bounded(document: JSON, options: MaxRuntimeOptions, owner: Owner = NO_OWNER, **tweaks: Any) -> Any:
    """Return the deadline that the pod gets or has, and what is said; a second pass adds and says no more."""
    known = context(Phase.MUTATE, owner=owner, **tweaks)
    patch = PodPatch(view(document))
    found = list(mutate(patch, options, known))
    again = PodPatch(patch.pod)
    list(mutate(again, options, known))
    assert again.changes == []
    return apply(document, patch)["spec"].get("activeDeadlineSeconds"), [each.sentence() for each in found]


@cases(
    ("document", "options", "owner", "want"),
    a_run_gets_the_default=(run(), BOTH, NO_OWNER, EIGHT),
    the_maximum_without_a_default=(run(), ONLY_MAX, NO_OWNER, THREE_DAYS),
    its_own_deadline_stays=(run(activeDeadlineSeconds=60), BOTH, NO_OWNER, 60),
    its_annotation_comes_before_the_default=(run("36h"), BOTH, NO_OWNER, 129_600),
    an_annotation_alone=(run("1h30m"), NOTHING, NO_OWNER, 5_400),
    nothing_configured=(run(), NOTHING, NO_OWNER, None),
    a_job_that_restarts_on_failure=(run(restartPolicy="OnFailure"), BOTH, JOB, EIGHT),
    a_job_with_a_port=(run(None, gpu_container(ports=PORTS)), BOTH, JOB, EIGHT),
    a_job_of_an_operator_that_restarts=(run(restartPolicy="Always"), BOTH, JOB, EIGHT),
    a_longer_deadline_of_its_job=(run(), BOTH, Owner("Job", completes=True, deadline=172_800), 172_800),
    an_annotation_beside_that_of_its_job=(run("4h"), BOTH, Owner("Job", True, 172_800), 14_400),
    a_sidecar_with_a_port=(run(None, gpu_container(), container("proxy", ports=PORTS)), BOTH, NO_OWNER, EIGHT),
    a_text_is_another_tools=(run(activeDeadlineSeconds="{{inputs.limit}}"), BOTH, NO_OWNER, "{{inputs.limit}}"),
    a_server=(run(restartPolicy="Always"), BOTH, NO_OWNER, None),
    a_server_by_default=(pod(gpu_container()), BOTH, NO_OWNER, None),
    a_notebook_of_a_hub=(run(None, gpu_container(ports=PORTS), restartPolicy="OnFailure"), BOTH, NO_OWNER, None),
    probed_and_so_a_server=(run(None, gpu_container(readinessProbe=PROBE)), BOTH, NO_OWNER, None),
    a_virtual_machine=(run(), BOTH, Owner("VirtualMachineInstance"), None),
    an_exempt_kind=(run(), MaxRuntimeOptions(max="1h", exempt=Exempt(kinds=("Job",))), JOB, None),
    no_kind_is_exempt=(run(), MaxRuntimeOptions(max="1h", exempt=Exempt(kinds=())), Owner("RayCluster"), 3_600),
    an_owner_that_nobody_read=(run(), BOTH, Owner("Job", completes=True, deadline_is_known=False), None),
    the_maximum_where_its_job_cannot_be_read=(run(), ONLY_MAX, UNREAD, THREE_DAYS),
    its_annotation_where_its_job_cannot_be_read=(run("4h"), BOTH, UNREAD, 14_400),
    nothing_configured_and_its_job_cannot_be_read=(run(), NOTHING, UNREAD, None),
    no_gpu=(run(None, container()), BOTH, NO_OWNER, None),
)  # fmt: skip
def test_the_deadline_of_a_pod(document: JSON, options: MaxRuntimeOptions, owner: Owner, want: Any) -> None:
    assert bounded(document, options, owner) == (want, [])


def on(**labels: str) -> JSON:
    return run(nodeSelector=labels)


@cases(
    ("document", "want"),
    of_the_class=(on(accelerator="nvidia-t4"), 14_400),
    of_the_family=(on(accelerator="nvidia-a100-80gb"), 86_400),
    of_every_class=(on(accelerator="amd-mi300x"), EIGHT),
    of_no_class=(run(), EIGHT),
)
def test_the_default_of_a_class(document: JSON, want: int) -> None:
    assert bounded(document, BY_CLASS) == (want, [])


def test_the_longest_runtime_of_several_classes_counts() -> None:
    either = [{"key": "accelerator", "operator": "In", "values": ["nvidia-t4", "nvidia-a100-80gb"]}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": either}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    assert bounded(run("160h", affinity=affinity), BY_CLASS) == (576_000, [])


CLAIMING = pod(restartPolicy="Never", resourceClaims=[{"name": "it", "resourceClaimName": "it"}])


@cases(
    ("claimed", "want"),
    of_gpus=(("gpu.nvidia.com",), EIGHT),
    of_unknown_devices=((), None),
)
def test_a_claim(claimed: tuple[str, ...], want: int | None) -> None:
    assert bounded(CLAIMING, BOTH, device_classes=claimed) == (want, [])


@cases(
    ("document", "options", "owner", "want"),
    its_own_deadline=(
        run(activeDeadlineSeconds=259_201), BOTH, NO_OWNER,
        f'spec.activeDeadlineSeconds = "259201": set activeDeadlineSeconds: 259200; {DENIED}',
    ),
    its_annotation=(
        run("73h"), BOTH, NO_OWNER,
        f'metadata.annotations[{WISH}] = "73h": set {WISH}: 72h; must be at most 72h, the longest runtime that the policy '
        "allows",
    ),
    of_its_class=(
        run(activeDeadlineSeconds=EIGHT, nodeSelector={"accelerator": "nvidia-t4"}), BY_CLASS, NO_OWNER,
        'spec.activeDeadlineSeconds = "28800": set activeDeadlineSeconds: 14400; must be at most 14400 (4h), the longest '
        "runtime that the policy allows",
    ),
    the_deadline_of_its_job=(
        run(), BOTH,
        Owner("Job", completes=True, deadline=360_000, deadline_path="spec.activeDeadlineSeconds", name="Job/train"),
        "spec.activeDeadlineSeconds of Job/train must be at most 259200 (72h), not 360000",
    ),
    an_annotation_that_is_no_duration=(
        run("long"), BOTH, NO_OWNER,
        f'metadata.annotations[{WISH}] = "long": set for example {WISH}: "8h"; must be a duration of at least a second, such '
        'as "8h" or "1h30m"',
    ),
    a_duration_in_words=(
        run("3 days"), BOTH, NO_OWNER,
        f'metadata.annotations[{WISH}] = "3 days": set {WISH}: "72h"; must be a duration of at least a second, such as "8h" '
        'or "1h30m"',
    ),
)  # fmt: skip
def test_denied(document: JSON, options: MaxRuntimeOptions, owner: Owner, want: str) -> None:
    patch = PodPatch(view(document))
    (found,) = mutate(patch, options, context(Phase.MUTATE, owner=owner))

    assert (found.severity, found.sentence(), patch.changes) == (Severity.DENIAL, want, [])


@cases(
    ("document", "owner", "want"),
    on_a_server=(
        run("8h", restartPolicy="Always"), NO_OWNER,
        f'metadata.annotations[{WISH}] = "8h": has no effect: the pod does not run to completion',
    ),
    beside_another_deadline=(
        run("8h", activeDeadlineSeconds=60), NO_OWNER,
        f'metadata.annotations[{WISH}] = "8h": has no effect: spec.activeDeadlineSeconds is 60',
    ),
)  # fmt: skip
def test_warned(document: JSON, owner: Owner, want: str) -> None:
    patch = PodPatch(view(document))
    (found,) = mutate(patch, BOTH, context(Phase.MUTATE, owner=owner))

    assert (found.severity, found.sentence(), patch.changes) == (Severity.WARNING, want, [])


@cases(
    ("options", "deadline", "want"),
    the_maximum=(
        BOTH, THREE_DAYS,
        f"spec.activeDeadlineSeconds: set it, or annotation {WISH}; max (72h) and no default (8h) is added, because Job/train "
        "could not be read: no time was left",
    ),
    nothing_without_a_maximum=(
        MaxRuntimeOptions(default="8h"), None,
        f"spec.activeDeadlineSeconds: set it, or annotation {WISH}; no default (8h) is added, because Job/train could not be "
        "read: no time was left",
    ),
)  # fmt: skip
def test_a_pod_whose_job_cannot_be_read(options: MaxRuntimeOptions, deadline: int | None, want: str) -> None:
    assert bounded(run(), options, UNREAD) == (deadline, [want])


def job(deadline: Any, **metadata: Any) -> JSON:
    template = {"spec": {"containers": [gpu_container()], "restartPolicy": "Never"}}
    return manifest(
        "batch/v1", "Job", "train", {"template": template, "activeDeadlineSeconds": deadline}, **metadata
    )


PYTORCH = manifest(
    "kubeflow.org/v1",
    "PyTorchJob",
    "train",
    {
        "runPolicy": {"activeDeadlineSeconds": 360_000},
        "pytorchReplicaSpecs": {
            role: {"template": {"spec": {"containers": [gpu_container()]}}} for role in ("Master", "Worker")
        },
    },
)


@cases(
    ("document", "options", "want"),
    of_a_job=(job(360_000), BOTH, [f'spec.activeDeadlineSeconds = "360000": set activeDeadlineSeconds: 259200; {DENIED}']),
    once_for_all_roles=(
        PYTORCH, BOTH,
        [f'spec.runPolicy.activeDeadlineSeconds = "360000": set activeDeadlineSeconds: 259200; {DENIED}'],
    ),
    short_enough=(job(THREE_DAYS), BOTH, []),
    no_maximum=(job(360_000), NOTHING, []),
    an_exempt_kind=(job(360_000), MaxRuntimeOptions(max="1h", exempt=Exempt(kinds=("Job",))), []),
)  # fmt: skip
def test_the_deadline_of_a_workload(document: JSON, options: MaxRuntimeOptions, want: list[str]) -> None:
    found = list(check_workload(workload(document), options, context(Phase.TEMPLATE)))

    assert [each.sentence() for each in found] == [f"{text}" for text in want]
    assert {each.severity for each in found} <= {Severity.WARNING}


@cases(
    ("options", "want"),
    defaults=(NOTHING, []),
    both=(BY_CLASS, []),
    everything_wrong=(
        MaxRuntimeOptions(
            default="3 days",
            max="0s",
            by_class={"nvidia-t4": Runtimes(default="8h", max="4h"), "nvidia-a100": Runtimes(max="4 h")},
            exempt=Exempt(kinds=("ray",)),
        ),
        [
            ("default", 'must be a duration of at least a second, such as "8h" or "1h30m", not "3 days"'),
            ("max", 'must be a duration of at least a second, such as "8h" or "1h30m", not "0s"'),
            ("byClass[nvidia-t4].default", "must be at most max (4h), not 8h"),
            ("byClass[nvidia-a100].max", 'must be a duration of at least a second, such as "8h" or "1h30m", not "4 h"'),
            ("exempt.kinds[0]", 'must be a kind such as RayCluster, not "ray"'),
        ],
    ),
)  # fmt: skip
def test_options(options: MaxRuntimeOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want


def test_classes_that_nobody_knows() -> None:
    options = MaxRuntimeOptions(by_class={"a100": Runtimes(), "nvidia-t4": Runtimes(), "tpu": Runtimes()})

    assert list(options.class_problems(CLASSES)) == [
        ("byClass[a100]", "must be a class or a family: did you mean nvidia-a100?"),
        ("byClass[tpu]", "must be a class or a family"),
    ]
