"""What `certs` prints, and what keeps it from its Secret; the rest is in tests/cluster/certificates/."""

import base64
import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from certs.rotation import Renewal, RotationSettings, new_state
from certs.secret import ROTATE, encode
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.commands import main
from webhook.commands.certs import print_state
from webhook.commands.output import Screen

LEAF = {
    "role": "leaf",
    "subject": "CN=gpu-admission",
    "issuer": "CN=authority",
    "names": ["gpu-admission.svc", "gpu-admission"],
    "notBefore": "2027-01-01T00:00:00Z",
    "notAfter": "2027-01-31T00:00:00Z",
    "daysLeft": 15.0,
    "lifeSpent": 0.5,
    "sha256": "ab" * 32,
}
AUTHORITY = {**LEAF, "role": "issuing", "names": []}
SHOWN = f"""\
Secret gpu-admission/authority
  rotation  {{}}
  since     2027-01-01T00:00:00Z

Certificate
  subject  CN=gpu-admission
  issuer   CN=authority
  names    gpu-admission.svc, gpu-admission
  valid    2027-01-01T00:00:00Z to 2027-01-31T00:00:00Z
           [###############...............] 15 days left
  sha256   {"ab" * 16}

Authority, issuing
  subject  CN=gpu-admission
  valid    2027-01-01T00:00:00Z to 2027-01-31T00:00:00Z
           [###############...............] 15 days left
  sha256   {"ab" * 16}

MutatingWebhookConfiguration   zz-gpu-admission  {{}}
"""
STEPS = {
    "publishing": "step 1 of 4: the new authority is being published beside the old one",
    "propagating": "step 2 of 4: published; API servers load it",
    "retiring": "step 3 of 4: the certificate is of the new authority; the old one is removed next",
}


@cases(
    ("phase", "step", "configuration", "carried"),
    carried=("steady", "no rotation under way", (True, True, True), "carries it"),
    missing=("publishing", STEPS["publishing"], (False, False, False), "missing"),
    verified=("propagating", STEPS["propagating"], (True, False, True), "verifies"),
    not_verified=("retiring", STEPS["retiring"], (True, False, False), "does not verify"),
)
def test_what_show_prints(
    phase: str,
    step: str,
    configuration: tuple[bool, bool, bool],
    carried: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exists, carries, verifies = configuration
    kind = {
        "kind": "MutatingWebhookConfiguration",
        "exists": exists,
        "carriesBundle": carries,
        "verifies": verifies,
    }
    state: dict[str, Any] = {
        "secret": "gpu-admission/authority",
        "rotation": {"phase": phase, "since": "2027-01-01T00:00:00Z", "requested": None},
        "certificate": LEAF,
        "authorities": [AUTHORITY],
        "configurations": [kind],
    }

    print_state(Screen(), state)

    assert capsys.readouterr().out == SHOWN.format(step, carried)


def run(folder: Path, answer: Answer, *arguments: str) -> Result:
    with ApiServer(folder, lambda _request: answer) as server:
        return CliRunner().invoke(main, ["certs", *arguments, "--kubeconfig", str(server.kubeconfig())])


ABSENT = status(404, "the server could not find the requested resource")
DAMAGED = Answer(
    json.dumps(
        {
            "metadata": {"name": "x", "resourceVersion": "1"},
            "data": {"state.json": base64.b64encode(b"{").decode()},
        }
    ).encode()
)


@cases(
    ("arguments", "answer", "want"),
    shown_absent=(["show"], ABSENT, "there is no Secret gpu-admission/gpu-admission-ca"),
    rotated_absent=(["rotate"], ABSENT, "there is no Secret gpu-admission/gpu-admission-ca"),
    shown_damaged=(
        ["show"],
        DAMAGED,
        "the Secret gpu-admission/gpu-admission-ca is damaged: ca.crt must hold a certificate authority in PEM",
    ),
    rotated_damaged=(
        ["rotate"],
        DAMAGED,
        "the Secret gpu-admission/gpu-admission-ca: ca.crt must hold a certificate authority in PEM",
    ),
)
def test_a_secret_that_cannot_be_used(
    tmp_path: Path, arguments: list[str], answer: Answer, want: str
) -> None:
    result = run(tmp_path, answer, *arguments)

    assert (result.exit_code, result.stderr) == (1, f"error: {want}\n")


BEGIN, TERMS = datetime(2027, 1, 1, tzinfo=UTC), RotationSettings(names=("gpu-admission.gpu-admission.svc",))


class Kept:
    """A Secret with a certificate. raced: it was changed before each write. renewed: a controller renews all at once."""

    def __init__(self, *, raced: bool = False, renewed: bool = False) -> None:
        self.state, self.raced, self.renewed = new_state(TERMS, BEGIN), raced, renewed

    def answer(self, request: Request) -> Answer:
        if request.method == "PATCH":
            if self.raced:
                return status(409, "it was changed", "Conflict")
            requested = Renewal(json.loads(request.body)["metadata"]["annotations"][ROTATE])
            asked = dataclasses.replace(self.state, requested=requested)
            self.state = new_state(TERMS, BEGIN) if self.renewed else asked
        content = encode(self.state)
        metadata = {"name": "gpu-admission-ca", "resourceVersion": "1", "annotations": content.annotations}
        return Answer(msgspec.json.encode({"metadata": metadata, "data": content.data}))


LEAF_REQUESTED, CA_REQUESTED = (
    "requested a new certificate\n",
    "requested a new certificate authority\n",
)
WAITING = ("--wait", "--timeout-seconds", "1")


@cases(
    ("kept", "arguments", "want"),
    certificate=({}, (), (0, LEAF_REQUESTED, "")),
    authority=({}, ("--ca",), (0, CA_REQUESTED, "")),
    done=({"renewed": True}, ("--wait",), (0, f"{LEAF_REQUESTED}steady\n", "")),
    not_done=(
        {},
        WAITING,
        (
            1,
            f"{LEAF_REQUESTED}waiting for a controller\n",
            "error: not done within 1 s; is a controller running with --certificate-secret?\n",
        ),
    ),
    raced=(
        {"raced": True},
        (),
        (
            1,
            "",
            "error: the Secret gpu-admission/gpu-admission-ca: it is being changed all the time\n",
        ),
    ),
)
def test_what_rotate_prints(
    tmp_path: Path, kept: dict[str, bool], arguments: tuple[str, ...], want: tuple[int, str, str]
) -> None:
    with ApiServer(tmp_path, Kept(**kept).answer) as server:
        named = ("--kubeconfig", str(server.kubeconfig()))
        result = CliRunner().invoke(main, ["certs", "rotate", *named, *arguments])

    assert (result.exit_code, result.stdout, result.stderr) == want
