"""Running without a screen: plain lines as things happen (`run_plain`), a verdict for CI (`check`), an API for tests.

The same timeline and findings as the dashboard; stdout carries data, stderr carries narration. Never imports torch or
textual.
"""

from __future__ import annotations

from ddpviz.headless.check import check
from ddpviz.headless.plain import run_plain

__all__ = ["check", "run_plain"]
