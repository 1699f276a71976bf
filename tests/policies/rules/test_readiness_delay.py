"""readiness-delay: traffic and probes wait for the model, and nobody waits who did not have to."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Probe
from policies.rules.readiness_delay import (
    DAY,
    MIB,
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
    {
        "of-the-policy-plus-a-fifth": ({}, ONE_MINUTE, 72),
        "annotation-before-policy": ({LOAD: "100"}, ONE_MINUTE, 120),
        # 140e9 bytes at 256 MiB/s: 521.5 s, so 522 s, and 626.4 s with the buffer
        "estimate-before-policy": ({PARAMS: "70b"}, ONE_MINUTE, 627),
        "estimate-at-the-rate-of-the-policy": (
            {PARAMS: "70b"},
            ReadinessDelayOptions(load_mib_per_second=2048, buffer=0),
            66,
        ),
        "estimate-by-precision": ({PARAMS: "70b", PRECISION: "int4"}, ReadinessDelayOptions(buffer=0), 131),
        "estimate-of-more-than-a-day-is-a-day": ({PARAMS: "1e15"}, ReadinessDelayOptions(buffer=0), 86_400),
        "bad-model-annotation-is-for-gpu-class-to-denied": ({PARAMS: "seventy"}, ONE_MINUTE, 72),
    },
)
def test_load_time(annotations: dict[str, str], options: ReadinessDelayOptions, delay: int) -> None:
    document = pod(gpu_container(readinessProbe=READY), annotations=annotations)

    assert settled(document, options) == pod(
        gpu_container(readinessProbe=delayed(delay)), annotations=annotations
    )


@cases(
    ("document", "options"),
    {
        "no-load-time-known": (server(readinessProbe=READY), ReadinessDelayOptions()),
        "longer-delay": (server(readinessProbe=delayed(300)), ONE_MINUTE),
        "no-probe": (server(), ONE_MINUTE),
        "no-gpu": (loading(container(readinessProbe=READY)), ONE_MINUTE),
        "own-startup-probe": (
            server(readinessProbe=READY, startupProbe=READY, livenessProbe=LIVE),
            ONE_MINUTE,
        ),
        "liveness-alone-that-waits-long-enough": (server(livenessProbe=PATIENT), ONE_MINUTE),
    },
)
def test_what_stays_as_it_is(document: JSON, options: ReadinessDelayOptions) -> None:
    assert settled(document, options) == document


@cases(
    ("document", "want"),
    {
        "shorter-delay-is-raised": (server(readinessProbe=delayed(5)), server(readinessProbe=delayed(72))),
        "only-the-container-with-the-gpu": (
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=READY)),
            pod(container("proxy", readinessProbe={**READY}), gpu_container(readinessProbe=delayed(72))),
        ),
        "fraction-goes-to-the-first-container": (
            pod(container(readinessProbe=READY), container("proxy", readinessProbe={**READY}), **HALF),
            pod(container(readinessProbe=delayed(72)), container("proxy", readinessProbe={**READY}), **HALF),
        ),
        "liveness-that-kills-after-20-s": (  # failures at 0, 10, … 80 s; the ninth kills
            server(readinessProbe=READY, livenessProbe=LIVE),
            server(readinessProbe=delayed(72), livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
        ),
        "liveness-that-kills-one-second-too-soon": (
            server(readinessProbe=delayed(300), livenessProbe=live_after(51)),
            server(readinessProbe=delayed(300), livenessProbe=live_after(51), startupProbe=covering(LIVE, 9)),
        ),
        "liveness-that-waits-just-long-enough": (
            server(readinessProbe=READY, livenessProbe=live_after(52)),
            server(readinessProbe=delayed(72), livenessProbe=live_after(52)),
        ),
        "liveness-alone-that-kills-after-20-s": (
            server(livenessProbe=LIVE),
            server(livenessProbe=LIVE, startupProbe=covering(LIVE, 9)),
        ),
        "sidecar-gets-the-delay": (
            sidecar(readinessProbe=READY, livenessProbe=PATIENT),
            sidecar(readinessProbe=delayed(72), livenessProbe=PATIENT),
        ),
    },
)
def test_probes(document: JSON, want: JSON) -> None:
    assert settled(document, ONE_MINUTE) == want


@cases(
    ("probes", "source"),
    {
        "handler-of-the-readiness-probe": ({"readinessProbe": READY, "livenessProbe": LIVE}, READY),
        "handler-of-liveness-alone": ({"livenessProbe": LIVE}, LIVE),
        "nothing-but-the-handler": (
            {"readinessProbe": delayed(4) | {"successThreshold": 3, "periodSeconds": 2}},
            READY,
        ),
        "a-command-with-its-timeout": ({"readinessProbe": COMMAND}, COMMAND),
    },
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
    document = loading(gpu_container(startupProbe=probe, readinessProbe=READY))

    assert run(document, ReadinessDelayOptions()) == (
        document,
        [
            f'spec.containers[0].startupProbe (container "main"): set failureThreshold: {threshold}; should allow the 60 s '
            f"that the model takes to load: it kills the container after {kills} s [readiness-delay]"
        ],
    )


NO_PROBE = (
    'metadata.annotations[gpu-admission.dev/model-load-seconds] = "60": add a readinessProbe; has no effect: no '
    "container that requests a GPU has a probe, so traffic can come before the model is loaded [readiness-delay]"
)


@cases(
    ("document", "want"),
    {
        "no-probe-at-all": (loading(gpu_container()), [NO_PROBE]),
        "probe-of-another-container": (
            loading(gpu_container(), container("proxy", readinessProbe=READY)),
            [NO_PROBE],
        ),
        "liveness-alone": (loading(gpu_container(livenessProbe=PATIENT)), []),
        "startup-alone": (loading(gpu_container(startupProbe={**READY, "failureThreshold": 30})), []),
        "one-of-two-servers": (
            loading(gpu_container(name="helper"), gpu_container(readinessProbe=delayed(72))),
            [],
        ),
        "nothing-declared": (pod(gpu_container()), []),
        "startup-probe-just-long-enough-without-the-buffer": (
            loading(gpu_container(startupProbe={**READY, "failureThreshold": 7})),
            [],
        ),
        "startup-probe-where-the-load-time-of-the-policy-is-not-the-pod-s": (server(startupProbe=READY), []),
        "startup-probe-where-the-load-time-is-by-rule-of-thumb": (
            pod(gpu_container(startupProbe=READY), annotations={PARAMS: "70b"}),
            [],
        ),
        "no-gpu": (loading(container()), []),
    },
)
def test_declared_load_time_that_nothing_waits_for(document: JSON, want: list[str]) -> None:
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
    assert delay <= first_kill(startup_probe(Probe(), delay)) < delay + 10


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
        "smallest": (ReadinessDelayOptions(model_load_seconds=1, load_mib_per_second=1, buffer=0), []),
        "largest": (ReadinessDelayOptions(model_load_seconds=DAY, load_mib_per_second=MIB, buffer=10), []),
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
