"""readiness-delay: traffic and probes wait for the model, and nobody waits who did not have to."""

from typing import Any

import pytest

from policies.finding import Severity, as_plain_data
from policies.pods.patch import PodPatch
from policies.pods.pod import Probe
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.rules.readiness_delay import (
    ReadinessDelayOptions,
    Strategy,
    check_workload,
    first_kill,
    mutate,
    startup_probe,
    with_buffer,
)
from tests.builders import JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases

READY: JSON = {"httpGet": {"path": "/v2/health/ready", "port": 8000}}
LIVE: JSON = {"grpc": {"port": 9000}, "timeoutSeconds": 5, "terminationGracePeriodSeconds": 7}
PATIENT: JSON = {**LIVE, "initialDelaySeconds": 60}
COMMAND: JSON = {"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9}
HALF: JSON = {"annotations": {"gpu-fraction": "0.5"}}
LOAD = "gpu-admission.dev/model-load-seconds"
LOAD_60 = {LOAD: "60"}
ONE_MINUTE = ReadinessDelayOptions(model_load_seconds=60)
BY_STARTUP_PROBE = ReadinessDelayOptions(model_load_seconds=60, strategy=Strategy.STARTUP_PROBE)


def server(**tweaks: Any) -> JSON:
    return pod(gpu_container(**tweaks))


def loading(*containers: JSON) -> JSON:
    """Return a pod that declares a load time of a minute."""
    return pod(*containers, annotations=LOAD_60)


def sidecar(**tweaks: Any) -> JSON:
    return pod(container(), initContainers=[gpu_container(name="server", restartPolicy="Always", **tweaks)])


def delayed(seconds: int) -> JSON:
    return {**READY, "initialDelaySeconds": seconds}


def live_after(seconds: int) -> JSON:
    return {**LIVE, "initialDelaySeconds": seconds}


def covering(handler: JSON, failures: int, **tweaks: Any) -> JSON:
    return {**handler, "periodSeconds": 10, "failureThreshold": failures, **tweaks}


def run(document: JSON, options: ReadinessDelayOptions = ONE_MINUTE) -> tuple[JSON, list[str]]:
    patch = PodPatch(view(document))
    findings = list(mutate(patch, options, context()))
    return apply(document, patch), [finding.sentence() for finding in findings]


def settled(document: JSON, options: ReadinessDelayOptions) -> JSON:
    """Return the pod as the rule leaves it, without a finding; a second pass changes nothing, though there is a startupProbe."""
    once, findings = run(document, options)
    assert findings == []
    assert run(once, options) == (once, [])
    return once


PARAMS, PRECISION = "gpu-admission.dev/model-params", "gpu-admission.dev/model-precision"


@cases(
    ("annotations", "options", "delay"),
    of_the_policy_plus_a_fifth=({}, ONE_MINUTE, 72),
    annotation_before_policy=({LOAD: "100"}, ONE_MINUTE, 120),
    # 140e9 bytes at 256 MiB/s: 521.5 s, so 522 s, and 626.4 s with the buffer
    estimate_before_policy=({PARAMS: "70b"}, ONE_MINUTE, 627),
    policy_rate=({PARAMS: "70b"}, ReadinessDelayOptions(load_mib_per_second=2048, buffer=0), 66),
    estimate_by_precision=({PARAMS: "70b", PRECISION: "int4"}, ReadinessDelayOptions(buffer=0), 131),
    a_second=({}, ReadinessDelayOptions(model_load_seconds=1, buffer=0), 1),
    estimate_of_more_than_a_day_is_a_day=({PARAMS: "1e15"}, ReadinessDelayOptions(buffer=0), 86_400),
    bad_model_annotation_is_for_gpu_class_to_denied=({PARAMS: "seventy"}, ONE_MINUTE, 72),
)
def test_load_time(annotations: dict[str, str], options: ReadinessDelayOptions, delay: int) -> None:
    document = pod(gpu_container(readinessProbe=READY), annotations=annotations)

    assert settled(document, options) == pod(
        gpu_container(readinessProbe=delayed(delay)), annotations=annotations
    )


@cases(
    ("document", "options"),
    no_load_time_known=(server(readinessProbe=READY), ReadinessDelayOptions()),
    longer_delay=(server(readinessProbe=delayed(300)), ONE_MINUTE),
    as_long_a_delay=(server(readinessProbe=delayed(72)), ONE_MINUTE),
    no_probe=(server(), ONE_MINUTE),
    no_gpu=(loading(container(readinessProbe=READY)), ONE_MINUTE),
    own_startup=(server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE), ONE_MINUTE),
    liveness_alone_that_waits_long_enough=(server(livenessProbe=PATIENT), ONE_MINUTE),
)
def test_what_stays_as_it_is(document: JSON, options: ReadinessDelayOptions) -> None:
    assert settled(document, options) == document


