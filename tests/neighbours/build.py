"""Where the controllers of others come from: a Go module each, or packages of Python, built once into one cache.

Their CustomResourceDefinitions, roles and webhooks are read from where Go or pip unpacked them. JobSet, KubeRay,
LeaderWorkerSet and Trainer name the versions of libraries that Kueue does, except of controller-runtime: what they share is
compiled once, and each of them takes some 10 s more.
"""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TextIO

from tests.controlplane.build import ControlPlaneUnavailable, GoModule, build_once, folder_for
from tests.virtual_environment import folder_of, installed

HERE = Path(__file__).parent
COMMAND = "python -m tests.neighbours build"


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """One project, as its own manifests install it.

    `module` is its Go module, and `package` that of its command; without a module it is one of Python. `manifests` are files,
    folders for kustomize, or charts with `values`, but for the kinds `left_out`, and `namespace` where those are put that name
    none. Of a project with several programs, `binary` is that of another one, and `deployment` whose account and environment it
    has; a Deployment that the program reads (`reads_deployment`) is stored, without pods. `configuration` is laid over its
    configuration file; `flags` are of a command that reads none. In both `{address}` is that of its Service, and `{certificates}`
    the folder of its webhooks' certificate. `port` is where these are served: what listens on all addresses needs a port of its
    own. `service` is the one of webhooks that it registers itself. `health` is where it says that it is ready, `watches` what its
    role lets it watch, and `reconciled` what its log says of each reconcile if its metrics count none. `secret` is where it keeps
    a certificate that it issues itself, and `mount` where it reads that, if no flag says where.
    """

    name: str
    version: str
    package: str
    module: str = ""
    manifests: tuple[str, ...] = ("config/default",)
    namespace: str = ""
    flags: tuple[str, ...] = ()
    configuration: Mapping[str, object] = field(default_factory=dict, hash=False)
    secure_metrics: bool = True
    watches: str = "pods"
    health: tuple[int, str] = (8081, "/readyz")
    reconciled: str = ""
    port: int = 443
    secret: str = ""
    mount: Path | None = None
    values: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    deployment: str = ""
    binary: str = ""
    reads_deployment: bool = False
    service: str = ""

    @property
    def is_python(self) -> bool:
        return not self.module

    @property
    def program(self) -> str:
        return self.binary or self.name

    @property
    def folder(self) -> str:
        return f"{self.program}-{self.version}"

    @property
    def constraints(self) -> Path:
        return HERE / self.folder / "constraints.txt"


