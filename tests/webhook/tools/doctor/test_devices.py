"""Doctor on the kinds of DRA devices that the controller publishes."""

import json
from pathlib import Path

from tests.cases import cases
from tests.webhook.tools.installed_clusters import assert_found

CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-devices"
REMEDY = "set measure nothing in deviceClasses of a GPUResourceMapping for drivers whose devices are not GPUs"


def lacking(names: str) -> str:
    return (
        f"device-kinds-left-out: ConfigMap/gpu-admission-devices in gpu-admission lacks {names}, because there are too many "
        "kinds of devices: a claim whose selector reads one of them counts as the largest device of its DeviceClass\n"
        + REMEDY
    )


@cases(
    ("data", "want"),
    not_written_yet=(None, []),
    all_kinds=({"kinds": []}, []),
    too_many=({"leftOut": ["a.com/x"]}, [lacking("a.com/x")]),
    many_names=(
        {"leftOut": [f"a.com/{n}" for n in range(5)]},
        [lacking("a.com/0, a.com/1, a.com/2 and 2 more")],
    ),
)
def test_what_the_kinds_lack(data: dict[str, list[str]] | None, want: list[str], tmp_path: Path) -> None:
    stored = {"metadata": {"name": "x"}, **({} if data is None else {"data": {"devices": json.dumps(data)}})}
    assert_found("device-kinds", {CONFIG_MAP: stored}, want, tmp_path)


def test_without_the_config_map_nothing_is_found(tmp_path: Path) -> None:
    assert_found("device-kinds", {}, [], tmp_path)
