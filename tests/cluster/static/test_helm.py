"""Helm under the guard: by whom it upgrades, rolls back and uninstalls, and how administrators get rid of a guard."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cluster.controllers import eventually
from tests.cluster.static.files import RELOADED_WITHIN, reading, written
from tests.controlplane import ControlPlane, helm, minor_version
from tests.controlplane.webhook import CONFIGURATION_PATHS
from tests.deploy.helm_needed import need_helm
from tests.deploy.manifests import CHART, IMAGE, NAMESPACE, RELEASE
from webhook.commands import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(minor_version() < 37, reason="API servers read policies from files since 1.37"),
]

FILE = Path("validating", "gpu-admission.yaml")
REFUSED = "only release or a member of group breakers may change it, not admin: the guard of gpu-admission"
OF_PODS = {"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"}
# Nothing here ends namespaces, so the canary's would stay.
SET = ("--set", f"image.repository={IMAGE},canary.enabled=false")
PRESET = (CHART, "-f", CHART / "values-first-install.yaml", *SET)


class Helm:
    """Helm as a user of the plane."""

    def __init__(self, plane: ControlPlane, user: str) -> None:
        self._server = ("--kubeconfig", plane.kubeconfig(user), "--namespace", NAMESPACE)

    def run(self, command: str, *arguments: str | Path) -> str:
        return helm.run(command, RELEASE, *arguments, *self._server)

    def install(self) -> None:
        self.run("install", *PRESET, "--create-namespace")

    def upgrade(self, failure_policy: str) -> None:
        self.run("upgrade", *PRESET, "--set", f"webhooks.failurePolicy={failure_policy}")


def failure_policies(plane: ControlPlane) -> set[str]:
    """Return those of the two webhooks for new pods."""
    every = (webhook for path in CONFIGURATION_PATHS for webhook in plane.client().get(path)[1]["webhooks"])
    return {each["failurePolicy"] for each in every if each["name"] in OF_PODS}


def is_registered(plane: ControlPlane) -> bool:
    return any(plane.client().get(path)[0] == 200 for path in CONFIGURATION_PATHS)


def test_helm_under_the_guard(tmp_path: Path) -> None:
    need_helm()
    directory = written(tmp_path)
    with reading(directory) as plane:
        admin, release, breaker = (Helm(plane, user) for user in ("admin", "release", "breaker"))
        release.install()

        with pytest.raises(helm.HelmFailed, match=REFUSED):
            admin.upgrade("Fail")
        assert failure_policies(plane) == {"Ignore"}
        release.upgrade("Fail")
        assert failure_policies(plane) == {"Fail"}
        with pytest.raises(helm.HelmFailed, match=REFUSED):
            admin.run("rollback", "1")
        assert failure_policies(plane) == {"Fail"}
        release.run("rollback", "1")
        assert failure_policies(plane) == {"Ignore"}
        breaker.upgrade("Fail")
        assert failure_policies(plane) == {"Fail"}

        arguments = ["release", "--all", "--uninstall", "--kubeconfig"]
        refused = CliRunner().invoke(main, [*arguments, str(plane.kubeconfig())])
        assert (refused.exit_code, REFUSED in refused.output, is_registered(plane)) == (2, True, True)
        released = CliRunner().invoke(main, [*arguments, str(plane.kubeconfig("release"))])
        assert (released.exit_code, is_registered(plane)) == (0, False), released.output
        release.run("uninstall", "--no-hooks")

        # Somebody else takes away all but what is guarded.
        release.install()
        with pytest.raises(helm.HelmFailed, match="failed to delete release"):
            admin.run("uninstall", "--no-hooks")
        assert is_registered(plane)
        release.run("uninstall", "--no-hooks")
        assert not is_registered(plane)

        release.install()
        shutil.move(directory / FILE, tmp_path)
        assert eventually(lambda: guard_is_gone(plane), seconds=RELOADED_WITHIN)
        admin.run("uninstall", "--no-hooks")
        assert not is_registered(plane)


def guard_is_gone(plane: ControlPlane) -> bool:
    return plane.client().patch(CONFIGURATION_PATHS[0], {}, {"dryRun": "All"})[0] == 200