@cases(
    ("document", "want"),
    shorter_delay_is_raised=(server(readinessProbe=delayed(5)), server(readinessProbe=delayed(72))),
    only_the_container_with_the_gpu=(
        pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=READY)),
        pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=delayed(72))),
    ),
    fraction_goes_to_the_first_container=(
        pod(container(readinessProbe=READY), container("proxy", readinessProbe={**READY}), **HALF),
        pod(container(readinessProbe=delayed(72)), container("proxy", readinessProbe={**READY}), **HALF),
    ),
    liveness_that_kills_after_20_s=(  # failures at 0, 10, … 80 s; the ninth kills
        server(readinessProbe=READY, livenessProbe=LIVE),
        server(readinessProbe=delayed(72), livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
    ),
    liveness_that_kills_one_second_too_soon=(
        server(readinessProbe=delayed(300), livenessProbe=live_after(51)),
        server(readinessProbe=delayed(300), livenessProbe=live_after(51), startupProbe=covering(LIVE, 9)),
    ),
    liveness_that_waits_just_long_enough=(
        server(readinessProbe=READY, livenessProbe=live_after(52)),
        server(readinessProbe=delayed(72), livenessProbe=live_after(52)),
    ),
    liveness=(server(livenessProbe=LIVE), server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9))),
    sidecar_gets_the_delay=(
        sidecar(readinessProbe=READY, livenessProbe=PATIENT),
        sidecar(readinessProbe=delayed(72), livenessProbe=PATIENT),
    ),
)
def test_probes(document: JSON, want: JSON) -> None:
    assert settled(document, ONE_MINUTE) == want


@cases(
    ("probes", "source"),
    handler_of_the_readiness_probe=({"readinessProbe": READY, "livenessProbe": LIVE}, READY),
    handler_of_liveness_alone=({"livenessProbe": LIVE}, LIVE),
    handler_only=({"readinessProbe": delayed(4) | {"successThreshold": 3, "periodSeconds": 2}}, READY),
    a_command_with_its_timeout=({"readinessProbe": COMMAND}, COMMAND),
)
def test_strategy_startup_probe(probes: JSON, source: JSON) -> None:
    assert settled(server(**probes), BY_STARTUP_PROBE) == server(**probes, startupProbe=covering(source, 9))


def test_a_sidecar_gets_no_startup_probe_which_would_hold_back_the_others() -> None:
    found = settled(sidecar(readinessProbe=READY), BY_STARTUP_PROBE)

    assert found == sidecar(readinessProbe=delayed(72))


def test_liveness_of_a_sidecar_is_only_warned_of() -> None:
    document = sidecar(readinessProbe=READY, livenessProbe=LIVE)
    patch = PodPatch(view(document))

    (finding,) = mutate(patch, ONE_MINUTE, context())

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'spec.initContainers[0].livenessProbe (container "server"): set initialDelaySeconds: 72; should not kill '
        "this sidecar before 72 s, the time its model may take to load: it can after 20 s"
    )
    assert "startupProbe" not in apply(document, patch)["spec"]["initContainers"][0]


