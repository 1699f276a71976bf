"""Delay traffic and probes until a model server has loaded its model.

Reads:   how long the model loads: annotation model-load-seconds, else its weights (annotation model-params) at
         `loadMiBPerSecond`, else `modelLoadSeconds` of the policy, else nothing happens; plus `buffer`.
Adds:    to containers that request a GPU and have a probe but no startupProbe of their own, by `strategy`:
         initialDelay  readinessProbe.initialDelaySeconds of at least that (never less than it was), and, where the
                       livenessProbe could kill the server sooner, a startupProbe from the livenessProbe's handler;
         startupProbe  a startupProbe from the readinessProbe's handler, else the livenessProbe's, so that a fast load is
                       ready at once.
Denies:  a load time that is not a number of seconds.
Warns:   of a sidecar's livenessProbe that could kill it: a startupProbe there would hold back the containers after it; of a
         startupProbe that kills before the load time that the annotation declares, and of such a time without any probe; of a
         HorizontalPodAutoscaler that scales such a server to zero, and of an autoscaler that scales a slow one from 1.

A container with a startupProbe stays unchanged. So a second pass changes nothing.
"""

import math
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from policies.finding import Edit, Finding, Json, Reason, one_choice, warning
from policies.models.estimate import estimate
from policies.models.memory import model_shape
from policies.pods.annotations import (
    INEFFECTIVE_ANNOTATION,
    INVALID_ANNOTATION,
    MODEL_LOAD_SECONDS,
    SECONDS,
    BadAnnotation,
    parse_whole_number,
)
from policies.pods.field_paths import annotation_path, value_at
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, Pod, Probe
from policies.pods.workload import Workload
from policies.rule import Context, Rule, RuleOptions

PROBE_KILLS_LOADING = Reason("ProbeKillsLoading", "a probe kills the container before its model is loaded")
SCALES_TO_ZERO = Reason("ScalesToZero", "the first request waits until a model is loaded")
SCALES_FROM_ONE = Reason(
    "ScalesFromOne", "one pod serves all requests until a second one has loaded its model"
)

ID = "readiness-delay"
DAY = 86_400
SLOW_SECONDS = 60
"""Load time from which an autoscaler must not rely on one pod. A HorizontalPodAutoscaler decides every 15 s."""
MIB = 2**20
STARTUP_PERIOD_SECONDS = 10

# Defaults of the API server (k8s.io/kubernetes pkg/apis/core/v1/defaults.go, SetDefaults_Probe).
DEFAULT_PERIOD_SECONDS = 10
DEFAULT_FAILURE_THRESHOLD = 3

PROBE = Json('{"httpGet": {"path": "/healthz", "port": 8080}}')
"""A probe for an example."""


class Strategy(Enum):
    INITIAL_DELAY = "initialDelay"
    STARTUP_PROBE = "startupProbe"


class ReadinessDelayOptions(RuleOptions, frozen=True):
    strategy: Strategy = Strategy.INITIAL_DELAY
    model_load_seconds: int | None = None
    load_mib_per_second: int = msgspec.field(name="loadMiBPerSecond", default=256)
    """How fast weights reach the GPUs when only their size is known. 256 MiB/s is an untuned network disk or object store:
    70b in bf16 are 140 GB or 133,515 MiB, which take 522 s."""
    buffer: float = 0.2

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.model_load_seconds is not None and not 1 <= self.model_load_seconds <= DAY:
            yield "modelLoadSeconds", f"must be from 1 to {DAY} (a day), not {self.model_load_seconds}"
        if not 1 <= self.load_mib_per_second <= MIB:
            known = f"must be from 1 to {MIB} (1 TiB per second)"
            yield "loadMiBPerSecond", f"{known}, not {self.load_mib_per_second}"
        if not 0 <= self.buffer <= 10:  # noqa: PLR2004 - the sentence names it; also refuses NaN
            yield "buffer", f"must be from 0 to 10 (0.2 adds 20 % to the load time), not {self.buffer}"


