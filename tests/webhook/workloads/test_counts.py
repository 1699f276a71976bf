"""How many pods each template of an object makes: at one time, at most, and together."""

import pytest
from msgspec.structs import replace

from policies.pods.workload import PodCount
from tests.builders import JSON, gpu_container
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.counts import fields_without_pods
from webhook.workloads.places import PodPlace, pod_places

KINDS = load_directory(None).workload_kinds
SPEC: JSON = {"containers": [gpu_container()]}
TEMPLATE: JSON = {"spec": SPEC}
UNKNOWN, NO_PODS, ONE = PodCount(None), PodCount(0), PodCount()


def counts(group: str, kind: str, data: JSON) -> list[PodCount]:
    places = pod_places(KINDS, group, kind, data)
    assert places
    found = (place.count for place in places if isinstance(place, PodPlace))
    return [replace(count, number=None, resumed=None) for count in found]


def torch(worker: JSON, master: JSON | None = None, **spec: JSON) -> JSON:
    roles = {"Worker": worker} | ({"Master": master} if master is not None else {})
    return {
        "spec": {"pytorchReplicaSpecs": {k: {**v, "template": TEMPLATE} for k, v in roles.items()}, **spec}
    }


def ray(group: JSON, **spec: object) -> JSON:
    head = {"template": TEMPLATE}
    return {"spec": {"headGroupSpec": head, "workerGroupSpecs": [{**group, "template": TEMPLATE}], **spec}}


def lws(spec: JSON, *, has_leader: bool = True) -> JSON:
    leader = {"leaderTemplate": TEMPLATE} if has_leader else {}
    size = {"size": spec.pop("size")} if "size" in spec else {}
    return {"spec": {**spec, "leaderWorkerTemplate": {**size, **leader, "workerTemplate": TEMPLATE}}}


