"""ddpviz: see what DistributedDataParallel really does with gradients.

The public names are `attach` (watch a DDP module from inside a script) and `check` (assert in a test that a script
synchronises). Both are imported on first use, so `import ddpviz` stays cheap and imports neither torch nor textual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpviz.version import __version__

__all__ = ["__version__", "attach", "check"]

if TYPE_CHECKING:
    from ddpviz.headless.testing import check
    from ddpviz.probe import attach


def __getattr__(name: str) -> Any:
    if name == "attach":
        from ddpviz.probe import attach

        return attach
    if name == "check":
        from ddpviz.headless.testing import check

        return check
    raise AttributeError(f"module 'ddpviz' has no attribute {name!r}")
