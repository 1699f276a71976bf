"""`gpu-admission export --kueue`: flavors and queues of Kueue that grant what the GPUQuotas grant."""

from datetime import datetime
from pathlib import Path

from policies.placement.pinning import classes_of_node
from webhook.cluster.objects import InstallationNames
from webhook.commands.options import ClusterChoice
from webhook.commands.output import echo, fail
from webhook.configuration.loader import load_directory
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.export.kueue import HEADER, kueue_objects
from webhook.tools.installed_cluster import InstalledCluster

NOTHING_TO_GRANT = (
    "no GPUQuota names a GPU class in hard.classes, and no node is known of which hard.gpus could be granted"
)


def print_queues(config: Path | None, cluster: ClusterChoice | None, namespace: str, now: datetime) -> None:
    """Print the objects; the command ends if there are none. `namespace`: of the installation."""
    if config is not None or cluster is None:
        configuration = load_directory(config)
        quotas = {name: spec.amounts for name, spec in configuration.quotas.items()}
        queues = kueue_objects(configuration, quotas, ())
    else:
        with cluster.client() as api:
            installed = InstalledCluster(api, InstallationNames(namespace=namespace), config=None, now=now)
            configuration = installed.configuration
            found = (classes_of_node(node.labels, configuration.classes) for node in installed.gpu_nodes)
            with_nodes = frozenset[str]().union(*found)
            quotas = {each.namespace: each.hard for each in installed.quotas}
        queues = kueue_objects(configuration, quotas, with_nodes)
    if not queues:
        fail(NOTHING_TO_GRANT)
    echo(HEADER + "".join(f"---\n{dump_document(each)}" for each in queues), nl=False)
