"""The exported policies against our own engine, over generated pods: the same verdict, the same additions.

Of the engine only what is exported counts: all of gpu-isolation and gpu-toleration, how many GPUs (the API server itself has
checked the numbers), classes that the namespace may not use, and runtimes. A pod without the pin and the deadline that the engine
would add is denied.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime
from http import HTTPStatus

import jsonpatch
import msgspec
import pytest

from policies.finding import Finding
from policies.placement.class_choice import CLASS_NOT_ALLOWED
from policies.placement.pinning import Pinning, named_nodes, pinning
from policies.rule import Phase
from tests.builders import JSON, container, gpu_container, pod, view
from tests.cluster.exported import (
    CHOSEN,
    EXEMPTED,
    NAMESPACES,
    POLICY,
    RESTRICTED,
    TEAM,
    configuration,
    create,
    installed,
    labels,
)
from tests.controlplane import ControlPlane
from tests.corpus import CORPUS, objects
from tests.gpu_stacks import AGENTS, VALIDATORS
from webhook.configuration.decoding import Problem
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.tools.check.manifests import as_stored, with_requests
from webhook.workloads.places import pod_places

SEED = 20261121
THREADS = 6
ADDED = frozenset({"gpu-isolation", "gpu-toleration"})
COUNTED = ("by policy", "at most 100 percent")
"""What remains to check of numbers after the API server's own validation."""

