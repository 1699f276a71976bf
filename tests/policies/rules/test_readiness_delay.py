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
from tests.cases import cases

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


@cases(
    ("document", "options", "want"),
    {
        "load-time-of-the-policy-plus-a-fifth": (
            server(readinessProbe=READY),
            ONE_MINUTE,
            server(readinessProbe=delayed(72)),
        ),
        "annotation-before-policy": (
            pod(
                gpu_container(readinessProbe=READY),
                annotations={"gpu-admission.dev/model-load-seconds": "100"},
            ),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(120)),
                annotations={"gpu-admission.dev/model-load-seconds": "100"},
            ),
        ),
        "estimate-before-policy": (  # 140e9 bytes at 256 MiB/s: 521.5 s, so 522 s, and 626.4 s with the buffer
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(627)),
                annotations={"gpu-admission.dev/model-params": "70b"},
            ),
        ),
        "estimate-at-the-rate-of-the-policy": (
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ReadinessDelayOptions(load_mib_per_second=2048, buffer=0),
            pod(
                gpu_container(readinessProbe=delayed(66)),
                annotations={"gpu-admission.dev/model-params": "70b"},
            ),
        ),
        "estimate-by-precision": (
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
        ),
        "estimate-of-more-than-a-day-is-a-day": (
            pod(gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "1e15"}),
            ReadinessDelayOptions(buffer=0),
            pod(
                gpu_container(readinessProbe=delayed(86_400)),
                annotations={"gpu-admission.dev/model-params": "1e15"},
            ),
        ),
        "bad-model-annotation-is-for-gpu-class-to-refuse": (
            pod(
                gpu_container(readinessProbe=READY), annotations={"gpu-admission.dev/model-params": "seventy"}
            ),
            ONE_MINUTE,
            pod(
                gpu_container(readinessProbe=delayed(72)),
                annotations={"gpu-admission.dev/model-params": "seventy"},
            ),
        ),
        "no-load-time-known": (
            server(readinessProbe=READY),
            ReadinessDelayOptions(),
            server(readinessProbe=READY),
        ),
        "longer-delay-is-kept": (
            server(readinessProbe=delayed(300)),
            ONE_MINUTE,
            server(readinessProbe=delayed(300)),
        ),
        "shorter-one-is-raised": (
            server(readinessProbe=delayed(5)),
            ONE_MINUTE,
            server(readinessProbe=delayed(72)),
        ),
        "no-readiness-probe": (server(), ONE_MINUTE, server()),
        "no-gpu": (
            pod(container(readinessProbe=READY), annotations=LOAD_60),
            ONE_MINUTE,
            pod(container(readinessProbe=READY), annotations=LOAD_60),
        ),
        "only-the-container-with-the-gpu": (
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=READY)),
            ONE_MINUTE,
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=delayed(72))),
        ),
        "fraction-goes-to-the-first-container": (
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
        ),
        "own-startup-probe": (
            server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE),
            ONE_MINUTE,
            server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE),
        ),
        "liveness-that-kills-after-20-s": (
            server(readinessProbe=READY, livenessProbe=LIVE),
            ONE_MINUTE,
            server(
                readinessProbe=delayed(72),
                livenessProbe=LIVE,
                startupProbe=covering(LIVE, 9),  # failures at 0, 10, … 80 s; the ninth kills
            ),
        ),
        "liveness-that-kills-one-second-too-soon": (
            server(readinessProbe=delayed(300), livenessProbe={**LIVE, "initialDelaySeconds": 51}),
            ONE_MINUTE,
            server(
                readinessProbe=delayed(300),
                livenessProbe={**LIVE, "initialDelaySeconds": 51},
                startupProbe=covering(LIVE, 9),
            ),
        ),
        "liveness-that-waits-just-long-enough": (
            server(readinessProbe=READY, livenessProbe={**LIVE, "initialDelaySeconds": 52}),
            ONE_MINUTE,
            server(readinessProbe=delayed(72), livenessProbe={**LIVE, "initialDelaySeconds": 52}),
        ),
        "liveness-alone-that-kills-after-20-s": (
            server(livenessProbe=LIVE),
            ONE_MINUTE,
            server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
        ),
        "liveness-alone-that-waits-long-enough": (
            server(livenessProbe=PATIENT),
            ONE_MINUTE,
            server(livenessProbe=PATIENT),
        ),
        "strategy-startup-probe": (
            server(readinessProbe=READY, livenessProbe=LIVE),
            BY_STARTUP_PROBE,
            server(readinessProbe=READY, livenessProbe=LIVE, startupProbe=covering(READY, 9)),
        ),
        "strategy-startup-probe-with-liveness-alone": (
            server(livenessProbe=LIVE),
            BY_STARTUP_PROBE,
            server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
        ),
        "strategy-startup-probe-takes-the-handler-only": (
            server(
                readinessProbe={**READY, "successThreshold": 3, "periodSeconds": 2, "initialDelaySeconds": 4}
            ),
            BY_STARTUP_PROBE,
            server(
                readinessProbe={**READY, "successThreshold": 3, "periodSeconds": 2, "initialDelaySeconds": 4},
                startupProbe=covering(READY, 9),
            ),
        ),
        "strategy-startup-probe-with-a-command-and-its-timeout": (
            server(readinessProbe={"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9}),
            BY_STARTUP_PROBE,
            server(
                readinessProbe={"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9},
                startupProbe=covering({"exec": {"command": ["ready", "--all"]}, "timeoutSeconds": 9}, 9),
            ),
        ),
        "sidecar-gets-the-delay": (
            sidecar(readinessProbe=READY, livenessProbe=PATIENT),
            ONE_MINUTE,
            sidecar(readinessProbe=delayed(72), livenessProbe=PATIENT),
        ),
        "sidecar-gets-no-startup-probe-which-would-hold-back-the-others": (
            sidecar(readinessProbe=READY),
            BY_STARTUP_PROBE,
            sidecar(readinessProbe=delayed(72)),
        ),
    },
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


@cases(
    ("probe", "kills", "threshold"),
    {
        "every-10-s": ({**READY, "failureThreshold": 4}, 30, 9),
        "defaults-of-the-api": (READY, 20, 9),
        "five-seconds-too-soon": (
            {**READY, "initialDelaySeconds": 20, "periodSeconds": 5, "failureThreshold": 8},
            55,
            12,  # 20 + 11 × 5 = 75 s, the first multiple after 72
        ),
    },
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


@cases(
    ("document", "options"),
    {
        "just-long-enough-without-the-buffer": (
            pod(gpu_container(startupProbe={**READY, "failureThreshold": 7}), annotations=LOAD_60),
            ReadinessDelayOptions(),
        ),
        "load-time-of-the-policy-is-not-the-pod-s": (server(startupProbe=READY), ONE_MINUTE),
        "load-time-by-rule-of-thumb": (
            pod(gpu_container(startupProbe=READY), annotations={"gpu-admission.dev/model-params": "70b"}),
            ReadinessDelayOptions(),
        ),
    },
)
def test_startup_probe_of_the_user_s_that_is_left_alone(
    document: JSON, options: ReadinessDelayOptions
) -> None:
    assert run(document, options) == (document, [])


NO_PROBE = (
    'metadata.annotations[gpu-admission.dev/model-load-seconds] = "60": add a readinessProbe; has no effect: no '
    "container that requests a GPU has a probe, so traffic can come before the model is loaded [readiness-delay]"
)


@cases(
    ("document", "want"),
    {
        "no-probe-at-all": (pod(gpu_container(), annotations=LOAD_60), [NO_PROBE]),
        "probe-of-another-container": (
            pod(gpu_container(), container("proxy", readinessProbe=READY), annotations=LOAD_60),
            [NO_PROBE],
        ),
        "liveness-alone": (pod(gpu_container(livenessProbe=PATIENT), annotations=LOAD_60), []),
        "startup-alone": (
            pod(gpu_container(startupProbe={**READY, "failureThreshold": 30}), annotations=LOAD_60),
            [],
        ),
        "one-of-two-servers": (
            pod(gpu_container(name="helper"), gpu_container(readinessProbe=delayed(72)), annotations=LOAD_60),
            [],
        ),
        "nothing-declared": (pod(gpu_container()), []),
        "no-gpu": (pod(container(), annotations=LOAD_60), []),
    },
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


@cases(
    ("load", "buffer", "want"),
    {
        "seed": (60, 0.2, 72),
        "none": (60, 0.0, 60),
        "rounded-up": (61, 0.2, 74),
        "where-floats-say-111": (100, 0.1, 110),
        "where-the-decimal-counts": (10, 0.7, 17),
        "largest": (86_400, 10, 950_400),
        "written-with-an-exponent": (3, 1e-05, 4),
    },
)
def test_buffer_is_exact(load: int, buffer: float, want: int) -> None:
    assert with_buffer(load, buffer) == want


@pytest.mark.parametrize("delay", [1, 9, 10, 11, 72, 86_400])
def test_startup_probe_never_kills_before_the_delay_has_passed(delay: int) -> None:
    probe = startup_probe(Probe(), delay)

    assert delay <= first_kill(probe) < delay + 10


@cases(
    ("probe", "want"),
    {
        "defaults-of-the-api": (Probe(), 20),
        "all-set": (Probe(initial_delay_seconds=30, period_seconds=5, failure_threshold=4), 45),
        "first-failure-kills": (Probe(failure_threshold=1), 0),
        "zero-means-default": (Probe(period_seconds=0, failure_threshold=0), 20),
    },
)
def test_first_kill(probe: Probe, want: int) -> None:
    assert first_kill(probe) == want


@cases(
    ("options", "want"),
    {
        "defaults": (ReadinessDelayOptions(), []),
        "all-at-once": (
            ReadinessDelayOptions(model_load_seconds=0, load_mib_per_second=0, buffer=-0.1),
            [
                ("modelLoadSeconds", "must be from 1 to 86400 (a day), not 0"),
                ("loadMiBPerSecond", "must be from 1 to 1048576 (1 TiB per second), not 0"),
                ("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not -0.1"),
            ],
        ),
        "not-a-number": (
            ReadinessDelayOptions(buffer=float("nan")),
            [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not nan")],
        ),
        "per-cent-instead-of-a-part": (
            ReadinessDelayOptions(buffer=20),
            [("buffer", "must be from 0 to 10 (0.2 adds 20 % to the load time), not 20")],
        ),
    },
)
def test_problems(options: ReadinessDelayOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
