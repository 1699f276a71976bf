"""Why a namespace may not use a class, and which rights a caller of the catalogue lacks."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from tests.webhook.commands.checked_cluster import GROUP, cluster
from tests.webhook.tools.doctor.objects import stored
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.tools.classes import class_permission, read_classes

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
GRANTS = "rule gpu-class of policy p allows nvidia-t4"
NONE = {"classes/nvidia-a100": Fraction(0)}


@cases(
    ("mode", "hard", "want"),
    enforced=("enforce", {}, (False, GRANTS)),
    audited=("audit", {}, (True, f"{GRANTS}; it is in mode audit here")),
    not_granted=("audit", NONE, (False, "the GPUQuota grants 0 of classes/nvidia-a100")),
)
def test_why_a_namespace_may_not_use_a_class(
    mode: str, hard: dict[str, Fraction], want: tuple[bool, str]
) -> None:
    spec = {"priority": 1, "rules": {"gpu-class": {"mode": mode, "allowed": ["nvidia-t4"]}}}
    configuration = load_objects([Document("GPUPolicy", "p", stored(spec)["spec"])])
    (found,) = (each for each in configuration.classes if each.name == "nvidia-a100-80gb")

    assert class_permission(found, configuration.policies.for_namespace("team"), NOW, hard) == want


@cases(
    ("path", "want"),
    the_quota=(
        f"{GROUP}/namespaces/ml/gpuquotas/default",
        "get gpuquotas.gpu-admission.dev -n ml",
    ),
    the_node_pools=("/apis/karpenter.sh/v1/nodepools", "list nodepools.karpenter.sh"),
)
def test_a_right_that_a_caller_lacks(tmp_path: Path, path: str, want: str) -> None:
    objects = {
        **cluster(),
        "/apis/karpenter.sh": {"versions": [{"version": "v1"}]},
        "/apis/karpenter.sh/v1/nodepools": [],
        path: status(403, "no", "Forbidden"),
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        assert want in read_classes(server.client(), "ml", NOW).omitted
