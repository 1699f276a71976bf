"""`gpu-admission certs`: what the webhook's certificates are, whether they are good, and new ones ahead of time."""

import sys
import time
from pathlib import Path

import click
import msgspec

from certs.check import problems
from certs.reconciler import RacedError, StoredSecret
from certs.rotation import Rotation, RotationPhase, RotationState
from certs.secret import ROTATE, DamagedError, decode
from webhook.certificates.examination import CertificateFinding, examine, examine_served
from webhook.certificates.objects import (
    ClusterConfigurations,
    ClusterSecret,
    ConfigurationSeen,
    SecretName,
    Target,
)
from webhook.cluster import errors
from webhook.cluster.objects import CERTIFICATE_SECRET, NAMESPACE
from webhook.commands.certs_report import described, print_findings, print_state
from webhook.commands.cluster_options import ClusterChoice, cluster_options, fail
from webhook.commands.output import Screen
from webhook.commands.parameters import now

FINDING = 1
ATTEMPTS = 5


class Cluster:
    """The objects that certificates are in."""

    def __init__(self, name: SecretName, choice: ClusterChoice) -> None:
        with choice.client() as api:
            self.api = api
        self.name = name
        self.secret = ClusterSecret(self.api, name)
        self.configurations = ClusterConfigurations(self.api)

    def address(self, target: Target) -> str:
        """Return where the Service is, empty if it has no address. Raises `errors.ApiError`."""
        if not target.service:
            return target.host
        path = f"/api/v1/namespaces/{target.namespace}/services/{target.service}"
        address = msgspec.json.decode(self.api.get(path, timeout=5))["spec"].get("clusterIP", "")
        return "" if address == "None" else str(address)


secret_option = click.option(
    "--secret",
    "secret_name",
    default=f"{NAMESPACE}/{CERTIFICATE_SECRET}",
    show_default=True,
    metavar="[NAMESPACE/]NAME",
    help="Where the certificates are.",
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


@click.group()
def certs() -> None:
    """Show, check and rotate the certificates of the webhook."""


@certs.command()
@secret_option
@cluster_options
@output_option
def show(secret_name: str, cluster: ClusterChoice, output: str) -> None:
    """Show authority, certificate, where a rotation stands, and which configurations carry it."""
    objects = Cluster(SecretName.of(secret_name, NAMESPACE), cluster)
    try:
        stored, seen = objects.secret.read(), objects.configurations.seen()
        state = _state(objects.name, stored)
    except errors.ApiError as error:
        fail(error)
    except DamagedError as error:
        click.echo(f"error: the Secret {objects.name} is damaged: {error}", err=True)
        sys.exit(FINDING)
    report = described(objects.name, state, seen, now())
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_state(Screen(), report)


@certs.command()
@secret_option
@cluster_options
@output_option
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Check tls.crt, tls.key and ca.crt in this directory instead, as --self-signed or cert-manager make them.",
)
@click.option("--name", "names", multiple=True, help="With --dir: a name that the certificate must carry.")
def check(
    secret_name: str,
    cluster: ClusterChoice,
    output: str,
    directory: Path | None,
    names: tuple[str, ...],
) -> None:
    """Check Secret, chain, names, expiry, the caBundles, and what is served. Exits with 1 if anything is wrong."""
    if names and directory is None:
        raise click.UsageError(
            "--name goes with --dir: in a cluster the configurations say which names are asked for"
        )
    notes: list[str] = []
    if directory is not None:
        findings = _of_directory(directory, names)
    else:
        objects = Cluster(SecretName.of(secret_name, NAMESPACE), cluster)
        try:
            stored, seen = objects.secret.read(), objects.configurations.seen()
        except errors.ApiError as error:
            fail(error)
        findings = examine(objects.name, stored, seen, now())
        for target in dict.fromkeys(target for each in seen for target in each.targets):
            findings += _of_server(objects, target, seen, notes)
    if output == "json":
        found = [finding._asdict() for finding in findings]
        click.echo(msgspec.json.format(msgspec.json.encode({"findings": found, "notes": notes})).decode())
    else:
        print_findings(Screen(), findings, notes)
    sys.exit(FINDING if findings else 0)


