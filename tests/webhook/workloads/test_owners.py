"""What is known of the object that has a template: its kind, and its own deadline with its path."""

from policies.finding import Edit
from policies.pods.workload import Owner
from tests.builders import JSON, gpu_container
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.counts import stage_field
from webhook.workloads.owners import first_deadline, leader_edit, own_deadline
from webhook.workloads.places import PodPlace, pod_places

KINDS = load_directory(None).workload_kinds
TEMPLATE: JSON = {"spec": {"containers": [gpu_container()]}}
JOB: JSON = {"template": TEMPLATE, "activeDeadlineSeconds": 600}
WORKFLOW: JSON = {"templates": [{"container": gpu_container()}], "activeDeadlineSeconds": "600"}


def nested(kind: str, data: JSON) -> JSON:
    return {"spec": {"components": [{"template": {"apiVersion": "batch/v1", "kind": kind, **data}}]}}


@cases(
    ("group", "kind", "data", "want"),
    a_server=("apps", "Deployment", {"spec": {"template": TEMPLATE}}, Owner("Deployment")),
    a_job=("batch", "Job", {"spec": JOB}, Owner("Job", True, 600, "spec.activeDeadlineSeconds")),
    a_job_without_one=("batch", "Job", {"spec": {"template": TEMPLATE}}, Owner("Job", True)),
    a_job_that_ends_at_once=("batch", "Job", {"spec": {**JOB, "activeDeadlineSeconds": 0}}, Owner("Job", True)),
    a_cronjob=("batch", "CronJob", {"spec": {"jobTemplate": {"spec": JOB}}},
        Owner("CronJob", True, 600, "spec.jobTemplate.spec.activeDeadlineSeconds")),
    a_jobset=("jobset.x-k8s.io", "JobSet", {"spec": {"replicatedJobs": [{"template": {"spec": JOB}}]}},
        Owner("JobSet", True, 600, "spec.replicatedJobs[0].template.spec.activeDeadlineSeconds")),
    a_pytorchjob=("kubeflow.org", "PyTorchJob",
        {"spec": {"runPolicy": {"activeDeadlineSeconds": 60}, "pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}},
        Owner("PyTorchJob", True, 60, "spec.runPolicy.activeDeadlineSeconds")),
    a_workflow_says_it_as_text=("argoproj.io", "Workflow", {"spec": WORKFLOW},
        Owner("Workflow", True, 600, "spec.activeDeadlineSeconds")),
    a_parameter=("argoproj.io", "Workflow", {"spec": {**WORKFLOW, "activeDeadlineSeconds": "{{limit}}"}},
        Owner("Workflow", True)),
    a_job_in_another_object=("workload.codeflare.dev", "AppWrapper", nested("Job", {"spec": JOB}),
        Owner("Job", True, 600, "spec.components[0].template.spec.activeDeadlineSeconds")),
)  # fmt: skip
def test_the_owner_of_a_template(group: str, kind: str, data: JSON, want: Owner) -> None:
    (place,) = pod_places(KINDS, group, kind, data)

    assert isinstance(place, PodPlace)
    assert place.owner == want
    if want.kind == kind:
        assert own_deadline(KINDS[group, kind], data) == want.deadline


@cases(
    ("kind", "spec", "want"),
    without_one=(("batch", "Job"), {}, ""),
    of_a_job=(("batch", "Job"), {"activeDeadlineSeconds": 60}, "spec.activeDeadlineSeconds: 60"),
    of_a_pytorchjob=(
        ("kubeflow.org", "PyTorchJob"),
        {"runPolicy": {"activeDeadlineSeconds": 60}},
        "spec.runPolicy.activeDeadlineSeconds: 60",
    ),
    the_first_of_several_jobs=(
        ("jobset.x-k8s.io", "JobSet"),
        {"replicatedJobs": [{"template": {"spec": {"activeDeadlineSeconds": s}}} for s in (90, 60)]},
        "spec.replicatedJobs[1].template.spec.activeDeadlineSeconds: 60",
    ),
    of_a_rayjob=(("ray.io", "RayJob"), {"activeDeadlineSeconds": 600}, "spec.activeDeadlineSeconds: 600"),
    of_a_rayjob_that_has_to_run_sooner=(
        ("ray.io", "RayJob"),
        {"activeDeadlineSeconds": 600, "preRunningDeadlineSeconds": 60},
        "spec.preRunningDeadlineSeconds: 60",
    ),
    of_a_raycronjob=(
        ("ray.io", "RayCronJob"),
        {"jobTemplate": {"preRunningDeadlineSeconds": 60}},
        "spec.jobTemplate.preRunningDeadlineSeconds: 60",
    ),
    of_a_workflow=(
        ("argoproj.io", "Workflow"),
        {"activeDeadlineSeconds": "60"},
        "spec.activeDeadlineSeconds: 60",
    ),
    of_a_launcher_that_is_there_at_once=(
        ("kubeflow.org", "MPIJob"),
        {"runPolicy": {"activeDeadlineSeconds": 60}},
        "spec.runPolicy.activeDeadlineSeconds: 60",
    ),
    of_a_launcher_that_waits_for_its_workers=(
        ("kubeflow.org", "MPIJob"),
        {"runPolicy": {"activeDeadlineSeconds": 60}, "launcherCreationPolicy": "WaitForWorkersReady"},
        "",
    ),
    of_a_deployment_ends_nothing=(("apps", "Deployment"), {"progressDeadlineSeconds": 60}, ""),
)
def test_the_deadline_that_passes_first_while_pods_wait(kind: tuple[str, str], spec: JSON, want: str) -> None:
    assert first_deadline(KINDS[kind], {"spec": spec}) == want


WAITS = Edit("spec.launcherCreationPolicy", "WaitForWorkersReady")


@cases(
    ("kind", "data", "want"),
    a_launcher_starts_at_once=(("kubeflow.org", "MPIJob"), {"apiVersion": "kubeflow.org/v2beta1"}, WAITS),
    as_it_is_written=(
        ("kubeflow.org", "MPIJob"),
        {"apiVersion": "kubeflow.org/v2beta1", "spec": {"launcherCreationPolicy": "AtStartup"}},
        WAITS,
    ),
    a_launcher_that_waits=(
        ("kubeflow.org", "MPIJob"),
        {"apiVersion": "kubeflow.org/v2beta1", "spec": {"launcherCreationPolicy": "WaitForWorkersReady"}},
        None,
    ),
    an_init_container_waits=(("kubeflow.org", "MPIJob"), {"apiVersion": "kubeflow.org/v1"}, None),
    a_head_that_works_alone=(("ray.io", "RayCluster"), {"apiVersion": "ray.io/v1"}, None),
)
def test_what_lets_a_leader_without_gpus_wait(kind: tuple[str, str], data: JSON, want: Edit | None) -> None:
    assert leader_edit(KINDS[kind], data) == want


LWS, JOBSET = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), ("jobset.x-k8s.io", "JobSet")
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}


@cases(
    ("kind", "data", "want"),
    exclusive_topology=(
        JOBSET,
        {"metadata": {"annotations": EXCLUSIVE}},
        "metadata.annotations[alpha.jobset.sigs.k8s.io/exclusive-topology]",
    ),
    of_one_of_its_jobs=(
        JOBSET,
        {"spec": {"replicatedJobs": [{}, {"dependsOn": [{"name": "data"}]}]}},
        "spec.replicatedJobs[1].dependsOn",
    ),
    leader_first=(LWS, {"spec": {"startupPolicy": "LeaderReady"}}, "spec.startupPolicy"),
    leader_with_the_workers=(LWS, {"spec": {"startupPolicy": "LeaderCreated"}}, ""),
    all_together=(JOBSET, {"spec": {"replicatedJobs": [{}]}}, ""),
)
def test_by_which_field_pods_start_in_stages(kind: tuple[str, str], data: JSON, want: str) -> None:
    assert stage_field(KINDS[kind], data) == want
