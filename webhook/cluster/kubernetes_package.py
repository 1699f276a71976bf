# ruff: noqa: E402 - the imports below need the packages that `_unrun` prepares
"""What we use of the `kubernetes` package, imported without its models and API classes.

These are 850 modules, which take 0.2 s and 32 MiB. So `kubernetes.client` has only the names that `kubernetes.config` imports;
other code of this process finds nothing else in it.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any, cast


def _unrun(name: str) -> Any:
    """Return the package of that name, whose modules can be imported although its `__init__.py` has not run."""
    module = module_from_spec(cast("ModuleSpec", find_spec(name)))
    return sys.modules.setdefault(name, module)


_unrun("kubernetes")
_client = _unrun("kubernetes.client")
_unrun("kubernetes.client.models")

from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

_client.ApiClient, _client.Configuration = ApiClient, Configuration

from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.config.kube_config import KubeConfigMerger

__all__ = [
    "ConfigException",
    "Configuration",
    "KubeConfigMerger",
    "RESTClientObject",
    "load_incluster_config",
    "load_kube_config",
]
