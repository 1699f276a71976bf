"""When the alerts about teams fire, by Prometheus' own `promtool test rules`."""

import json
import subprocess
from pathlib import Path

from tests.cases import cases
from tests.deploy.monitoring import RULES, THRESHOLDS
from tests.prometheus import binary_of_prometheus

HOURS = 3
"""So long the series of a test stay as they are."""
FAMILY = "classes/nvidia-a100"
NEARLY_FULL = "Team vision has used more than 0.9 of what it is granted (gpus) for 1h."
EXCEED = (
    "ClusterGPUQuotas, and GPUQuotas outside teams, together grant 17 GPUs ({}), which the nodes do not have."
)


def granted(gpus: int, nodes: int, dimension: str = "gpus", **labels: str) -> dict[str, int]:
    named = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {
        f'gpu_admission_granted_gpus{{dimension="{dimension}"{named}}}': gpus,
        f'gpu_admission_node_gpus{{dimension="{dimension}"{named}}}': nodes,
    }


def used(gpus: int, reserved: int = 0, hard: int = 20) -> dict[str, int]:
    amounts = {"used": gpus, "reserved": reserved, "hard": hard}
    return {
        f'gpu_admission_team_{name}{{team="vision",dimension="gpus"}}': each for name, each in amounts.items()
    }


@cases(
    ("series", "alert", "minutes", "want"),
    the_nodes_have_as_many=(granted(16, 16), "GPUAdmissionTeamsExceedNodes", 120, []),
    one_more=(granted(17, 16), "GPUAdmissionTeamsExceedNodes", 60, [EXCEED.format("gpus")]),
    not_for_long_enough=(granted(17, 16), "GPUAdmissionTeamsExceedNodes", 59, []),
    of_a_family=(granted(17, 16, FAMILY), "GPUAdmissionTeamsExceedNodes", 60, [EXCEED.format(FAMILY)]),
    each_of_two_controllers_counts_all=(
        {**granted(16, 16, pod="a"), **granted(16, 16, pod="b")},
        "GPUAdmissionTeamsExceedNodes",
        120,
        [],
    ),
    one_of_two_clusters=(
        {**granted(17, 16, cluster="a"), **granted(16, 17, cluster="b")},
        "GPUAdmissionTeamsExceedNodes",
        60,
        [EXCEED.format("gpus")],
    ),
    without_teams=({}, "GPUAdmissionTeamsExceedNodes", 120, []),
    nearly_full=(used(17, 2), "GPUAdmissionTeamNearlyFull", 60, [NEARLY_FULL]),
    not_above_nine_tenths=(used(16, 2), "GPUAdmissionTeamNearlyFull", 120, []),
    it_grants_nothing=(used(0, hard=0), "GPUAdmissionTeamNearlyFull", 120, []),
)  # fmt: skip
def test_when_they_fire(
    series: dict[str, int], alert: str, minutes: int, want: list[str], tmp_path: Path
) -> None:
    text = RULES.read_text()
    for name, value in THRESHOLDS.items():
        text = text.replace(f"${{{name}}}", str(value))
    (tmp_path / "rules.yaml").write_text(text)
    inputs = [{"series": name, "values": f"{value}x{HOURS * 60}"} for name, value in series.items()]
    # promtool compares all labels and annotations, so it is to expect none, and prints the ones that it got.
    firing = {"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": []}
    tests = [{"interval": "1m", "input_series": inputs, "alert_rule_test": [firing]}]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    command = [binary_of_prometheus("promtool"), "test", "rules", "test.yaml"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode == 0) is (not want), done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert [each for each in want if each not in printed] == [], printed
    assert printed.count("summary=") == len(want), printed
