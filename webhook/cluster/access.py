"""The address of the API server and our credentials, from a kubeconfig or a pod's service account.

The `kubernetes` package finds server, CA, client certificates, tokens and exec plugins, and builds the urllib3 pool. We use
nothing else of it: its models take 30 times as long as plain JSON, and drop unknown fields.
"""

import logging
import os
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from webhook.cluster import errors

NO_ADDRESS = "the server of the cluster must be an https:// address"
UNREADABLE = "a certificate, key or token of it cannot be used"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PLUGIN_FIELDS = {"exec", "auth-provider"}
"""Fields of a user by which another program gives the credentials."""
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
        from webhook.cluster.kubernetes_package import RESTClientObject  # noqa: PLC0415 - see `load_access`

        try:
            manager: urllib3.PoolManager = RESTClientObject(self._configuration, maxsize=size).pool_manager
        except Exception as error:  # noqa: BLE001 - as in `load_access`
            raise AccessError(f"{self.url}: {_one_line(error, UNREADABLE)}") from None
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
                    f"the credentials cannot be read: {_one_line(error, UNREADABLE)}"
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
    if _in_pod(kubeconfig, context):
        return own_namespace()
    return str(Kubeconfig(kubeconfig).context(context).get("namespace") or "default")


def load_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Return the access of `kubeconfig`, or else of our pod, or else what kubectl would use. Raises AccessError."""
    # Imported here because it takes 0.1 s and 12 MiB, which `serve --standalone` does not need.
    from webhook.cluster.kubernetes_package import Configuration, load_incluster_config  # noqa: PLC0415

    def load() -> Any:
        configuration = Configuration()
        if _in_pod(kubeconfig, context):
            with _as_access_errors("the service account of the pod"):
                load_incluster_config(configuration)
        else:
            Kubeconfig(kubeconfig).fill(configuration, context)
        return configuration

    return Access(load)


def _in_pod(kubeconfig: str | None, context: str | None) -> bool:
    return kubeconfig is None and context is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


class Kubeconfig:
    """A kubeconfig, or those that KUBECONFIG lists merged, as kubectl reads them.

    Every method raises AccessError: in one line the path, and what is wrong.
    """

    def __init__(self, kubeconfig: str | None = None) -> None:
        from webhook.cluster.kubernetes_package import KubeConfigMerger  # noqa: PLC0415 - see `load_access`

        files = (kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
        paths = [Path(file).expanduser() for file in files if file]
        self.path = os.pathsep.join(map(str, paths))
        if not any(path.exists() for path in paths):  # kubectl skips those that do not exist
            raise AccessError(f"kubeconfig {self.path}: No such file or directory")
        for path in filter(Path.exists, paths):
            with _as_access_errors(f"kubeconfig {path}"):
                KubeConfigMerger(str(path))
        with _as_access_errors(f"kubeconfig {self.path}"):
            merged = KubeConfigMerger(self.path).config.value
            self._current = merged.get("current-context")
            self._entries = {
                kind: {str(entry.value["name"]): entry.value.get(kind) or {} for entry in merged[f"{kind}s"]}
                for kind in ("context", "cluster", "user")
            }

    @property
    def contexts(self) -> list[str]:
        return list(self._entries["context"])

    def context(self, name: str | None = None) -> dict[str, Any]:
        """Return the context of that name, or the current one."""
        if not (name or self._current):
            raise self._error("has no current-context: name one with --context")
        return self._entry("context", str(name or self._current))

    def _entry(self, kind: str, name: str) -> dict[str, Any]:
        entries = self._entries[kind]
        if name not in entries:
            known = f"must be one of {', '.join(entries)}" if entries else "it has none"
            raise self._error(f'{kind} not found: "{name}": {known}')
        return dict(entries[name])

    def _error(self, what: str) -> AccessError:
        return AccessError(f"kubeconfig {self.path}: {what}")

    def fill(self, configuration: Any, name: str | None) -> None:
        """Write the access of the context of that name, or of the current one, into a `kubernetes.client.Configuration`."""
        from webhook.cluster.kubernetes_package import load_kube_config  # noqa: PLC0415 - see `load_access`

        with _as_access_errors(f"kubeconfig {self.path}"):
            context = self.context(name)
            cluster = self._entry("cluster", str(context.get("cluster") or ""))
            server = urllib3.util.parse_url(str(cluster.get("server")))
            if server.scheme not in {"https", "http"} or not server.host:
                raise self._error(NO_ADDRESS)
            user = self._entry("user", str(context["user"])) if context.get("user") else {}
            # Else `logging` prints what the package logs of a plugin.
            logging.root.addHandler(logging.NullHandler())
            load_kube_config(self.path, name, configuration)
            if user.keys() & _PLUGIN_FIELDS and not (configuration.api_key or configuration.cert_file):
                command = str(user["exec"]["command"]) if "exec" in user else "its auth-provider"
                why = "gave none" if "exec" not in user or shutil.which(command) else "is not on PATH"
                raise self._error(f'no credentials for user "{context["user"]}": {command} {why}')
            _load_files_once(configuration)


def _load_files_once(configuration: Any) -> None:
    """Load the authority and the certificate once: a connection would not say that it is the file that is wrong."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if configuration.ssl_ca_cert:
        tls.load_verify_locations(configuration.ssl_ca_cert)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file, password="")


@contextmanager
def _as_access_errors(subject: str) -> Iterator[None]:
    """Raise AccessError, which begins with the subject, for whatever the package raises."""
    try:
        yield
    except AccessError:
        raise
    except Exception as error:  # noqa: BLE001 - the package reads a file as if it were a kubeconfig
        path = subject.removeprefix("kubeconfig ")
        raise AccessError(f"{subject}: {_one_line(error).removeprefix(f'{path}: ')}") from None


def _one_line(error: Exception, otherwise: str = "must be a kubeconfig in YAML") -> str:
    """Return in one line what the package or the operating system says. What else is raised names only parts of the package."""
    from webhook.cluster.kubernetes_package import ConfigException  # noqa: PLC0415 - see `load_access`

    text = " ".join(str(error).split())
    if isinstance(error, ConfigException) and not {*"<{"} & {*text}:  # else it quotes an object of Python
        return text
    if isinstance(error, urllib3.exceptions.LocationParseError):
        return NO_ADDRESS
    if isinstance(error, ssl.SSLError):
        return UNREADABLE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file that it names'}: {error.strerror}"
    return otherwise
