"""The documents of a cluster, read once, for commands that look and end; what watches them is cluster_source.py."""

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.choice import Chosen, choose
from webhook.configuration.records import RESOURCES, Record, reader


def read_chosen(api: ApiClient) -> Chosen:
    """Return what is in force in the cluster, as a process that starts now finds it. Raises `errors.ApiError`."""
    records = [record for kind in RESOURCES for record in _records(api, kind)]
    return choose(sorted(records, key=lambda record: record.document.key), None)


def _records(api: ApiClient, kind: str) -> list[Record]:
    try:
        return api.list(RESOURCES[kind].path(), reader(kind)).items
    except errors.NotFound:  # the kind is not installed
        return []
