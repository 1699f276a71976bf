"""The address of the API server and our credentials, from a kubeconfig or a pod's service account.

The `kubernetes` package finds server, CA, client certificates, tokens and exec plugins, and builds the urllib3 pool. We use
nothing else of it: its models take 30 times as long as plain JSON, and drop unknown fields.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3

from webhook.cluster import errors

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
RELOAD_SECONDS = 10.0
"""Rejected credentials are loaded again at most this often, in case the server rejects all of them."""


class AccessError(Exception):
    """Neither a kubeconfig nor a service account can be used. The message names what was tried."""


class Access:
    """Credentials that can be read again. `load` returns a filled `kubernetes.client.Configuration`."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._configuration = load()

    @property
    def url(self) -> str:
        return str(self._configuration.host).rstrip("/")

    def reload(self) -> None:
        """Read everything again, such as a token file or the certificate of an exec plugin. Raises `errors.Unauthorized`."""
        try:
            self._configuration = self._load()
        except AccessError as error:
            raise errors.Unauthorized(str(error)) from None

    def pool(self, size: int) -> urllib3.PoolManager:
        """Return a pool of connections with the client certificate. It keeps `size` connections alive."""
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415 - see `load_access`

        manager: urllib3.PoolManager = RESTClientObject(self._configuration, maxsize=size).pool_manager
        return manager

    def authorization(self) -> str | None:
        """Return the Authorization header. The package reads a service account's token again once a minute.

        Raises `errors.Unauthorized`.
        """
        with self._lock:
            try:
                token = self._configuration.get_api_key_with_prefix("BearerToken")
            except Exception as error:  # noqa: BLE001 - the package raises what its readers and exec plugins raise
                raise errors.Unauthorized(f"the credentials cannot be read: {error}") from None
        return str(token).strip() if token else None


def own_namespace() -> str:
    """Return the namespace of our pod, `default` outside a cluster."""
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return os.environ.get("POD_NAMESPACE") or "default"


def context_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that kubectl would use: of the context, or of our pod, or `default`. Raises AccessError."""
    from kubernetes import config  # noqa: PLC0415 - see `load_access`

    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return own_namespace()
    try:
        contexts, active = config.list_kube_config_contexts(kubeconfig)
    except (config.ConfigException, OSError) as error:
        raise AccessError(f"kubeconfig {kubeconfig or ''}: {error}") from None
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "default")


def load_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Return the access of `kubeconfig`, or else of our pod, or else what kubectl would use. Raises AccessError."""
    # Imported here because it takes 0.2 s and 40 MiB, which `serve --standalone` does not need.
    from kubernetes import config  # noqa: PLC0415
    from kubernetes.client import Configuration  # noqa: PLC0415

    def load() -> Any:
        configuration = Configuration()
        try:
            if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(kubeconfig, context, configuration)
        except (config.ConfigException, OSError) as error:
            default = "no pod's service account, and kubectl's kubeconfig"
            named = f"kubeconfig {kubeconfig}" if kubeconfig else default
            raise AccessError(f"{named}: {error}") from None
        return configuration

    return Access(load)
