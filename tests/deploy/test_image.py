"""The images, as far as that goes without a container engine: what the Dockerfile builds runs as its pods run it.

The instructions of its build stages are carried out here, in a fresh virtual environment; the results are started with a
read-only root, as a user with no rights, no shell and no Python packages but their own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tests.cases import cases
from tests.deploy.manifests import INSTALL, ROOT, STATIC
from tests.webhook.tools.fetch.servers import GSHandler, Handler, HubHandler, S3Handler, Store, serving

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
USER = 65532

# Everything is downloaded and compiled again: two minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)
OFFLINE = re.compile(
    r"Temporary failure in name resolution|Failed to establish a new connection|NewConnectionError"
)
# $1 is the content of /app, $2 the interpreter's folder; both may lie where only root may look.
CONFINED = """
set -e
mount --make-rprivate /
mount -t tmpfs none /srv
mkdir /srv/app /srv/python
mount --bind "$1" /srv/app
mount --bind "$2" /srv/python
mount -t tmpfs none /tmp
mount --bind /dev/null "$(readlink -f /bin/sh)"
mount -o remount,bind,ro /
cd / # as in a container; the checkout may lie where the user must not look
shift 2
exec "$@"
"""


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Dockerfile, each with what it says; the last stage has no name."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    starts = [index for index, (word, *_) in enumerate(lines) if word == "FROM"] + [len(lines)]
    stages = {lines[start][1].partition(" AS ")[2]: lines[start + 1 : end] for start, end in pairwise(starts)}
    return [(word, rest) for word, rest in stages[name]]


class Builder:
    def __init__(self, folder: Path) -> None:
        self.source, self._venv = folder / "source", folder / "venv"
        self.source.mkdir()
        subprocess.run([sys.executable, "-m", "venv", self._venv], check=True)

    def carry_out(self, name: str, app: Path) -> None:
        path = f"{self._venv / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        for word, rest in stage(name):
            if word == "COPY":
                *sources, destination = rest.split()
                copy(self.source, [ROOT / each for each in sources], self.source / destination)
            elif word == "RUN":
                command, where = ["sh", "-ec", rest.replace("/app", str(app))], self.source
                done = subprocess.run(
                    command, cwd=where, env=environment, capture_output=True, text=True, check=False
                )
                if done.returncode and OFFLINE.search(done.stderr):
                    pytest.skip("no package index can be reached")
                assert done.returncode == 0, f"{rest}\n{done.stderr}"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    made = Builder(tmp_path_factory.mktemp("image"))
    made.carry_out("source", made.source)
    return made


def built(stage: str) -> Any:
    """Return the fixture of what an image has in /app."""

    @pytest.fixture(scope="module")
    def app(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
        app = tmp_path_factory.mktemp(stage) / "app"
        builder.carry_out(stage, app)
        return app

    return app


app, fetcher_app = built("build"), built("build-fetcher")


def copy(source: Path, paths: list[Path], destination: Path) -> None:
    admitted = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    for path in paths:
        assert f"!{path.relative_to(ROOT)}" in admitted, f"{path} is left out by Dockerfile.dockerignore"
        if path.is_dir():
            shutil.copytree(path, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)


def packages(app: Path) -> set[str]:
    return {path.name.partition("-")[0].lower() for path in app.glob("*.dist-info")}


def locked(constraints: str) -> set[str]:
    found = re.findall(r"^([a-z0-9-]+)==", (ROOT / constraints).read_text(), re.MULTILINE)
    return {name.replace("-", "_") for name in found} | {"gpu_admission"}


@pytest.mark.slow
def test_holds_what_runs_and_nothing_else(app: Path) -> None:
    assert packages(app) <= locked("constraints.txt")
    assert {"gpu_admission", "gunicorn", "flask", "cryptography"} <= packages(app)
    for room in ("webhook", "policies", "certs"):
        ours = {path.relative_to(ROOT) for path in (ROOT / room).rglob("*") if wanted(path)}
        assert ours == {path.relative_to(app) for path in (app / room).rglob("*") if wanted(path)}


@pytest.mark.slow
def test_the_fetcher_holds_the_clients_and_nothing_of_the_webhook(fetcher_app: Path) -> None:
    assert packages(fetcher_app) <= locked("deploy/constraints-fetcher.txt")
    assert {"gpu_admission", "boto3", "google_cloud_storage", "huggingface_hub"} <= packages(fetcher_app)
    assert not {"flask", "gunicorn", "kubernetes"} & packages(fetcher_app)


def wanted(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


# The environment of the image; LD_LIBRARY_PATH is for an interpreter that was moved.
PYTHON = ["env", "-i", "LD_LIBRARY_PATH=/srv/python/lib"]
# Without -S and -s this machine's packages would help out.
INTERPRETER = f"/srv/python/bin/python3.{sys.version_info.minor}"
PROGRAM = [*PYTHON, "PYTHONPATH=/srv/app", INTERPRETER, "-S", "-s"]


def as_in_a_pod(app: Path, user: int = USER, group: int = USER) -> list[str]:
    root = os.geteuid() == 0
    # Who is not root already needs no other user, but a namespace in which mounting is allowed.
    isolate = ["unshare", "--mount"] if root else ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*isolate, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of our own can be had here")
    rights = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    rights += [f"--reuid={user}", f"--regid={group}", "--clear-groups"] if root else []
    return [*isolate, "sh", "-c", CONFINED, "sh", str(app), sys.base_prefix, *rights]


MODEL = {"config.json": b"{}", "weights.safetensors": b"0123456789" * 100_000}
AWS = ("AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=t0pS3cretKey", "AWS_REGION=eu-west-1")


@pytest.mark.slow
@cases(
    ("uri", "handler", "prefix", "environment"),
    s3=("s3://models/llama", S3Handler, "models/llama/", AWS),
    gs=("gs://models/llama", GSHandler, "models/llama/", ("NO_GCE_CHECK=true",)),
    hub=("hf://meta/llama", HubHandler, "", ("HF_TOKEN=hf_t0pS3cretKey",)),
)
def test_the_fetcher_fetches_with_nothing_but_itself(
    fetcher_app: Path, uri: str, handler: type[Handler], prefix: str, environment: tuple[str, ...]
) -> None:
    """Run as its init container runs it: no root, a read-only root file system, the whole program from /app."""
    store = Store({prefix + name: body for name, body in MODEL.items()})
    with serving(store, handler) as url:
        launcher = ["/srv/app/bin/gpu-admission", "fetch-model", uri, "/tmp/cache/model", f"--endpoint={url}"]  # noqa: S108 - a file system of its own
        program = [*PYTHON, *environment, "PYTHONPATH=/nonexistent", INTERPRETER, "-I", "-S"]
        command = [*as_in_a_pod(fetcher_app), *program, *launcher]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{uri}: 2 file(s), 976.6 KiB" in done.stdout
    assert "done: /tmp/cache/model holds 976.6 KiB" in done.stdout


@pytest.mark.slow
def test_the_fetchers_launcher_names_the_images_interpreter(fetcher_app: Path) -> None:
    launcher = fetcher_app / "bin" / "gpu-admission"

    assert launcher.read_text().startswith("#!/usr/local/bin/python3 -I\n")
    assert os.access(launcher, os.X_OK)
    assert ("COPY", "--from=build-fetcher /app /app") in stage("fetcher")
    assert dict(stage("fetcher"))["ENV"].startswith("PATH=/app/bin:")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@cases(
    ("user", "group"),
    as_the_images_user=(USER, USER),
    as_a_random_user=(1_000_674_321, 0),
)
def test_serves_with_nothing_but_itself(app: Path, user: int, group: int) -> None:
    # The only folder that can be written to.
    directory = "/tmp/certs"  # noqa: S108 - a file system of its own
    with started([*as_in_a_pod(app, user, group), *PROGRAM], directory) as (process, url):
        # Whom it presents itself as is not what is asked here.
        with urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=30) as pool:
            assert pool.request("GET", f"{url}/readyz").status == 200
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert status["NoNewPrivs"] == "1"
        if os.geteuid() == 0:
            assert set(status["Uid"].split()) == {str(user)}
            assert int(status["CapEff"], 16) == 0


@contextmanager
def started(confined: list[str], certificates: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a confined `serve` for the length of the block, from its first words on."""
    arguments = (
        *("serve", "--standalone", "--self-signed", certificates, "--drain-seconds", "0"),
        *("--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1", "--metrics-port", "0"),
    )
    command = [*confined, "-m", "webhook", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        try:
            while not (found := re.search(r"serving (https://\S+),", said)):
                line = process.stdout.readline()
                assert line, said
                said += line
            yield process, found[1]
        except BaseException as error:
            process.terminate()
            error.add_note(f"it said:\n{said}{process.communicate(timeout=60)[0]}")
            raise
        process.terminate()
        process.communicate(timeout=60)


@cases(
    ("name", "entrypoint"),
    both_commands=("", '["python3", "-m", "webhook"]'),
    fetcher=("fetcher", '["gpu-admission", "fetch-model"]'),
)
def test_nothing_of_the_last_stages_needs_a_shell(name: str, entrypoint: str) -> None:
    instructions = dict(stage(name))

    assert "RUN" not in instructions
    assert instructions["ENTRYPOINT"] == entrypoint
    assert instructions["USER"] == f"{USER}:{USER}"


def test_the_chart_runs_it_as_the_user_that_it_has() -> None:
    for document in yaml.safe_load_all((STATIC / INSTALL).read_text()):
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]  # kubelet reads the image's user, which is a number
            assert "runAsUser" not in pod["securityContext"]
            assert "command" not in pod["containers"][0]
