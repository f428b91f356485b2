"""Runs at the start of every Python process below `ddpviz run`: has the probe installed once torch was imported.

Imports nothing but the standard library until the process itself imports torch, and nothing at all where the
environment does not ask for it. The user's own `sitecustomize`, if there is one, runs as it would have.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing here would cost every Python of the job a few milliseconds
if TYPE_CHECKING:
    from typing import Any


def _chain() -> None:
    """Run the sitecustomize that this one hides, if any."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    rest = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _watch_for_torch() -> None:
    """Install the probe right after `import torch` has finished, in whatever way it is imported."""
    import importlib.abc
    import importlib.machinery

    class Loader(importlib.abc.Loader):
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def create_module(self, spec: Any) -> Any:
            return self.loader.create_module(spec)

        def exec_module(self, module: Any) -> None:
            module.__spec__.loader = module.__loader__ = self.loader
            self.loader.exec_module(module)
            try:
                from ddpviz.probe.inject import install_from_environment

                install_from_environment()
            except Exception as error:  # the job goes on unwatched; the viewer says that nothing arrived
                print(f"ddpviz: this process is not watched: {type(error).__name__}: {error}", file=sys.stderr)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.loader, name)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != "torch":
                return None
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
            return spec

    sys.meta_path.insert(0, Finder())


if os.environ.get("DDPVIZ_RUN_DIR"):
    try:
        _watch_for_torch()
    except Exception as error:
        print(f"ddpviz: this process is not watched: {type(error).__name__}: {error}", file=sys.stderr)
_chain()
