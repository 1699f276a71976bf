"""What a Secret holds, and what can still be made of a damaged one."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from certs.issue import issue_authority
from certs.rotation import Rotation, RotationState, Terms, new_state, pem
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
    authorities_of,
    decode,
    encode,
)

NOW = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
STATE = new_state(Terms(names=("hook.ns.svc",)), NOW)
OTHER = issue_authority(common_name="other", now=NOW, lifetime=dt.timedelta(days=9))
CONTENT = encode(STATE)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(STATE, id="steady"),
        pytest.param(dataclasses.replace(STATE, requested=Rotation.CA), id="requested"),
        pytest.param(dataclasses.replace(STATE, upcoming=OTHER), id="publishing"),
        pytest.param(dataclasses.replace(STATE, upcoming=OTHER, since=NOW), id="propagating"),
        pytest.param(dataclasses.replace(STATE, retired=(OTHER.certificate,), since=NOW), id="retiring"),
        pytest.param(dataclasses.replace(STATE, leaf=None), id="without-leaf"),
    ],
)
def test_a_state_is_read_as_it_was_written(state: RotationState) -> None:
    content = encode(state)
    assert encode(decode(content)) == content
    assert decode(content).phase is state.phase
    assert authorities_of(content.data[CA]) == state.authorities


def damaged(**data: bytes) -> SecretContent:
    return SecretContent(
        {**CONTENT.data, **{key.replace("_", "."): value for key, value in data.items()}}, {}
    )


@pytest.mark.parametrize(
    ("content", "want", "readable"),
    [
        pytest.param(SecretContent({}, {}), "ca.crt must hold a certificate authority in PEM", 0, id="empty"),
        pytest.param(
            damaged(ca_crt=b"x"), "ca.crt must hold a certificate authority in PEM", 0, id="no-authority"
        ),
        pytest.param(
            damaged(ca_crt=CONTENT.data[CERTIFICATE]),
            "ca.crt must hold a certificate authority in PEM",
            0,
            id="a-leaf-for-an-authority",
        ),
        pytest.param(
            damaged(ca_key=b"x"), "ca.key must be the key of an authority in ca.crt", 1, id="no-key"
        ),
        pytest.param(
            damaged(ca_key=OTHER.key_pem()),
            "ca.key must be the key of an authority in ca.crt",
            1,
            id="key-of-another",
        ),
    ],
)
def test_an_authority_that_is_lost_is_told(content: SecretContent, want: str, readable: int) -> None:
    with pytest.raises(DamagedError) as caught:
        decode(content)
    assert str(caught.value) == want
    assert len(caught.value.authorities) == readable


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(damaged(tls_crt=b"x"), {"leaf": None}, id="leaf"),
        pytest.param(damaged(tls_key=OTHER.key_pem()), {"leaf": None}, id="key-of-another"),
        pytest.param(SecretContent(CONTENT.data, {SINCE: "soon", ROTATE: "all"}), {}, id="annotations"),
        pytest.param(SecretContent(CONTENT.data, {SINCE: "2026-03-01T12:00:00"}), {}, id="no-time-zone"),
        pytest.param(
            SecretContent({**CONTENT.data, CA: pem([OTHER.certificate]) + CONTENT.data[CA]}, {}),
            {"retired": (OTHER.certificate,)},
            id="another-authority-before-ours",
        ),
    ],
)
def test_everything_else_is_made_anew(content: SecretContent, want: dict[str, Any]) -> None:
    assert decode(content) == dataclasses.replace(STATE, **want)


def test_the_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(CONTENT)
    assert "PRIVATE" not in repr(STATE)
    assert {CA_KEY, KEY} <= set(CONTENT.data)
    assert NEXT_CA_KEY not in CONTENT.data
