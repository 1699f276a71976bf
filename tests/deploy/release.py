"""All files of a release, in dist/: the same commit gives the same bytes, with the same versions of Python and tools.

`python -m tests.deploy.release` (`make release`) makes them of a checkout without changes, and ends by saying what only the
owner of the repository can do.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

from tests.deploy import plugin
from webhook.commands import PROGRAM, main
from webhook.version import VERSION, commit

ROOT = Path(__file__).parents[2]
CHART, STATIC = ROOT / "deploy" / "chart", ROOT / "deploy" / "static"
SHELLS = ("bash", "zsh", "fish")
CONSTRAINTS = {"gpu-admission": "constraints.txt", "gpu-admission-fetcher": "deploy/constraints-fetcher.txt"}
"""What the SBOM of each image is made of."""
SUMS = "SHA256SUMS"
LEFT_TO_THE_OWNER = (
    "tag the commit:     git tag --sign v{version} {commit}",
    f"sign the checksums: dist/{SUMS} is not signed, and nothing here holds a key",
    "build and push the images, with --build-arg GPU_ADMISSION_COMMIT={commit} (deploy/Dockerfile)",
    "publish the files of dist/ under ADDRESS, and send dist/gpu-admission.yaml to krew's index",
)


class CannotRelease(RuntimeError):  # noqa: N818 - pairs with ControlPlaneUnavailable
    """The checkout is not what a release can be made of; the message says why."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRelease(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def build(folder: Path, address: str | None) -> None:
    """Write the files into `folder`, which is emptied before."""
    if changed := git("status", "--porcelain"):
        raise CannotRelease(
            f"commit or remove what is changed, so that a commit names the release:\n{changed}"
        )
    os.environ |= {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct"), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run("hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder))
    version = plugin.version()
    plugin.pack(folder / f"{PROGRAM}-{version}.tgz", files_of(CHART, PROGRAM))
    plugin.pack(folder / f"{PROGRAM}-static-{version}.tar.gz", files_of(STATIC, "static"))
    binary = plugin.build(folder)
    packed = plugin.archive(binary)
    binary.unlink()
    if address:
        krew = plugin.manifest([(plugin.target(), packed)], address.rstrip("/"))
        (folder / f"{plugin.PLUGIN}.yaml").write_text(yaml.safe_dump(krew, sort_keys=False))
    for image, constraints in CONSTRAINTS.items():
        arguments = (
            "--output-reproducible",
            "--of",
            "JSON",
            "-o",
            str(folder / f"{image}-{version}.cdx.json"),
        )
        _run("cyclonedx_py", "requirements", "--pyproject", "pyproject.toml", *arguments, constraints)
    (folder / f"{PROGRAM}.1").write_text(man_page(version))
    for shell in SHELLS:
        (folder / f"{PROGRAM}.{shell}").write_text(completion(shell))
    (folder / "RELEASE_NOTES.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), version))
    (folder / SUMS).write_text(sums(folder))


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    """Return what Git has in a folder, as it is to be called in an archive."""
    paths = git("ls-files", "-z", str(folder)).split("\0")
    files = [ROOT / path for path in paths if path]
    return {f"{name}/{path.relative_to(folder)}": path.read_bytes() for path in files}


def completion(shell: str) -> str:
    command = [sys.executable, "-m", "webhook", "completion", shell]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def man_page(version: str) -> str:
    """Return the help of all commands as a page for `man`."""
    lines = [f'.TH GPU-ADMISSION 1 "" "gpu-admission {version}"', ".SH NAME", f"{PROGRAM} \\- {main.help}"]
    for path, text in _helps(main, PROGRAM):
        escaped = text.replace("\\", "\\e").replace("-", "\\-")
        shown = "\n".join(f"\\&{line}" for line in escaped.splitlines())
        lines += [f".SH {path.upper()}", ".nf", shown, ".fi"]
    return "\n".join(lines) + "\n"


def _helps(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, max_content_width=100)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) and not below.hidden:
                yield from _helps(below, f"{path} {name}", context)


def notes(changelog: str, version: str) -> str:
    """Return the section of the version, or that of what is not released yet."""
    text = _section(changelog, version) or _section(changelog, "Unreleased")
    if not text:
        raise CannotRelease(f"CHANGELOG.md has no section for {version}, and none that is unreleased")
    return f"# gpu-admission {version}\n\n{text}\n"


def _section(changelog: str, title: str) -> str:
    return changelog.partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()


def sums(folder: Path) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())
    )


def left_to_the_owner(address: str | None) -> Iterator[str]:
    if not any(ROOT.glob("LICENSE*")):
        yield "choose a licence: there is no LICENSE, so nobody may use, copy or change the files"
    if not address:
        yield "name the address for krew's manifest: make release ADDRESS=https://…"
    yield f"build the plugin for other platforms than {'-'.join(plugin.target().values())}: make plugin on each of them"
    if _section((ROOT / "CHANGELOG.md").read_text(), "Unreleased"):
        yield "give what is under Unreleased in CHANGELOG.md a version, in pyproject.toml too, before the tag"
    for line in LEFT_TO_THE_OWNER:
        yield line.format(version=plugin.version(), commit=git("rev-parse", "HEAD"))


def _run(module: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )


@click.command()
@click.argument("address", required=False)
def release(address: str | None) -> None:
    """Write a release into dist/; ADDRESS is where the files will be, for krew's manifest."""
    try:
        build(plugin.DIST, address)
        left = [*left_to_the_owner(address)]
    except CannotRelease as problem:
        sys.exit(str(problem))
    click.echo(
        f"{PROGRAM}, version {VERSION}, commit {commit()}\n{(plugin.DIST / SUMS).read_text()}\nOnly the owner can:"
    )
    for line in left:
        click.echo(f"- {line}")


if __name__ == "__main__":
    release()
