"""Reviews of pods with a controller, by what is known of it: which is asked only where a rule depends on it."""

from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.pods.pod import OwnerReference
from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.serving.served import admission, lines_of, request
from webhook.configuration.documents import Document
from webhook.evaluation.facts import Facts, OwnerUnread
from webhook.serving.dispatch import Admission

RUNTIMES = {"max-runtime": {"mode": "enforce", "default": "8h", "max": "72h"}}
ON = Document("GPUPolicy", "default", {"rules": RUNTIMES})
OFF = Document("GPUPolicy", "default", {"rules": {"max-runtime": {"default": "8h"}}})
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"


class Deadlines:
    """Answers with the deadline of a Job, by the end of its name, and remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, _deadline: float) -> Any:
        def lookup(namespace: str, owner: OwnerReference, workload_kind: Any) -> int | None:
            self.asked.append(f"{namespace}/{workload_kind.plural}/{owner.name}")
            seconds = owner.name.rpartition("-")[2]
            if seconds == "unread":
                raise OwnerUnread("jobs is forbidden")
            return int(seconds) if seconds.isdigit() else None

        return lookup


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines()


@pytest.fixture
def served(deadlines: Deadlines) -> Admission:
    return admission(ON, facts=lambda deadline: Facts(owner_deadline=deadlines(deadline)))


def owned(name: str = "train", kind: str = "Job", group: str = "batch", **spec: Any) -> JSON:
    made = pod(gpu_container(), **{"restartPolicy": "Never", **spec})
    reference = {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "name": name,
        "uid": uid(name),
        "controller": True,
    }
    made["metadata"]["ownerReferences"] = [reference]
    return made


def added(served: Admission, document: JSON, username: str = JOB_CONTROLLER) -> int | None:
    """Return the deadline that /mutate adds."""
    answer = served.mutate(request(document, userInfo={"username": username}), monotonic() + 10)
    assert answer.allowed, answer
    operations = {each["path"]: each["value"] for each in msgspec.json.decode(answer.patch or b"[]")}
    deadline: int | None = operations.get("/spec/activeDeadlineSeconds")
    return deadline


def test_equal_pods_of_jobs_with_other_deadlines(served: Admission, deadlines: Deadlines) -> None:
    names = ["a", "b-600", "c-172800", "a", "b-600"]

    assert [added(served, owned(name)) for name in names] == [28_800, 600, 172_800, 28_800, 600]
    assert deadlines.asked == [f"ml-training/jobs/{name}" for name in names]


@cases(
    "document",
    its_own_deadline=owned(activeDeadlineSeconds=60),
    no_gpu={**owned(), "spec": {"containers": [{"name": "a"}]}},
    a_kind_without_deadlines=owned(kind="Job", group="batch.volcano.sh"),
    an_unknown_kind=owned(kind="Job", group="example.com"),
    no_controller=pod(gpu_container(), restartPolicy="Never"),
)
def test_nothing_is_asked_of(served: Admission, deadlines: Deadlines, document: JSON) -> None:
    added(served, document)

    assert deadlines.asked == []


def test_nothing_is_asked_without_the_rule(deadlines: Deadlines) -> None:
    assert (
        added(admission(OFF, facts=lambda deadline: Facts(owner_deadline=deadlines(deadline))), owned())
        is None
    )
    assert deadlines.asked == []


def test_the_final_pod_needs_no_second_look(served: Admission, deadlines: Deadlines) -> None:
    final = owned(activeDeadlineSeconds=600)
    final["metadata"]["uid"] = uid("pod")

    assert served.validate(request(final), monotonic() + 10).allowed
    assert deadlines.asked == []


def test_a_job_that_cannot_be_read(tmp_path: Path, deadlines: Deadlines) -> None:
    document = owned("train-unread")
    said: list[Any] = []

    def ask(served: Admission) -> None:
        said.extend(served.mutate(request(document), monotonic() + 10) for _ in range(2))

    lines = lines_of(tmp_path, ask, ON, facts=lambda deadline: Facts(owner_deadline=deadlines(deadline)))

    message = "max (72h) and no default (8h) is added, because Job/train-unread could not be read: jobs is forbidden"
    assert all(each.allowed and message in each.warnings[0] for each in said)
    assert all(b'"value":259200' in (each.patch or b"") for each in said)
    (finding,) = lines[0]["findings"]
    assert (finding["reason"], finding["outcome"], finding["message"]) == ("OwnerUnread", "warned", message)
    assert len(deadlines.asked) == 2, "such a decision is not remembered"


@cases(
    ("username", "want"),
    the_operator=("system:serviceaccount:ray-system:operator", None),
    a_controller_of_kubernetes=("system:kube-controller-manager", None),
    a_user=("ada", 28_800),
    a_user_with_a_prefix=("oidc:ada", 28_800),
    a_user_of_an_issuer=("https://idp.example#ada", 28_800),
    an_administrator=("kube:admin", 28_800),
    a_role_of_a_cloud=("arn:aws:iam::1:role/ada", 28_800),
    a_node=("system:node:gpu-1", 28_800),
    an_account_of_the_namespace=("system:serviceaccount:ml-training:robot", 28_800),
)
def test_who_may_say_that_a_pod_is_of_an_exempt_kind(
    served: Admission, username: str, want: int | None
) -> None:
    assert added(served, owned("ray", "RayCluster", "ray.io"), username) == want
