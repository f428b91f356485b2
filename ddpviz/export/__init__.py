"""A run as a file: the report (JSON), tidy tables (CSV), a Perfetto trace, one HTML page, an SVG.

Timeline in, text out; `load` opens a finished run. Nothing here knows a terminal, starts a job or imports torch.
"""

from __future__ import annotations

from ddpviz.export.load import load
from ddpviz.export.report import report, to_json

__all__ = ["load", "report", "to_json"]