@cases(
    ("probe", "kills", "threshold"),
    every_10_s=({**READY, "failureThreshold": 4}, 30, 9),
    defaults_of_the_api=(READY, 20, 9),
    zero_means_default=({**READY, "periodSeconds": 0, "failureThreshold": 0}, 20, 9),
    every_second=({**READY, "periodSeconds": 1, "failureThreshold": 30}, 29, 73),
    five_seconds_too_soon=(
        {**READY, "initialDelaySeconds": 20, "periodSeconds": 5, "failureThreshold": 8},
        55,
        12,  # 20 + 11 × 5 = 75 s, the first multiple after 72
    ),
)
def test_startup_probe_shorter_than_the_declared_load_time(probe: JSON, kills: int, threshold: int) -> None:
    document = loading(gpu_container(startupProbe=probe, readinessProbe=READY))

    assert run(document, ReadinessDelayOptions()) == (
        document,
        [
            f'spec.containers[0].startupProbe (container "main"): set failureThreshold: {threshold}; should allow the 60 s '
            f"that the model takes to load: it kills the container after {kills} s"
        ],
    )


NO_PROBE = (
    'metadata.annotations[gpu-admission.dev/model-load-seconds] = "60": add a readinessProbe; has no effect: no '
    "container that requests a GPU has a probe, so traffic can come before the model is loaded"
)


@cases(
    ("document", "want"),
    no_probe_at_all=(loading(gpu_container()), [NO_PROBE]),
    probe_of_another=(loading(gpu_container(), container("proxy", readinessProbe=READY)), [NO_PROBE]),
    gpus_of_an_init_container_which_may_have_none=(
        pod(container(), initContainers=[gpu_container(name="check")], annotations=LOAD_60),
        [NO_PROBE.replace("add a readinessProbe", "remove it")],
    ),
    liveness_alone=(loading(gpu_container(livenessProbe=PATIENT)), []),
    startup_alone=(loading(gpu_container(startupProbe={**READY, "failureThreshold": 30})), []),
    one_of_two=(loading(gpu_container(name="helper"), gpu_container(readinessProbe=delayed(72))), []),
    nothing_declared=(pod(gpu_container()), []),
    startup_long_enough=(loading(gpu_container(startupProbe={**READY, "failureThreshold": 7})), []),
    startup_probe_where_the_load_time_of_the_policy_is_not_the_pod_s=(server(startupProbe=READY), []),
    startup_probe_where_the_load_time_is_by_rule_of_thumb=(
        pod(gpu_container(startupProbe=READY), annotations={PARAMS: "70b"}),
        [],
    ),
    no_gpu=(loading(container()), []),
)
def test_declared_load_time_that_nothing_waits_for(document: JSON, want: list[str]) -> None:
    assert run(document, ONE_MINUTE) == (document, want)


def test_the_probe_that_is_offered_is_an_example() -> None:
    patch = PodPatch(view(loading(gpu_container())))
    (found,) = mutate(patch, ONE_MINUTE, context())

    ((edit,),) = found.choices
    assert (edit.path, as_plain_data(edit.value), found.is_example) == (
        "spec.containers[0].readinessProbe",
        {"httpGet": {"path": "/healthz", "port": 8080}},
        True,
    )


SET = f"set {LOAD}: "
ALONE = "write the number of seconds alone"


@cases(
    ("text", "advice"),
    a_word=("soon", ALONE),
    zero=("0", ALONE),
    negative=("-60", ALONE),
    a_fraction=("1.5", ALONE),
    too_much=("86401", ALONE),
    nothing=("", ALONE),
    other_digits=("٦٠", ALONE),
    with_a_unit=("60s", f'{SET}"60"'),
    minutes=("5 min", f'{SET}"300"'),
    a_duration=("1h30m", f'{SET}"5400"'),
    more_than_a_day=("2days", ALONE),
)
def test_load_time_that_is_no_number_is_refused(text: str, advice: str) -> None:
    document = pod(gpu_container(readinessProbe=READY), annotations={LOAD: text})

    patched, findings = run(document)

    assert patched == document
    assert findings == [
        f'metadata.annotations[{LOAD}] = "{text}": {advice}; must be a whole number of seconds from 1 to 86400'
    ]


