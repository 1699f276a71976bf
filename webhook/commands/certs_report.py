"""How certificates are shown to people, and what the same is in JSON."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from certs.check import carried_names, issued_by
from certs.rotation import RotationPhase, RotationState, pem
from webhook.certificates.examination import CertificateFinding
from webhook.certificates.objects import KINDS, ConfigurationSeen, SecretName
from webhook.cluster.objects import WEBHOOK_CONFIGURATION, timestamp
from webhook.commands.output import Screen, counted

BAR = 30
PHASES = {
    RotationPhase.STEADY: "no rotation under way",
    RotationPhase.PUBLISHING: "step 1 of 4: the new authority is being published beside the old one",
    RotationPhase.PROPAGATING: "step 2 of 4: published; API servers load it",
    RotationPhase.RETIRING: "step 3 of 4: the certificate is of the new authority; the old one is dropped next",
}


def described(
    name: SecretName, state: RotationState, seen: Sequence[ConfigurationSeen], now: datetime
) -> dict[str, Any]:
    """Return what `show` tells, as JSON has it; no key is in it."""
    leaf = state.leaf.certificate if state.leaf else None
    carried = {each.configuration.kind: each.configuration.bundles for each in seen}
    return {
        "secret": str(name),
        "rotation": {
            "phase": state.phase.name.lower(),
            "since": timestamp(state.since) if state.since else None,
            "requested": state.requested.value if state.requested else None,
        },
        "certificate": _certificate(leaf, now, role="leaf") if leaf else None,
        "authorities": [_certificate(each, now, role=_role(state, each)) for each in state.authorities],
        "configurations": [
            {
                "kind": kind,
                "exists": kind in carried,
                "carriesBundle": kind in carried and set(carried[kind]) == {state.bundle()},
                "verifies": leaf is not None
                and kind in carried
                and all(issued_by(pem([leaf]), bundle, now) for bundle in carried[kind]),
            }
            for kind in KINDS
        ],
    }


def print_state(screen: Screen, report: dict[str, Any]) -> None:
    screen.line(f"Secret {report['secret']}")
    rotation = report["rotation"]
    screen.table(
        [
            ("rotation", PHASES[RotationPhase[rotation["phase"].upper()]]),
            *([("since", rotation["since"])] if rotation["since"] else []),
            *([("asked for", rotation["requested"])] if rotation["requested"] else []),
        ],
        indent=2,
    )
    for certificate in [report["certificate"], *report["authorities"]]:
        if certificate is not None:
            _print_certificate(screen, certificate)
    screen.line()
    for each in report["configurations"]:
        mark = _carried(each)
        screen.line(f"{each['kind']:<30} {WEBHOOK_CONFIGURATION}  {mark}")


def print_findings(screen: Screen, findings: Sequence[CertificateFinding], notes: Iterable[str]) -> None:
    for finding in findings:
        screen.paragraph(f"- {finding.problem}", style="red")
        screen.paragraph(f"→ {finding.remedy}", indent=2)
    for note in notes:
        screen.paragraph(f"note: {note}", style="dim")
    screen.line(counted(len(findings), "finding") if findings else "the certificates are good")


def _certificate(certificate: x509.Certificate, now: datetime, *, role: str) -> dict[str, Any]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return {
        "role": role,
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": carried_names(certificate),
        "notBefore": timestamp(begin),
        "notAfter": timestamp(end),
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
    screen.line()
    screen.line("Certificate" if role == "leaf" else f"Authority, {role}", style="bold")
    spent = round(certificate["lifeSpent"] * BAR)
    rows = [
        ("subject", certificate["subject"]),
        *([("issuer", certificate["issuer"])] if role == "leaf" else []),
        *([("names", ", ".join(certificate["names"]))] if certificate["names"] else []),
        ("valid", f"{certificate['notBefore']} to {certificate['notAfter']}"),
        ("", f"[{'#' * spent}{'.' * (BAR - spent)}] {certificate['daysLeft']:g} days left"),
        ("sha256", certificate["sha256"][:32]),
    ]
    screen.table(rows, indent=2)


def _carried(configuration: dict[str, Any]) -> str:
    if not configuration["exists"]:
        return "missing"
    if configuration["carriesBundle"]:
        return "carries it"
    return "verifies" if configuration["verifies"] else "does not verify"
