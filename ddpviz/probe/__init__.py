"""The probe: runs inside a training process, watches its DDP modules, and writes a trace. Imports torch and trace only.

The flow inside: `inject` (or `attach`) starts a `session`; `engine`, `forwards`, `collectives` and `steps` see what
happens and hand plain jobs to the session's buffer; `thread` encodes and writes them. No hook takes a lock, keeps a
tensor, or lets an exception out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["attach"]

if TYPE_CHECKING:
    from ddpviz.probe.handle import attach


def __getattr__(name: str) -> Any:
    if name == "attach":
        from ddpviz.probe.handle import attach

        return attach
    raise AttributeError(name)
