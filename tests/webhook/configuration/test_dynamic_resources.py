"""Claims and their templates, read once: what may not be read is named as the permission that is missing."""

from pathlib import Path

from tests.webhook.cluster.apiserver import ApiServer, Collections, group, status
from webhook.configuration.dynamic_resources import read_claims

TEMPLATE = {
    "metadata": {"name": "one", "namespace": "team", "uid": "1", "resourceVersion": "4"},
    "spec": {
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    },
}


def test_claims_that_may_not_be_read_leave_the_templates(tmp_path: Path) -> None:
    cluster = Collections(resourceclaims=status(403, "may not"), resourceclaimtemplates=[TEMPLATE])
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    omitted: list[str] = []

    with ApiServer(tmp_path, cluster) as server:
        claims = read_claims(server.client(), "team", omitted)

    assert [name.name for name in claims] == ["one"]
    assert omitted == ["list resourceclaims.resource.k8s.io -n team"]