@cases(
    ("load", "buffer", "want"),
    none=(60, 0.0, 60),
    rounded_up=(61, 0.2, 74),
    where_floats_say_111=(100, 0.1, 110),
    where_the_decimal_counts=(10, 0.7, 17),
    written_with_an_exponent=(3, 1e-05, 4),
)
def test_buffer_is_exact(load: int, buffer: float, want: int) -> None:
    assert with_buffer(load, buffer) == want


@pytest.mark.parametrize("delay", [1, 9, 10, 11, 72, 86_400])
def test_startup_probe_never_kills_before_the_delay_has_passed(delay: int) -> None:
    assert delay <= first_kill(startup_probe(Probe(), delay)) < delay + 10


@cases(
    ("least", "kind", "containers", "want"),
    the_longest_load_counts=(
        0,
        "HorizontalPodAutoscaler",
        [gpu_container(), gpu_container()],
        ["90 s"],
    ),
    one_stays=(1, "HorizontalPodAutoscaler", [gpu_container()], []),
    two_stay=(2, "HorizontalPodAutoscaler", [gpu_container(), gpu_container()], []),
    another_autoscaler=(0, "ScaledObject", [gpu_container()], []),
    without_gpus=(0, "HorizontalPodAutoscaler", [container()], []),
)
def test_a_server_that_is_scaled_to_zero(
    least: int, kind: str, containers: list[JSON], want: list[str]
) -> None:
    made = [
        view(pod(each, annotations={LOAD: str(seconds)}))
        for each, seconds in zip(containers, (30, 90), strict=False)
    ]
    target = Workload(
        "apps", "Deployment", "team", {}, tuple(WorkloadPods("spec", each, PodCount(), each) for each in made)
    )
    spec = {"minReplicas": least, "metrics": [{"type": "External"}]}
    scaler = Workload("autoscaling", kind, "team", {"spec": spec}, (), target)

    found = list(check_workload(scaler, ONE_MINUTE, context()))

    assert [(each.message, each.remedy) for each in found] == [
        (
            f"the first request waits until a pod is placed and has loaded its model, some {load}, and a Service keeps no "
            "requests; Kubernetes before 1.37 rejects 0 by default",
            "set minReplicas: 1, or put a queue before the server",
        )
        for load in want
    ]


@cases(
    ("metrics", "want"),
    of_pods_that_do_not_run=(
        [{"type": "Resource"}, {"type": "Pods"}],
        "rejects 0 without a metric of type Object or External",
    ),
    of_something_else=([{"type": "Resource"}, {"type": "External"}], "before 1.37 rejects 0 by default"),
    of_cpu_by_default=(None, "rejects 0 without a metric of type Object or External"),
    hostile=(["External"], "rejects 0 without a metric of type Object or External"),
)
def test_metrics_by_which_nothing_is_scaled_to_zero(metrics: Any, want: str) -> None:
    made = view(pod(gpu_container(), annotations={LOAD: "90"}))
    target = Workload("apps", "Deployment", "team", {}, (WorkloadPods("spec", made, PodCount(), made),))
    spec = {"minReplicas": 0, "metrics": metrics}
    scaler = Workload("autoscaling", "HorizontalPodAutoscaler", "team", {"spec": spec}, (), target)

    [found] = check_workload(scaler, ONE_MINUTE, context())

    assert found.message == (
        "the first request waits until a pod is placed and has loaded its model, some 90 s, and a Service keeps no "
        f"requests; Kubernetes {want}"
    )


SLOW = {"annotations": {LOAD: "90"}}
STARTS_SLOWLY: JSON = {"startupProbe": {**READY, "periodSeconds": 10, "failureThreshold": 31}}


def from_one(field: str, seconds: int) -> list[str]:
    return [
        f'spec.{field} = "1": set {field}: 2; one pod serves all requests for the {seconds} s in which a second one loads its '
        "model, and none does while it is replaced"
    ]


