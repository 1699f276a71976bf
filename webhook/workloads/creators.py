"""Who creates pods and their claims: the users of controllers, and what a pod says of its controller."""

from policies.pods.pod import Pod
from policies.quota.claim_protection import SCHEDULER

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Creates the pods of DaemonSets where controllers share one identity; else DAEMONSET_CONTROLLER does."""
CLAIM_CREATORS = frozenset(
    {f"{SERVICE_ACCOUNT_PREFIX}kube-system:resource-claim-controller", CONTROLLER_MANAGER, SCHEDULER}
)
"""Create the ResourceClaims of pods: from templates, and for extended resources. Owner references do not tell: tenants may
write them."""


def is_program(user: str) -> bool:
    """Whether the user is a ServiceAccount or a controller of Kubernetes: people may not read what it is answered."""
    return user.startswith((SERVICE_ACCOUNT_PREFIX, "system:kube-"))


def has_controller(pod: Pod, kind: str, api_version_prefix: str) -> bool:
    """Whether the controller of the pod is of this kind, with an API version that begins with the prefix."""
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return any(
        owner.controller and owner.kind == kind and owner.api_version.startswith(api_version_prefix)
        for owner in owners
    )
