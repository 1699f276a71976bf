"""One Kubernetes control plane on loopback: etcd, kube-apiserver, on request controllers and scheduler.

Several can run at once: each takes a free port and a service range of its own inside 127.100.0.0/16. That
range is the point: a Service with a `clusterIP` in it leads the API server to a process of ours bound to that
very loopback address, so a webhook is called through the `clientConfig.service` that it is installed with,
and by the name in its certificate. Linux only: elsewhere addresses beyond 127.0.0.1 are out of reach without
more setup.
"""

import ipaddress
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import urllib3

from tests.controlplane.build import ControlPlaneUnavailable, locate, minor_version
from tests.controlplane.client import Client
from tests.controlplane.pki import Authority, signing_key
from tests.controlplane.processes import Processes

API_SERVER, CONTROLLERS, SCHEDULER = "kube-apiserver", "kube-controller-manager", "kube-scheduler"
READY_WITHIN = 60  # seconds; 3 on an idle machine, but test machines are not idle
# No kubelet reports here, so these two would find every node dead and evict its pods.
CONTROLLERS_OFF = ("node-lifecycle-controller", "taint-eviction-controller")
# The default limits (20/s and 50/s) would dominate every timing.
ALONE_AND_FAST = ("--leader-elect=false", "--kube-api-qps=2000", "--kube-api-burst=4000")
CLAIMS_API = "/apis/resource.k8s.io/v1"
# The beta versions of ResourceClaims are off by default; what they store is reviewed like what v1 stores.
CLAIMS_SERVED = "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"
CLAIMS_OFF = "--runtime-config=resource.k8s.io/v1=false"
# Before, a beta that is off.
MUTATIONS_SINCE = 36
MUTATIONS_SERVED = "--runtime-config=admissionregistration.k8s.io/v1beta1=true"


class ControlPlaneFailed(RuntimeError):  # noqa: N818  # pairs with ControlPlaneUnavailable
    """A component ended or did not become ready; the message carries the end of its log."""


@dataclass(frozen=True, kw_only=True)
class User:
    groups: Sequence[str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)