@cases(
    ("group", "kind", "data", "want"),
    deployment_default=("apps", "Deployment", {"spec": {"template": TEMPLATE}}, [ONE]),
    scaled_to_nothing=("apps", "Deployment", {"spec": {"replicas": 0, "template": TEMPLATE}}, [NO_PODS]),
    statefulset=("apps", "StatefulSet", {"spec": {"replicas": 3, "template": TEMPLATE}}, [PodCount(3)]),
    one_a_node=("apps", "DaemonSet", {"spec": {"template": TEMPLATE}}, [UNKNOWN]),
    a_parameter=("apps", "Deployment", {"spec": {"replicas": "${N}", "template": TEMPLATE}}, [UNKNOWN]),
    a_template_alone=("", "PodTemplate", {"template": TEMPLATE}, [NO_PODS]),
    job_parallelism=("batch", "Job", {"spec": {"parallelism": 8, "template": TEMPLATE}}, [PodCount(8)]),
    job_with_fewer_completions=("batch", "Job",
        {"spec": {"parallelism": 8, "completions": 3, "template": TEMPLATE}}, [PodCount(3)]),
    suspended_job=("batch", "Job", {"spec": {"parallelism": 8, "suspend": True, "template": TEMPLATE}},
        [NO_PODS]),
    cronjob=("batch", "CronJob",
        {"spec": {"suspend": False, "jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}}},
        [PodCount(2)]),
    pytorchjob_waits_for_all=("kubeflow.org", "PyTorchJob", torch({"replicas": 7}, {}),
        [PodCount(7, None, 7), PodCount(1, None, 1)]),
    elastic_pytorchjob=("kubeflow.org", "PyTorchJob",
        torch({"replicas": 4}, elasticPolicy={"minReplicas": 2, "maxReplicas": 16}), [PodCount(4, 16, 2)]),
    a_smaller_gang_of_the_whole_job=("kubeflow.org", "PyTorchJob",
        torch({"replicas": 7}, {}, runPolicy={"schedulingPolicy": {"minAvailable": 4}}),
        [PodCount(7, None, 3), PodCount(1)]),
    suspended_pytorchjob=("kubeflow.org", "PyTorchJob", torch({"replicas": 7}, runPolicy={"suspend": True}),
        [NO_PODS]),
    ascendjob=("mindxdl.gitee.com", "AscendJob",
        {"spec": {"replicaSpecs": {"Master": {"template": TEMPLATE}, "Worker": {"replicas": 3, "template": TEMPLATE}}}},
        [PodCount(1, None, 1), PodCount(3, None, 3)]),
    groups_of_a_role=("workloads.x-k8s.io", "RoleBasedGroup",
        {"spec": {"roles": [{"replicas": 2, "leaderWorkerPattern": {"size": 4, "template": TEMPLATE}},
            {"replicas": 3, "standalonePattern": {"template": TEMPLATE}}]}}, [PodCount(3), PodCount(8, None, 4)]),
    groups_of_a_role_before_it_had_patterns=("workloads.x-k8s.io", "RoleBasedGroup",
        {"spec": {"roles": [{"replicas": 2, "leaderWorkerSet": {"size": 4}, "template": TEMPLATE}]}},
        [PodCount(8, None, 4)]),
    tfjob_is_no_gang=("kubeflow.org", "TFJob",
        {"spec": {"tfReplicaSpecs": {"PS": {"replicas": 2, "template": TEMPLATE}}}}, [PodCount(2)]),
    stopped_notebook=("kubeflow.org", "Notebook",
        {"metadata": {"annotations": {"kubeflow-resource-stopped": "2026"}}, "spec": {"template": TEMPLATE}},
        [NO_PODS]),
    three_trials_of_two_pods=("kubeflow.org", "Experiment", {"spec": {"trialTemplate": {"trialSpec": {
            "apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2, "template": TEMPLATE}}}}},
        [PodCount(6)]),
    nodes_of_a_trainjob=("trainer.kubeflow.org", "TrainJob",
        {"spec": {"trainer": {"numNodes": 4, "resourcesPerNode": {}}}}, [PodCount(4, None, 4)]),
    as_many_as_the_runtime_says=("trainer.kubeflow.org", "TrainJob",
        {"spec": {"trainer": {"resourcesPerNode": {}}}}, [UNKNOWN]),
    ray_hosts=("ray.io", "RayCluster", ray({"replicas": 4, "numOfHosts": 2}), [ONE, PodCount(8)]),
    ray_at_least=("ray.io", "RayCluster", ray({"minReplicas": 2, "maxReplicas": 9}), [ONE, PodCount(2)]),
    ray_autoscaler=("ray.io", "RayCluster",
        ray({"replicas": 1, "maxReplicas": 9}, enableInTreeAutoscaling=True), [ONE, PodCount(1, 9)]),
    ray_without_a_limit=("ray.io", "RayCluster",
        ray({"replicas": 1, "maxReplicas": 2147483647}, enableInTreeAutoscaling=True), [ONE, ONE]),
    suspended_group_alone=("ray.io", "RayCluster", ray({"replicas": 4, "suspend": True}), [ONE, NO_PODS]),
    each_replicated_job_by_itself=("jobset.x-k8s.io", "JobSet", {"spec": {"replicatedJobs": [
            {"template": {"spec": {"template": TEMPLATE}}},
            {"replicas": 2, "template": {"spec": {"parallelism": 4, "template": TEMPLATE}}}]}},
        [ONE, PodCount(8)]),
    leader_and_workers=("leaderworkerset.x-k8s.io", "LeaderWorkerSet", lws({"replicas": 2, "size": 4}),
        [PodCount(2, None, 1), PodCount(6, None, 3)]),
    a_leader_by_the_workers_template=("leaderworkerset.x-k8s.io", "LeaderWorkerSet",
        lws({"replicas": 2, "size": 4}, has_leader=False), [PodCount(8, None, 4)]),
    volcano_gang=("batch.volcano.sh", "Job", {"spec": {"minAvailable": 5, "tasks": [
            {"replicas": 1, "template": TEMPLATE}, {"replicas": 4, "template": TEMPLATE}]}},
        [PodCount(1, None, 1), PodCount(4, None, 4)]),
    kserve_scales=("serving.kserve.io", "InferenceService",
        {"spec": {"predictor": {"minReplicas": 2, "maxReplicas": 6, "model": gpu_container()}}},
        [PodCount(2, 6)]),
    kserve_head_and_workers=("serving.kserve.io", "InferenceService",
        {"spec": {"predictor": {"model": gpu_container(), "workerSpec": {"pipelineParallelSize": 4, **SPEC}}}},
        [ONE, PodCount(3, None, 3)]),
    a_runtime_alone=("serving.kserve.io", "ServingRuntime", {"spec": SPEC}, [NO_PODS]),
    knative_annotations=("serving.knative.dev", "Service", {"spec": {"template": {
            "metadata": {"annotations": {
                "autoscaling.knative.dev/min-scale": "2", "autoscaling.knative.dev/max-scale": "10"}}, "spec": SPEC}}},
        [PodCount(2, 10)]),
    the_nearest_number_counts=("machinelearning.seldon.io", "SeldonDeployment",
        {"spec": {"replicas": 3, "predictors": [
            {"componentSpecs": [TEMPLATE]}, {"replicas": 2, "componentSpecs": [TEMPLATE]}]}},
        [PodCount(3), PodCount(2)]),
    dynamo_nodes=("nvidia.com", "DynamoGraphDeployment", {"spec": {"services": {"Worker": {
            "replicas": 3, "multinode": {"nodeCount": 2}, "resources": {"limits": {"gpu": "8"}}}}}},
        [PodCount(6, None, 2)]),
    spark_executors=("sparkoperator.k8s.io", "SparkApplication",
        {"spec": {"executor": {"instances": 5, "gpu": {"name": "nvidia.com/gpu", "quantity": 1}},
                  "dynamicAllocation": {"enabled": True, "maxExecutors": 20}}}, [PodCount(5, 20)]),
    llmkube=("inference.llmkube.dev", "InferenceService",
        {"spec": {"replicas": 3, "resources": {"gpu": 2}, "autoscaling": {"maxReplicas": 5}}}, [PodCount(3, 5)]),
    argo=("argoproj.io", "Workflow", {"spec": {"templates": [{"container": gpu_container()}]}}, [UNKNOWN]),
    a_machine_that_is_off=("kubevirt.io", "VirtualMachine",
        {"spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {
            "gpus": [{"deviceName": "nvidia.com/TU104GL_Tesla_T4"}]}}}}}}, [NO_PODS]),
    objects_of_a_template=("template.openshift.io", "Template",
        {"objects": [{"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3, "template": TEMPLATE}}]},
        [NO_PODS]),
)  # fmt: skip
def test_how_many_pods(group: str, kind: str, data: JSON, want: list[PodCount]) -> None:
    assert counts(group, kind, data) == want


@pytest.mark.parametrize("number", [-1, True, 1.5, 10**9, "many", [], {}])
def test_what_is_no_number_of_pods_is_unknown(number: object) -> None:
    assert counts("apps", "Deployment", {"spec": {"replicas": number, "template": TEMPLATE}}) == [UNKNOWN]


@cases(
    ("group", "kind", "spec", "want"),
    scaled_to_zero=(
        "apps",
        "Deployment",
        {"replicas": 0, "template": TEMPLATE},
        ["scaled to zero: spec.replicas is 0"],
    ),
    suspended=("batch", "Job", {"suspend": True, "template": TEMPLATE}, ["spec.suspend is true"]),
    by_an_autoscaler=(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 0, **SPEC}},
        ["scaled to zero: spec.predictor.minReplicas is 0"],
    ),
    one_of_two_roles=(
        "kubeflow.org",
        "PyTorchJob",
        torch({"replicas": 0}, {"replicas": 1})["spec"],
        ["scaled to zero: spec.pytorchReplicaSpecs.Worker.replicas is 0"],
    ),
    not_zero=("apps", "Deployment", {"template": TEMPLATE}, []),
)
def test_the_fields_by_which_an_object_makes_no_pods(
    group: str, kind: str, spec: JSON, want: list[str]
) -> None:
    assert list(dict.fromkeys(fields_without_pods(KINDS[group, kind], {"spec": spec}))) == want


def test_a_field_that_stops_the_pods_whatever_it_holds() -> None:
    data = {
        "metadata": {"annotations": {"kubeflow-resource-stopped": "2026"}},
        "spec": {"template": TEMPLATE},
    }
    assert list(fields_without_pods(KINDS["kubeflow.org", "Notebook"], data)) == [
        "metadata.annotations.kubeflow-resource-stopped is set"
    ]


def test_a_template_makes_no_pods() -> None:
    assert list(fields_without_pods(KINDS["", "PodTemplate"], {"template": TEMPLATE})) == [
        "a PodTemplate is only a template: other objects make pods of it"
    ]
