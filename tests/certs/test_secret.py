"""What a Secret holds, and what can still be made of a damaged one."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from certs.check import cas_in, pem
from certs.issue import issue_ca
from certs.rotation import Renewal, RotationSettings, RotationState, new_state
from certs.secret import (
    CA,
    CA_KEY,
    CERTIFICATE,
    KEY,
    NEXT_CA_KEY,
    ROTATE,
    SINCE,
    DamagedError,
    SecretContent,
    decode,
    encode,
)
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
STATE = new_state(RotationSettings(names=("hook.ns.svc",)), NOW)
OTHER = issue_ca(common_name="other", now=NOW, lifetime=dt.timedelta(days=9))
CONTENT = encode(STATE)


@cases(
    "state",
    steady=STATE,
    requested=dataclasses.replace(STATE, requested=Renewal.CA),
    publishing=dataclasses.replace(STATE, upcoming=OTHER),
    propagating=dataclasses.replace(STATE, upcoming=OTHER, since=NOW),
    retiring=dataclasses.replace(STATE, retired=(OTHER.certificate,), since=NOW),
    without_leaf=dataclasses.replace(STATE, leaf=None),
)
def test_a_state_is_read_as_it_was_written(state: RotationState) -> None:
    content = encode(state)
    assert encode(decode(content)) == content
    assert decode(content).phase is state.phase
    assert cas_in(content.data[CA]) == state.authorities


def damaged(**data: bytes) -> SecretContent:
    written = {key.replace("_", "."): value for key, value in data.items()}
    return SecretContent({**CONTENT.data, **written}, {})


NO_AUTHORITY = "ca.crt must hold a certificate authority in PEM"
NO_KEY = "ca.key must be the key of an authority in ca.crt"


@cases(
    ("content", "want", "readable"),
    empty=(SecretContent({}, {}), NO_AUTHORITY, 0),
    no_authority=(damaged(ca_crt=b"x"), NO_AUTHORITY, 0),
    a_leaf_for_an_authority=(damaged(ca_crt=CONTENT.data[CERTIFICATE]), NO_AUTHORITY, 0),
    no_key=(damaged(ca_key=b"x"), NO_KEY, 1),
    key_of_another=(damaged(ca_key=OTHER.key_pem()), NO_KEY, 1),
)
def test_an_authority_that_is_lost_is_told(content: SecretContent, want: str, readable: int) -> None:
    with pytest.raises(DamagedError) as caught:
        decode(content)
    assert str(caught.value) == want
    assert len(caught.value.authorities) == readable


@cases(
    ("content", "want"),
    leaf=(damaged(tls_crt=b"x"), {"leaf": None}),
    key_of_another=(damaged(tls_key=OTHER.key_pem()), {"leaf": None}),
    annotations=(SecretContent(CONTENT.data, {SINCE: "soon", ROTATE: "all"}), {}),
    no_time_zone=(SecretContent(CONTENT.data, {SINCE: "2026-03-01T12:00:00"}), {}),
    another_authority_before_ours=(
        SecretContent({**CONTENT.data, CA: pem([OTHER.certificate]) + CONTENT.data[CA]}, {}),
        {"retired": (OTHER.certificate,)},
    ),
)
def test_everything_else_is_made_again(content: SecretContent, want: dict[str, Any]) -> None:
    assert decode(content) == dataclasses.replace(STATE, **want)


def test_the_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(CONTENT)
    assert "PRIVATE" not in repr(STATE)
    assert {CA_KEY, KEY} <= set(CONTENT.data)
    assert NEXT_CA_KEY not in CONTENT.data
