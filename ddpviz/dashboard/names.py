"""What a bucket's layers are called, shortly. Pure."""

from __future__ import annotations

from ddpviz.phrases import numbered
from ddpviz.timeline.model import Module


def layers_of(module: Module, layout: int, bucket: int) -> str:
    """The layers of a bucket, shortly: `head, trunk.2`; an empty string if the layout is unknown."""
    if not 0 <= layout < len(module.layouts) or bucket >= len(module.layouts[layout].buckets):
        return ""
    layers = [
        module.params[i].name.rpartition(".")[0] or module.params[i].name
        for i in module.layouts[layout].buckets[bucket]
        if i < len(module.params)
    ]
    unique = list(dict.fromkeys(layers))
    words = ", ".join(unique) if len(unique) <= 3 else f"{unique[0]} … {unique[-1]} ({len(unique)})"
    return numbered("layer", unique, words) if unique and unique[0].isdigit() else words