def mutate(patch: PodPatch, options: ReadinessDelayOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if not context.resource_mapping.pod_requests_gpus(pod):
        return
    load = expected_load_seconds(pod, options)
    if isinstance(load, BadAnnotation):
        yield load.finding()
    elif load is not None:
        delay, places = with_buffer(load, options.buffer), gpu_places(pod, context)
        # Only a load time that the pod itself declares is certain enough to say that its probes are wrong.
        if MODEL_LOAD_SECONDS in pod.annotations:
            yield from probe_findings(places, load, delay)
        for place in places:
            yield from delay_probes(patch, place, delay, options.strategy)


def expected_load_seconds(pod: Pod, options: ReadinessDelayOptions) -> int | BadAnnotation | None:
    """Return how many seconds the model is expected to load. None if unknown."""
    text = pod.annotations.get(MODEL_LOAD_SECONDS)
    if text is not None:
        return parse_whole_number(MODEL_LOAD_SECONDS, text, SECONDS, maximum=DAY)
    model = model_shape(pod)
    # Rule gpu-class reports invalid annotations of the model, all of them at once.
    if model is None or isinstance(model, tuple):
        return options.model_load_seconds
    # A load of more than a day means that the rate is wrong for this model.
    return min(math.ceil(Fraction(estimate(model).weights, MIB * options.load_mib_per_second)), DAY)


def check_workload(workload: Workload, options: ReadinessDelayOptions, context: Context) -> Iterator[Finding]:
    """Warn of an autoscaler over a server whose model takes time: of an HPA to zero, and of one from 1 if that is long.

    `minReplicas: 0` is accepted by default since Kubernetes 1.37. KEDA scales to zero by events, which wait.
    """
    if workload.target is None:
        return
    is_hpa, spec = workload.kind == "HorizontalPodAutoscaler", value_at(workload.data, ("spec",)) or {}
    field, max_field = ("minReplicas", "maxReplicas") if is_hpa else ("minReplicaCount", "maxReplicaCount")
    min_replicas = spec.get(field, 1 if is_hpa else 0)
    gpu_pods = [
        pod.pod for pod in workload.target.pods if context.resource_mapping.pod_requests_gpus(pod.pod)
    ]
    load = max((_seconds_to_load(pod, options, context) for pod in gpu_pods), default=0)
    containers = (place.container for pod in gpu_pods for place in gpu_places(pod, context))
    # A worker of a queue has no port, and its queue keeps the requests.
    if min_replicas == 0 and is_hpa and (load or any(container.ports for container in containers)):
        seconds = f", some {load} s" if load else ""
        metrics = value_at(spec, ("metrics",))
        types = [value_at(metric, ("type",)) for metric in metrics] if isinstance(metrics, list) else []
        # validateMetrics in pkg/apis/autoscaling/validation, v1.37; without metrics the default is that of CPU.
        can_be_zero = "Object" in types or "External" in types
        rejected = (
            "before 1.37 rejects 0 by default"
            if can_be_zero
            else "rejects 0 without a metric of type Object or External"
        )
        yield warning(
            reason=SCALES_TO_ZERO,
            path="spec.minReplicas",
            value="0",
            message=f"the first request waits until a pod is placed and has loaded its model{seconds}, and a Service "
            f"keeps no requests; Kubernetes {rejected}",
            choices=one_choice(Edit("spec.minReplicas", 1)),
            remedy="set minReplicas: 1, or put a queue before the server",
        )
    if load >= SLOW_SECONDS and min_replicas == 1 and spec.get(max_field) != 1:
        yield warning(
            reason=SCALES_FROM_ONE,
            path=f"spec.{field}",
            value="1",
            message=f"one pod serves all requests for the {load} s in which a second one loads its model, and none does while it "
            "is replaced",
            choices=one_choice(Edit(f"spec.{field}", 2)),
        )


def _seconds_to_load(pod: Pod, options: ReadinessDelayOptions, context: Context) -> int:
    """Return how many seconds the model takes to load, or else what its probes allow; 0 if neither is known."""
    load = expected_load_seconds(pod, options)
    if isinstance(load, int):
        return load
    containers = [place.container for place in gpu_places(pod, context)]
    startup = (first_kill(container.startup_probe) for container in containers if container.startup_probe)
    delays = (each.readiness_probe.initial_delay_seconds or 0 for each in containers if each.readiness_probe)
    return max((*startup, *delays), default=0)


@lru_cache(maxsize=1024)
def with_buffer(load: int, buffer: float) -> int:
    """Return load × (1 + buffer), rounded up. `buffer` is taken as the decimal in the policy: 60 and 0.2 make 72."""
    return math.ceil(load * (1 + Fraction(repr(buffer))))


def gpu_places(pod: Pod, context: Context) -> list[ContainerPlace]:
    places = context.resource_mapping.places_with_gpus(pod)
    if not places and context.resource_mapping.pod_fraction(pod) is not None:
        # An annotation requests a fraction. It goes to the first container (KAI's default, Run:ai's only way).
        places = list(pod.apps[:1])
    return places


def probe_findings(places: list[ContainerPlace], load: int, delay: int) -> Iterator[Finding]:
    """Warn of startupProbes that kill before `load` seconds. The remedy allows `delay`, which includes the buffer."""
    containers = [place.container for place in places]
    if places and not any(
        each.readiness_probe or each.liveness_probe or each.startup_probe for each in containers
    ):
        # An init container that ends may have no probe.
        serving = next(
            (place for place in places if place.list_name == "containers" or place.is_sidecar), None
        )
        path = annotation_path(MODEL_LOAD_SECONDS)
        yield warning(
            reason=INEFFECTIVE_ANNOTATION,
            path=path,
            value=str(load),
            message="has no effect: no container that requests a GPU has a probe, so traffic can come before the model is loaded",
            choices=one_choice(Edit(f"{serving.path}.readinessProbe", PROBE) if serving else Edit(path)),
            is_example=serving is not None,
            remedy="add a readinessProbe" if serving else "remove it",
        )
    for place in places:
        probe = place.container.startup_probe
        if probe is not None and first_kill(probe) < load:
            waiting = delay - (probe.initial_delay_seconds or 0)
            period = probe.period_seconds or DEFAULT_PERIOD_SECONDS
            yield warning(
                reason=PROBE_KILLS_LOADING,
                path=f"{place.path}.startupProbe",
                container=place.container.name,
                message=f"should allow the {load} s that the model takes to load: it kills the container after "
                f"{first_kill(probe)} s",
                choices=one_choice(
                    Edit(f"{place.path}.startupProbe.failureThreshold", math.ceil(waiting / period) + 1)
                ),
            )


def delay_probes(patch: PodPatch, place: ContainerPlace, delay: int, strategy: Strategy) -> Iterator[Finding]:
    container = place.container
    readiness, liveness = container.readiness_probe, container.liveness_probe
    source = readiness or liveness
    if source is None or container.startup_probe is not None:
        return
    if strategy is Strategy.STARTUP_PROBE and not place.is_sidecar:
        # The API server rejects a terminationGracePeriodSeconds on a readinessProbe, so there is none to take over.
        patch.set_startup_probe(place, startup_probe(source, delay))
        return
    if readiness is not None and (readiness.initial_delay_seconds or 0) < delay:
        patch.set_initial_delay(place, delay)
    if liveness is None or first_kill(liveness) >= delay:
        return
    if place.is_sidecar:
        yield warning(
            reason=PROBE_KILLS_LOADING,
            path=f"{place.path}.livenessProbe",
            container=container.name,
            message=f"should not kill this sidecar before {delay} s, the time its model may take to load: it can after "
            f"{first_kill(liveness)} s",
            choices=one_choice(Edit(f"{place.path}.livenessProbe.initialDelaySeconds", delay)),
        )
    else:
        patch.set_startup_probe(place, startup_probe(liveness, delay))


def first_kill(probe: Probe) -> int:
    """Return the least number of seconds after which a probe that never succeeds kills its container.

    The first probe comes at initialDelaySeconds. The failureThreshold-th failure in a row kills the container.
    """
    period = probe.period_seconds or DEFAULT_PERIOD_SECONDS
    failures = probe.failure_threshold or DEFAULT_FAILURE_THRESHOLD
    return (probe.initial_delay_seconds or 0) + period * (failures - 1)


def startup_probe(source: Probe, delay: int) -> Probe:
    """Return a startupProbe with the handler of `source` that does not kill before `delay` seconds have passed."""
    return replace(
        source,
        initial_delay_seconds=None,
        period_seconds=STARTUP_PERIOD_SECONDS,
        success_threshold=None,  # the API server takes nothing but 1, its default
        failure_threshold=math.ceil(delay / STARTUP_PERIOD_SECONDS) + 1,  # + 1: the first one fails at 0 s
    )


RULE = Rule(
    id=ID,
    reasons=(
        INVALID_ANNOTATION,
        INEFFECTIVE_ANNOTATION,
        PROBE_KILLS_LOADING,
        SCALES_TO_ZERO,
        SCALES_FROM_ONE,
    ),
    summary="traffic and probes wait until the model is loaded",
    options=ReadinessDelayOptions,
    mutate=mutate,
    check_workload=check_workload,
    not_exported="it estimates the load time over the whole pod; without it, probes stay as written",
)
