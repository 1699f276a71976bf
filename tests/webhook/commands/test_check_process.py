"""`check` as a process of its own: its exit status, its pipes, and what it loads."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GOOD = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 1}}
"""
HALF = GOOD.replace("gpu: 1", "gpu: 500m")


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "webhook", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, **options
    )


def test_process_reads_stdin() -> None:
    finished = run("check", "-f", "-", input=HALF)

    assert finished.returncode == 1
    assert finished.stdout.startswith("refused  stdin:1  Pod default/train\n")
    assert finished.stderr == ""


def test_process_ends_quietly_when_nobody_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("---\n".join([HALF] * 1000))  # several times what a pipe holds
    program = f"{sys.executable} -m webhook check -f {path} | head -n 1"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    finished = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, timeout=120, check=False, env=environment
    )

    assert finished.stdout == f"refused  {path}:1  Pod default/train\n"
    assert finished.stderr == ""


def test_check_does_not_load_the_server() -> None:
    program = (
        "import sys; from webhook.commands import main\n"
        "try: main(['check', '-f', '-'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'flask', 'gunicorn', 'kubernetes', 'cryptography'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    finished = subprocess.run(
        [sys.executable, "-c", program],
        input=GOOD,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )

    assert finished.stderr.strip() == "[]"