RESOURCES = """
nvidia.com/gpu nvidia.com/gpu nvidia.com/gpu nvidia.com/gpu nvidia.com/mig-1g.10gb nvidia.com/gpucores amd.com/gpu
aws.amazon.com/neuroncore deviceclass.resource.kubernetes.io/big gpu.intel.com/i915_monitoring gpu.intel.com/i915 rdma/hca
squat.ai/gpu acme.io/npu3-cores acme.io/output
""".split()  # noqa: SIM905
AMOUNTS = ["0", "1", "1", "1", "2", "3", "4", "5", "1k", "2000m", "150"]
VALUES = ["void", "none", "", "all", "0", None, "x" * 130]
PATHS = """
/dev /dev/ /dev/nvidia0 //dev/./nvidia-caps/c /dev/dri/card0 /dev/drive /dev/shm / /devices
/dev/kfd /dev/kfd2 /var/dev/nvidia0 /dev/accel/accel0 /./ /dev/nvme0n1
/dev/char/195:0 /var/run//nvidia/driver/ /run/nvidia /run/udev /var/run/docker.sock dev/nvidia0
/var/lib/kubelet/device-plugins /var/lib/./kubelet/pod-resources/x /var/lib/kubelet/pods /var
/etc/cdi /run/cdi/a /proc/1/root/dev /proc/sys/root/x /proc/self/task/1/cwd /data /data
/var/lib/kubelet/plugins/gpu.nvidia.com /var/lib/kubelet/plugins_registry/ /var/run/docker/containerd /dev/vfio/17
/proc /proc/1/ /proc/self/task/1 /proc/self/task/1/net
""".split()  # noqa: SIM905 - of the node, and only a text
MOUNT_PATHS = [*["/mnt"] * 6, "/var/run/nvidia-container-devices/all", "run/../nvidia-container-devices"]
VARIABLES = [*["NVIDIA_VISIBLE_DEVICES"] * 6, "HABANA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"]
VARIABLES += ["DOCKER_RESOURCE_GPU", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]
PREFIXES = [None, "", "APP_", "NVIDIA_", "DOCKER_RESOURCE_G"]
ISOLATED = (
    "in a container that requests no GPU",
    "beside a GPU request",
    "lead to GPUs",
    "list of GPUs",
    "name devices",
    "shows the container all GPUs",
)
NAMES_DEVICES = "cdi.k8s.io/gpus nvidia.cdi.k8s.io/container.c0 example.com/cdi.k8s.io devices.nri.io".split()  # noqa: SIM905
TOLERATIONS = [
    {"operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
    {"key": "dedicated", "operator": "Equal", "value": "ml-workloads", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "others", "effect": "NoSchedule"},
    {"key": "reserved", "operator": "Exists", "effect": "NoExecute"},
    {"key": "reserved", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600},
    {"key": "accelerator", "operator": "Exists"},
    {"key": "zone", "value": "a"},
]
LABELS = ["accelerator", "accelerator", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "disk"]
CLASSES = ["nvidia-t4", "nvidia-a100", "nvidia-a100-80gb", "nvidia-h100-80gb", "nvidia-l4"]
CLASSES += ["Tesla-T4", "nvidia-tesla-a100", "x"]


def some(choose: random.Random, chance: float, **fields: object) -> JSON:
    """Return each of the fields with that chance."""
    return {name: value for name, value in fields.items() if choose.random() < chance}


def container_of(choose: random.Random, name: str) -> JSON:
    made = container(name, **some(choose, 0.1, securityContext={"privileged": choose.random() < 0.7}))
    if choose.random() < 0.5:
        requested = {
            choose.choice(RESOURCES): choose.choice(AMOUNTS) for _ in range(choose.choice([1, 1, 2]))
        }
        made["resources"] = {"limits": {"cpu": "1", **requested}, **some(choose, 0.3, requests=requested)}
    if choose.random() < 0.3:
        value = choose.choice(VALUES)
        variable: JSON = {"name": choose.choice(VARIABLES), **({} if value is None else {"value": value})}
        if choose.random() < 0.2:
            variable = {"name": variable["name"], "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        made["env"] = [{"name": "HOME", "value": "/"}, variable]
    if choose.random() < 0.2:
        mount = {"name": choose.choice(["v0", "v1"]), "mountPath": choose.choice(MOUNT_PATHS)}
        made["volumeMounts"] = [mount]
    if choose.random() < 0.1:
        source: JSON = {"configMapRef": {"name": "settings"}}
        prefix = choose.choice(PREFIXES)
        made["envFrom"] = [{**source, **({} if prefix is None else {"prefix": prefix})}]
    if choose.random() < 0.1:
        made["ports"] = [{"containerPort": 8000}]
    if choose.random() < 0.1:
        made.setdefault("resources", {})["claims"] = [{"name": "claim"}]
    return made


def term_of(choose: random.Random) -> JSON:
    expressions = [
        {
            "key": choose.choice(LABELS),
            "operator": choose.choice(["In", "In", "In", "NotIn"]),
            "values": choose.sample(CLASSES, choose.choice([1, 1, 2])),
        }
        for _ in range(choose.choice([0, 1, 1, 2]))
    ]
    return {"matchExpressions": expressions} if expressions else {}


def pods(count: int) -> Iterator[JSON]:
    choose = random.Random(SEED)  # noqa: S311  the same pods in every run
    for number in range(count):
        spec: JSON = {
            "containers": [container_of(choose, f"c{i}") for i in range(choose.choice([1, 1, 2, 3]))],
            "volumes": [{"name": name, "hostPath": {"path": choose.choice(PATHS)}} for name in ("v0", "v1")],
            "resourceClaims": [{"name": "claim", "resourceClaimName": "mine"}],
            **some(choose, 0.15, schedulingGates=[{"name": "example.com/queue"}]),
            **some(choose, 0.6, restartPolicy=choose.choice(["Never", "OnFailure"])),
            **some(choose, 0.4, activeDeadlineSeconds=choose.choice([3600, 3601, 7200, 7201])),
            **some(choose, 0.3, schedulerName=choose.choice(["kai-scheduler", "kai-scheduler", "volcano"])),
            **some(choose, 0.5, tolerations=choose.sample(TOLERATIONS, choose.choice([1, 2, 3]))),
            **some(
                choose, 0.4, nodeSelector={choose.choice(LABELS): choose.choice(CLASSES) for _ in range(2)}
            ),
        }
        if not any("claims" in each.get("resources", {}) for each in spec["containers"]):
            del spec["resourceClaims"]
        if choose.random() < 0.4:
            steps = [container_of(choose, f"i{i}") for i in range(choose.choice([1, 2, 3]))]
            for step in steps:
                step.get("resources", {}).pop("claims", None)
            spec["initContainers"] = [{**step, **some(choose, 0.4, restartPolicy="Always")} for step in steps]
        if choose.random() < 0.2:
            terms = [term_of(choose) for _ in range(choose.choice([1, 2]))]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            spec["affinity"] = {"nodeAffinity": required}
        annotations = some(choose, 0.3, **{"gpu-fraction": "0.5"})
        annotations |= some(choose, 0.1, **{"gpu-fraction-container-name": choose.choice(["c1", "i0"])})
        annotations |= some(choose, 0.1, **{choose.choice(NAMES_DEVICES): "nvidia.com/gpu=all"})
        annotations |= some(
            choose, 0.1, **{"gpu-admission.dev/gpu-class": choose.choice(["nvidia-h100", "gpu"])}
        )
        metadata = {"name": f"generated-{number}", "annotations": annotations}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


KAI: JSON = {"annotations": {"gpu-fraction": "0.01"}, "schedulerName": "kai-scheduler"}
FROM_KAI = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
ASSIGNED = {
    "name": "ASCEND_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['nvidia.com/gpu']"}},
}
OTHERS: JSON = {
    "annotations": {"tensor-fusion.ai/gpu-count": "1"},
    "schedulerName": "tensor-fusion-scheduler",
}
NEVER_GENERATED = [
    pod(container("c0"), **OTHERS),
    pod(container("c0"), **OTHERS, nodeName="node-1"),
    pod(container("c0"), nodeSelector={"type": "virtual-kubelet"}),
    *AGENTS.values(),
    *VALIDATORS.values(),
    pod(container("c0"), **KAI, nodeName="node-1"),
    pod(container("c0", env=[FROM_KAI]), **KAI),
    pod(gpu_container(env=[ASSIGNED])),
    pod(gpu_container(env=[ASSIGNED]), annotations={"nvidia.com/gpu": "0"}),
    pod(container("c0", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])),
]
"""GPUs of other schedulers, GPU stacks, a fraction without its scheduler, the variable as KAI and Ascend write it, and `none`."""


