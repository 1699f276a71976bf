"""`gpu-admission certs`: show and rotate the certificates of the webhook. `doctor` checks them."""

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from certs.check import carried_names, issued_by, pem
from certs.reconciler import RacedError, StoredSecret, WebhookConfiguration
from certs.rotation import Renewal, RotationPhase, RotationState
from certs.secret import ROTATE, DamagedError, decode
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster import objects
from webhook.commands.options import ClusterChoice, cluster_options, now, output_option
from webhook.commands.output import FAILED, Screen, echo, fail, print_as

ATTEMPTS = 5
BAR = 30
PHASES = {
    RotationPhase.STEADY: "no rotation under way",
    RotationPhase.PUBLISHING: "step 1 of 4: the new authority is being published beside the old one",
    RotationPhase.PROPAGATING: "step 2 of 4: published; API servers load it",
    RotationPhase.RETIRING: "step 3 of 4: the certificate is of the new authority; the old one is removed next",
}

secret_option = click.option(
    "--secret",
    "secret_name",
    default=f"{objects.NAMESPACE}/{objects.CERTIFICATE_SECRET}",
    metavar="[NAMESPACE/]NAME",
    help=f"What servers read of the certificate; its authority is in {objects.CA_SECRET} beside it.",
    callback=lambda _context, _parameter, text: SecretName.of(text, objects.NAMESPACE),
)


@click.group()
def certs() -> None:
    """Show and rotate the certificates of the webhook. `doctor` checks them."""


@certs.command()
@secret_option
@cluster_options
@output_option()
def show(secret_name: SecretName, cluster: ClusterChoice, output: str) -> None:
    """Show authority, certificate, and the phase of a rotation.

    It says which configurations carry the authority, too.
    """
    with cluster.client() as api:
        secret, seen = ClusterSecret(api, secret_name.ca_secret), ClusterConfigurations(api).read()
        try:
            state = _state_or_fail(secret.name, secret.read())
        except DamagedError as error:
            fail(f"the Secret {secret.name} is damaged: {error}", FAILED)
    shown = document(secret_name, state, seen, now())
    print_as(output, shown, lambda screen: print_state(screen, shown))


@certs.command()
@secret_option
@cluster_options
@click.option("--ca", is_flag=True, help="A new authority, too: takes about 11 minutes, and no call fails.")
@click.option("--wait", is_flag=True, help="Show the progress, and return when it is done.")
@click.option(
    "--timeout-seconds",
    default=1200.0,
    type=click.FloatRange(min=1.0),
    help="With --wait: give up after so long.",
)
def rotate(
    secret_name: SecretName, cluster: ClusterChoice, ca: bool, wait: bool, timeout_seconds: float
) -> None:
    """Request a new certificate from the controllers."""
    renewal = Renewal.CA if ca else Renewal.LEAF
    with cluster.client() as api:
        secret = ClusterSecret(api, secret_name.ca_secret)
        try:
            before = _request(secret, renewal)
            echo(f"requested a new {'certificate authority' if ca else 'certificate'}")
            done = not wait or _wait(secret, renewal, before, timeout_seconds)
        except (DamagedError, RacedError) as error:
            fail(f"the Secret {secret.name}: {error}", FAILED)
    if not done:
        why = f"not done within {timeout_seconds:g} s; is a controller running with --certificate-secret?"
        fail(why, FAILED)


def _state_or_fail(name: SecretName, stored: StoredSecret | None) -> RotationState:
    if stored is None:
        fail(f"there is no Secret {name}", FAILED)
    return decode(stored.content)


def _request(secret: ClusterSecret, renewal: Renewal) -> RotationState:
    """Write the request into the Secret, and return the state before. RacedError: the Secret kept changing."""
    for _ in range(ATTEMPTS):
        stored = secret.read()
        state = _state_or_fail(secret.name, stored)
        if stored is None or state.requested is renewal:
            return state
        with contextlib.suppress(RacedError):
            secret.annotate(stored, {ROTATE: renewal.value})
            return state
    raise RacedError("it is being changed all the time")


