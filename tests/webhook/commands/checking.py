"""Manifests for `gpu-admission check`, and how it is run."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from webhook.commands import main

GPU_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  containers:
  - name: main
    image: registry.example/train:1
    resources:
      limits: {nvidia.com/gpu: COUNT}
"""

GOOD = GPU_POD.replace("COUNT", "1")
HALF = GPU_POD.replace("COUNT", "500m").replace("nvidia.com", "amd.com")
"""Of a GPU that has neither slices nor shares: one fix removes the finding."""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: ml}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: serve}}
    spec:
      containers:
      - name: main
        image: registry.example/serve:1
        resources: {limits: {nvidia.com/gpu: COUNT}}
"""

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: default}\n"


def check(*arguments: str, stdin: str | None = None) -> Result:
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(main, ["check", *arguments], input=stdin, prog_name="gpu-admission")


def words(result: Result) -> str:
    """Return what was printed without the line breaks of wrapping."""
    return " ".join(result.stdout.split())


def document(*arguments: str, stdin: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(check("-f", "-", "-o", "json", *arguments, stdin=stdin).stdout)
    return shown


def configuration(tmp_path: Path, spec: str) -> str:
    (tmp_path / "policy.yaml").write_text(f"{HEAD}spec: {spec}\n")
    return str(tmp_path)


def stream(*texts: str) -> str:
    return "---\n".join(texts)