def pods_of_others() -> Iterator[JSON]:
    """Yield the pods, and those of the workloads, that others wrote, without the objects of a cluster that they name."""
    for _source, data in objects(CORPUS):
        group = data["apiVersion"].rpartition("/")[0]
        for place in pod_places(load_directory(None).workload_kinds, group, data["kind"], data):
            assert not isinstance(place, Problem), place
            if place.is_partial:
                continue  # an operator writes the rest of it
            left_out = {"priorityClassName", "runtimeClassName", "serviceAccountName", "serviceAccount"}
            spec = {key: value for key, value in place.data["spec"].items() if key not in left_out}
            annotations = (place.data.get("metadata") or {}).get("annotations")
            metadata = {"name": "written-by-others", **({"annotations": annotations} if annotations else {})}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


# ---- what our engine says


class Expected(msgspec.Struct):
    denials: list[Finding]
    pod: JSON
    lacks_deadline: bool
    """Whether the engine would add one, and the exported policies deny the pod without it."""


def expected(engine: DecisionCache, document: JSON, namespace: str) -> Expected:
    by = Evaluator(
        cache=engine, now=datetime.now(UTC), tries_choices=False
    )  # a CEL expression cannot try them
    document = with_requests(as_stored(deepcopy(document)))
    policy = engine.configuration.policies.for_namespace(namespace, labels(namespace))
    decision = by.evaluate(Phase.MUTATE, policy, view(document))
    operations = [
        msgspec.json.decode(msgspec.json.encode(operation))
        for change in decision.changes
        if change.rule in ADDED
        for operation in change.operations
    ]
    patched = jsonpatch.apply_patch(document, operations)
    verdict = by.evaluate(Phase.VALIDATE, policy, view(patched))
    denials = list(verdict.findings(Outcome.DENIED))
    denials += [
        each
        for each in decision.findings(Outcome.DENIED)
        if each.rule == "max-runtime" and each not in denials
    ]
    pod, configuration = view(patched), engine.configuration
    has_gpus = configuration.resource_mapping.requests_gpus_without_claims(pod)
    lacks = {change.rule for change in decision.changes if has_gpus} & {"max-runtime"}
    pinned, is_placed_by_class = pinning(pod, configuration.classes), has_gpus and not named_nodes(pod)
    found = [each for each in denials if is_exported(each, is_placed_by_class, pinned, is_gated=pod.is_gated)]
    return Expected(found, patched, lacks_deadline=bool(lacks))


