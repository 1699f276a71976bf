"""Policies of `gpu-admission export`, stored and in files of the API server: they leave the GPU stack alone, and are current.

They hold for pods that the webhook never gets: device plugins, exporters and validators request no GPU.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from policies.finding import Severity
from policies.gpus.vendor import VOID
from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.pods.label_selector import LabelSelector
from policies.pods.pod import Pod, decode_pod
from policies.rule import Context, Mode, Phase
from policies.rules import gpu_isolation
from webhook.cluster import errors
from webhook.cluster.objects import (
    EXPORTED_LABELS,
    EXPORTED_RULE_LABEL,
    ObjectMeta,
    decode_metadata,
    fields_of,
)
from webhook.tools.doctor.check import DoctorFinding, NotChecked, Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import GROUP
from webhook.tools.export.static import loaded
from webhook.tools.installed_cluster import ADMISSION, InstalledCluster, Permission

POLICIES = "validatingadmissionpolicies"


@doctor_check(
    "exported-policies",
    "Exported policies are of the documents in force, and let the GPU stack start",
    Permission("list", POLICIES, GROUP),
    Permission("list", "daemonsets", "apps"),
    Permission("list", "namespaces"),
)
def _check_exported(cluster: InstalledCluster) -> Iterator[Observation]:
    isolating: dict[str, LabelSelector] = {}
    outdated = set()
    for document in cluster.items(f"{ADMISSION}/{POLICIES}"):
        metadata = msgspec.convert(document["metadata"], ObjectMeta)
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        if not EXPORTED_LABELS.items() <= labels.items():
            continue
        if annotations.get("gpu-admission.dev/version") != cluster.configuration.version:
            outdated.add(metadata.name)
        if labels.get(EXPORTED_RULE_LABEL) == gpu_isolation.ID:
            selector = document["spec"]["matchConstraints"].get("namespaceSelector") or {}
            isolating[annotations.get("gpu-admission.dev/policy", "")] = msgspec.convert(
                selector, LabelSelector
            )
    if outdated:
        message = f"not of configuration {cluster.configuration.version}, which is in force"
        remedy = "run gpu-admission export again, and apply what it writes"
        yield warning("exported-policies-outdated", f"{POLICIES} ({len(outdated)})", message, remedy)
    if isolating:
        yield from denied_agents(cluster, isolating)
    yield from _static_observations(cluster)


def _static_observations(cluster: InstalledCluster) -> Iterator[Observation]:
    """Say what the API server that answered has loaded from files. Whether that is current, only their options say."""
    try:
        found = loaded(cluster.api)
    except errors.NotFound:
        return
    except errors.Forbidden:
        yield NotChecked(
            "you may not get /metrics, which say what files the API server has", for_administrators=True
        )
        return
    for plugin, state in sorted(found.items()):
        if state.is_refused:
            yield failure(
                "static-policies-rejected",
                f"{plugin} of API server {state.server}",
                "rejected its newest file of policies, and will not start with it: the last good one is in force",
                "run gpu-admission export --static again for its control plane node; its log says what is wrong",
            )
        else:
            yield (
                f"API server {state.server}, the one that answered, has {plugin} {state.hash or 'without data'} from files; "
                "compare its folder by gpu-admission export --check"
            )


def denied_agents(cluster: InstalledCluster, selectors: dict[str, LabelSelector]) -> Iterator[DoctorFinding]:
    """Yield the namespaces with DaemonSets that gpu-isolation denies. `selectors`: by policy, where its exported objects hold."""
    denied: dict[tuple[str, str], list[str]] = defaultdict(list)
    for metadata, pod in cluster.decoded("/apis/apps/v1/daemonsets", _daemon_set):
        namespace = metadata.namespace
        policy = cluster.policy_of(namespace)
        in_force = policy.in_force(gpu_isolation.ID, cluster.now)
        selector = selectors.get(policy.name)
        if in_force is None or in_force[1] is not Mode.ENFORCE or selector is None:
            continue
        context = Context(
            phase=Phase.VALIDATE,
            namespace=namespace,
            now=cluster.now,
            classes=cluster.configuration.classes,
            resource_mapping=cluster.configuration.resource_mapping,
            made_by_daemonset=True,
            options_of=policy.options_of,
        )
        findings = gpu_isolation.check(pod, gpu_isolation.GPUIsolationOptions(), context)
        if selector.matches(cluster.namespaces.get(namespace, {})) and any(
            finding.severity is Severity.DENIAL for finding in findings
        ):
            denied[namespace, policy.name].append(metadata.name)
    for (namespace, policy_name), names in sorted(denied.items()):
        yield failure(
            "exported-policies-deny",
            f"Namespace/{namespace}",
            f"DaemonSets ({len(names)}, such as {min(names)}) cannot start: the exported gpu-isolation of "
            f"GPUPolicy/{policy_name} denies their pods, and gives others, such as CUDA validators, "
            f"{NVIDIA_VISIBLE_DEVICES}={VOID}",
            f"where only administrators create pods in it: export with --exclude-namespace {namespace}, or after adding "
            f"{{namespaces: [{namespace}], rules: [{gpu_isolation.ID}], reason: the GPU stack}} to spec.exemptions "
            f"of GPUPolicy/{policy_name}",
        )


def _daemon_set(raw: msgspec.Raw) -> tuple[ObjectMeta, Pod]:
    return decode_metadata(raw), decode_pod(fields_of(raw, "spec")["template"])


CHECKS = (_check_exported,)
