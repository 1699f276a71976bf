"""Keepers in this process, on the real API server, that wait for nothing long."""

import datetime as dt

from certs.reconciler import CertificateReconciler
from certs.rotation import Terms
from tests.controlplane.certificates import SECRET
from tests.controlplane.webhook import NAMESPACE
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret, SecretName
from webhook.cluster.api import ApiClient

SECRET_NAME = SecretName(NAMESPACE, SECRET)
QUICKLY = dt.timedelta(seconds=0.2)
TERMS = Terms(names=(f"gpu-admission.{NAMESPACE}.svc",), propagation=QUICKLY, retirement=QUICKLY)


def reconciler(api: ApiClient) -> CertificateReconciler:
    state, served = ClusterSecret(api, SECRET_NAME.of_authority), ClusterSecret(api, SECRET_NAME)
    return CertificateReconciler(
        state, served, ClusterConfigurations(api), TERMS, lambda: dt.datetime.now(dt.UTC)
    )
