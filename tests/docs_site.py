"""Makes a site of docs/ as GitHub shows it: MkDocs calls these hooks (mkdocs.yml)."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

SHELVES = {
    "tenants": "For tenants",
    "operate": "For administrators",
    "reference": "Reference",
    "develop": "For developers",
}
FOLDERS = {"rules": "Rules", "api": "Kinds"}
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>(?:\.\./)+[^)\s]+)\)")


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = anchor
    root = Path(config.docs_dir)
    config.nav = ["README.md", *({title: _pages(root / shelf, root)} for shelf, title in SHELVES.items())]
    return config


def _pages(folder: Path, root: Path) -> list[Any]:
    """Return the pages of a folder by name, README.md first, and then its folders."""
    names = sorted((path.name for path in folder.glob("*.md")), key=lambda name: (name != "README.md", name))
    below = ({FOLDERS[path.name]: _pages(path, root)} for path in sorted(folder.iterdir()) if path.is_dir())
    return [*(str((folder / name).relative_to(root)) for name in names), *below]


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Name what stands in the repository outside of docs/ by its path, since the site does not have it."""
    root = Path(config.docs_dir)
    here = (root / page.file.src_uri).parent

    def by_path(link: re.Match[str]) -> str:
        target = (here / link["target"].partition("#")[0]).resolve()
        if target.is_relative_to(root):
            return link[0]
        path = target.relative_to(root.parent)
        return link["text"] if str(path) in link["text"] else f"{link['text']} (`{path}`)"

    return LINK.sub(by_path, markdown)