def is_exported(
    finding: Finding, is_placed_by_class: bool, pinned: Pinning | None, *, is_gated: bool
) -> bool:
    if finding.rule == "gpu-requests":
        return any(words in finding.message for words in COUNTED)
    if finding.rule == "gpu-class" and pinned is None:
        return is_placed_by_class and not is_gated
    if finding.rule == "gpu-class":
        return is_placed_by_class and (
            pinned is None or (finding.reason, finding.path) == (CLASS_NOT_ALLOWED, "spec")
        )
    if finding.rule == "max-runtime":
        return finding.path == "spec.activeDeadlineSeconds"
    return finding.rule == "gpu-isolation"


# ---- the comparison


def additions(document: JSON) -> JSON:
    """Return what the two rules may have added to, without what the API server adds by itself."""
    spec = document["spec"]
    tolerations = [
        each for each in spec.get("tolerations", []) if "node.kubernetes.io" not in each.get("key", "")
    ]
    containers = spec["containers"] + spec.get("initContainers", [])
    # An empty value is left out in JSON of the API server.
    env = {
        c["name"]: [{k: v for k, v in e.items() if k != "valueFrom" and v} for e in c.get("env", [])]
        for c in containers
    }
    # CEL reads the names of a container's resources in any order.
    return {"tolerations": sorted(tolerations, key=lambda each: str(sorted(each.items()))), "env": env}


@pytest.fixture(scope="module")
def plane(exported: ControlPlane) -> ControlPlane:
    return exported


class Comparison(msgspec.Struct):
    """What was seen of either verdict, and the cases in which they differ."""

    seen: Counter[str] = msgspec.field(default_factory=Counter)
    differences: list[tuple[object, ...]] = msgspec.field(default_factory=list)


Compare = Callable[[Iterable[JSON], list[str]], Comparison]


