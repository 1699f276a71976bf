"""The image, as far as that goes without a container engine: what the Dockerfile builds runs as its pod runs it.

The instructions of its first stage are carried out here, in a fresh virtual environment; the result is started with a read-only
root, as a user with no rights, no shell and no Python packages but its own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
import yaml

from tests.deploy.manifests import ROOT, STATIC

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
USER = 65532

# Everything is downloaded and compiled anew: two minutes on a busy machine.
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
shift 2
exec "$@"
"""


def stage(number: int) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Dockerfile, each with what it says."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    starts = [index for index, (word, *_) in enumerate(lines) if word == "FROM"] + [len(lines)]
    return [(word, rest) for word, rest in lines[starts[number] + 1 : starts[number + 1]]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the first stage puts into /app."""
    folder = tmp_path_factory.mktemp("image")
    source, target = folder / "source", folder / "app"
    source.mkdir()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    path = f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for word, rest in stage(0):
        if word == "COPY":
            *sources, destination = rest.split()
            copy(source, [ROOT / name for name in sources], source / destination)
        elif word == "RUN":
            command = rest.replace("/app", str(target))
            done = subprocess.run(
                ["sh", "-ec", command],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode and OFFLINE.search(done.stderr):
                pytest.skip("no package index can be reached")
            assert done.returncode == 0, f"{rest}\n{done.stderr}"
    return target


def copy(source: Path, paths: list[Path], destination: Path) -> None:
    for path in paths:
        assert admitted(path), f"{path} is left out by Dockerfile.dockerignore"
        if path.is_dir():
            shutil.copytree(path, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)


def admitted(path: Path) -> bool:
    return (
        f"!{path.relative_to(ROOT)}"
        in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    )


@pytest.mark.slow
def test_holds_what_runs_and_nothing_else(app: Path) -> None:
    packages = {path.name.partition("-")[0].lower() for path in app.glob("*.dist-info")}
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert packages <= {name.replace("-", "_") for name in locked} | {"gpu_admission"}
    assert {"gpu_admission", "gunicorn", "flask", "cryptography"} <= packages
    for room in ("webhook", "policies", "certs"):
        ours = {path.relative_to(ROOT) for path in (ROOT / room).rglob("*") if wanted(path)}
        assert ours == {path.relative_to(app) for path in (app / room).rglob("*") if wanted(path)}


def wanted(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


@pytest.fixture
def confined(app: Path) -> list[str]:
    """Return what a command must follow to run as in a pod of the chart."""
    root = os.geteuid() == 0
    # Who is not root already needs no other user, but a namespace in which mounting is allowed.
    isolate = ["unshare", "--mount"] if root else ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*isolate, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of our own can be had here")
    rights = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    rights += [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if root else []
    library = "LD_LIBRARY_PATH=/srv/python/lib"  # an interpreter that was moved
    # The environment of the image; without -S and -s this machine's packages would help out.
    python = [
        "env",
        "-i",
        library,
        "PYTHONPATH=/srv/app",
        f"/srv/python/bin/python3.{sys.version_info.minor}",
        "-S",
        "-s",
    ]
    return [*isolate, "sh", "-c", CONFINED, "sh", str(app), sys.base_prefix, *rights, *python]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_serves_with_nothing_but_itself(confined: list[str]) -> None:
    # The only folder that can be written to.
    directory = "/tmp/certs"  # noqa: S108 - a file system of its own
    with started(confined, directory) as (process, url):
        # Whom it presents itself as is not what is asked here.
        with urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=10) as pool:
            assert pool.request("GET", f"{url}/readyz").status == 200
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        if os.geteuid() == 0:
            assert set(status["Uid"].split()) == {str(USER)}
            assert int(status["CapEff"], 16) == 0


class started:  # noqa: N801 - reads as a verb
    """A confined `serve`, between its first words and the end of the block."""

    def __init__(self, confined: list[str], certificates: str) -> None:
        arguments = (
            "serve",
            "--standalone",
            "--self-signed",
            certificates,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        )
        more = ("--metrics-host", "127.0.0.1", "--metrics-port", "0", "--drain-seconds", "0")
        self._command = [*confined, "-m", "webhook", *arguments, *more]

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self._process, self._url()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._process.terminate()
        said, _ = self._process.communicate(timeout=30)
        if error is not None:
            error.add_note(f"it ended with {self._process.returncode} and said:\n{said}")

    def _url(self) -> str:
        said = []
        for line in lines(self._process):
            said.append(line)
            if found := re.search(r"serving (https://\S+),", line):
                return found[1]
        raise AssertionError("".join(said))


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


def test_nothing_of_the_last_stage_needs_a_shell() -> None:
    instructions = dict(stage(1))

    assert "RUN" not in instructions
    assert instructions["ENTRYPOINT"] == '["python3", "-m", "webhook"]'
    assert instructions["USER"] == f"{USER}:{USER}"


def test_the_chart_runs_it_as_the_user_that_it_has() -> None:
    for document in yaml.safe_load_all(STATIC.read_text()):
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsUser"] == USER
            assert "command" not in pod["containers"][0]
