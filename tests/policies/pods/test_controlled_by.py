"""What metadata say of their object: who made it, and its version."""

from policies.pods.pod import Metadata, OwnerReference
from tests.cases import cases


@cases(
    ("kind", "name", "labels", "want"),
    a_job=("Job", "train", {}, "Job/train"),
    a_deployment_by_its_replicaset=(
        "ReplicaSet",
        "chat-5d9f8c7b6d",
        {"pod-template-hash": "5d9f8c7b6d"},
        "Deployment/chat",
    ),
    a_replicaset_that_somebody_wrote=("ReplicaSet", "chat-v2", {"app": "chat"}, "ReplicaSet/chat-v2"),
    a_replicaset_with_the_label_of_another=(
        "ReplicaSet",
        "chat-v2",
        {"pod-template-hash": "5d9f8c7b6d"},
        "ReplicaSet/chat-v2",
    ),
    a_name_that_a_terminal_obeys=(
        "Ev\x1b[2Jil",
        "a\x9b\u202eb\u2028c\n",
        {},
        "Ev\ufffd[2Jil/a\ufffd\ufffdb\ufffdc\ufffd",
    ),
    another_kind_with_the_label=(
        "Rollout",
        "chat-5d9f8c7b6d",
        {"pod-template-hash": "5d9f8c7b6d"},
        "Rollout/chat-5d9f8c7b6d",
    ),
)
def test_the_controller_of_a_pod(kind: str, name: str, labels: dict[str, str], want: str) -> None:
    owner = OwnerReference(kind=kind, name=name, controller=True)

    assert Metadata(labels=labels, owner_references=(owner,)).controlled_by == want


def test_no_controller() -> None:
    assert Metadata(owner_references=(OwnerReference(kind="Job", name="train"),)).controlled_by == ""


@cases(("text", "want"), a_number=("12", 12), none=(None, 0), no_number=("x1", 0), of_another_script=("٣", 0))
def test_the_version_of_an_object(text: str | None, want: int) -> None:
    assert Metadata(resource_version=text).version == want