class ControlPlane:
    """A control plane between `start` and `stop`, or for the length of a `with` block.

    With `controllers`, namespaces get their default ServiceAccount and Jobs, Deployments and DaemonSets their
    pods, each made by the service account of its own controller, and ServiceAccount admission is on; without,
    it is off. `scheduler` binds pods to nodes. Nothing ever runs the pods: there is no kubelet. ResourceClaims
    are served, unless `claims` is false. `gates` are feature gates that are switched on. With `client_name` the API
    server presents webhooks a client certificate of that common name, issued by `callers_ca`. Arguments in
    `apiserver_args` come last and win; `scheduler_config` are fields of a KubeSchedulerConfiguration.

    Raises ControlPlaneUnavailable when there are no binaries, ControlPlaneFailed when they do not come up.
    """

    processes: Processes
    url: str
    ca_file: Path
    callers_ca: Path
    service_range: ipaddress.IPv4Network

    def __init__(
        self,
        *,
        controllers: bool = False,
        scheduler: bool = False,
        claims: bool = True,
        gates: Sequence[str] = (),
        client_name: str | None = None,
        apiserver_args: Sequence[str] = (),
        scheduler_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.binaries = locate()
        self._components = ["etcd", API_SERVER, *[CONTROLLERS] * controllers, *[SCHEDULER] * scheduler]
        missing = [name for name in self._components if not (self.binaries / name).exists()]
        if missing:
            raise ControlPlaneUnavailable(f"{self.binaries} lacks {', '.join(missing)}")
        self._disable_admission = "" if controllers else "ServiceAccount"
        self._served = [CLAIMS_SERVED if claims else CLAIMS_OFF]
        self._gates = [*gates]
        if minor_version() < MUTATIONS_SINCE:
            self._served.append(MUTATIONS_SERVED)
            self._gates.append("MutatingAdmissionPolicy")
        self._client_name = client_name
        self._apiserver_args = apiserver_args
        self._scheduler_config = scheduler_config
        self._users = {
            "admin": User(groups=["system:masters"]),
            "system:kube-controller-manager": User(groups=[]),
            "system:kube-scheduler": User(groups=[]),
        }
        self._clients: dict[str, Client] = {}
        self._claims: list[socket.socket] = []

    def add_user(self, name: str, groups: Sequence[str] = ()) -> None:
        """Make a user with a token; before `start`, because the API server reads its tokens once."""
        self._users[name] = User(groups=groups)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.processes = Processes()
        try:
            self._prepare()
            for name in self._components:
                self._start(name)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self.processes.close()
        for claim in self._claims:
            claim.close()
        self._claims.clear()

    def kill(self, name: str) -> None:
        self.processes.kill(name)

    def restart(self, name: str) -> None:
        """End a component in order if it still runs, start it on its data, return when it is ready."""
        self.processes.terminate(name, grace=3)  # open watches would hold it for a minute
        self._start(name)

    @property
    def pids(self) -> dict[str, int]:
        return self.processes.pids

    def logs(self, name: str) -> str:
        return self.processes.log(name)

    def service_address(self, host: int = 10) -> str:
        """Return an address for a clusterIP; hosts 2 to 16 go last to Services that ask for none."""
        return str(self.service_range[host])

    def kubeconfig(self, user: str = "admin") -> Path:
        """Return a kubeconfig file, removed with the control plane."""
        return self._kubeconfig(user, self._users[user].token)

    def account_token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, good for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, answer = self.client().post(path, {"spec": {"expirationSeconds": 3600}})
        if status != 201:
            raise RuntimeError(f"no token for {namespace}/{account}: {answer}")
        return str(answer["status"]["token"])

    def account_kubeconfig(self, namespace: str, account: str) -> Path:
        return self._kubeconfig(account, self.account_token(namespace, account))

    def _kubeconfig(self, user: str, token: str) -> Path:
        path = self.processes.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        path.write_text(
            json.dumps(  # JSON is YAML
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            )
        )
        return path

    def kubectl(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        user: str = "admin",
        check: bool = True,
        editor: str = "false",
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; with `check`, a failure raises CalledProcessError, its stderr as a note. `editor` is what `edit` runs."""
        done = subprocess.run(
            [self.binaries / "kubectl", f"--kubeconfig={self.kubeconfig(user)}", *arguments],
            input=stdin,
            env={**self.processes.environment, "KUBE_EDITOR": editor},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done

    def client(self, user: str = "admin") -> Client:
        """Return the user's client, one per user, closed with the control plane."""
        if user not in self._clients:
            self._clients[user] = Client(self.url, ca_file=self.ca_file, token=self._users[user].token)
        return self._clients[user]

    def _prepare(self) -> None:
        folder = self.processes.folder
        self.service_range = self._claim_service_range()
        self.url = f"https://127.0.0.1:{self._claim_port()}"
        self._scheduler_port = self._claim_port()
        authority = Authority("test control plane")
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(authority.certificate)
        names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost"]
        addresses = ["127.0.0.1", self.service_address(1)]
        (folder / "apiserver.pem").write_bytes(authority.issue(names=names, addresses=addresses))
        (folder / "service-accounts.key").write_bytes(signing_key())
        self._prepare_client_certificate()
        (folder / "tokens.csv").write_text(
            "".join(
                f'{user.token},{name},{name},"{",".join(user.groups)}"\n'
                for name, user in self._users.items()
            )
        )

    def _prepare_client_certificate(self) -> None:
        """Write what docs/operate/security.md has an administrator write on a control plane node."""
        if self._client_name is None:
            return
        folder, authority = self.processes.folder, Authority("callers of webhooks")
        self.callers_ca = folder / "callers-ca.crt"
        self.callers_ca.write_bytes(authority.certificate)
        pem = folder / "caller.pem"
        pem.write_bytes(authority.issue(names=[self._client_name], client=True))
        user = {"client-certificate": str(pem), "client-key": str(pem)}
        kubeconfig = folder / "webhooks.kubeconfig"
        users = [{"name": "gpu-admission.gpu-admission.svc", "user": user}]
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
        plugin = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(kubeconfig),
        }
        names = ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
        plugins = [{"name": name, "configuration": plugin} for name in names]
        document = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration"}
        (folder / "admission.json").write_text(json.dumps({**document, "plugins": plugins}))

    def _claim_service_range(self) -> ipaddress.IPv4Network:
        # An abstract socket is a lock with exactly the reach of the addresses, one network namespace, that
        # dies with us.
        for subnet in ipaddress.IPv4Network("127.100.0.0/16").subnets(new_prefix=24):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._claims.append(claim)
            try:
                claim.bind(f"\0gpu-admission/{subnet}")
            except OSError:
                self._claims.remove(claim)
                claim.close()
            else:
                return subnet
        raise ControlPlaneFailed(
            "all 256 service ranges inside 127.100.0.0/16 are taken by other control planes"
        )

    def _claim_port(self) -> int:
        # Bound but not listening: the API server shares the port (--permit-port-sharing), nobody else can
        # take it before it does, nor during a restart.
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._claims.append(claim)
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        claim.bind(("127.0.0.1", 0))
        return int(claim.getsockname()[1])

    def _start(self, name: str) -> None:
        arguments, ready = {
            "etcd": (self._etcd_arguments, self._etcd_ready),
            API_SERVER: (self._apiserver_arguments, self._apiserver_ready),
            CONTROLLERS: (self._controllers_arguments, self._controllers_ready),
            SCHEDULER: (self._scheduler_arguments, self._scheduler_ready),
        }[name]
        gates = [f"--feature-gates={gate}=true" for gate in self._gates] if name != "etcd" else []
        self.processes.start(name, [self.binaries / name, *gates, *arguments()])
        self._wait_until(ready, name)

    def _wait_until(self, ready: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while not ready():
            status = self.processes.exit_status(name)
            if status is not None or time.monotonic() > deadline:
                what = (
                    f"was not ready after {READY_WITHIN} s"
                    if status is None
                    else f"ended with status {status}"
                )
                tail = "\n".join(self.logs(name).splitlines()[-20:])
                raise ControlPlaneFailed(f"{name} {what}; the end of its log:\n{tail}")
            time.sleep(0.1)  # each look is a handshake

    def _etcd_arguments(self) -> list[str]:
        folder = self.processes.folder
        return [
            f"--data-dir={folder}/etcd",
            # Unix sockets in a folder of mode 0700: no port to find, and nobody else on the machine can reach
            # the data.
            f"--listen-client-urls=unix://{folder}/etcd.sock",
            f"--listen-peer-urls=unix://{folder}/peer.sock",
            # What it would tell other members; it insists on host and port, and nobody ever calls them.
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _etcd_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
            return attempt.connect_ex(str(self.processes.folder / "etcd.sock")) == 0

    def _apiserver_arguments(self) -> list[str]:
        folder = self.processes.folder
        return [
            f"--etcd-servers=unix://{folder}/etcd.sock",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",  # else it looks for a default route, which a machine may lack
            "--endpoint-reconciler-type=none",  # Endpoints may not hold a loopback address
            f"--secure-port={self.url.rpartition(':')[2]}",
            "--permit-port-sharing=true",
            f"--cert-dir={folder}",
            f"--tls-cert-file={folder}/apiserver.pem",
            f"--tls-private-key-file={folder}/apiserver.pem",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/service-accounts.key",
            f"--service-account-signing-key-file={folder}/service-accounts.key",
            f"--service-cluster-ip-range={self.service_range}",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--disable-admission-plugins={self._disable_admission}",
            *([f"--admission-control-config-file={folder}/admission.json"] if self._client_name else ()),
            *self._served,
            *self._apiserver_args,
        ]

    def _apiserver_ready(self) -> bool:
        return self._answers(f"{self.url}/readyz")

    def _answers(self, url: str) -> bool:
        with urllib3.PoolManager(ca_certs=str(self.ca_file), retries=False, timeout=5) as anonymous:
            try:
                return anonymous.request("GET", url).status == 200
            except urllib3.exceptions.HTTPError:
                return False

    def _controllers_arguments(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            f"--controllers=*,{','.join('-' + name for name in CONTROLLERS_OFF)}",
            "--use-service-account-credentials=true",  # as installed: webhooks see who creates a pod
            f"--service-account-private-key-file={self.processes.folder}/service-accounts.key",
            f"--root-ca-file={self.ca_file}",
            "--secure-port=0",
            *ALONE_AND_FAST,
        ]

    def _controllers_ready(self) -> bool:
        return self.client().get("/api/v1/namespaces/default/serviceaccounts/default")[0] == 200

    def _scheduler_arguments(self) -> list[str]:
        pem = self.processes.folder / "apiserver.pem"
        return [
            f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}",
            *self._scheduler_configuration(),
            "--bind-address=127.0.0.1",
            f"--secure-port={self._scheduler_port}",  # for /readyz
            "--permit-port-sharing=true",
            f"--tls-cert-file={pem}",
            f"--tls-private-key-file={pem}",
            *ALONE_AND_FAST,
        ]

    def _scheduler_configuration(self) -> list[str]:
        if self._scheduler_config is None:
            return []
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            # With a configuration the scheduler leaves the flags of the same meaning unread.
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("system:kube-scheduler")),
                "qps": 2000,
                "burst": 4000,
            },
            **self._scheduler_config,
        }
        path = self.processes.folder / "scheduler.json"
        path.write_text(json.dumps(document))
        return [f"--config={path}"]

    def _scheduler_ready(self) -> bool:
        return self._answers(f"https://127.0.0.1:{self._scheduler_port}/readyz")
