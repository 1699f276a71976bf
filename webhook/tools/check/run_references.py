"""Objects whose pods an object of another kind describes, which they name: a runtime, a Task, a WorkflowTemplate.

Its pods are checked in that object, and in a cluster again when they are created.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from policies.finding import UNREAD_GPUS, Finding, truncate, warning
from policies.pods.field_paths import field_path, value_at
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import steps
from webhook.tools.check.manifests import Manifest
from webhook.workloads.counts import values
from webhook.workloads.places import workload_pods
from webhook.workloads.references import IN_ITS_PODS, unknown
from webhook.workloads.train_jobs import CLUSTER_RUNTIME, TRAIN_JOB

Lookup = Callable[[str, str, str, str], Any]
"""Returns the object of a namespace, API version, kind and name, as plain data; None if it is not known."""

SERVICE = ("serving.kserve.io", "InferenceService")
_TASKS = ("Task", "ClusterTask")
_TEMPLATES = ("WorkflowTemplate", "ClusterWorkflowTemplate")
DESCRIBED: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    SERVICE: {"spec.predictor.model.runtime": ("ServingRuntime", "ClusterServingRuntime")},
    TRAIN_JOB: {"spec.runtimeRef.name": (CLUSTER_RUNTIME, "TrainingRuntime")},
    ("tekton.dev", "TaskRun"): {"spec.taskRef.name": _TASKS},
    ("tekton.dev", "Pipeline"): {"spec.tasks[].taskRef.name": _TASKS, "spec.finally[].taskRef.name": _TASKS},
    ("tekton.dev", "PipelineRun"): {
        "spec.pipelineRef.name": ("Pipeline",),
        "spec.pipelineSpec.tasks[].taskRef.name": _TASKS,
        "spec.pipelineSpec.finally[].taskRef.name": _TASKS,
    },
    ("argoproj.io", "Workflow"): {
        "spec.workflowTemplateRef.name": _TEMPLATES,
        "spec.templates[].dag.tasks[].templateRef.name": _TEMPLATES,
    },
    ("argoproj.io", "CronWorkflow"): {
        "spec.workflowSpec.workflowTemplateRef.name": _TEMPLATES,
        "spec.workflowSpec.templates[].dag.tasks[].templateRef.name": _TEMPLATES,
    },
}
"""By (API group, kind): the paths of names, and the kinds, of the same group, that these may be of."""

OF_MODELS = (SERVICE, TRAIN_JOB)
"""Kinds of which the objects that they name mostly have GPUs: a warning says of these, too, that they are not known."""

MAX_DEPTH = 2
"""Objects that are followed: of a PipelineRun, its Pipeline and the Tasks of this one."""


def described_elsewhere(
    manifest: Manifest, data: Any, configuration: Configuration, lookup: Lookup
) -> Iterator[Finding]:
    """Yield a warning of each object that this one names, if its pods request GPUs or are not known.

    data: the object with what is known of a TrainJob's runtime.
    """
    key, namespace = manifest.group_kind, manifest.namespace
    if key not in DESCRIBED or _requests_gpus(*key, data, configuration):
        return
    for path, kinds, name in _names(key, data):
        other = _found(key[0], namespace, kinds, name, lookup)
        if other is None and key in OF_MODELS:
            yield unknown(kinds[0], path, name)
        elif key != TRAIN_JOB and _has_gpus(key[0], namespace, other, configuration, lookup, MAX_DEPTH):
            yield warning(
                rule="workloads", reason=UNREAD_GPUS, path=path, message=IN_ITS_PODS(truncate(name))
            )


def _names(key: tuple[str, str], data: Any) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the path of each name, the kinds that it may be of, and the name. The field `kind` beside it may say which."""
    for path, kinds in DESCRIBED.get(key, {}).items():
        for at, name in values(data, steps(path)):
            if isinstance(name, str):
                kind = value_at(data, (*at[:-1], "kind"))
                yield field_path(at), ((kind,) if kind in kinds else kinds), name


def _found(group: str, namespace: str, kinds: tuple[str, ...], name: str, lookup: Lookup) -> Any:
    others = (lookup(namespace, f"{group}/", kind, name) for kind in kinds)
    return next((other for other in others if other is not None), None)


def _has_gpus(
    group: str, namespace: str, other: Any, configuration: Configuration, lookup: Lookup, depth: int
) -> bool:
    """Whether the object, or one that it names, has pods that request GPUs."""
    if other is None or depth == 0:
        return False
    key = group, str(other.get("kind"))
    further = (_found(group, namespace, kinds, name, lookup) for _, kinds, name in _names(key, other))
    return _requests_gpus(*key, other, configuration) or any(
        _has_gpus(group, namespace, each, configuration, lookup, depth - 1) for each in further
    )


def _requests_gpus(group: str, kind: str, data: Any, configuration: Configuration) -> bool:
    with suppress(msgspec.ValidationError):  # said of that object itself
        document = msgspec.Raw(msgspec.json.encode(data))
        _, pods = workload_pods(configuration.workload_kinds, group, kind, document)
        return any(configuration.resource_mapping.pod_requests_gpus(pod) for _, pod in pods)
    return False
