"""`examples/post.py` against a webhook as `make run` serves it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
URL_OF = "gpu_admission.server: serving "


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve the examples' policies; return the URL of /mutate and the authority."""
    directory = tmp_path_factory.mktemp("post")
    log = directory / "serve.log"
    command: list[str | Path] = [
        *(sys.executable, "-m", "webhook", "serve", "--standalone", "--self-signed", directory / "certs"),
        *("--config", ROOT / "examples" / "policies", "--drain-seconds", "0", "--audit-log", "none"),
        *("--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1", "--metrics-port", "0"),
    ]
    with log.open("w") as output, subprocess.Popen(command, cwd=ROOT, stderr=output) as process:
        deadline = time.monotonic() + 60
        while URL_OF not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        url = log.read_text().partition(URL_OF)[2].partition(",")[0]
        yield f"{url}/mutate", directory / "certs" / "ca.crt"
        process.terminate()


def post(webhook: tuple[str, Path]) -> list[str | Path]:
    url, authority = webhook
    manifest = ROOT / "examples" / "workloads" / "pod-training.yaml"
    return [sys.executable, ROOT / "examples" / "post.py", "--url", url, "--ca", authority, manifest]


def test_the_patch_is_shown(webhook: tuple[str, Path]) -> None:
    done = subprocess.run(post(webhook), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("allowed, with this patch:\n  ")


def test_output_that_is_cut_is_no_error(webhook: tuple[str, Path]) -> None:
    with subprocess.Popen(post(webhook), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cut:
        assert cut.stdout is not None
        assert cut.stderr is not None
        cut.stdout.close()  # before anything is written, as the most impatient reader would
        assert cut.stderr.read() == ""