@certs.command()
@secret_option
@cluster_options
@click.option("--ca", is_flag=True, help="A new authority, too: takes about 11 minutes, no call fails.")
@click.option("--wait", is_flag=True, help="Show how it goes, and return when it is done.")
@click.option("--timeout-seconds", default=1200.0, show_default=True, type=click.FloatRange(min=1.0))
def rotate(
    secret_name: str,
    cluster: ClusterChoice,
    ca: bool,
    wait: bool,
    timeout_seconds: float,
) -> None:
    """Ask the controllers for a new certificate."""
    objects = Cluster(SecretName.of(secret_name, NAMESPACE), cluster)
    rotation = Rotation.CA if ca else Rotation.LEAF
    try:
        before = _ask(objects, rotation)
        click.echo(f"asked for a new {'certificate authority' if ca else 'certificate'}")
        done = not wait or _await(objects, rotation, before, timeout_seconds)
    except errors.ApiError as error:
        fail(error)
    except (DamagedError, RacedError) as error:
        click.echo(f"error: the Secret {objects.name}: {error}", err=True)
        sys.exit(FINDING)
    if not done:
        click.echo(
            f"error: not done within {timeout_seconds:g} s; is a controller running with --certificate-secret?",
            err=True,
        )
        sys.exit(FINDING)


def _state(name: SecretName, stored: StoredSecret | None) -> RotationState:
    if stored is None:
        click.echo(f"error: there is no Secret {name}", err=True)
        sys.exit(FINDING)
    return decode(stored.content)


def _ask(cluster: Cluster, rotation: Rotation) -> RotationState:
    """Leave the wish on the Secret; returns the state before. RacedError: it was being changed all the time."""
    for _ in range(ATTEMPTS):
        stored = cluster.secret.read()
        state = _state(cluster.name, stored)
        if stored is None or state.requested is rotation:
            return state
        try:
            cluster.secret.annotate(stored, {ROTATE: rotation.value})
        except RacedError:
            continue
        return state
    raise RacedError("it is being changed all the time")


def _await(cluster: Cluster, rotation: Rotation, before: RotationState, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    told = ""
    while time.monotonic() < deadline:
        state = _state(cluster.name, cluster.secret.read())
        shown = "waiting for a controller" if state.requested is rotation else state.phase.name.lower()
        if shown != told:
            click.echo(shown)
        told = shown
        renewed = state.leaf != before.leaf and state.requested is None
        replaced = (
            state.authority.certificate != before.authority.certificate
            and state.phase is RotationPhase.STEADY
        )
        if renewed and (replaced or rotation is Rotation.LEAF):
            return True
        time.sleep(0.5)
    return False


def _of_server(
    cluster: Cluster, target: Target, seen: list[ConfigurationSeen], notes: list[str]
) -> list[CertificateFinding]:
    bundles = [
        bundle for each in seen if target in each.targets for bundle in each.configuration.bundles if bundle
    ]
    try:
        address = cluster.address(target)
    except errors.NotFound:
        remedy = "apply the manifests: API servers have nobody to call"
        return [CertificateFinding(f"there is no Service {target.namespace}/{target.service}", remedy)]
    except errors.ApiError as error:
        notes.append(f"the Service of {target.host} could not be looked up: {error}")
        return []
    try:
        return examine_served(target, address, bundles, now())
    except OSError as error:
        reason = error.strerror or str(error)
        notes.append(f"{target.host} ({address}:{target.port}) cannot be reached from here: {reason}")
        return []


def _of_directory(directory: Path, names: tuple[str, ...]) -> list[CertificateFinding]:
    contents: list[bytes] = []
    for name in ("tls.crt", "tls.key", "ca.crt"):
        try:
            contents.append((directory / name).read_bytes())
        except OSError as error:
            fail(f"{directory / name}: {error.strerror}")
    remedy = "whoever makes these files must make them anew: cert-manager, or `serve --self-signed` at its next start"
    certificate, key, authority = contents
    return [
        CertificateFinding(f"{directory}: {fault}", remedy)
        for fault in problems(certificate, key, authority, names, now())
    ]
