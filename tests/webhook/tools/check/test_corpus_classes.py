"""Manifests written by others, under policies with a default class: where one chooses hardware, none is chosen for it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from policies.pods.pod import Pod
from tests.corpus import CORPUS
from webhook.configuration.loader import Configuration, load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.tools.check.manifests import Manifest, read_manifests
from webhook.tools.check.run import Run
from webhook.tools.check.run_decisions import PodResult

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the corpus is not at {CORPUS}")

OF_NO_HARDWARE = {
    "beta.kubernetes.io/os",
    "cloud.google.com/gke-queued",
    "cloud.google.com/gke-spot",
    "karpenter.sh/capacity-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "kubernetes.io/role",
    "node-role.kubernetes.io/control-plane",
    "node_role.e2e.grove.nvidia.com",
    "nvidia.com/gpu.present",
    "provisioner",
    "provisionerType",
    "type",
    "workload",
}
"""Every other label by which a manifest of the corpus selects nodes counts as a choice of hardware here."""

DEFAULTS = {
    "nvidia-a100": "nvidia.com",
    "nvidia-t4": "nvidia.com",
    "amd-mi300x": "amd.com",
    "intel-gaudi2": "habana.ai",
}
"""With the domain of their resources."""


def configuration(folder: Path, default: str) -> Configuration:
    (folder / "policy.yaml").write_text(
        "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: default}\n"
        f"spec: {{rules: {{gpu-class: {{default: {default}}}}}}}\n"
    )
    return load_directory(folder)


@cache
def corpus() -> list[Manifest]:
    return read_manifests([str(CORPUS)], recursive=True).manifests


def pods(folder: Path, default: str) -> Iterator[tuple[str, Pod, PodResult]]:
    """Yield every pod of the corpus, after its file, and what becomes of it."""
    decisions, now = DecisionCache(configuration(folder, default)), datetime.now(UTC)
    for manifest, found in zip(corpus(), Run(corpus(), decisions, now, None).results(), strict=True):
        for (_, pod), result in zip(manifest.pods, found.pods, strict=True):
            yield manifest.file, pod, result


def selected(pod: Pod) -> set[str]:
    """Return the labels and fields by which the pod selects nodes, required or preferred."""
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = (affinity and affinity.required and affinity.required.node_selector_terms) or ()
    preferred = (each.preference for each in (affinity and affinity.preferred) or () if each.preference)
    demands = [
        *(each for term in (*required, *preferred) for each in term.match_expressions or ()),
        *(each for term in (*required, *preferred) for each in term.match_fields or ()),
    ]
    return {*(pod.spec.node_selector or {}), *(each.key for each in demands)}


def domains(pod: Pod) -> set[str]:
    """Return those of the extended resources that the pod asks for."""
    containers = [place.container for place in pod.places]
    names = {name for each in containers for name in (*each.limits, *each.requests) if "/" in name}
    return {name.partition("/")[0] for name in names}


@pytest.mark.parametrize("default", DEFAULTS)
def test_no_pod_that_chooses_hardware_gets_a_default_class(tmp_path: Path, default: str) -> None:
    chosen, given = 0, 0
    for file, pod, result in pods(tmp_path, default):
        added = [each.what for each in result.changes if each.rule == "gpu-class"]
        keys = {key for key in selected(pod) if not key.startswith("nvidia.com/gpu.deploy.")}
        if keys - OF_NO_HARDWARE:
            chosen += 1
            assert added == [], file
        elif added:
            given += 1
            is_fraction = pod.annotations.keys() & {"gpu-fraction", "gpu-memory"}
            assert DEFAULTS[default] in (domains(pod) | ({"nvidia.com"} if is_fraction else set())), file
            assert not pod.spec.resource_claims, file

    assert chosen >= 40
    assert given >= 40 or DEFAULTS[default] != "nvidia.com"