METRICS_PORT = 8082
"""Where neighbours serve metrics: 8080, the usual one, is what mpi-operator takes on all addresses: no flag changes it."""
MANAGER = {
    "health": {"healthProbeBindAddress": "{address}:8081"},
    "metrics": {"bindAddress": f"{{address}}:{METRICS_PORT}"},
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"qps": 500, "burst": 500},
}
OF_SIGS = {
    **MANAGER,
    "webhook": {"host": "{address}", "port": 443, "certDir": "{certificates}"},
    "internalCertManagement": {"enable": False},
}
JOBSET = Neighbour(
    name="jobset",
    version="0.11.1",
    module="sigs.k8s.io/jobset",
    package="sigs.k8s.io/jobset",
    configuration=OF_SIGS,
)
KUBERAY = Neighbour(
    name="kuberay",
    version="1.6.0",
    module="github.com/ray-project/kuberay/ray-operator",
    package="github.com/ray-project/kuberay/ray-operator",
    flags=(
        f"--metrics-addr={{address}}:{METRICS_PORT}",
        "--health-probe-bind-address={address}:8081",
        "--enable-leader-election=false",
    ),
    secure_metrics=False,
)
KUEUE = Neighbour(
    name="kueue",
    version="0.17.0",
    module="sigs.k8s.io/kueue",
    package="sigs.k8s.io/kueue/cmd/kueue",
    secret="kueue-webhook-server-cert",
    configuration={
        **OF_SIGS,
        "internalCertManagement": {"enable": True},
        "featureGates": {"VisibilityOnDemand": False},  # an API server to aggregate, which needs a pod
    },
)
LEADER_WORKER_SET = Neighbour(
    name="lws",
    version="0.8.0",
    module="sigs.k8s.io/lws",
    package="sigs.k8s.io/lws/cmd",
    configuration=OF_SIGS,
)
TRAINING_OPERATOR = Neighbour(
    name="training-operator",
    version="1.9.3",
    module="github.com/kubeflow/training-operator",
    package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
    manifests=("manifests/overlays/standalone",),
    flags=(
        f"--metrics-bind-address={{address}}:{METRICS_PORT}",
        "--health-probe-bind-address={address}:8081",
        "--webhook-server-port=29443",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
    ),
    secure_metrics=False,
    port=29443,
    secret="training-operator-webhook-cert",
    mount=Path("/tmp/k8s-webhook-server/serving-certs"),  # noqa: S108 - of controller-runtime
)
TRAINER = Neighbour(
    name="trainer",
    version="2.2.0",
    module="github.com/kubeflow/trainer/v2",
    package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    manifests=tuple(f"manifests/base/{each}" for each in ("crds", "manager", "rbac", "webhook")),
    namespace="kubeflow-system",
    configuration={
        **MANAGER,
        "webhook": {"host": "{address}", "port": 443},
        "certManagement": {"enable": False},
    },
    watches="configmaps",
)
MPI_OPERATOR = Neighbour(
    name="mpi-operator",
    version="0.8.2",
    module="github.com/kubeflow/mpi-operator",
    package="github.com/kubeflow/mpi-operator/cmd/mpi-operator",
    manifests=("manifests/overlays/standalone",),
    flags=("--lock-namespace=mpi-operator", "--kube-api-qps=500", "--kube-api-burst=500"),
    health=(8080, "/healthz"),
    reconciled="Finished syncing job",
)
GATEKEEPER = Neighbour(
    name="gatekeeper",
    version="3.23.1",
    module="github.com/open-policy-agent/gatekeeper/v3",
    package="github.com/open-policy-agent/gatekeeper/v3",
    manifests=("charts/gatekeeper",),
    namespace="gatekeeper-system",
    flags=(
        *(
            f"--operation={each}"
            for each in ("webhook", "mutation-webhook", "audit", "status", "mutation-status", "generate")
        ),
        *("--host={address}", "--port=443", "--cert-dir={certificates}"),
        "--health-addr={address}:8081",
        *("--exempt-namespace=gatekeeper-system", "--debug-use-fake-pod", "--shutdown-delay=0"),
        *("--audit-interval=3", "--api-cache-dir=audit"),
    ),
    secret="gatekeeper-webhook-server-cert",
)
KYVERNO = Neighbour(
    name="kyverno",
    version="1.19.1",
    module="github.com/kyverno/kyverno",
    package="github.com/kyverno/kyverno/cmd/kyverno",
    manifests=("config/install-latest-testing.yaml",),
    deployment="kyverno-admission-controller",
    reads_deployment=True,
    service="kyverno-svc",
    flags=(
        *("--kubeconfig={kubeconfig}", "--webhookServerHost={address}", "--webhookServerPort=443"),
        *(
            "--caSecretName=kyverno-svc.kyverno.svc.kyverno-tls-ca",
            "--tlsSecretName=kyverno-svc.kyverno.svc.kyverno-tls-pair",
        ),
        "--backgroundServiceAccountName=system:serviceaccount:kyverno:kyverno-background-controller",
        "--reportsServiceAccountName=system:serviceaccount:kyverno:kyverno-reports-controller",
        *("--disableMetrics=true", "--controllerRuntimeMetricsAddress=0", "--admissionReports=false"),
    ),
    health=(443, "/health/readiness"),
    secret="kyverno-svc.kyverno.svc.kyverno-tls-pair",
)
CERT_MANAGER = Neighbour(
    name="cert-manager",
    version="1.21.2",
    module="github.com/cert-manager/cert-manager",
    package=".",
    manifests=("deploy/charts/cert-manager",),
    values=("crds.enabled=true", "startupapicheck.enabled=false"),
    left_out=(
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ),  # its webhook is no package of the module
    namespace="cert-manager",
    deployment="cert-manager",
    flags=("controller", "{address}:8081"),
    watches="secrets",
)
CA_INJECTOR = replace(
    CERT_MANAGER,
    name="cainjector",
    binary="cert-manager",
    deployment="cert-manager-cainjector",
    flags=("cainjector", "{address}:8081"),
)
ARGO_WORKFLOWS = Neighbour(
    name="argo-workflows",
    version="4.0.5",
    module="github.com/argoproj/argo-workflows/v4",
    package="github.com/argoproj/argo-workflows/v4/cmd/workflow-controller",
    manifests=("manifests/cluster-install",),
    namespace="argo",
    deployment="workflow-controller",
    flags=("--namespace=argo", "--qps=500", "--burst=500"),
    health=(6060, "/healthz"),
    reconciled="Processing workflow",
)
DASK = Neighbour(
    name="dask-kubernetes",
    version="2026.3.0",
    package="dask_kubernetes",
    manifests=("operator/deployment/helm/dask-kubernetes-operator",),
    namespace="dask-operator",
    flags=(
        *("-m", "kopf", "run", "-m", "dask_kubernetes.operator.controller", "--all-namespaces", "--verbose"),
        "--liveness=http://{address}:8081/healthz",
    ),
    health=(8081, "/healthz"),
    reconciled="Handling cycle",
)
KUBESPAWNER = Neighbour(name="kubespawner", version="7.1.0", package="kubespawner")
NEIGHBOURS = (
    JOBSET,
    KUBERAY,
    KUEUE,
    LEADER_WORKER_SET,
    TRAINING_OPERATOR,
    TRAINER,
    MPI_OPERATOR,
    GATEKEEPER,
    KYVERNO,
    CERT_MANAGER,
    ARGO_WORKFLOWS,
    DASK,
    KUBESPAWNER,
)