@pytest.fixture(scope="module")
def compare(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Return the function that tries the pods, each in one of the namespaces, on the API server and in the engine."""
    engine = DecisionCache(configuration(tmp_path_factory.mktemp("engine")))
    client = plane.client()

    def run(documents: Iterable[JSON], namespaces: list[str]) -> Comparison:
        choose = random.Random(SEED)  # noqa: S311  the same namespaces in every run
        cases = [(document, choose.choice(namespaces)) for document in documents]
        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(lambda case: create(client, *case), cases))
        comparison = Comparison()
        for (document, namespace), (status, answer) in zip(cases, answers, strict=True):
            if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
                comparison.seen["invalid"] += 1
                continue
            want = expected(engine, document, namespace)
            isolation = [finding.sentence() for finding in want.denials if finding.rule == "gpu-isolation"]
            difference = differing(status, answer, want, isolation)
            if difference is not None:
                comparison.differences.append((namespace, document, *difference))
            denying = {finding.rule for finding in want.denials} | {
                "deadline" for _ in range(want.lacks_deadline)
            }
            comparison.seen.update(denying or {"allowed"})
            comparison.seen.update(words for words in ISOLATED if any(words in text for text in isolation))
            comparison.seen[f"{status} in {namespace}"] += 1
        return comparison

    return run


def differing(
    status: int, answer: JSON, want: Expected, isolation: list[str]
) -> tuple[object, object] | None:
    """Return what the API server and the engine say, where that is not the same."""
    message = answer.get("message", "")
    if (status == HTTPStatus.FORBIDDEN) != (bool(want.denials) or want.lacks_deadline):
        return message, want.denials
    if "[gpu-isolation]" in message and not message.endswith("; ".join(isolation)):
        return message, isolation
    if status == HTTPStatus.CREATED and additions(answer) != additions(want.pod):
        return additions(answer), additions(want.pod)
    return None


LONG = (pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600))


@pytest.mark.parametrize(
    "number", [200, pytest.param(500, marks=pytest.mark.slow), pytest.param(5000, marks=LONG)]
)
def test_exported_policies_and_engine_agree(compare: Compare, number: int) -> None:
    found = compare(
        [*NEVER_GENERATED, *pods(number)], [*NAMESPACES, TEAM, RESTRICTED, RESTRICTED, *[CHOSEN] * 3]
    )
    seen = found.seen

    assert found.differences[:3] == [], f"{len(found.differences)} of {number} differ"
    assert seen["invalid"] < number / 5, seen
    assert all(seen[key] > number / 25 for key in ("gpu-requests", "gpu-isolation", "allowed")), seen
    assert all(seen[key] for key in ("gpu-class", "max-runtime", "deadline")), seen
    assert all(seen[words] > number / 50 for words in ISOLATED), seen
    assert seen[f"201 in {EXEMPTED}"] > number / 25, seen


def test_pods_of_gpu_stacks_start_unchanged_in_an_exempted_namespace(compare: Compare) -> None:
    stack = [*AGENTS.values(), *VALIDATORS.values()]

    found = compare(stack, [EXEMPTED])

    assert found.differences == []
    assert found.seen == {"allowed": len(stack), f"201 in {EXEMPTED}": len(stack)}


@pytest.mark.skipif(
    not CORPUS.is_dir(), reason="no folder of manifests (shared/corpus, or GPU_ADMISSION_CORPUS)"
)
def test_exported_policies_and_engine_agree_over_the_corpus(compare: Compare) -> None:
    documents = list(pods_of_others())

    found = compare(documents, [TEAM])

    assert found.differences[:3] == [], f"{len(found.differences)} of {len(documents)} differ"
    assert found.seen["invalid"] < len(documents) / 4, found.seen
    assert found.seen["allowed"] > len(documents) / 4, found.seen


# ---- tolerations with operator Gt or Lt (feature gate, alpha since 1.35)

GATE = "TaintTolerationComparisonOperators"
TIER = "950"
"""Value of the taint `tier` that the policy lists."""


def comparing(operator: str, value: str, key: str = "tier") -> JSON:
    return {"key": key, "operator": operator, "value": value, "effect": "NoSchedule"}


def test_by_default_the_api_server_refuses_them(exported: ControlPlane) -> None:
    document = pod(gpu_container(), tolerations=[comparing("Gt", "900")])

    status, answer = create(exported.client(), document)

    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'Unsupported value: "Gt"' in answer["message"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> DecisionCache:
    folder = tmp_path_factory.mktemp("tiers")
    dedicated = "- {key: dedicated, value: ml-workloads, effect: NoSchedule}"
    tier = f'- {{key: tier, value: "{TIER}", effect: NoSchedule}}'
    (folder / "policy.yaml").write_text(POLICY.replace(dedicated, tier))
    return DecisionCache(load_directory(folder))


@pytest.fixture(scope="module")
def comparing_plane(engine: DecisionCache) -> Iterator[ControlPlane]:
    with (
        ControlPlane(controllers=True, gates=[GATE]) as plane,
        installed(plane, engine.configuration),
    ):
        yield plane


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        pytest.param(comparing("Gt", "900"), True, id="950-is-greater"),
        pytest.param(comparing("Gt", "950"), False, id="the-same-value"),
        pytest.param(comparing("Gt", "1000"), False, id="950-is-not-greater"),
        pytest.param(comparing("Lt", "1000"), True, id="950-is-less-as-a-number"),
        pytest.param(comparing("Lt", "-1"), False, id="950-is-not-less"),
        pytest.param(comparing("Gt", "1", key="level"), False, id="another-key"),
    ],
)
def test_engine_and_export_add_what_it_does_not_tolerate(
    comparing_plane: ControlPlane, engine: DecisionCache, toleration: JSON, is_enough: bool
) -> None:
    document = pod(gpu_container(), tolerations=[toleration])

    status, answer = create(comparing_plane.client(), document)

    assert status == HTTPStatus.CREATED, answer
    want = expected(engine, document, TEAM)
    assert additions(answer) == additions(want.pod)
    equal = [each for each in answer["spec"]["tolerations"] if each.get("operator", "Equal") == "Equal"]
    assert any(each["value"] == TIER for each in equal) is not is_enough
