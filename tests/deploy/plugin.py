"""`kubectl gpu-admission` as one file for this platform, its archive, and the manifest by which krew installs that.

`python -m tests.deploy.plugin ADDRESS` (`make plugin`) writes them to dist/. The file is a PEX: the locked packages of .venv and
ours, native wheels too, so it runs on this operating system and processor with this minor version of Python, which it finds on
PATH. It unpacks itself to PEX_ROOT (~/.cache/pex) when it runs first.
"""

import gzip
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PLUGIN, BINARY = "gpu-admission", "kubectl-gpu_admission"
COMPLETION = ROOT / "deploy" / "kubectl_complete-gpu_admission"
SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""As krew names them: GOOS and GOARCH."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def build(folder: Path) -> Path:
    """Write the file into `folder`; everything in it comes from the environment of this Python, nothing from an index."""
    path = folder / BINARY
    with tempfile.TemporaryDirectory() as scratch:
        _run("hatchling", "build", "-t", "wheel", "-d", scratch)
        (wheel,) = Path(scratch).glob("*.whl")
        # Unpacked, with its metadata: the environment has our package editable, of which no wheel could be copied.
        sources = Path(scratch) / "sources"
        shutil.unpack_archive(wheel, sources, "zip")
        # Without the cache, which may have files of another environment under the same names and versions.
        environment = ("--venv-repository", sys.prefix, "--no-pypi", "--disable-cache")
        entry = ("-D", str(sources), "-e", "webhook.commands:run")
        shebang = ("--python-shebang", f"/usr/bin/env python{PYTHON}")
        _run("pex", *_project()["dependencies"], *environment, *entry, *shebang, "-o", str(path))
    return path


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def version() -> str:
    return str(_project()["version"])


def archive(binary: Path) -> Path:
    path = binary.with_name(f"{BINARY}-{'-'.join(target().values())}.tar.gz")
    pack(path, {file.name: file.read_bytes() for file in (binary, COMPLETION)}, mode=0o755)
    return path


def pack(archive: Path, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
    """Write an archive whose bytes depend on the files alone, and on SOURCE_DATE_EPOCH."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, mode
            packed.addfile(member, io.BytesIO(content))


def target() -> dict[str, str]:
    """Return this platform as krew selects it."""
    return {"os": SYSTEMS[platform.system()], "arch": PROCESSORS[platform.machine()]}


def manifest(archives: Sequence[tuple[dict[str, str], Path]], address: str) -> dict[str, Any]:
    """Return krew's manifest of the archives that a release has under `address`.

    Its fields: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PLUGIN},
        "spec": {
            "version": f"v{version()}",
            "homepage": address,
            "shortDescription": "See why GPU pods wait or are denied",
            "description": (
                "GPU classes, quotas and their holders, denials with what to write instead, and the state of an\n"
                "installation of gpu-admission, with your own credentials.\n"
            ),
            "caveats": f"Needs python{PYTHON} on PATH. For completion, put {COMPLETION.name} on PATH, too.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": labels},
                    "uri": f"{address}/{path.name}",
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                    "bin": BINARY,
                }
                for labels, path in archives
            ],
        },
    }


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)


@click.command()
@click.argument("address")
def main(address: str) -> None:
    """Write the plugin for this platform, its archive and krew's manifest; ADDRESS is where the release will have the archive."""
    DIST.mkdir(exist_ok=True)
    binary = build(DIST)
    packed = archive(binary)
    path = DIST / f"{PLUGIN}.yaml"
    path.write_text(yaml.safe_dump(manifest([(target(), packed)], address.rstrip("/")), sort_keys=False))
    for written in (binary, packed, path):
        click.echo(written.relative_to(ROOT))


if __name__ == "__main__":
    main()
