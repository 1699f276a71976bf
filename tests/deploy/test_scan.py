"""kube-score reads what the chart makes, and finds what docs/operate/security.md lists and explains, nothing else."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.build import HERE, ControlPlaneUnavailable, GoModule, build_once, folder_for
from tests.deploy.manifests import CHART, ROOT, template

VERSION = "1.20.0"
MODULE = f"kube-score-{VERSION}"
PACKAGE = {"kube-score": "github.com/zegl/kube-score/cmd/kube-score"}
LISTED = re.compile(r"^\| kube-score `([a-z-]+)` \|", re.MULTILINE)
FINE = 10
"""The grade of a check that found nothing."""
# kube-score cannot read kinds of other projects.
OWN = "monitoring.serviceMonitor.enabled=false,monitoring.prometheusRule.enabled=false"

# Built once, from its Go module: a minute and a half on two busy cores.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("rendering")]


@pytest.fixture(scope="module")
def kube_score() -> Path:
    go = shutil.which("go")
    if go is None and not folder_for(MODULE).is_dir():
        pytest.skip("building kube-score needs a Go toolchain")
    try:
        build_once(
            "kube-score", folder_for(MODULE), GoModule(go or "", HERE / MODULE, PACKAGE, "-s -w"), sys.stdout
        )
    except ControlPlaneUnavailable as unavailable:
        pytest.skip(str(unavailable))
    return folder_for(MODULE) / "kube-score"


@pytest.mark.parametrize("values", ["first-install", "production", "eks", "gke-private", "openshift"])
def test_it_finds_nothing_but_what_the_page_explains(kube_score: Path, tmp_path: Path, values: str) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(
        template("--set", "namespace.create=true", "-f", CHART / f"values-{values}.yaml", "--set", OWN)
    )

    done = subprocess.run(
        [kube_score, "score", "--output-format", "json", rendered],
        capture_output=True,
        text=True,
        check=False,
    )

    objects = json.loads(done.stdout)
    found = {
        check["check"]["id"]
        for each in objects
        for check in each["checks"]
        if not check["skipped"] and check["grade"] < FINE
    }
    names = {each["object_name"].rpartition("/")[2] for each in objects}
    assert {"gpu-admission-webhook", "gpu-admission-controller"} <= names
    assert found <= set(LISTED.findall((ROOT / "docs" / "operate" / "security.md").read_text()))
    assert "container-resources" in found, "no CPU limit, on purpose"
