"""Figures of a module that only this tool sees, as lines of text. Pure; computed beside the rules, not every frame."""

from __future__ import annotations

from ddpviz.dashboard.format import percent, size
from ddpviz.timeline.model import Module
from ddpviz.timeline.trends import agreement, noise_scale, traffic


def figures(module: Module) -> str:
    """Bytes sent and saved, agreement of the ranks, gradient noise scale; a line for each that was measured."""
    if len(module.ranks) < 2:
        return ""
    lines = []
    sent, saved = traffic(module)
    if sent or saved:
        kept = f", saved by no_sync {size(saved)} ({percent(saved / (sent + saved))})" if saved else ""
        lines.append(f"sent {size(sent)} a rank{kept}")
    agreed, noise = agreement(module), noise_scale(module)
    if agreed is not None:
        lines.append(f"ranks agree {agreed:.2f} (1 all alike, {len(module.ranks) ** -0.5:.2f} noise)")
    if noise is not None:
        lines.append(f"gradient noise scale {noise:.3g} rank-windows")
    return "\n".join(lines)
