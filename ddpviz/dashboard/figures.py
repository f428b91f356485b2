"""Figures of a module that only this tool sees, as lines of text. Pure; computed beside the rules, not every frame."""

from __future__ import annotations

from ddpviz.dashboard.format import percent, size
from ddpviz.language import _
from ddpviz.timeline.model import Module
from ddpviz.timeline.trends import agreement, noise_scale, traffic


def figures(module: Module) -> str:
    """Bytes sent and saved, agreement of the ranks, gradient noise scale; a line for each that was measured."""
    if len(module.ranks) < 2:
        return ""
    lines = []
    sent, saved = traffic(module)
    if sent or saved:
        kept = (
            _(", saved by no_sync {size} ({percent})", size=size(saved), percent=percent(saved / (sent + saved)))
            if saved
            else ""
        )
        lines.append(_("sent {size} a rank{kept}", size=size(sent), kept=kept))
    agreed, noise = agreement(module), noise_scale(module)
    if agreed is not None:
        lines.append(
            _(
                "ranks agree {agreed:.2f} (1 all alike, {value:.2f} noise)",
                agreed=agreed,
                value=len(module.ranks) ** (-0.5),
            )
        )
    if noise is not None:
        lines.append(_("gradient noise scale {noise:.3g} rank-windows", noise=noise))
    return "\n".join(lines)
