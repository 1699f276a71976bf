"""The documents of a cluster, read once, for commands that look and end; what watches them is cluster_source.py."""

import contextlib

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.choice import Chosen, choose
from webhook.configuration.records import RESOURCES, Record, reader


def read_chosen(api: ApiClient, *, lacking: tuple[type[errors.ApiError], ...] = (errors.NotFound,)) -> Chosen:
    """Return what is in force in the cluster, as a process that starts now finds it.

    A kind whose list ends in an error of `lacking` has no documents: it is not installed. Raises any other `errors.ApiError`.
    """
    records: list[Record] = []
    for kind, resource in RESOURCES.items():
        with contextlib.suppress(*lacking):
            records += api.list(resource.path(), reader(kind)).items
    return choose(records, None)
