"""What people do to certificates by hand."""

import base64
import datetime as dt

from certs.issue import issue_authority
from tests.controlplane.certificates import (
    AUTHORITY_PATH,
    NAME,
    REGISTRATION,
    SECRET_PATH,
    Installation,
)
from tests.controlplane.client import JSON_PATCH, accepted
from tests.controlplane.webhook import CONFIGURATIONS


def other_authority() -> bytes:
    now = dt.datetime.now(dt.UTC)
    return issue_authority(common_name="other", now=now, lifetime=dt.timedelta(days=1)).certificate_pem()


def delete_both(installation: Installation) -> None:
    for path in (AUTHORITY_PATH, SECRET_PATH):
        assert installation.client.delete(path)[0] == 200


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
        accepted(installation.client.patch(path, operations, content_type=JSON_PATCH))


def remove_bundles(installation: Installation) -> None:
    bundles_set(installation, None)


def delete_and_apply_configurations(installation: Installation) -> None:
    for kind in CONFIGURATIONS:
        installation.plane.kubectl("delete", kind, NAME)
    installation.apply()
