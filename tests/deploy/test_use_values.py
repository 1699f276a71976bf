"""How the use of GPUs is measured: what the values `use` make of the controller, its network and Prometheus."""

import pytest

from tests.cases import cases
from tests.controlplane import helm
from tests.deploy.manifests import arguments, of_kind, pods, rendered
from tests.deploy.recording_rules import memory_expression, use_expression
from webhook.prometheus import recorded_series

pytestmark = pytest.mark.usefixtures("rendering")
USE = "use.enabled=true,use.prometheus.url=https://prometheus.monitoring:9090"
TOKEN, AUTHORITIES = "/etc/gpu-admission/prometheus-token", "/etc/gpu-admission/prometheus-ca"


def test_the_use_of_gpus_is_measured_as_the_values_say() -> None:
    secrets = "use.prometheus.tokenSecret=token,use.prometheus.caSecret=ca"
    given = f"{USE},{secrets},use.idleAfter=4h,use.recordingRules.interval=30s"
    documents = rendered("--set", given, "--set-json", "use.idleBelow=0.1")

    assert arguments(documents, "controller")[-7:] == [
        "--prometheus-url=https://prometheus.monitoring:9090",
        f"--prometheus-token-file={TOKEN}/token",
        f"--prometheus-ca-file={AUTHORITIES}/ca.crt",
        "--idle-below=0.1",
        "--idle-after=4h",
        "--use-every=5m",
        "--use-rules-interval=30s",
    ]
    spec = pods(documents)["controller"]
    (container,) = spec["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert (mounts["prometheus-token"], mounts["prometheus-ca"]) == (TOKEN, AUTHORITIES)
    volumes = {each["name"]: each.get("secret") for each in spec["volumes"]}
    assert volumes["prometheus-token"] == {
        "secretName": "token",
        "items": [{"key": "token", "path": "token"}],
    }
    assert volumes["prometheus-ca"] == {"secretName": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_the_recording_rules_select_what_the_values_trust() -> None:
    (rule,) = of_kind("PrometheusRule", rendered("--set", f'{USE},use.selector=job="a"\\,namespace="b"'))

    assert rule["metadata"]["name"] == "gpu-admission-use"
    use, by_hour = rule["spec"]["groups"]
    assert (use["interval"], by_hour["interval"]) == ("1m", "1h")
    assert {each["record"]: each["expr"] for each in use["rules"]} == {
        recorded_series.USE: use_expression('job="a",namespace="b"', "1m"),
        recorded_series.MEMORY: memory_expression('job="a",namespace="b"', "1m"),
    }
    assert {each["record"]: each["expr"] for each in by_hour["rules"]} == {
        recorded_series.USE_BY_HOUR: f'max_over_time({recorded_series.USE}{{job=""}}[1h])',
        recorded_series.MEMORY_BY_HOUR: f'max_over_time({recorded_series.MEMORY}{{job=""}}[1h])',
    }
    assert not of_kind("PrometheusRule", rendered("--set", f"{USE},use.recordingRules.enabled=false"))


def test_only_the_controller_may_reach_prometheus_where_its_traffic_is_limited() -> None:
    given = f"{USE},use.prometheus.port=9091,networkPolicy.apiServerPorts={{443}}"
    egress = {
        each["metadata"]["name"].removeprefix("gpu-admission-"): [
            (port["port"], port["protocol"]) for rule in each["spec"]["egress"] for port in rule["ports"]
        ]
        for each in of_kind("NetworkPolicy", rendered("--set", given))
    }

    assert egress == {
        "webhook": [(443, "TCP")],
        "controller": [(443, "TCP"), (9091, "TCP"), (53, "UDP"), (53, "TCP")],
    }


def test_nothing_is_measured_unless_values_say_so() -> None:
    documents = rendered()

    assert not [each for each in arguments(documents, "controller") if "prometheus" in each or "idle" in each]
    assert not of_kind("PrometheusRule", documents)


@cases(
    ("values", "want"),
    no_address=(
        "use.enabled=true",
        "use.prometheus.url must be the address of Prometheus, since use.enabled is true",
    ),
    a_password=(f"{USE.replace('//', '//me:secret@')}", "use.prometheus.url"),
    a_brace_in_the_selector=(f"{USE},use.selector=job=\\{{", "use.selector"),
    no_unit=(f"{USE},use.idleAfter=7200", "use.idleAfter"),
)
def test_a_prometheus_that_cannot_be_asked(values: str, want: str) -> None:
    with pytest.raises(helm.HelmFailed) as raised:
        rendered("--set", values)

    assert want in str(raised.value).replace("/", ".")
