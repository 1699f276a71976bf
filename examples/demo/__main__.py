"""The webhook at work in a real control plane: `make demo`, or `python -m examples.demo`.

Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, creates fake GPU nodes, starts webhook and
controller, applies examples/policies and examples/workloads, and shows the results. It removes everything at the end, also on
Ctrl-C and SIGTERM (exit code 130).
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from examples.demo.scenes import Play
from examples.demo.stage import Stage
from examples.demo.world import ROOT, DemoFailed, control_plane, create_nodes, installation
from tests.controlplane import ControlPlaneFailed, ControlPlaneUnavailable, build

INTERRUPTED = 130


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    os.chdir(ROOT)  # the commands name files below it
    stage = Stage()
    try:
        play(stage)
    except KeyboardInterrupt:
        stage.say("interrupted; stopped and removed everything that was started")
        return INTERRUPTED
    except (ControlPlaneUnavailable, ControlPlaneFailed, DemoFailed, RuntimeError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"the demo failed: {error}\n{error.stderr}", file=sys.stderr)
        return 1
    return 0


def play(stage: Stage) -> None:
    stage.title("gpu-admission: how GPU workloads enter a cluster")
    build(sys.stdout)
    started = time.monotonic()
    stage.say("Starting a Kubernetes control plane on loopback.")
    with control_plane(stage.say) as plane:
        create_nodes(plane)
        stage.say("Starting webhook and controller, installing deploy/ and examples/policies.")
        with installation(plane):
            Play(plane, stage).run()
            stage.say("")
            stage.say("Stopping and removing everything.")
    stage.say(f"Done after {time.monotonic() - started:.0f} s.")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Ignored from here on: the clean-up must finish.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
