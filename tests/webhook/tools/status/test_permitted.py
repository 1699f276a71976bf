"""The rights that a caller lacks to read devices (DRA), as commands name them."""

from pathlib import Path

from tests.cases import cases
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import ApiServer, Collections, group, status
from webhook.configuration.loader import load_directory
from webhook.tools.status.permitted import Permitted

DOCUMENTS = Path(__file__).parents[4] / "examples/policies"
FORBIDDEN = status(403, "may not", "Forbidden")
PUBLISHED = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-devices"


@cases(
    ("kind", "omitted"),
    slices=("resourceslices", "list resourceslices.resource.k8s.io"),
    claims=("resourceclaims", "list resourceclaims.resource.k8s.io in all namespaces"),
    taint_rules=("devicetaintrules", "list devicetaintrules.resource.k8s.io"),
    what_controllers_publish=(PUBLISHED, "get configmaps/gpu-admission-devices -n gpu-admission"),
)
def test_a_right_that_is_lacking(kind: str, omitted: str, tmp_path: Path) -> None:
    version = {"uid": "u", "resourceVersion": "1"}
    slices = node_slices("n1", cards=3, partitions=False)
    cluster = Collections(
        resourceslices=[{**each, "metadata": {**each["metadata"], **version}} for each in slices],
        deviceclasses=[{"metadata": {"name": DRIVER, **version}, "spec": {}}],
        resourceclaims=[],
        devicetaintrules=[],
    )
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    if kind.startswith("/"):
        cluster.answers[kind] = FORBIDDEN
    else:
        cluster.objects[kind] = FORBIDDEN
    with ApiServer(tmp_path, cluster) as server:
        reader = Permitted(server.client())
        reader.configuration(DOCUMENTS)
        reader.devices(load_directory(None))

    assert omitted in reader.omitted
