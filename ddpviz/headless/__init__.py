"""Running without a screen: plain lines as things happen (`run_plain`), a verdict for CI (`check`), an API for tests.

The same timeline and findings as the dashboard; stdout carries data, stderr carries narration. Never imports torch or
textual. Names are imported on first use: pytest loads the plugin of this room in every session of a user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpviz.headless.ci import check
    from ddpviz.headless.compare import compare_runs
    from ddpviz.headless.export import export_run
    from ddpviz.headless.plain import run_plain

__all__ = ["check", "compare_runs", "export_run", "run_plain"]

_HOMES = {"check": "ci", "compare_runs": "compare", "export_run": "export", "run_plain": "plain"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