@cases(
    ("kind", "spec", "scaled", "want"),
    the_default_of_an_hpa=(
        "HorizontalPodAutoscaler",
        {"maxReplicas": 4},
        pod(gpu_container(), **SLOW),
        from_one("minReplicas", 90),
    ),
    as_its_startup_probe_says=(
        "HorizontalPodAutoscaler",
        {"minReplicas": 1, "maxReplicas": 4},
        pod(gpu_container(**STARTS_SLOWLY)),
        from_one("minReplicas", 300),
    ),
    as_its_readiness_probe_says=(
        "HorizontalPodAutoscaler",
        {"minReplicas": 1, "maxReplicas": 4},
        pod(gpu_container(readinessProbe={**READY, "initialDelaySeconds": 240})),
        from_one("minReplicas", 240),
    ),
    of_keda=(
        "ScaledObject",
        {"minReplicaCount": 1},
        pod(gpu_container(), **SLOW),
        from_one("minReplicaCount", 90),
    ),
    keda_scales_to_zero_by_default=("ScaledObject", {}, pod(gpu_container(), **SLOW), []),
    from_two=("HorizontalPodAutoscaler", {"minReplicas": 2}, pod(gpu_container(), **SLOW), []),
    always_one=("HorizontalPodAutoscaler", {"maxReplicas": 1}, pod(gpu_container(), **SLOW), []),
    a_fast_server=("HorizontalPodAutoscaler", {}, pod(gpu_container(), annotations={LOAD: "59"}), []),
    nobody_knows=("HorizontalPodAutoscaler", {}, pod(gpu_container(readinessProbe=READY)), []),
    a_port_to_zero=(
        "HorizontalPodAutoscaler",
        {"minReplicas": 0, "metrics": [{"type": "Object"}]},
        pod(gpu_container(ports=[{"containerPort": 8000}])),
        [
            'spec.minReplicas = "0": set minReplicas: 1, or put a queue before the server; the first request waits until a pod '
            "is placed and has loaded its model, and a Service keeps no requests; Kubernetes before 1.37 rejects 0 by default"
        ],
    ),
    a_worker_of_a_queue_to_zero=("HorizontalPodAutoscaler", {"minReplicas": 0}, pod(gpu_container()), []),
    without_gpus=("HorizontalPodAutoscaler", {}, pod(container(**STARTS_SLOWLY)), []),
)
def test_a_server_that_is_left_one_pod_or_none(kind: str, spec: JSON, scaled: JSON, want: list[str]) -> None:
    made = view(scaled)
    target = Workload("apps", "Deployment", "team", {}, (WorkloadPods("spec", made, PodCount(), made),))
    scaler = Workload("autoscaling", kind, "team", {"spec": spec}, (), target)

    found = list(check_workload(scaler, ReadinessDelayOptions(), context()))

    assert [each.sentence() for each in found] == want


@cases(
    ("options", "want"),
    defaults=(ReadinessDelayOptions(), []),
    smallest=(ReadinessDelayOptions(model_load_seconds=1, load_mib_per_second=1, buffer=0), []),
    largest=(ReadinessDelayOptions(model_load_seconds=86_400, load_mib_per_second=1_048_576, buffer=10), []),
    all_at_once=(
        ReadinessDelayOptions(model_load_seconds=0, load_mib_per_second=0, buffer=-0.1),
        [
            ("modelLoadSeconds", "must be from 1 to 86400 (a day), not 0"),
            ("loadMiBPerSecond", "must be from 1 to 1048576 (1 TiB per second), not 0"),
            ("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not -0.1"),
        ],
    ),
    not_a_number=(
        ReadinessDelayOptions(buffer=float("nan")),
        [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not nan")],
    ),
    per_cent_instead_of_a_part=(
        ReadinessDelayOptions(buffer=20),
        [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not 20")],
    ),
)
def test_problems(options: ReadinessDelayOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
