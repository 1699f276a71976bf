"""The processes of one control plane: a log each, ended together, whatever happens to this process."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

GUARDIAN = Path(__file__).with_name("guardian.py")
GARBAGE_COLLECTION = ("GOGC", "GOMEMLIMIT")
"""Variables by which Go trades memory for processor time (https://go.dev/doc/gc-guide); etcd and Kubernetes are written in it."""


class Processes:
    """Named child processes and the temporary folder that they share; `close` ends and removes all of it.

    Should this process die first, the guardian does the same within a second.
    """

    def __init__(self) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="gpu-admission-plane-")
        )  # mode 0700: it holds keys and tokens
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARDIAN), str(os.getpid()), str(self.folder)],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches this process only, which then ends the others in order
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """What children see: no home, and no proxies, through which the API server would call webhooks."""
        return {
            **{name: os.environ[name] for name in GARBAGE_COLLECTION if name in os.environ},
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
        }

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items() if process.poll() is None}

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start `name`, which must not be running; its output is added to `<folder>/<name>.log`."""
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                process_group=self._guardian.pid,
            )

    def terminate(self, name: str, *, grace: float) -> None:
        """Ask `name` to end, and kill it after `grace` seconds; nothing happens to one that has ended."""
        self._running[name].terminate()
        try:
            self._running[name].wait(grace)
        except subprocess.TimeoutExpired:
            self.kill(name)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def exit_status(self, name: str) -> int | None:
        return self._running[name].poll()

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        shutil.rmtree(self.folder)
        self._guardian.kill()  # last: until here it covers an interruption of these very lines
        self._guardian.wait()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"
