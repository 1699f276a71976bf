"""All parts of a controller, as `make_manager` makes them: the body of each thread accepts what the thread gives it."""

import ast
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from webhook.cluster.leader import LeaderElector
from webhook.configuration.loader import load_directory
from webhook.controller import wiring
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.wiring import make_manager


def test_each_part_ends_when_the_process_stops() -> None:
    api: Any = SimpleNamespace(served_version=lambda *_: None)
    manager = make_manager(
        api,
        load_directory(None),
        LeaderElector(api, "default", "lease", "me"),
        ControllerMetrics(CollectorRegistry()),
        namespace="default",
        recount_seconds=0.01,
        write_usage=lambda _line: None,
    )
    stopping = threading.Event()
    stopping.set()

    assert {"recount", "usage audit", "quota status", "team status", "reconcile 0"} <= manager._parts.keys()
    for body in manager._parts.values():
        body(stopping)  # a wrong argument raises TypeError


def test_each_part_names_what_it_subscribes_to() -> None:
    parts = 0
    for file in sorted(Path(wiring.__file__).parent.glob("*.py")):
        for part in (
            each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.ClassDef)
        ):
            named = re.search(r"Hears: ([^.].*?)\.(?:\n|$)", ast.get_docstring(part) or "", re.DOTALL)
            heard = [
                re.sub(r"^(self\._|informers\.)", "", ast.unparse(call.func.value))
                for call in ast.walk(part)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                if call.func.attr == "subscribe"
            ]
            assert (named[1].split() if named else []) == ", ".join(heard).split(), (
                f"{file.name}: {part.name}"
            )
            parts += bool(heard)
    assert parts
