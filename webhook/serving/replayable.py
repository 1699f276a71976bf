"""The pod of an audit line, by which `gpu-admission replay` evaluates it again: what the rules read, without what may be secret.

Left out: command and args (only `parallelism` reads them, which denies nothing), the values of variables but of those that say
which GPUs a container sees, what probes run, and annotations that no rule reads.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from policies.gpus import exposure
from policies.gpus.resource_mapping import ResourceMapping
from policies.models.warming.server_credentials import KEY_FILE
from policies.pods.annotations import DOMAIN, INJECTED
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.pod import Container, EnvVar, Metadata, Pod, Probe, Volume, VolumeMount
from policies.rules.cuda_version import DISABLE, REQUIRE

LONGEST_POD = 16 * 1024
"""Bytes of JSON; a longer pod is left out, and counted as not replayed."""

READ = frozenset({REQUIRE, DISABLE, KEY_FILE, "CUDA_VISIBLE_DEVICES"})
"""Variables whose values rules read, beside those by which runtimes show devices. None holds a secret."""

N = TypeVar("N", Volume, VolumeMount)

_SOMETHING = msgspec.Raw(b"{}")
_HANDLERS = ("http_get", "tcp_socket", "grpc", "exec")


def without_secrets(pod: Pod, mapping: ResourceMapping) -> msgspec.Raw | None:
    """Return the pod in JSON, None if it is too long."""
    body, metadata = pod.body, pod.metadata or Metadata()
    labels = {key: text for key, text in pod.labels.items() if key.startswith(DOMAIN)}
    reduced = replace(
        pod,
        metadata=Metadata(
            labels=labels or None,
            annotations=_annotations(pod, mapping) or None,
            owner_references=metadata.owner_references,
        ),
        spec=replace(
            body,
            containers=_containers(body.containers),
            init_containers=_containers(body.init_containers),
            ephemeral_containers=None,
            volumes=_without_token(body.volumes),
        ),
        status=None,
    )
    document = msgspec.json.encode(reduced)
    return msgspec.Raw(document) if len(document) <= LONGEST_POD else None


def _annotations(pod: Pod, mapping: ResourceMapping) -> dict[str, str]:
    if not pod.annotations:
        return {}
    fractions = {each.key for each in mapping.fraction_annotations}
    return {
        key: text
        for key, text in pod.annotations.items()
        if (key.startswith(DOMAIN) and key != INJECTED) or key in fractions or exposure.names_devices(key)
    }


def _containers(containers: Iterable[Container] | None) -> tuple[Container, ...] | None:
    if containers is None:
        return None
    return tuple(
        replace(
            each,
            command=None,
            args=None,
            env=tuple(map(_variable, each.env)) if each.env else None,
            volume_mounts=_without_token(each.volume_mounts),
            readiness_probe=_probe(each.readiness_probe),
            liveness_probe=_probe(each.liveness_probe),
            startup_probe=_probe(each.startup_probe),
        )
        for each in containers
    )


def _without_token(named: tuple[N, ...] | None) -> tuple[N, ...] | None:
    """Return the volumes or mounts but those of the pod's token, without which the pods of one Job are alike."""
    return named and tuple(each for each in named if not each.name.startswith(TOKEN_VOLUME))


def _variable(variable: EnvVar) -> EnvVar:
    name = variable.name
    if name in READ or exposure.shows_devices(name):
        return variable
    is_reference = isinstance(variable.value_from, msgspec.Raw)
    return EnvVar(name=name, value_from=_SOMETHING if is_reference else msgspec.UNSET)


def _probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    handlers: dict[str, Any] = {
        each: _SOMETHING for each in _HANDLERS if isinstance(getattr(probe, each), msgspec.Raw)
    }
    return replace(probe, **handlers)