def build(neighbour: Neighbour, out: TextIO) -> Path:
    """Return the binary after building it if it is not there. Raises ControlPlaneUnavailable when that cannot be."""
    if neighbour.is_python:
        return installed(neighbour.name, neighbour.constraints, out)
    folder = folder_for(neighbour.folder)
    if not folder.is_dir():
        module = GoModule(_go(), HERE / neighbour.folder, {neighbour.name: neighbour.package}, "-s -w")
        build_once(f"{neighbour.name} {neighbour.version}", folder, module, out)
    return locate(neighbour)


def locate(neighbour: Neighbour) -> Path:
    """Return the binary, or its Python. Raises ControlPlaneUnavailable when it has not been built."""
    if neighbour.is_python:
        binary = folder_of(neighbour.name, neighbour.constraints) / "bin" / "python"
    else:
        binary = folder_for(neighbour.folder) / neighbour.program
    if binary.exists():
        return binary
    raise ControlPlaneUnavailable(f"no {neighbour.folder}: build the neighbours once with `{COMMAND}`")


@cache
def source(neighbour: Neighbour) -> Path:
    """Return the folder of the project's module, as Go or pip has unpacked it for the build."""
    if neighbour.is_python:
        (found,) = locate(neighbour).parents[1].glob(f"lib/python3*/site-packages/{neighbour.package}")
        return found
    command = [_go(), "list", "-m", "-f", "{{.Dir}}", neighbour.module]
    done = subprocess.run(
        command, cwd=HERE / neighbour.folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise ControlPlaneUnavailable(f"no source of {neighbour.folder}: {done.stderr}")
    return Path(done.stdout.strip())


def _go() -> str:
    if go := shutil.which("go"):
        return go
    raise ControlPlaneUnavailable("the neighbours need a Go toolchain on PATH (https://go.dev/dl)")
