"""The metrics that the source defines: what the documentation, the alerts and the dashboard may name."""

import ast
from collections.abc import Iterator
from pathlib import Path

MetricDefinition = tuple[str, str, str, tuple[str, ...]]
"""Name, type, HELP text and labels."""

METRIC_TYPES = {kind: kind for kind in ("counter", "gauge", "histogram")} | {
    "gaugemetricfamily": "gauge",
    "gauges": "gauge",
}


def metrics_defined() -> set[MetricDefinition]:
    modules = (Path(__file__).parents[1] / "webhook").rglob("*.py")
    return {metric for path in modules for metric in metrics_of(path)}


def metrics_of(source: Path) -> Iterator[MetricDefinition]:
    """Yield each metric that a module defines."""
    module = ast.parse(source.read_text())
    constants = {
        target.id: node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(module):
        if not (isinstance(call, ast.Call) and len(call.args) > 1 and isinstance(call.func, ast.Name)):
            continue
        made, keywords = call.func, call.keywords
        partly = constants.get(made.id)
        if isinstance(partly, ast.Call) and partly.args and isinstance(partly.args[0], ast.Name):
            made, keywords = partly.args[0], [*keywords, *partly.keywords]
        kind, name = METRIC_TYPES.get(made.id.lower()), call.args[0]
        if kind is None or not isinstance(name, ast.Constant):
            continue
        given = [*call.args[2:], *(keyword.value for keyword in keywords if keyword.arg == "labels")]
        resolved = [constants.get(node.id) if isinstance(node, ast.Name) else node for node in given]
        labels = next((node for node in resolved if isinstance(node, ast.List | ast.Tuple)), None)
        yield (
            f"{name.value!s}{'_total' if kind == 'counter' else ''}",
            kind,
            ast.literal_eval(call.args[1]),
            tuple(ast.literal_eval(labels)) if labels is not None else (),
        )
