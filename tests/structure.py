"""The size and shape of the product in figures: `python -m tests.structure [CHECKOUT]`.

A room is a folder that holds modules. An edge is one room importing another, however many modules do so.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

PACKAGES = ("webhook", "policies", "certs")
LONG, SHORT = 450, 45
"""Lines: a module is as long as its subject, between these two."""


def modules(root: Path) -> dict[str, int]:
    """Return the lines of every module, by its path."""
    paths = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in sorted(paths)}


def edges() -> Iterator[tuple[str, str]]:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    packages = {module.rpartition(".")[0] for module in graph.modules}

    def room(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            if room(importer) != room(imported):
                yield room(importer), room(imported)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    os.chdir(root)
    sys.path.insert(0, str(root))
    found = {name: lines for name, lines in modules(root).items() if lines}
    real = {name: lines for name, lines in found.items() if not name.endswith("__init__.py")}
    crossings = list(edges())
    figures = [
        ("lines of product Python", sum(found.values()), ""),
        ("modules", len(real), ""),
        ("rooms", len({name.rpartition("/")[0] for name in real}), ""),
        ("imports across rooms", len(crossings), ""),
        ("edges between rooms", len(set(crossings)), ""),
    ]
    for title, listed in (
        (f"over {LONG} lines", [name for name, lines in real.items() if lines > LONG]),
        (f"under {SHORT} lines", [name for name, lines in real.items() if lines < SHORT]),
    ):
        figures.append((title, len(listed), " ".join(listed)))
    for title, figure, names in figures:
        sys.stdout.write(f"{title:<26}{figure:>6}  {names}".rstrip() + "\n")


if __name__ == "__main__":
    main()
