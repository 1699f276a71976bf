"""`gpu-admission check` on a ResourceQuota."""

import json
from pathlib import Path

from click.testing import CliRunner

from webhook.commands.check import check

QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: team}
spec:
  hard:
    requests.nvidia.com/gpu: "4"
    limits.nvidia.com/gpu: "4"
"""


def test_keys_that_limit_nothing_are_reported_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(QUOTA)

    text = CliRunner().invoke(check, ["-f", str(file)])
    assert text.exit_code == 0
    reported = " ".join(text.output.split())
    assert (
        f"{file}:8: warning: spec.hard[limits.nvidia.com/gpu]: remove it, requests.nvidia.com/gpu is set as well"
        in reported
    )
    assert "1 object: 0 refused, 0 would change, 1 ok" in reported

    found = json.loads(CliRunner().invoke(check, ["-f", str(file), "-o", "json"]).output)["objects"][0][
        "findings"
    ]
    assert [(each["path"], each["line"], each["outcome"]) for each in found] == [
        ("spec.hard[limits.nvidia.com/gpu]", 8, "warned")
    ]
