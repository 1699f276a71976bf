"""Certificates in a cluster: made once by many at a time, rotated without a failed call, repaired by whoever sees it first."""

import base64
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import msgspec
import pytest
from click.testing import CliRunner, Result

from certs.check import issued_by
from certs.issue import issue_authority
from certs.keeper import Keeper
from certs.rotation import Step, Terms
from tests.cluster.test_burst import gpu_pod, webhook_calls
from tests.controlplane import ControlPlane
from tests.controlplane.certificates import (
    NAME,
    REGISTRATION,
    SECRET,
    SECRET_PATH,
    Installation,
    Process,
    within,
)
from tests.controlplane.client import JSON_PATCH
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import CONFIGURATIONS, NAMESPACE
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster.api import ApiClient
from webhook.commands import main

READY_SECONDS = 10.0
REPAIR_SECONDS = 10.0
PODS = "/api/v1/namespaces/certificates/pods"


@pytest.fixture
def installation(quotas: ControlPlane) -> Iterator[Installation]:
    with Installation(quotas) as installed:
        installed.apply()
        yield installed


@pytest.fixture
def running(installation: Installation) -> Installation:
    installation.start()
    within(60, installation.ready)
    return installation


class Load:
    """Pods created through the API server without pause, and handshakes by the caBundle of the moment, until it ends."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._create, args=(number,)) for number in range(2)]
        self._threads.append(threading.Thread(target=self._shake_hands))
        self.pods = self.handshakes = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        client = self._installation.client
        assert client.post("/api/v1/namespaces", {"metadata": {"name": "certificates"}})[0] in {201, 409}
        within(15, lambda: client.post(PODS, gpu_pod("probe"), {"dryRun": "All"})[0] == 201)
        self._before = webhook_calls(self._installation.plane)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._installation.client.delete(PODS, {"gracePeriodSeconds": 0})

    def broken_calls(self) -> dict[str, int]:
        """Return what the API server could not call, including what it let pass for that."""
        after = webhook_calls(self._installation.plane) - self._before
        return {
            f"{metric} {hook} {kind}": count
            for (metric, hook, kind), count in after.items()
            if metric == "fail_open_count" or kind == "calling_webhook_error"
        }

    def _create(self, number: int) -> None:
        while not self._ended.is_set():
            status, answer = self._installation.client.post(
                PODS, gpu_pod(f"pod-{number}-{self.pods}-{time.monotonic_ns()}")
            )
            self.pods += 1
            if status != 201:
                self.failures.append(str(answer))

    def _shake_hands(self) -> None:
        while not self._ended.wait(0.02):
            for bundle in set(self._installation.bundles()):
                for server in self._installation.servers:
                    try:
                        self._installation.served(server.address, bundle)
                    except OSError as error:
                        self.failures.append(f"{server.name}: {error}")
                    self.handshakes += 1


def test_replicas_that_start_together_agree_on_one_authority(
    installation: Installation, record_property: Callable[[str, object], None]
) -> None:
    begun = time.monotonic()
    installation.start()
    # Until then the test measures how fast five interpreters start on this machine.
    within(60, installation.listening)
    record_property("listening after", round(time.monotonic() - begun, 2))
    within(READY_SECONDS, installation.ready)
    record_property("ready after", round(time.monotonic() - begun, 2))

    within(5, installation.serve_the_secrets)
    assert len(installation.state().authorities) == 1
    assert sum(each.log().count("making a certificate authority") for each in installation.keepers) >= 1


def rotate_leaf(installation: Installation) -> None:
    leaf = installation.state().leaf
    installation.ask("leaf")
    within(20, lambda: installation.state().leaf != leaf)
    within(20, installation.serve_the_secrets)


def rotate_authority(installation: Installation, dies: Process) -> None:
    """One of the controllers dies in the middle of it, and is back afterwards."""
    authority = installation.state().authority.certificate
    installation.ask("ca")
    within(20, lambda: installation.state().step is Step.SETTLING)
    dies.kill()
    within(60, lambda: installation.state().step is Step.STEADY and installation.state().requested is None)
    assert installation.state().authority.certificate != authority
    within(20, installation.serve_the_secrets)
    starts = dies.log().count("metrics on port")
    dies.start()
    within(60, lambda: dies.log().count("metrics on port") > starts)


@pytest.mark.slow
def test_rotations_cost_no_call(
    running: Installation, record_property: Callable[[str, object], None]
) -> None:
    with Load(running) as load:
        for _ in range(10):
            rotate_leaf(running)
        for each in running.keepers:
            rotate_authority(running, each)
    record_property("pods", load.pods)
    record_property("handshakes", load.handshakes)
    assert load.failures == [], running.logs()
    assert load.broken_calls() == {}
    assert load.pods > 50
    assert load.handshakes > 50
    assert len(running.state().authorities) == 1, "every retired authority was dropped"


def other_authority() -> bytes:
    now = dt.datetime.now(dt.UTC)
    return issue_authority(common_name="other", now=now, lifetime=dt.timedelta(days=1)).certificate_pem()


def delete_secret(installation: Installation) -> None:
    assert installation.client.delete(SECRET_PATH)[0] == 200


def empty_secret(installation: Installation) -> None:
    empty = {key: base64.b64encode(b"nothing").decode() for key in installation.secret()}
    assert installation.client.patch(SECRET_PATH, {"data": empty})[0] == 200


def damage_leaf(installation: Installation) -> None:
    damage = {"tls.crt": base64.b64encode(b"nothing").decode()}
    assert installation.client.patch(SECRET_PATH, {"data": damage})[0] == 200


def bundles_set(installation: Installation, bundle: bytes | None) -> None:
    for kind in CONFIGURATIONS:
        path = f"{REGISTRATION}/{kind}s/{NAME}"
        count = len(installation.client.get(path)[1]["webhooks"])
        pointers = [f"/webhooks/{index}/clientConfig/caBundle" for index in range(count)]
        operations: list[dict[str, str]] = [
            {"op": "remove", "path": pointer}
            if bundle is None
            else {"op": "replace", "path": pointer, "value": base64.b64encode(bundle).decode()}
            for pointer in pointers
        ]
        status, answer = installation.client.patch(path, operations, content_type=JSON_PATCH)
        assert status == 200, answer


def remove_bundles(installation: Installation) -> None:
    bundles_set(installation, None)


def replace_bundles(installation: Installation) -> None:
    bundles_set(installation, other_authority())


def delete_and_apply_configurations(installation: Installation) -> None:
    for kind in CONFIGURATIONS:
        installation.plane.kubectl("delete", kind, NAME)
    installation.apply()


@pytest.mark.parametrize(
    ("damage", "calls_fail_meanwhile"),
    [
        pytest.param(delete_secret, False, id="secret-deleted"),
        pytest.param(empty_secret, False, id="secret-damaged"),
        pytest.param(damage_leaf, False, id="leaf-damaged"),
        pytest.param(remove_bundles, True, id="bundles-removed"),
        pytest.param(replace_bundles, True, id="bundles-of-another"),
        pytest.param(delete_and_apply_configurations, True, id="configurations-installed-anew"),
    ],
)
def test_what_is_broken_by_hand_is_repaired(
    running: Installation,
    damage: Callable[[Installation], None],
    calls_fail_meanwhile: bool,
    record_property: Callable[[str, object], None],
) -> None:
    authority = running.state().authority.certificate
    with Load(running) as load:
        damage(running)
        record_property("published after", round(within(REPAIR_SECONDS, lambda: whole(running)), 2))
        within(REPAIR_SECONDS, running.serve_the_secrets)
        assert authority in running.state().authorities, "the authority is remembered"
        within(READY_SECONDS, running.ready)
    record_property("failed", len(load.failures))
    if not calls_fail_meanwhile:
        assert load.failures == []
        assert load.broken_calls() == {}


def whole(installation: Installation) -> bool:
    return "tls.key" in installation.secret() and installation.published()


def test_an_api_server_that_is_away_costs_no_readiness(running: Installation) -> None:
    running.plane.kill("kube-apiserver")
    time.sleep(3)
    try:
        assert running.ready()
    finally:
        running.plane.restart("kube-apiserver")


class Dying:
    """An API client whose process ends at one of its writes, just before it or just after."""

    def __init__(self, api: ApiClient, writes: int, *, after: bool) -> None:
        self._api, self._left, self._after = api, writes, after
        self.get = api.get
        self.post = lambda *given, **options: self._write(lambda: api.post(*given, **options))
        self.patch = lambda *given, **options: self._write(lambda: api.patch(*given, **options))

    def _write(self, call: Callable[[], bytes]) -> bytes:
        if self._left > 0:
            self._left -= 1
            return call()
        if self._after:
            call()
        raise KeyboardInterrupt


def keeper(api: ApiClient) -> Keeper:
    quickly = dt.timedelta(seconds=0.2)
    terms = Terms(names=(f"gpu-admission.{NAMESPACE}.svc",), propagation=quickly, retirement=quickly)
    name = SecretName(NAMESPACE, SECRET)
    return Keeper(
        ClusterSecret(api, name), ClusterConfigurations(api), terms, lambda: dt.datetime.now(dt.UTC)
    )


def work_on(dying: Keeper, installation: Installation) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        dying.keep()
        assert_accepted(installation)
        time.sleep(0.02)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("writes", range(11))
def test_another_controller_goes_on_where_one_died(
    installation: Installation, quotas: ControlPlane, writes: int, after: bool
) -> None:
    """The writes: new authority, two caBundles, observed, leaf, two caBundles, observed, old dropped, two caBundles."""
    api = api_client(quotas)
    survivor = keeper(api)
    while survivor.keep().written:
        pass
    authority = installation.state().authority.certificate
    installation.ask("ca")

    dying = keeper(Dying(api, writes, after=after))  # type: ignore[arg-type] # the three methods that are called
    with pytest.raises(KeyboardInterrupt):
        work_on(dying, installation)
    assert_accepted(installation)

    def done() -> bool:
        survivor.keep()
        assert_accepted(installation)
        state = installation.state()
        return state.step is Step.STEADY and state.requested is None and installation.published()

    within(30, done)
    assert installation.state().authority.certificate != authority
    assert len(installation.state().authorities) == 1


def assert_accepted(installation: Installation) -> None:
    leaf = installation.state().leaf
    assert leaf is not None
    now = dt.datetime.now(dt.UTC)
    assert all(issued_by(leaf.certificate_pem(), bundle, now) for bundle in installation.bundles())


def test_other_configurations_and_other_parts_are_left_alone(
    installation: Installation, quotas: ControlPlane
) -> None:
    client = installation.client
    path = f"{REGISTRATION}/{CONFIGURATIONS[0]}s"
    ours = client.get(f"{path}/{NAME}")[1]
    foreign = {"metadata": {"name": "zz-gpu-admission-other"}, "webhooks": ours["webhooks"][:1]}
    assert client.post(path, foreign)[0] == 201
    stored = client.get(f"{path}/zz-gpu-admission-other")[1]
    try:
        own = keeper(api_client(quotas))
        while own.keep().written:
            pass
        assert client.get(f"{path}/zz-gpu-admission-other")[1] == stored
        after = client.get(f"{path}/{NAME}")[1]
        for webhook in after["webhooks"]:
            assert webhook["clientConfig"].pop("caBundle")
        assert after["webhooks"] == ours["webhooks"]
        version = client.get(f"{path}/{NAME}")[1]["metadata"]["resourceVersion"]
        own.keep()
        assert client.get(f"{path}/{NAME}")[1]["metadata"]["resourceVersion"] == version, "nothing to do"
        installation.apply()
        assert installation.published(), "kubectl apply of manifests without caBundle leaves it"
    finally:
        client.delete(f"{path}/zz-gpu-admission-other")


def certs(installation: Installation, *arguments: str) -> Result:
    kubeconfig = str(installation.plane.kubeconfig())
    return CliRunner().invoke(main, ["certs", *arguments, "--kubeconfig", kubeconfig])


def test_show_check_and_rotate(running: Installation) -> None:
    checked = certs(running, "check")
    assert (checked.exit_code, checked.output) == (0, "the certificates are good\n")

    shown = certs(running, "show")
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "no rotation under way" in shown.output
    assert f"names    gpu-admission.{NAMESPACE}.svc, gpu-admission.{NAMESPACE}" in shown.output
    assert shown.output.count("carries it") == 2
    assert "PRIVATE" not in shown.output

    before = running.state()
    rotated = certs(running, "rotate", "--ca", "--wait", "--timeout-seconds", "60")
    assert rotated.exit_code == 0, rotated.output
    assert rotated.output.splitlines()[0] == "asked for a new certificate authority"
    assert {"settling", "retiring", "steady"} <= set(rotated.output.splitlines())
    within(20, running.serve_the_secrets)
    report = msgspec.json.decode(certs(running, "show", "-o", "json").output)
    assert [each["role"] for each in report["authorities"]] == ["issuing"]
    assert before.authority.certificate != running.state().authority.certificate
    assert certs(running, "rotate", "--wait", "--timeout-seconds", "60").exit_code == 0
    metrics = running.servers[0].metrics()
    assert metrics.count("gpu_admission_certificate_not_after_timestamp_seconds{") == 2
    assert "gpu_admission_certificate_valid 1.0" in metrics


def test_check_finds_everything_at_once(installation: Installation) -> None:
    missing = certs(installation, "check", "-o", "json")
    assert missing.exit_code == 1
    assert problems_of(missing) == [
        f"there is no Secret {NAMESPACE}/{SECRET}",
    ]
    assert "cannot be reached from here" in missing.output
    assert certs(installation, "show").exit_code == 1
    assert certs(installation, "rotate").exit_code == 1

    own = keeper(api_client(installation.plane))
    while own.keep().written:
        pass
    assert problems_of(certs(installation, "check", "-o", "json")) == []
    bundles_set(installation, other_authority())
    damage_leaf(installation)
    installation.plane.kubectl("delete", CONFIGURATIONS[0], NAME)
    assert problems_of(certs(installation, "check", "-o", "json")) == [
        f"there is no MutatingWebhookConfiguration {NAME}",
        f"Secret {NAMESPACE}/{SECRET}: certificate: is not a certificate in PEM",
        f"the ValidatingWebhookConfiguration {NAME} has a caBundle that does not verify the certificate of the Secret",
    ]
    pending = certs(installation, "rotate", "--wait", "--timeout-seconds", "1")
    assert pending.exit_code == 1
    assert "waiting for a controller" in pending.output
    assert "is a controller running with --certificate-secret?" in pending.output


def problems_of(result: Result) -> list[str]:
    return [finding["problem"] for finding in msgspec.json.decode(result.output)["findings"]]
