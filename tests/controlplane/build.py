"""Where the control plane's binaries come from.

They are built once from Go modules (kubernetes-<version>/go.mod, every archive pinned by go.sum) and kept
outside the checkout, per version; or they are any envtest assets, named by KUBEBUILDER_ASSETS. Only `build`
ever builds: a test run that finds nothing says so at once instead of compiling for minutes behind a progress
bar that nobody sees.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

VERSION = (
    "1.37"  # what the project supports first; K8S=1.35, or K8S=1.35.4, in the environment asks for another
)

REQUIRED = ("etcd", "kube-apiserver", "kubectl")
PACKAGES = {
    # The API server first: it compiles nine tenths of what the others share, so the long wait comes with the
    # first line.
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
}
HERE = Path(__file__).parent
COMMAND = "python -m tests.controlplane build"


class ControlPlaneUnavailable(RuntimeError):  # noqa: N818  # reads as what it is in a skip reason
    """No binaries can be had; the message says what to do about it."""


def locate() -> Path:
    """Return the folder that holds etcd, kube-apiserver and kubectl, without building anything.

    Raises ControlPlaneUnavailable when there is none, or when KUBEBUILDER_ASSETS names an incomplete one.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        missing = [name for name in REQUIRED if not os.access(Path(assets, name), os.X_OK)]
        if missing:
            raise ControlPlaneUnavailable(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}")
        return Path(assets).absolute()
    folder = cache_folder()
    if folder.is_dir():
        return folder
    without_go = "" if shutil.which("go") else "; no `go` on PATH here"
    raise ControlPlaneUnavailable(
        f"no Kubernetes {wanted_version()} binaries: build them once with `{COMMAND}` (5 minutes on two "
        f"cores, needs Go{without_go}), or name a folder with {', '.join(REQUIRED)} in KUBEBUILDER_ASSETS"
    )


def build(out: TextIO) -> Path:
    """Return the folder of binaries after building what is not there yet, one line per binary on `out`.

    Two builds at once wait for each other. Raises ControlPlaneUnavailable when there is no Go toolchain, no
    module file for the version, or the build fails.
    """
    if os.environ.get("KUBEBUILDER_ASSETS") or cache_folder().is_dir():
        return locate()
    version, folder = wanted_version(), cache_folder()
    module = HERE / f"kubernetes-{version}"
    if not module.is_dir():
        raise ControlPlaneUnavailable(f"K8S={version}: no {module}/go.mod; versions that have one: {_told()}")
    go = shutil.which("go")
    if go is None:
        raise ControlPlaneUnavailable(
            f"building Kubernetes {version} needs a Go toolchain on PATH (https://go.dev/dl), or "
            f"name a folder with {', '.join(REQUIRED)} in KUBEBUILDER_ASSETS"
        )
    build_once(
        f"Kubernetes {version} and its etcd", folder, GoModule(go, module, PACKAGES, _link_flags()), out
    )
    return folder


class GoModule(NamedTuple):
    """What to build: `packages` of the module in `folder`, by the names of the binaries."""

    go: str
    folder: Path
    packages: Mapping[str, str]
    link_flags: str


def build_once(what: str, folder: Path, module: GoModule, out: TextIO) -> None:
    """Fill `folder` with the module's binaries if it is not there yet; two builds at once wait for each other.

    Raises ControlPlaneUnavailable when the build fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock"), out):
        if not folder.is_dir():
            unfinished = folder.with_name(folder.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a build that was killed
            unfinished.mkdir()
            out.write(f"Building {what}, once, into\n{folder}\n")
            _build_into(unfinished, module, out)
            unfinished.rename(folder)


def wanted_version() -> str:
    """Return the whole version, of a minor version (`1.35`) the newest that has a module folder."""
    version = os.environ.get("K8S") or VERSION
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise ControlPlaneUnavailable(f"K8S={version}: write a version such as {VERSION}")
    if version.count(".") == 2:
        return version
    of_minor = [known for known in _versions() if known.startswith(f"{version}.")]
    if not of_minor:
        raise ControlPlaneUnavailable(
            f"K8S={version}: no module folder in {HERE}; versions that have one: {_told()}"
        )
    return of_minor[-1]


def _versions() -> list[str]:
    found = (path.name.removeprefix("kubernetes-") for path in HERE.glob("kubernetes-*"))
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def _told() -> str:
    return ", ".join(_versions())


@cache
def minor_version() -> int:
    """Return what stands behind "1." in the version of the API server that is there, of the wanted one where none is."""
    try:
        command = [str(locate() / "kube-apiserver"), "--version"]
        reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except ControlPlaneUnavailable:
        reported = f"Kubernetes v{wanted_version()}"
    return int(reported.removeprefix("Kubernetes v1.").partition(".")[0])


def cache_folder() -> Path:
    return folder_for(f"kubernetes-{wanted_version()}")


def folder_for(name: str) -> Path:
    """Return where the binaries of `name` for this machine are kept, outside of any checkout."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return (cache / "gpu-admission" / f"{name}-{platform.system().lower()}-{machine}").absolute()


@contextmanager
def locked(path: Path, out: TextIO) -> Iterator[None]:
    with path.open("w") as lock:  # closing it, or dying, releases it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.write("Another build is under way; waiting for it.\n")
            out.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_into(folder: Path, module: GoModule, out: TextIO) -> None:
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", module.link_flags]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    log = folder / "build.log"
    for number, (name, package) in enumerate(module.packages.items(), start=1):
        show = _progress(out, f"[{number}/{len(module.packages)}] {name}")
        started = time.monotonic()
        with log.open("w") as messages:
            command = [module.go, "build", *flags, "-o", str(folder / name), package]
            process = subprocess.Popen(
                command, cwd=module.folder, env=environment, stdout=messages, stderr=messages
            )
            try:
                while (status := _poll(process)) is None:
                    show(time.monotonic() - started, False)
            except BaseException:
                process.kill()
                process.wait()
                raise
        show(time.monotonic() - started, True)
        if status:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ControlPlaneUnavailable(f"`go build {package}` in {module.folder} failed:\n{tail}")
    log.unlink()


def _poll(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return None


def _progress(out: TextIO, what: str) -> Callable[[float, bool], None]:
    """Return a reporter of elapsed seconds: a line that counts on a terminal, a finished line elsewhere."""

    def show(seconds: float, finished: bool) -> None:
        if out.isatty():
            out.write(f"\r{what:<36}{seconds:5.0f} s" + ("\n" if finished else ""))
        elif finished:
            out.write(f"{what:<36}{seconds:5.0f} s\n")
        out.flush()

    return show


def _link_flags() -> str:
    # Without a version the API server believes itself v0.0.0: CEL compatibility and kubectl's skew check go
    # by it.
    version = wanted_version()
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())]
    )
