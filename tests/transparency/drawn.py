"""Combinations of switches that nobody thought of: drawn by seed, the same everywhere."""

from __future__ import annotations

import random
from typing import Any

Case = dict[str, Any]
MODELS = ("plain", "unused", "shared", "embedding", "sparse", "batchnorm", "checkpoint-reentrant", "checkpoint-plain")


def draw(seed: int, count: int) -> dict[str, Case]:
    """`count` cases. Left out is only what hangs in plain PyTorch: a few switches together with `join`, PowerSGD over
    several buckets, an optimizer that refuses on one rank. Where PyTorch refuses a combination, the refusal has to be
    the same."""
    chance = random.Random(seed)
    return {f"drawn {seed}.{i}": _one(chance) for i in range(count)}


def _one(chance: random.Random) -> Case:
    case: Case = {
        "gradient_as_bucket_view": chance.random() < 0.5,
        "set_to_none": chance.random() < 0.5,
        "optimizer": chance.choice(("sgd", "momentum", "adam", "zero")),
        "clip": chance.random() < 0.3,
        "steps": chance.randint(3, 6),
    }
    if chance.random() < 0.8:
        case["bucket_cap_mb"] = chance.choice((0.0005, 0.002, 0.004))
    if chance.random() < 0.2:
        return case | {"join": chance.choice(("initial", "active")), "optimizer": "sgd"}
    model = chance.choice(MODELS)
    case |= {"model": model, "accumulation": chance.choice((1, 2, 3)), "sync_all": chance.random() < 0.2}
    if model == "sparse":
        case["optimizer"] = "sgd"  # Adam refuses on the one rank that has the embedding's share, and the others wait
    case["find_unused_parameters"] = model == "unused" or chance.random() < 0.3
    if model == "checkpoint-reentrant":
        case["find_unused_parameters"] = False
    if model not in ("unused", "sparse") and chance.random() < 0.25:
        case |= {"static_graph": True, "accumulation": 1}
    if chance.random() < 0.25 and model != "sparse":
        case["hook"] = chance.choice(("fp16", "allreduce", "own", "wrapped", "builtin-allreduce", "builtin-fp16"))
        case["hook_when"] = chance.choice(("before", "after"))
    if chance.random() < 0.2 and case["optimizer"] != "zero":
        case["scaler"] = True
    case["autocast"] = chance.random() < 0.2 and model != "sparse"
    case["copy"] = chance.random() < 0.2
    if not case.get("static_graph") and not model.startswith("checkpoint"):
        case["forwards"] = chance.choice((1, 1, 1, 2))
        case["retain"] = case["forwards"] == 1 and chance.random() < 0.15
        case["autograd_grad"] = chance.random() < 0.15
    if chance.random() < 0.15:
        case["group"] = "pair"
    return case
