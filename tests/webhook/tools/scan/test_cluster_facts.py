"""What an evaluation knows of a cluster whose caller may not list everything."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from webhook.configuration.loader import load_directory
from webhook.tools.scan.cluster_facts import ClusterFacts
from webhook.tools.status.permitted import Permitted

NODE = {"metadata": {"name": "a", "uid": "u", "labels": {"accelerator": "nvidia-t4"}}}
POOL = {
    "metadata": {"name": "spot"},
    "spec": {"template": {"metadata": {"labels": {"accelerator": "nvidia-l4"}}}},
}


@cases(
    ("forbidden", "knows_nodes", "knows_all", "omitted"),
    everything_may_be_listed=("", True, True, []),
    without_the_pools=("nodepools", True, False, ["list nodepools.karpenter.sh"]),
    without_the_nodes=("nodes", False, False, ["list nodes"]),
)
def test_nodes_and_pools(
    tmp_path: Path, forbidden: str, knows_nodes: bool, knows_all: bool, omitted: list[str]
) -> None:
    """No pod is said to fit nowhere unless nodes and pools are known; a node that is known has its labels."""
    objects: dict[str, Any] = {
        "/api/v1/nodes": [NODE],
        "/apis/karpenter.sh": {"versions": [{"version": "v1"}]},
        "/apis/karpenter.sh/v1/nodepools": [POOL],
    }
    objects |= {path: status(403, "no", "Forbidden") for path in objects if path.endswith(f"/{forbidden}")}
    with ApiServer(tmp_path, answering(objects)) as server:
        reader = Permitted(server.client())
        by = ClusterFacts(reader, "").evaluator(load_directory(None), datetime(2026, 11, 21, tzinfo=UTC))

    found = by.named_nodes().find(("metadata.name", "a"))
    assert found == ({(("accelerator", "nvidia-t4"),)} if knows_nodes else frozenset())
    nodes = by.nodes()
    assert (nodes is not None) is knows_all
    if nodes is not None:
        assert nodes.label_sets == {(("accelerator", "nvidia-t4"),)}
        assert [dict(pool.labels)["accelerator"] for pool in nodes.pools] == [frozenset({"nvidia-l4"})]
    assert reader.omitted == omitted
