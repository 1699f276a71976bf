"""Where the gang of a pod is looked up, and which pods may be in one."""

from typing import Any

from policies.pods.pod import Pod
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.gang_sources import GangSource, gang_source, may_be_in_gang

KINDS = load_directory(None).workload_kinds
INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
GROUP = {"leaderworkerset.sigs.k8s.io/group-index": "2"}
JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "train"}
LAUNCHER = {"training.kubeflow.org/job-role": "launcher"}
SIZE = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_GROUP: JSON = {"labels": {"kueue.x-k8s.io/pod-group-name": "gang"}, "annotations": {SIZE: "4"}}
VOLCANO, COSCHEDULING = "scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"


def owned(api_version: str, kind: str, name: str = "train", **metadata: Any) -> Pod:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid of {name}"}
    references = [{**owner, "name": "another"}, {**owner, "controller": True}]
    return made({**metadata, "ownerReferences": references})


def made(metadata: JSON, **spec: Any) -> Pod:
    document = pod(gpu_container("1"), **spec)
    document["metadata"] |= metadata
    return view(document)


def group(api_version: str, name: str = "gang") -> GangSource:
    return GangSource(api_version, "PodGroup", name)


def controller(api_version: str, kind: str, part: str = "") -> GangSource:
    return GangSource(api_version, kind, "train", part, "uid of train")


@cases(
    ("found", "want"),
    kubernetes=(made({}, schedulingGroup={"podGroupName": "gang"}), group("scheduling.k8s.io")),
    volcano=(made({"annotations": {"scheduling.k8s.io/group-name": "gang"}}), group(VOLCANO)),
    volcano_before=(made({"annotations": {"scheduling.volcano.sh/group-name": "gang"}}), group(VOLCANO)),
    coscheduling=(made({"labels": {"scheduling.x-k8s.io/pod-group": "gang"}}), group(COSCHEDULING)),
    kai=(made({"annotations": {"pod-group-name": "gang"}}), group("scheduling.run.ai/v2alpha2")),
    kueue=(made(KUEUE_GROUP), GangSource("kueue.x-k8s.io/", "PodGroup", "gang", "4")),
    kueue_of_a_statefulset=(owned("apps/v1", "StatefulSet", **KUEUE_GROUP), None),
    kueue_without_a_size=(made({"labels": KUEUE_GROUP["labels"]}), None),
    kueue_with_a_size_that_is_none=(made(KUEUE_GROUP | {"annotations": {SIZE: "many"}}), None),
    a_pod_group_before_the_controller=(
        owned("batch.volcano.sh/v1alpha1", "Job", annotations={"scheduling.k8s.io/group-name": "gang"}),
        group(VOLCANO),
    ),
    pytorchjob=(owned("kubeflow.org/v1", "PyTorchJob"), controller("kubeflow.org/v1", "PyTorchJob")),
    indexed_job=(owned("batch/v1", "Job", annotations=INDEX), controller("batch/v1", "Job")),
    job_of_a_jobset=(owned("batch/v1", "Job", labels=JOB_SET), controller("batch/v1", "Job")),
    job_of_a_launcher=(owned("batch/v1", "Job", labels=LAUNCHER), controller("batch/v1", "Job")),
    leaderworkerset=(owned("apps/v1", "StatefulSet", labels=GROUP), controller("apps/v1", "StatefulSet", "2")),
    a_plain_job=(owned("batch/v1", "Job"), None),
    a_plain_statefulset=(owned("apps/v1", "StatefulSet"), None),
    a_single_pod=(made({}), None),
    a_name_that_no_pod_group_has=(made({"annotations": {"pod-group-name": "../gang"}}), None),
    a_very_long_name=(made({"annotations": {"pod-group-name": 300 * "a"}}), None),
    a_very_long_version=(owned("batch/v1" + 400 * "1", "Job", annotations=INDEX), None),
)  # fmt: skip
def test_where_the_gang_is_looked_up(found: Pod, want: GangSource | None) -> None:
    assert gang_source(found) == want


@cases(
    ("found", "want"),
    of_a_pod_group=(made({"annotations": {"pod-group-name": "gang"}}), True),
    of_a_pytorchjob=(owned("kubeflow.org/v1", "PyTorchJob"), True),
    of_a_tfjob_whose_minimum_may_be_set=(owned("kubeflow.org/v1", "TFJob"), True),
    of_a_raycluster=(owned("ray.io/v1", "RayCluster"), True),
    of_an_indexed_job=(owned("batch/v1", "Job", annotations=INDEX), True),
    of_a_leaderworkerset=(owned("apps/v1", "StatefulSet", labels=GROUP), True),
    of_a_plain_job=(owned("batch/v1", "Job"), False),
    of_a_deployment=(owned("apps/v1", "ReplicaSet"), False),
    of_a_notebook=(owned("apps/v1", "StatefulSet"), False),
    of_an_unknown_kind=(owned("example.com/v1", "Thing"), False),
    of_a_pytorchjob_of_another_group=(owned("example.com/v1", "PyTorchJob"), False),
    alone=(made({}), False),
)
def test_which_pods_may_be_in_a_gang(found: Pod, want: bool) -> None:
    assert may_be_in_gang(found, KINDS) is want


def test_the_pods_of_a_job_share_one_object() -> None:
    assert gang_source(owned("batch/v1", "Job", annotations=INDEX)) is gang_source(
        owned("batch/v1", "Job", annotations={"batch.kubernetes.io/job-completion-index": "1"})
    )


def test_a_job_that_was_created_again_is_another_gang() -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "name": "train", "controller": True}
    first, second = (made({"ownerReferences": [{**owner, "uid": uid}]}) for uid in ("first", "second"))
    assert gang_source(first) != gang_source(second)
