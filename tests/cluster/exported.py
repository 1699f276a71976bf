"""The exported policies on a real API server: namespaces under GPUPolicies of their own, and nothing elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from policies.policy import Labels
from tests.builders import JSON, gpu_container, pod
from tests.cluster.controllers import eventually, is_there
from tests.controlplane import Client, ControlPlane, minor_version
from tests.controlplane.plane import CONTROLLERS
from webhook.configuration.loader import Configuration, load_directory
from webhook.tools.export.admission_policies import SELECTOR, ExportOptions, as_text, export_policies

TEAM, RESTRICTED, WARNED = "exported-team", "exported-restricted", "exported-warned"
EXEMPTED, LABELLED, CHOSEN = "exported-legacy", "exported-labelled", "exported-chosen"
NAMESPACES = (TEAM, RESTRICTED, WARNED, EXEMPTED, LABELLED, CHOSEN)
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
RULES = """
    gpu-requests:
      maxPerContainer: {"*": 4, amd.com/*: 3, amd.com/gpu: 2}
      maxPerPod: {"*": 8, nvidia.com/mig-*: 5}
    gpu-isolation: {mode: enforce}
    gpu-toleration:
      tolerations:
      - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
      - {key: dedicated, value: ml-workloads, effect: NoSchedule}
      - {key: reserved, operator: Exists, effect: NoExecute, tolerationSeconds: 600}
      byVendor:
        amd.com: [{key: rocm, operator: Exists}, {key: reserved, operator: Exists, tolerationSeconds: 600, effect: NoExecute}]
"""
POLICY = f"""
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: chosen}}
spec:
  priority: 5
  match: {{namespaces: [exported-chosen]}}
  rules:
    gpu-requests: {{maxPerContainer: null, maxPerPod: {{"*": 6, nvidia-t4: 2}}}}
    gpu-isolation: {{mode: disabled}}
    gpu-toleration: {{mode: disabled}}
    gpu-class: {{allowed: [nvidia-t4, "nvidia-a100*"]}}
    max-runtime: {{mode: enforce, max: 2h, byClass: {{nvidia-t4: {{max: 1h}}}}, exempt: {{kinds: [RayCluster]}}}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: labelled}}
spec:
  priority: 4
  match: {{namespaces: ["exported-*"], namespaceSelector: {{matchLabels: {{example.com/tier: small}}}}}}
  rules:
    gpu-requests: {{maxPerPod: 1}}
    gpu-isolation: {{mode: enforce}}
    gpu-toleration: {{mode: disabled}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: team}}
spec:
  priority: 3
  match: {{namespaces: [exported-team, "exported-l?gacy", "it's-*", "exported-[z-a]*"]}}
  exemptions: [{{namespaces: [exported-legacy], reason: test}}]
  rules: {RULES}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: restricted}}
spec:
  priority: 2
  match: {{namespaces: ["exported-[r-t]*"]}}
  rules: {RULES}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: warned}}
spec:
  priority: 1
  match: {{namespaces: ["exported-*"]}}
  rules:
    gpu-requests: {{mode: warn, maxPerPod: 2}}
    gpu-isolation: {{mode: warn}}
    gpu-toleration: {{mode: audit}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: default}}
spec:
  rules:
    gpu-requests: {{mode: disabled}}
    gpu-isolation: {{mode: disabled}}
    gpu-toleration: {{mode: disabled}}
    gpu-class: {{mode: disabled}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {{name: nvidia-t4}}
spec:
  memoryGiB: 16
  tolerations: [{{key: accelerator, value: t4, effect: NoSchedule}}, {{key: dedicated, operator: Exists}}]
  nodeLabels: [{{key: accelerator, values: [nvidia-t4]}}, {{key: nvidia.com/gpu.product, values: [Tesla-T4]}}]
"""
"""`restricted` fits the name of `team`, too, and is not asked there; `warned` fits all of them."""

KINDS = [
    f"{each}admission{what}" for each in ("validating", "mutating") for what in ("policies", "policybindings")
]
MUTATIONS = "v1" if minor_version() >= 36 else "v1beta1"
"""The version in which this API server serves MutatingAdmissionPolicies."""
IN_FORCE_WITHIN = 60  # seconds; the API server reads its policies once a second


def configuration(folder: Path) -> Configuration:
    (folder / "policy.yaml").write_text(POLICY)
    return load_directory(folder)


@contextmanager
def installed(plane: ControlPlane, made: Configuration) -> Iterator[None]:
    """Apply what is exported, until the end of the block; then remove it as the header of the export says."""
    client = plane.client()
    options = ExportOptions(now=datetime.now(UTC), mutations=MUTATIONS)
    # Read back from the text that people apply.
    exported = yaml.safe_load_all(as_text(export_policies(made, options)))
    for document in (*map(namespace, NAMESPACES), *filter(None, exported)):
        answer = client.apply(document)
        assert answer.status < 300, answer.body
    for name in NAMESPACES if CONTROLLERS in plane.pids else ():
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        assert is_there(plane, account)
    await_force(plane)
    yield
    version = "/apis/admissionregistration.k8s.io/{}/{}"
    for kind in KINDS:
        path = version.format(MUTATIONS if kind.startswith("mutating") else "v1", kind)
        assert client.delete(path, query={"labelSelector": SELECTOR})[0] == 200
        left = {each["metadata"]["name"] for each in client.get(path)[1]["items"]}
        assert not {name for name in left if name.startswith("gpu-admission")}


def await_force(plane: ControlPlane) -> None:
    """Return once the policies hold: it learns of them in the order of their creation."""
    is_in_force = eventually(lambda: _warns(plane) and _adds_tolerations(plane), seconds=IN_FORCE_WITHIN)
    assert is_in_force, "the exported policies do not work"


def namespace(name: str) -> JSON:
    """Return a namespace; those here outlive the module, which costs nothing, and deleting one takes long."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels(name))}}


def labels(name: str) -> Labels:
    return (("example.com/tier", "small"),) if name == LABELLED else ()


def _warns(plane: ControlPlane) -> bool:
    path = f"/api/v1/namespaces/{WARNED}/pods"
    probe = {**pod(gpu_container("5")), "metadata": {"name": "probe"}}
    return plane.client().send("POST", path, probe, {"dryRun": "All"}).warnings != []


def _adds_tolerations(plane: ControlPlane) -> bool:
    status, answer = create(plane.client(), pod(gpu_container()))
    return status == HTTPStatus.CREATED and any(
        each["key"] == "reserved" for each in answer["spec"]["tolerations"]
    )


def create(client: Client, document: JSON, namespace: str = TEAM, *, dry_run: bool = True) -> tuple[int, Any]:
    metadata = {**document.get("metadata", {}), "namespace": namespace}
    query = {"dryRun": "All"} if dry_run else None
    return client.post(f"/api/v1/namespaces/{namespace}/pods", {**document, "metadata": metadata}, query)
