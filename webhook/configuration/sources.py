"""Where the documents come from: the directory that was named, else the cluster there is, else those that ship with us."""

from collections.abc import Callable
from pathlib import Path

from webhook.cluster.api import ApiClient
from webhook.configuration.cluster_source import ClusterSource
from webhook.configuration.source import ConfigurationSource, Source, State


def source_of(
    directory: Path | None, api: ApiClient | None, changed: Callable[[State], object] = lambda _state: None
) -> Source:
    """Return the source, not started. Raises `ConfigurationError` if a directory cannot be used."""
    if directory is None and api is not None:
        return ClusterSource(api, changed)
    return ConfigurationSource(directory, changed, labels_known=api is not None)
