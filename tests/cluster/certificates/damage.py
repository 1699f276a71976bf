"""A controller of certificates in this process that waits for nothing long, and what people do to certificates by hand."""

import base64
import datetime as dt

from certs.issue import issue_ca
from certs.reconciler import CertificateReconciler
from certs.rotation import RotationSettings
from tests.controlplane.certificates import AUTHORITY_PATH, NAME, SECRET, SECRET_PATH, Installation
from tests.controlplane.webhook import CONFIGURATIONS, NAMESPACE, set_bundles
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster.api import ApiClient

SECRET_NAME = SecretName(NAMESPACE, SECRET)
QUICKLY = dt.timedelta(seconds=0.2)
TERMS = RotationSettings(names=(f"gpu-admission.{NAMESPACE}.svc",), propagation=QUICKLY, retirement=QUICKLY)


def reconciler(api: ApiClient) -> CertificateReconciler:
    state, served = ClusterSecret(api, SECRET_NAME.ca_secret), ClusterSecret(api, SECRET_NAME)
    return CertificateReconciler(
        state, served, ClusterConfigurations(api), TERMS, lambda: dt.datetime.now(dt.UTC)
    )


def other_authority() -> bytes:
    now = dt.datetime.now(dt.UTC)
    return issue_ca(common_name="other", now=now, lifetime=dt.timedelta(days=1)).certificate_pem()


def delete_both(installation: Installation) -> None:
    for path in (AUTHORITY_PATH, SECRET_PATH):
        assert installation.client.delete(path)[0] == 200


def damage_leaf(installation: Installation) -> None:
    damage = {"tls.crt": base64.b64encode(b"nothing").decode()}
    assert installation.client.patch(SECRET_PATH, {"data": damage})[0] == 200


def remove_bundles(installation: Installation) -> None:
    set_bundles(installation.client, None)


def delete_and_apply_configurations(installation: Installation) -> None:
    for kind in CONFIGURATIONS:
        installation.plane.kubectl("delete", kind, NAME)
    installation.apply()
