"""readiness-delay: traffic and probes wait for the model, and nobody waits who did not have to."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Probe
from policies.rules.readiness_delay import (
    ReadinessDelayOptions,
    Strategy,
    first_kill,
    mutate,
    startup_probe,
    with_buffer,
)
from tests.builders import JSON, apply, container, context, gpu_container, pod, view

READY: JSON = {"httpGet": {"path": "/v2/health/ready", "port": 8000}}
LIVE: JSON = {"grpc": {"port": 9000}, "timeoutSeconds": 5, "terminationGracePeriodSeconds": 7}
PATIENT: JSON = {**LIVE, "initialDelaySeconds": 60}
LOAD = "gpu-admission.dev/model-load-seconds"
LOAD_60 = {LOAD: "60"}
ONE_MINUTE = ReadinessDelayOptions(model_load_seconds=60)
BY_STARTUP_PROBE = ReadinessDelayOptions(model_load_seconds=60, strategy=Strategy.STARTUP_PROBE)


def server(**tweaks: Any) -> JSON:
    return pod(gpu_container(**tweaks))


def sidecar(**tweaks: Any) -> JSON:
    return pod(container(), initContainers=[gpu_container(name="server", restartPolicy="Always", **tweaks)])


def delayed(seconds: int) -> JSON:
    return {**READY, "initialDelaySeconds": seconds}


def covering(handler: JSON, failures: int, **tweaks: Any) -> JSON:
    return {**handler, "periodSeconds": 10, "failureThreshold": failures, **tweaks}


def run(document: JSON, options: ReadinessDelayOptions = ONE_MINUTE) -> tuple[JSON, list[str]]:
    patch = PodPatch(view(document))
    findings = list(mutate(patch, options, context()))
    return apply(document, patch), [finding.sentence() for finding in findings]


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(
            server(readinessProbe=READY),
            ONE_MINUTE,
            server(readinessProbe=delayed(72)),
            id="load-time-of-the-policy-plus-a-fifth",
        ),
        pytest.param(
            pod(
                gpu_container(readinessProbe=READY),
                annotations={"gpu-admission.dev/model-load-seconds": "100"},
            ),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(120)),
                annotations={"gpu-admission.dev/model-load-seconds": "100"},
            ),
            id="annotation-before-policy",
        ),
        pytest.param(
            # 140e9 bytes at 256 MiB/s: 521.5 s, so 522 s, and 626.4 s with the buffer
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(627)),
                annotations={"gpu-admission.dev/model-params": "70b"},
            ),
            id="estimate-before-policy",
        ),
        pytest.param(
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ReadinessDelayOptions(load_mib_per_second=2048, buffer=0),
            pod(
                gpu_container(readinessProbe=delayed(66)),
                annotations={"gpu-admission.dev/model-params": "70b"},
            ),
            id="estimate-at-the-rate-of-the-policy",
        ),
        pytest.param(
            pod(
                gpu_container(readinessProbe=READY),
                annotations={
                    "gpu-admission.dev/model-params": "70b",
                    "gpu-admission.dev/model-precision": "int4",
                },
            ),
            ReadinessDelayOptions(buffer=0),
            pod(
                gpu_container(readinessProbe=delayed(131)),
                annotations={
                    "gpu-admission.dev/model-params": "70b",
                    "gpu-admission.dev/model-precision": "int4",
                },
            ),
            id="estimate-by-precision",
        ),
        pytest.param(
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "1e15"}),
            ReadinessDelayOptions(buffer=0),
            pod(
                gpu_container(readinessProbe=delayed(86_400)),
                annotations={"gpu-admission.dev/model-params": "1e15"},
            ),
            id="estimate-of-more-than-a-day-is-a-day",
        ),
        pytest.param(
            pod(
                gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "seventy"}
            ),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(72)),
                annotations={"gpu-admission.dev/model-params": "seventy"},
            ),
            id="bad-model-annotation-is-for-gpu-class-to-refuse",
        ),
        pytest.param(
            server(readinessProbe=READY),
            ReadinessDelayOptions(),
            server(readinessProbe=READY),
            id="no-load-time-known",
        ),
        pytest.param(
            server(readinessProbe=delayed(300)),
            ONE_MINUTE,
            server(readinessProbe=delayed(300)),
            id="longer-delay-is-kept",
        ),
        pytest.param(
            server(readinessProbe=delayed(5)),
            ONE_MINUTE,
            server(readinessProbe=delayed(72)),
            id="shorter-one-is-raised",
        ),
        pytest.param(server(), ONE_MINUTE, server(), id="no-readiness-probe"),
        pytest.param(
            pod(container(readinessProbe=READY), annotations=LOAD_60),
            ONE_MINUTE,
            pod(container(readinessProbe=READY), annotations=LOAD_60),
            id="no-gpu",
        ),
        pytest.param(
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=READY)),
            ONE_MINUTE,
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=delayed(72))),
            id="only-the-container-with-the-gpu",
        ),
        pytest.param(
            pod(
                container(readinessProbe=READY),
                container("proxy", readinessProbe={**READY}),
                annotations={"gpu-fraction": "0.5"},
            ),
            ONE_MINUTE,
            pod(
                container(readinessProbe=delayed(72)),
                container("proxy", readinessProbe={**READY}),
                annotations={"gpu-fraction": "0.5"},
            ),
            id="fraction-goes-to-the-first-container",
        ),
        pytest.param(
            server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE),
            ONE_MINUTE,
            server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE),
            id="own-startup-probe",
        ),
        pytest.param(
            server(readinessProbe=READY, livenessProbe=LIVE),
            ONE_MINUTE,
            server(
                readinessProbe=delayed(72),
                livenessProbe=LIVE,
                startupProbe=covering(LIVE, 9),  # failures at 0, 10, … 80 s; the ninth kills
            ),
            id="liveness-that-kills-after-20-s",
        ),
        pytest.param(
            server(readinessProbe=delayed(300), livenessProbe={**LIVE, "initialDelaySeconds": 51}),
            ONE_MINUTE,
            server(
                readinessProbe=delayed(300),
                livenessProbe={**LIVE, "initialDelaySeconds": 51},
                startupProbe=covering(LIVE, 9),
            ),
            id="liveness-that-kills-one-second-too-soon",
        ),
        pytest.param(
            server(readinessProbe=READY, livenessProbe={**LIVE, "initialDelaySeconds": 52}),
            ONE_MINUTE,
            server(readinessProbe=delayed(72), livenessProbe={**LIVE, "initialDelaySeconds": 52}),
            id="liveness-that-waits-just-long-enough",
        ),
        pytest.param(
            server(livenessProbe=LIVE),
            ONE_MINUTE,
            server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
            id="liveness-alone-that-kills-after-20-s",
        ),
        pytest.param(
            server(livenessProbe=PATIENT),
            ONE_MINUTE,
            server(livenessProbe=PATIENT),
            id="liveness-alone-that-waits-long-enough",
        ),
        pytest.param(
            server(readinessProbe=READY, livenessProbe=LIVE),
            BY_STARTUP_PROBE,
            server(readinessProbe=READY, livenessProbe=LIVE, startupProbe=covering(READY, 9)),
            id="strategy-startup-probe",
        ),
        pytest.param(
            server(livenessProbe=LIVE),
            BY_STARTUP_PROBE,
            server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
            id="strategy-startup-probe-with-liveness-alone",
        ),
        pytest.param(
            server(
                readinessProbe={**READY, "successThreshold": 3, "periodSeconds": 2, "initialDelaySeconds": 4}
            ),
            BY_STARTUP_PROBE,
            server(
                readinessProbe={**READY, "successThreshold": 3, "periodSeconds": 2, "initialDelaySeconds": 4},
                startupProbe=covering(READY, 9),
            ),
            id="strategy-startup-probe-takes-the-handler-only",
        ),
        pytest.param(
            server(readinessProbe={"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9}),
            BY_STARTUP_PROBE,
            server(
                readinessProbe={"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9},
                startupProbe=covering({"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9}, 9),
            ),
            id="strategy-startup-probe-with-a-command-and-its-timeout",
        ),
        pytest.param(
            sidecar(readinessProbe=READY, livenessProbe=PATIENT),
            ONE_MINUTE,
            sidecar(readinessProbe=delayed(72), livenessProbe=PATIENT),
            id="sidecar-gets-the-delay",
        ),
        pytest.param(
            sidecar(readinessProbe=READY),
            BY_STARTUP_PROBE,
            sidecar(readinessProbe=delayed(72)),
            id="sidecar-gets-no-startup-probe-which-would-hold-back-the-others",
        ),
    ],
)
def test_probes(document: JSON, options: ReadinessDelayOptions, want: JSON) -> None:
    once, findings = run(document, options)

    assert once == want
    assert findings == []
    assert run(once, options) == (
        once,
        [],
    )  # reinvocation changes nothing, although a startupProbe is there by now


def test_liveness_of_a_sidecar_is_only_warned_of() -> None:
    document = sidecar(readinessProbe=READY, livenessProbe=LIVE)
    patch = PodPatch(view(document))

    (finding,) = mutate(patch, ONE_MINUTE, context())

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'spec.initContainers[0].livenessProbe (container "server"): set initialDelaySeconds: 72; should not kill '
        "this sidecar before 72 s, the time its model may take to load: it can after 20 s [readiness-delay]"
    )
    assert "startupProbe" not in apply(document, patch)["spec"]["initContainers"][0]


@pytest.mark.parametrize(
    ("probe", "kills", "threshold"),
    [
        pytest.param({**READY, "failureThreshold": 4}, 30, 9, id="every-10-s"),
        pytest.param(READY, 20, 9, id="defaults-of-the-api"),
        pytest.param(
            {**READY, "initialDelaySeconds": 20, "periodSeconds": 5, "failureThreshold": 8},
            55,
            12,  # 20 + 11 × 5 = 75 s, the first multiple after 72
            id="five-seconds-too-soon",
        ),
    ],
)
def test_startup_probe_that_is_shorter_than_the_declared_load_time(
    probe: JSON, kills: int, threshold: int
) -> None:
    document = pod(gpu_container(startupProbe=probe, readinessProbe=READY), annotations=LOAD_60)

    assert run(document, ReadinessDelayOptions()) == (
        document,
        [
            f'spec.containers[0].startupProbe (container "main"): set failureThreshold: {threshold}; should allow the 60 s '
            f"that the model takes to load: it kills the container after {kills} s [readiness-delay]"
        ],
    )


@pytest.mark.parametrize(
    ("document", "options"),
    [
        pytest.param(
            pod(gpu_container(startupProbe={**READY, "failureThreshold": 7}), annotations=LOAD_60),
            ReadinessDelayOptions(),
            id="just-long-enough-without-the-buffer",
        ),
        pytest.param(server(startupProbe=READY), ONE_MINUTE, id="load-time-of-the-policy-is-not-the-pod-s"),
        pytest.param(
            pod(gpu_container(startupProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ReadinessDelayOptions(),
            id="load-time-by-rule-of-thumb",
        ),
    ],
)
def test_startup_probe_of_the_user_s_that_is_left_alone(
    document: JSON, options: ReadinessDelayOptions
) -> None:
    assert run(document, options) == (document, [])


NO_PROBE = (
    'metadata.annotations[gpu-admission.dev/model-load-seconds] = "60": add a readinessProbe; has no effect: no '
    "container that requests a GPU has a probe, so traffic can come before the model is loaded [readiness-delay]"
)


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(gpu_container(), annotations=LOAD_60), [NO_PROBE], id="no-probe-at-all"),
        pytest.param(
            pod(gpu_container(), container("proxy", readinessProbe=READY), annotations=LOAD_60),
            [NO_PROBE],
            id="probe-of-another-container",
        ),
        pytest.param(pod(gpu_container(livenessProbe=PATIENT), annotations=LOAD_60), [], id="liveness-alone"),
        pytest.param(
            pod(gpu_container(startupProbe={**READY, "failureThreshold": 30}), annotations=LOAD_60),
            [],
            id="startup-alone",
        ),
        pytest.param(
            pod(gpu_container(name="helper"), gpu_container(readinessProbe=delayed(72)), annotations=LOAD_60),
            [],
            id="one-of-two-servers",
        ),
        pytest.param(pod(gpu_container()), [], id="nothing-declared"),
        pytest.param(pod(container(), annotations=LOAD_60), [], id="no-gpu"),
    ],
)
def test_declared_load_time_without_a_probe(document: JSON, want: list[str]) -> None:
    assert run(document, ONE_MINUTE) == (document, want)


@pytest.mark.parametrize("text", ["soon", "0", "-60", "1.5", "60s", "86401", "", "٦٠"])
def test_load_time_that_is_no_number_is_refused(text: str) -> None:
    document = pod(
        gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-load-seconds": text}
    )

    patched, findings = run(document)

    assert patched == document
    assert findings == [
        f'metadata.annotations[{LOAD}] = "{text}": set for example {LOAD}: "60" (seconds); must be a whole number of seconds '
        "from 1 to 86400 [readiness-delay]"
    ]


@pytest.mark.parametrize(
    ("load", "buffer", "want"),
    [
        pytest.param(60, 0.2, 72, id="seed"),
        pytest.param(60, 0.0, 60, id="none"),
        pytest.param(61, 0.2, 74, id="rounded-up"),
        pytest.param(100, 0.1, 110, id="where-floats-say-111"),
        pytest.param(10, 0.7, 17, id="where-the-decimal-counts"),
        pytest.param(86_400, 10, 950_400, id="largest"),
        pytest.param(3, 1e-05, 4, id="written-with-an-exponent"),
    ],
)
def test_buffer_is_exact(load: int, buffer: float, want: int) -> None:
    assert with_buffer(load, buffer) == want


@pytest.mark.parametrize("delay", [1, 9, 10, 11, 72, 86_400])
def test_startup_probe_never_kills_before_the_delay_has_passed(delay: int) -> None:
    probe = startup_probe(Probe(), delay)

    assert delay <= first_kill(probe) < delay + 10


@pytest.mark.parametrize(
    ("probe", "want"),
    [
        pytest.param(Probe(), 20, id="defaults-of-the-api"),
        pytest.param(
            Probe(initial_delay_seconds=30, period_seconds=5, failure_threshold=4), 45, id="all-set"
        ),
        pytest.param(Probe(failure_threshold=1), 0, id="first-failure-kills"),
        pytest.param(Probe(period_seconds=0, failure_threshold=0), 20, id="zero-means-default"),
    ],
)
def test_first_kill(probe: Probe, want: int) -> None:
    assert first_kill(probe) == want


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(ReadinessDelayOptions(), [], id="defaults"),
        pytest.param(
            ReadinessDelayOptions(model_load_seconds=0, load_mib_per_second=0, buffer=-0.1),
            [
                ("modelLoadSeconds", "must be from 1 to 86400 (a day), not 0"),
                ("loadMiBPerSecond", "must be from 1 to 1048576 (1 TiB per second), not 0"),
                ("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not -0.1"),
            ],
            id="all-at-once",
        ),
        pytest.param(
            ReadinessDelayOptions(buffer=float("nan")),
            [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not nan")],
            id="not-a-number",
        ),
        pytest.param(
            ReadinessDelayOptions(buffer=20),
            [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not 20")],
            id="per-cent-instead-of-a-part",
        ),
    ],
)
def test_problems(options: ReadinessDelayOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