def _wait(secret: ClusterSecret, renewal: Renewal, before: RotationState, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    printed = ""
    while time.monotonic() < deadline:
        state = _state_or_fail(secret.name, secret.read())
        phase = "waiting for a controller" if state.requested is renewal else state.phase.name.lower()
        if phase != printed:
            echo(phase)
        printed = phase
        renewed = state.leaf != before.leaf and state.requested is None
        replaced = state.authority != before.authority and state.phase is RotationPhase.STEADY
        if renewed and (replaced or renewal is Renewal.LEAF):
            return True
        time.sleep(0.5)
    return False


def document(
    name: SecretName, state: RotationState, seen: Sequence[WebhookConfiguration], now: datetime
) -> dict[str, Any]:
    """Return what `show -o json` prints, without keys."""
    leaf = state.leaf.certificate if state.leaf else None
    carried = {configuration.kind: set(configuration.bundles) for configuration in seen}
    return {
        "secret": str(name),
        "rotation": {
            "phase": state.phase.name.lower(),
            "since": objects.timestamp(state.since) if state.since else None,
            "requested": state.requested.value if state.requested else None,
        },
        "certificate": _certificate_document(leaf, now, role="leaf") if leaf else None,
        "authorities": [
            _certificate_document(each, now, role=_role(state, each)) for each in state.authorities
        ],
        "configurations": [
            {
                "kind": kind,
                "exists": kind in carried,
                "carriesBundle": carried.get(kind) == {state.bundle()},
                "verifies": leaf is not None
                and kind in carried
                and all(issued_by(pem([leaf]), bundle, now) for bundle in carried[kind]),
            }
            for kind in objects.WEBHOOK_CONFIGURATION_KINDS
        ],
    }


def print_state(screen: Screen, shown: dict[str, Any]) -> None:
    screen.line(f"Secret {shown['secret']}")
    rotation = shown["rotation"]
    phase = PHASES[RotationPhase[rotation["phase"].upper()]]
    rows = {"rotation": phase, "since": rotation["since"], "requested": rotation["requested"]}
    screen.table(rows.items())
    for certificate in filter(None, [shown["certificate"], *shown["authorities"]]):
        _print_certificate(screen, certificate)
    screen.line()
    for configuration in shown["configurations"]:
        screen.line(
            f"{configuration['kind']:<30} {objects.WEBHOOK_CONFIGURATION}  {_carried_text(configuration)}"
        )


def _certificate_document(certificate: x509.Certificate, now: datetime, *, role: str) -> dict[str, Any]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return {
        "role": role,
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": carried_names(certificate),
        "notBefore": objects.timestamp(begin),
        "notAfter": objects.timestamp(end),
        "daysLeft": round((end - now) / timedelta(days=1), 1),
        "lifeSpent": round(min(max((now - begin) / (end - begin), 0.0), 1.0), 3),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _role(state: RotationState, authority: x509.Certificate) -> str:
    if authority == state.authority.certificate:
        return "issuing"
    return "retired" if authority in state.retired else "upcoming"


def _print_certificate(screen: Screen, certificate: dict[str, Any]) -> None:
    role = certificate["role"]
    screen.heading("Certificate" if role == "leaf" else f"Authority, {role}")
    spent = round(certificate["lifeSpent"] * BAR)
    rows = {
        "subject": certificate["subject"],
        "issuer": certificate["issuer"] if role == "leaf" else "",
        "names": ", ".join(certificate["names"]),
        "valid": f"{certificate['notBefore']} to {certificate['notAfter']}",
        "": f"[{'#' * spent}{'.' * (BAR - spent)}] {certificate['daysLeft']:g} days left",
        "sha256": certificate["sha256"][:32],
    }
    screen.table(rows.items())


def _carried_text(configuration: dict[str, Any]) -> str:
    if not configuration["exists"]:
        return "missing"
    if configuration["carriesBundle"]:
        return "carries it"
    return "verifies" if configuration["verifies"] else "does not verify"
