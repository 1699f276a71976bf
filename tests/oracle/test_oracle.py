"""What the oracle is asked and answers; that Kubernetes answers the same: tests/cluster/test_oracle.py."""

import subprocess
import sys

import pytest

from tests.builders import JSON, deployment, gpu_container, manifest, pod
from tests.cases import cases
from tests.oracle import Refusal, World, WorldRefused, oracle

pytestmark = pytest.mark.processes
GPU = "nvidia.com/gpu"
JOB = {"template": {"spec": {**pod(gpu_container("2"))["spec"], "restartPolicy": "Never"}}}
UNTOLERATED = Refusal("TaintToleration", ("node(s) had untolerated taint(s)",))


def named(document: JSON) -> JSON:
    return {**document, "metadata": {"name": "train"}}


def limits(name: str = "limits", **item: JSON) -> JSON:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}


def node(name: str, gpus: str, **spec: object) -> JSON:
    status = {"allocatable": {GPU: gpus, "cpu": "8", "memory": "64Gi", "pods": "110"}}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


@cases(
    ("document", "limit_ranges", "code", "message"),
    a_bool_where_a_string_is_needed=(
        pod(gpu_container(), tolerations=[{"key": "a", "operator": "Equal", "value": True}]), [], 400,
        'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal bool into Go struct field '
        "Toleration.spec.tolerations.value of type string",
    ),
    part_of_a_gpu=(
        pod(gpu_container("1500m")), [], 422,
        'Pod "train" is invalid: [spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an '
        'integer, spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "1500m": must be an integer]',
    ),
    more_than_a_limit_range_allows=(
        pod(gpu_container("4")), [limits(max={GPU: "2"})], 403,
        'pods "train" is forbidden: maximum nvidia.com/gpu usage per Container is 2, but limit is 4',
    ),
    a_request_without_a_limit_that_a_limit_range_gives=(
        pod({"name": "main", "image": "i"}), [limits(min={GPU: "1"})], 422,
        'Pod "train" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable '
        "resources",
    ),
    a_workload_of_its_own_validation=(
        manifest("batch/v1", "Job", "train", {**JOB, "backoffLimit": -1}), [], 422,
        'Job.batch "train" is invalid: spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0',
    ),
)  # fmt: skip
def test_refusals_are_those_of_the_api_server(
    document: JSON, limit_ranges: list[JSON], code: int, message: str
) -> None:
    answer = oracle().ask(World(named(document), limit_ranges=limit_ranges))

    assert (answer.code, answer.message) == (code, message)
    assert answer.pod is None
    assert answer.room() == frozenset()


def test_a_limit_range_gives_gpus() -> None:
    answer = oracle().ask(
        World(named(pod({"name": "main", "image": "i"})), limit_ranges=[limits(max={GPU: "2"})])
    )

    assert answer.pod
    assert answer.reviewed
    for seen in (answer.reviewed, answer.pod):
        assert seen["spec"]["containers"][0]["resources"] == {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
        assert seen["metadata"]["annotations"] == {
            "kubernetes.io/limit-ranger": "LimitRanger plugin set: nvidia.com/gpu request for container main; "
            "nvidia.com/gpu limit for container main"
        }


def test_which_of_two_defaults_a_pod_gets_is_a_matter_of_their_order() -> None:
    two = [limits("one", default={GPU: "1"}), limits("two", default={GPU: "2"})]
    answers = oracle().answers(World(named(pod({"name": "main", "image": "i"})), limit_ranges=two))

    got = [answer.pod and answer.pod["spec"]["containers"][0]["resources"]["limits"] for answer in answers]
    assert got == [{GPU: "1"}, {GPU: "2"}]


def test_one_of_the_limit_ranges_that_refuse_a_pod_is_named_in_the_message() -> None:
    two = [limits("one", max={GPU: "1"}), limits("two", max={GPU: "2"})]
    answer = oracle().ask(World(named(pod(gpu_container("4"))), limit_ranges=two))

    said = 'pods "train" is forbidden: maximum nvidia.com/gpu usage per Container is {}, but limit is 4'
    assert (answer.message, answer.instead) == (said.format(1), [said.format(2)])


def test_a_limit_range_that_no_cluster_can_have() -> None:
    with pytest.raises(WorldRefused, match="min value 2 is greater than max value 1"):
        oracle().ask(World(named(pod()), limit_ranges=[limits(min={GPU: "2"}, max={GPU: "1"})]))


@cases(
    "document",
    a_pod=named(pod(gpu_container("2"))),
    of_a_job=manifest("batch/v1", "Job", "train", JOB),
    of_a_deployment=deployment("train", gpu_container("2")),
)
def test_each_node_has_the_filter_that_refuses_the_pod(document: JSON) -> None:
    nodes = [
        node("free", "4"),
        node("in-use", "2"),
        node("small", "1"),
        node("cordoned", "4", unschedulable=True),
        node("kept", "4", taints=[{"key": "reserved", "effect": "NoSchedule"}]),
        node("better-not", "4", taints=[{"key": "reserved", "effect": "PreferNoSchedule"}]),
    ]
    bound = [named(pod(gpu_container("1"), nodeName=name)) for name in ("free", "in-use")]
    answer = oracle().ask(World(document, nodes=nodes, bound=bound))

    assert (answer.code, answer.message) == (201, "")
    insufficient = Refusal("NodeResourcesFit", ("Insufficient nvidia.com/gpu",))
    assert answer.nodes == {
        "free": None,
        "in-use": insufficient,
        "small": insufficient,
        "cordoned": Refusal("NodeUnschedulable", ("node(s) were unschedulable",)),
        "kept": UNTOLERATED,
        "better-not": None,
    }
    assert answer.room() == {"free", "better-not"}


def test_pods_of_a_daemon_set_have_the_tolerations_of_their_controller() -> None:
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pod(gpu_container())["spec"]}
    document = manifest(
        "apps/v1", "DaemonSet", "train", {"selector": {"matchLabels": {"app": "train"}}, "template": template}
    )
    nodes = [
        node("cordoned", "4", unschedulable=True),
        node("kept", "4", taints=[{"key": "reserved", "effect": "NoSchedule"}]),
    ]
    answer = oracle().ask(World(document, nodes=nodes))

    assert answer.nodes == {"cordoned": None, "kept": UNTOLERATED}


def test_neither_it_nor_its_worlds_know_anything_of_ours() -> None:
    code = "import sys, tests.oracle.worlds; print({name.partition('.')[0] for name in sys.modules} & {'policies', 'webhook'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
