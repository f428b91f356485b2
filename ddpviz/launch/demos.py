"""The demos that come with ddpviz: plain scripts, found beside the package or in it, described by their docstrings.

They are read, never imported: they import torch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from ddpviz.launch.spec import JobError

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class DemoScript:
    name: str  # such as "accumulate-long", of accumulate_long.py
    summary: str  # the docstring's first line
    path: Path


def demo_scripts() -> list[DemoScript]:
    """All demos, by name. In a wheel they are inside the package, in a checkout beside it."""
    for folder in (_PACKAGE / "demos", _PACKAGE.parent / "demos"):
        paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
        if paths:
            return sorted((_read(path) for path in paths), key=lambda demo: demo.name)
    return []


def demo_script(name: str) -> DemoScript:
    """The demo of that name (`-` and `_` are the same). Raises JobError with the names there are."""
    demos = demo_scripts()
    wanted = name.replace("_", "-").removesuffix(".py")
    for demo in demos:
        if demo.name == wanted:
            return demo
    there = ", ".join(demo.name for demo in demos) or "none: they are missing from this installation"
    raise JobError(f"no demo is called {name}; there are {there}")


def _read(path: Path) -> DemoScript:
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, ValueError):
        docstring = ""
    return DemoScript(path.stem.replace("_", "-"), docstring.strip().split("\n", 1)[0], path)
