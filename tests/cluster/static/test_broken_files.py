"""Files that an API server rejects: it keeps the last good ones and counts a failure, and does not start with broken ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.static.files import RELOADED_WITHIN, reading, series, written
from tests.controlplane import ControlPlane, minor_version
from tests.controlplane.plane import API_SERVER, ControlPlaneFailed

pytestmark = pytest.mark.skipif(
    minor_version() < 37, reason="API servers read policies from files since 1.37"
)

FILE = "validating/gpu-admission.yaml"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def plane(directory: Path) -> Iterator[ControlPlane]:
    with reading(directory) as plane:
        yield plane


def failures(plane: ControlPlane) -> float:
    counted = (line for line in series(plane, "automatic_reloads_total") if 'status="failure"' in line)
    return sum(float(line.rpartition(" ")[2]) for line in counted)


def replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


VALIDATING, MUTATING = "kind: ValidatingAdmissionPolicy\n", "kind: MutatingAdmissionPolicy\n"
FAIL = "  failurePolicy: Fail\n"
PARAMETERS = "  paramKind: {apiVersion: v1, kind: ConfigMap}\n"


@cases(
    ("broken", "said"),
    no_yaml=(lambda _text: "a: [", "error loading"),
    another_kind=(replacing(VALIDATING, MUTATING), "error loading"),
    a_name_without_the_ending=(replacing(".guard.static.k8s.io", ".guard"), "must have a name ending with"),
    a_binding_without_its_policy=(
        replacing("policyName: gpu-admission.guard", "policyName: gone"),
        "not exist",
    ),
    parameters=(replacing(FAIL, PARAMETERS + FAIL), "paramKind is not supported"),
    a_name_twice=(lambda text: f"{text}---\n{text}", "duplicate name"),
    an_unknown_field=(replacing(FAIL, f"{FAIL}  failsOpen: true\n"), "unknown field"),
    half_of_it=(lambda text: text[: text.rindex("policyName")], "error loading"),
    cel_that_does_not_compile=(
        replacing("variables.new.metadata.all", "variables.gone.metadata.all"),
        "compil",
    ),
)
def test_a_broken_file(plane: ControlPlane, directory: Path, broken: Callable[[str], str], said: str) -> None:
    good, before, loaded = (directory / FILE).read_text(), failures(plane), series(plane, "last_config_info")
    assert broken(good) != good
    replacement = directory / "validating/.new"

    replacement.write_text(broken(good))
    replacement.replace(directory / FILE)

    try:
        assert eventually(lambda: failures(plane) > before, seconds=RELOADED_WITHIN)
        assert series(plane, "last_config_info") == loaded
        assert said in plane.logs(API_SERVER)
        with pytest.raises(ControlPlaneFailed, match="failed to load static policy manifests"):
            plane.restart(API_SERVER)
    finally:
        (directory / FILE).write_text(good)
        plane.restart(API_SERVER)
    assert series(plane, "last_config_info") == loaded
