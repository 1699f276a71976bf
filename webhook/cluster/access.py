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

UNREADABLE = "a certificate, key or token of it cannot be used"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
RELOAD_SECONDS = 10.0
"""Rejected credentials are loaded again at most this often, in case the server rejects all of them."""


class AccessError(errors.Unauthorized):
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
        """Read everything again, such as a token file or the certificate of an exec plugin. Raises AccessError."""
        self._configuration = self._load()

    def pool(self, size: int) -> urllib3.PoolManager:
        """Return a pool of connections with the client certificate. It keeps `size` connections alive. Raises AccessError."""
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415 - see `load_access`

        try:
            manager: urllib3.PoolManager = RESTClientObject(self._configuration, maxsize=size).pool_manager
        except Exception as error:  # noqa: BLE001 - as in `load_access`
            raise AccessError(f"{self.url}: {_said(error, UNREADABLE)}") from None
        return manager

    def authorization(self) -> str | None:
        """Return the Authorization header. The package reads a service account's token again once a minute.

        Raises `errors.Unauthorized`.
        """
        with self._lock:
            try:
                token = self._configuration.get_api_key_with_prefix("BearerToken")
            except Exception as error:  # noqa: BLE001 - the package raises what its readers and exec plugins raise
                raise errors.Unauthorized(
                    f"the credentials cannot be read: {_said(error, UNREADABLE)}"
                ) from None
        text = str(token or "").strip()
        if not (text.isascii() and text.isprintable()):  # http.client would show it in its error
            raise errors.Unauthorized("the credentials cannot be read: the token must be one line of ASCII")
        return text or None


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
        chosen = next((each for each in contexts if each["name"] == context), active)
        return str((chosen.get("context") or {}).get("namespace") or "default")
    except Exception as error:  # noqa: BLE001 - as in `load_access`
        raise AccessError(f"kubeconfig {kubeconfig or ''}: {_said(error)}") from None


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
        except Exception as error:  # noqa: BLE001 - the package reads a file as if it were a kubeconfig
            default = "no pod's service account, and kubectl's kubeconfig"
            named = f"kubeconfig {kubeconfig}" if kubeconfig else default
            raise AccessError(f"{named}: {_said(error)}") from None
        if not configuration.host.startswith(("https://", "http://")):
            raise AccessError(
                f"kubeconfig {kubeconfig or ''}: the server of the cluster must be an https:// address"
            )
        return configuration

    return Access(load)


def _said(error: Exception, otherwise: str = "must be a kubeconfig in YAML") -> str:
    """Return in one line what the package or the operating system says. What else is raised names only parts of the package."""
    from kubernetes.config import ConfigException  # noqa: PLC0415 - see `load_access`

    if isinstance(error, ConfigException) and "<" not in str(error):  # else it quotes an object of Python
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file that it names'}: {error.strerror}"
    return otherwise
