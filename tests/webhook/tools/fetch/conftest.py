"""The model fetcher, run as its container runs it, and a web server with TLS of its own."""

import os
import random
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.controlplane.pki import Authority
from tests.webhook.tools.fetch.servers import Store, serving

MODEL = random.Random(20260801).randbytes(2_000_000)  # noqa: S311 - any bytes will do
WHOLE = {"model.bin": MODEL}


def lines(said: str, **names: str) -> list[str]:
    """Return the lines of a run with names in place of these texts, without its progress, N for durations."""
    for name, text in names.items():
        said = said.replace(text, name)
    said = re.sub(r"(?m)^[\d.]+ \w+ of .*/s\n", "", said)
    return re.sub(r"(?<= )[\d.]+ s$", "N s", said, flags=re.MULTILINE).splitlines()


class Identity(NamedTuple):
    """An identity for 127.0.0.1: the file that clients trust, the context that servers use."""

    file: Path
    context: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder, authority = tmp_path_factory.mktemp("tls"), Authority("models.test")
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "server.pem").write_bytes(authority.issue(names=["localhost"], addresses=["127.0.0.1"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return Identity(folder / "ca.pem", context)


@dataclass
class Warmer:
    """Starts the program with an environment of its own; stops at the end what still runs."""

    destination: Path
    environment: dict[str, str]
    before: tuple[str, ...] = ()
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def termination_log(self) -> Path:
        return self.destination.parent.parent / "termination-log"

    @property
    def state(self) -> Path:
        return self.destination.parent / f".{self.destination.name}.warming"

    def start(self, uri: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        program = (sys.executable, "-m", "webhook", "fetch-model")
        process = subprocess.Popen(
            [*self.before, *program, *options, uri, str(self.destination)],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, uri: str, *options: str, **environment: str) -> tuple[int, str]:
        """Return (exit code, everything it said)."""
        process = self.start(uri, *options, **environment)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said

    def gets(self, files: dict[str, bytes], uri: str, *options: str, **environment: str) -> str:
        """Check that a run ends well and leaves these files; return everything it said."""
        code, said = self.run(uri, *options, **environment)
        assert (code, self.files()) == (0, files), said
        return said

    def fails(self, uri: str, *options: str, **environment: str) -> str:
        """Check that a run fails; return everything it said."""
        code, said = self.run(uri, *options, **environment)
        assert code == 1, said
        return said

    def has(self, least: int) -> bool:
        """Whether so many bytes of a file that is not whole have reached the disk."""
        partial = (self.state / "partial").rglob("*")
        return any(file.is_file() and file.stat().st_size >= least for file in partial)

    def stop(self, process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def files(self) -> dict[str, bytes]:
        found = (file for file in self.destination.rglob("*") if file.is_file())
        return {str(file.relative_to(self.destination)): file.read_bytes() for file in found}


@pytest.fixture
def warmer(tmp_path: Path, authority: Identity) -> Iterator[Warmer]:
    environment = {
        "PATH": os.environ["PATH"],
        "SSL_CERT_FILE": str(authority.file),
        "HOME": str(tmp_path / "home"),
        "NO_GCE_CHECK": "true",  # Google's client asks no metadata server for credentials
    }
    warmer = Warmer(tmp_path / "cache" / "model", environment)
    environment["MODEL_TERMINATION_LOG"] = str(warmer.termination_log)
    warmer.termination_log.touch()  # as the kubelet does
    (tmp_path / "cache").mkdir()
    yield warmer
    for process in warmer.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def web(store: Store, authority: Identity) -> Iterator[str]:
    with serving(store, tls=authority.context) as url:
        yield url


@pytest.fixture
def url(store: Store, web: str) -> str:
    """Return the address of MODEL, which the store serves."""
    store.objects["/llama/model.bin"] = MODEL
    return f"{web}/llama/model.bin"
