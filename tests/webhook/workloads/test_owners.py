"""What is known of the object that has a template: its kind, and its own deadline with its path."""

from policies.pods.owner import Owner
from tests.builders import JSON, gpu_container
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.owners import own_deadline
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
