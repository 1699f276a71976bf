"""A neighbour as a process beside a control plane, with its own manifests, rights and webhooks.

What its pod would have of the kubelet, the process gets otherwise: the token of its ServiceAccount in a kubeconfig, its
certificate where its image expects it, and the clusterIP of its Service, on which it listens.
"""

import json
import shutil
import socket
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from copy import deepcopy
from functools import cached_property, partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.controlplane import Authority, ControlPlane, ControlPlaneUnavailable, helm
from tests.neighbours.build import METRICS_PORT, Neighbour, locate, source
from tests.unavailable import skip_without

NOT_HERE = {"APIService", "Deployment", "Job", "ServiceMonitor"}
"""What runs its pods, and what is aggregated, has no place on a control plane without nodes of its own."""
HTTPS = 443
CONFIGURATION = "controller_manager_config.yaml"


class Installation:
    """One neighbour on `plane`, its webhooks at the service address `host`."""

    def __init__(self, plane: ControlPlane, neighbour: Neighbour, *, host: int = 11) -> None:
        self.neighbour = neighbour
        self._plane = plane
        self._address = plane.service_address(host)
        self._authority = Authority(f"{neighbour.name} CA")
        self._folder = plane.processes.folder / neighbour.name
        self._has_mounted = False

    @cached_property
    def _documents(self) -> list[JSON]:
        documents = [each for each in yaml.load_all(self._rendered(), Loader=yaml.CSafeLoader) if each]
        return [each for each in documents if each["kind"] not in self.neighbour.left_out]

    def _rendered(self) -> str:
        """Return its manifests. Kustomize takes a path with a host's name for an address, and files beside its own only."""
        folder = self._folder / "manifests"
        folder.mkdir(parents=True)
        (folder / "source").symlink_to(source(self.neighbour))
        resources = [self._resource(folder, path) for path in self.neighbour.manifests]
        kustomization: JSON = {"resources": resources}
        if namespace := self.neighbour.namespace:
            document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            (folder / "namespace.yaml").write_text(yaml.safe_dump(document))
            resources.append("namespace.yaml")
            kustomization["namespace"] = namespace
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return self._plane.kubectl("kustomize", str(folder)).stdout

    def _resource(self, folder: Path, path: str) -> str:
        """Return the path of a folder, or of a chart once it is rendered, among those of kustomize's folder."""
        chart = folder / "source" / path
        if chart.is_file():
            shutil.copy(chart, folder)
            return chart.name
        if not (chart / "Chart.yaml").exists():
            return f"source/{path}"
        values = (each for value in self.neighbour.values for each in ("--set", value))
        options = ("--namespace", self.neighbour.namespace, "--include-crds", *values)
        rendered = folder / f"{chart.name}.yaml"
        rendered.write_text(helm.run("template", self.neighbour.program, chart, *options))
        return rendered.name

    def _of_kind(self, kind: str) -> list[JSON]:
        return [each for each in self._documents if each["kind"] == kind]

    @cached_property
    def _deployment(self) -> JSON:
        wanted = self.neighbour.deployment
        return next(each for each in self._of_kind("Deployment") if wanted in {"", each["metadata"]["name"]})

    @cached_property
    def _account(self) -> tuple[str, str]:
        spec = self._deployment["spec"]["template"]["spec"]
        return self._deployment["metadata"].get("namespace", "default"), spec["serviceAccountName"]

    @cached_property
    def _environment(self) -> list[str]:
        """Return what its container gets from its manifest."""
        namespace, _ = self._account
        fields = {"metadata.namespace": namespace, "metadata.name": f"{self.neighbour.name}-0"}
        container = self._deployment["spec"]["template"]["spec"]["containers"][0]
        written = {each["name"]: each.get("value") or _field_of(each) for each in container.get("env") or ()}
        return [f"{name}={fields.get(value, value)}" for name, value in written.items()]

    def install(self) -> None:
        """Apply its manifests, and run it."""
        documents = [self._adapted(each) for each in self._documents if each["kind"] not in NOT_HERE]
        if self.neighbour.reads_deployment:
            documents.append({**self._deployment, "spec": {**self._deployment["spec"], "paused": True}})
        self._plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(documents)
        )
        for crd in self._of_kind("CustomResourceDefinition"):
            assert eventually(partial(self._is_established, crd["metadata"]["name"]))
        if not self.neighbour.secret:
            self._write_certificate()
        assert eventually(self._has_its_rights)
        self.start()

    def start(self) -> None:
        namespace, account = self._account
        self._kubeconfig = self._plane.account_kubeconfig(namespace, account)
        self._plane.processes.start(
            self.neighbour.name,
            [
                *("env", *self._environment, f"TMPDIR={self._folder}", f"KUBECONFIG={self._kubeconfig}"),
                f"POD_NAMESPACE={namespace}",
                locate(self.neighbour),
                *self._arguments(),
            ],
        )
        if self.neighbour.secret:
            assert eventually(self._mount, seconds=60), self.log()[-6000:]
        assert eventually(self._is_ready, seconds=60), self.log()[-6000:]

    def end(self) -> None:
        if self.neighbour.name in self._plane.processes.pids:
            self.kill()
        self._unmount()

    def kill(self) -> None:
        self._plane.processes.kill(self.neighbour.name)

    def log(self) -> str:
        return self._plane.logs(self.neighbour.name)

    def reconciles(self) -> float:
        """Return how often its controllers have reconciled an object since it started."""
        if self.neighbour.reconciled:
            return self.log().count(self.neighbour.reconciled)
        _, text = self._read(METRICS_PORT, "/metrics", is_secure=self.neighbour.secure_metrics)
        assert "controller_runtime_reconcile_total" in text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "controller_runtime_reconcile_total"
        )

    def _arguments(self) -> list[str]:
        if self.neighbour.flags:
            return [self._filled(flag) for flag in self.neighbour.flags]
        (text,) = (
            each["data"][CONFIGURATION]
            for each in self._of_kind("ConfigMap")
            if CONFIGURATION in each.get("data", {})
        )
        configuration = {**yaml.safe_load(text), **self.neighbour.configuration}
        path = self._folder / CONFIGURATION
        path.write_text(self._filled(yaml.safe_dump(configuration)))
        return [f"--config={path}"]

    def _filled(self, text: str) -> str:
        values = {
            "{address}": self._address,
            "{certificates}": str(self._certificates),
            "{kubeconfig}": str(self._kubeconfig),
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    def _adapted(self, document: JSON) -> JSON:
        """Return the document with our clusterIP and caBundle, and otherwise as it is."""
        kind, name = document["kind"], document["metadata"]["name"]
        adapted = deepcopy(document)
        if kind == "Service" and name in self._services:
            adapted["spec"]["clusterIP"] = self._address
            for port in adapted["spec"]["ports"]:
                port["port"] = self.neighbour.port if port["port"] == HTTPS else port["port"]
        for called in [*adapted.get("webhooks", ()), *_conversions(adapted)]:
            called["clientConfig"]["service"]["port"] = self.neighbour.port
            if not self.neighbour.secret:
                called["clientConfig"]["caBundle"] = b64encode(self._authority.certificate).decode()
        return adapted

    @cached_property
    def _services(self) -> dict[str, str]:
        """Return the namespaces of the Services that its webhooks name."""
        called = [
            webhook["clientConfig"]["service"]
            for document in self._documents
            for webhook in document.get("webhooks", ())
        ]
        return {each["name"]: each["namespace"] for each in called} | self._own_service

    @property
    def _own_service(self) -> dict[str, str]:
        return {self.neighbour.service: self._account[0]} if self.neighbour.service else {}

    def _write_certificate(self) -> None:
        names = [f"{name}.{namespace}.svc" for name, namespace in self._services.items()]
        pem = self._authority.issue(names=names or [self.neighbour.name])
        self._write_files(self._certificates, {"tls.crt": pem, "tls.key": pem})

    @property
    def _certificates(self) -> Path:
        """Return where controller-runtime looks for the certificate of webhooks."""
        return self._folder / "k8s-webhook-server" / "serving-certs"

    def _mount(self) -> bool:
        """Write the files of its Secret, once it has filled it, as a kubelet mounts them."""
        path = f"/api/v1/namespaces/{self._account[0]}/secrets/{self.neighbour.secret}"
        data = self._plane.client().get(path)[1].get("data") or {}
        files = {name: b64decode(text) for name, text in data.items()}
        if files:
            self._write_files(self._certificates, files)
        mount = self.neighbour.mount
        if files and mount is not None and not mount.exists():
            self._write_files(mount, files)
            self._has_mounted = True
        return bool(files)

    def _unmount(self) -> None:
        if self._has_mounted and self.neighbour.mount is not None:
            shutil.rmtree(self.neighbour.mount)

    @staticmethod
    def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def _is_established(self, name: str) -> bool:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        conditions = self._plane.client().get(path)[1].get("status", {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def _has_its_rights(self) -> bool:
        """Whether the API server knows of its roles: a controller whose first list is forbidden may end."""
        namespace, account = self._account
        review = {
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "resourceAttributes": {"verb": "watch", "resource": self.neighbour.watches},
            }
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self._plane.client().post(path, review)[1]["status"]["allowed"])

    def _is_ready(self) -> bool:
        assert self._plane.processes.exit_status(self.neighbour.name) is None, self.log()[-6000:]
        try:
            if self._services:  # what says that it is ready may not serve them yet
                socket.create_connection((self._address, self.neighbour.port), timeout=10).close()
            port, path = self.neighbour.health
            return self._read(port, path, is_secure=port == self.neighbour.port)[0] == HTTPStatus.OK
        except OSError:
            return False

    def _read(self, port: int, path: str, *, is_secure: bool = False) -> tuple[int, str]:
        """Return the status and what is served there. Raises OSError."""
        user = json.loads(self._plane.kubeconfig().read_text())["users"][0]["user"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # it issues a certificate to itself
        connection = (
            HTTPSConnection(self._address, port, timeout=10, context=context)
            if is_secure
            else HTTPConnection(self._address, port, timeout=10)
        )
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {user['token']}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


def _field_of(variable: JSON) -> str:
    """Return the field of the pod that the value of a variable is."""
    return str(variable["valueFrom"].get("fieldRef", {}).get("fieldPath", ""))


def _conversions(document: JSON) -> list[JSON]:
    """Return the webhook by which a CustomResourceDefinition has its objects converted, if it has one."""
    webhook = document.get("spec", {}).get("conversion", {}).get("webhook")
    return [webhook] if webhook else []


@contextmanager
def installed(plane: ControlPlane, neighbour: Neighbour, *, host: int = 11) -> Iterator[Installation]:
    """Have the neighbour installed until the plane ends. Skip the test, or fail it, if it has not been built."""
    installation = Installation(plane, neighbour, host=host)
    try:
        installation.install()
        yield installation
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
    finally:
        installation.end()
