"""The rows of a trace: what happens for every micro-step, as fixed-width columns, packed little-endian.

`struct` packs one, `numpy.dtype` reads a block of them at once. All times are nanoseconds of the writing host's
monotonic clock. Imported through `records`, which re-exports everything here. FORMAT.md has the bytes.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

NO_INDEX = 0xFFFFFFFF  # "none" in a u32 column


class PassFlag(IntFlag):
    """Bits of a pass row. The declared flags of `no_sync` are kept beside the facts and never decide a verdict."""

    FORWARD_SEEN = 1  # a DDP forward with gradients preceded this pass
    NO_SYNC_FORWARD = 2  # require_backward_grad_sync was off at that forward
    NO_SYNC_BACKWARD = 4  # ... and when the backward began
    FLAGS_KNOWN = 8  # the two bits above were readable
    RAISED = 16  # the engine call raised: the pass is unfinished
    SAMPLED = 32  # norms and checksums were taken
    CAPTURED = 64  # ran while a CUDA graph was being captured: no numbers
    HAS_LOSS = 128
    HAS_LOCAL_NORM = 256
    HAS_NORM = 512
    CLEARED = 1024  # the gradients were cleared since the pass before: a window begins here
    IN_STEP = 2048  # ran inside optimizer.step(closure)
    REDUCER_DONE = 4096  # the reducer went through its whole cycle (says nothing about whether anything was sent)
    IN_JOIN = 8192  # ran inside a join context
    COMM_HOOK = 16384  # a user's communication hook is registered


PASS = (
    ("module", "u2"),
    ("flags", "u2"),
    ("index", "u4"),  # micro-step, per module and rank, from 0
    ("window", "u4"),  # per module and rank, from 0
    ("begin", "i8"),
    ("end", "i8"),
    ("collective", "u4"),  # the module's group's collective count when the pass began
    ("collectives", "u2"),  # how many this rank issued on that group inside the pass, of any kind
    ("launched", "u2"),  # buckets whose collective was really issued in this pass
    ("buckets", "u2"),  # buckets of the layout in force
    ("touched", "u4"),  # parameters that received a gradient
    ("unreduced", "u4"),  # ... of them outside every bucket whose collective was issued
    ("forward_site", "u4"),
    ("backward_site", "u4"),
    ("local_norm", "f8"),
    ("norm", "f8"),
    ("loss", "f8"),
    ("memory", "i8"),  # peak so far: CUDA bytes allocated, else resident bytes
    ("forward", "i8"),  # when the DDP forward before it began; 0: none was seen, or not measured
    ("forward_end", "i8"),
)


class BucketFlag(IntFlag):
    HAS_LOCAL_NORM = 1
    HAS_NORM = 2
    HAS_SUMS = 4  # sum_before and sum_after were measured
    SENT = 8  # a collective was really issued for it
    FAILED = 16


BUCKET = (
    ("module", "u2"),
    ("layout", "u2"),
    ("index", "u2"),
    ("flags", "u2"),
    ("pass", "u4"),
    ("count", "u4"),  # the group's collective count of its (first) all-reduce; NO_INDEX if none was issued
    ("ready", "i8"),
    ("launch", "i8"),  # 0: not measured
    ("done", "i8"),  # 0: not measured
    ("wire_bytes", "u4"),  # bytes handed to collectives for it (saturates)
    ("local_norm", "f4"),
    ("norm", "f4"),
    ("sum_before", "f4"),  # sum of this rank's gradients in the bucket before averaging (not divided by N)
    ("sum_after", "f4"),  # sum of the bucket as the reducer got it back: the mean of the ranks' sum_before, if a mean
)


class StepFlag(IntFlag):
    SKIPPED = 1  # GradScaler skipped it: no update happened, `index` counts skipped steps
    SAMPLED = 2
    HAS_GRAD = 4  # grad_checksum and grad_norm were taken when the step used the gradients
    HAS_PARAM = 8  # param_checksum was taken after the step
    CLOSURE = 16  # the backward ran inside the step
    NO_GRADS = 32  # not one of the module's parameters had a gradient


STEP = (  # one row for each DDP module whose parameters the optimizer holds; rows of one step share `index`
    ("module", "u2"),
    ("optimizer", "u2"),
    ("flags", "u2"),
    ("index", "u4"),  # executed steps of this rank in call order, from 0 (skipped ones count apart)
    ("after", "i4"),  # index of the module's last pass before the update; -1: none
    ("window", "u4"),
    ("begin", "i8"),
    ("end", "i8"),
    ("collective", "u4"),  # the module's group's collective count at the end
    ("by_hand", "u4"),  # elements put through collectives outside any pass since the module's last pass, on its group
    ("unmanaged", "u4"),  # parameters of this module that the step updates and the reducer does not manage
    ("site", "u4"),
    ("grad_checksum", "u8"),  # of the gradients as used; equal bits give equal numbers
    ("grad_norm", "f8"),
    ("param_checksum", "u8"),  # of the module's parameters after the update
)


class CollectiveKind(IntEnum):
    UNKNOWN = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    ALL_TO_ALL = 6
    BARRIER = 7
    SCATTER = 8
    GATHER = 9


class CollectiveFlag(IntFlag):
    IN_PASS = 1
    ASYNC = 2
    USED_MAP = 4  # the reducer's map of used parameters, or its bucket-rebuild broadcast
    IN_FORWARD = 8
    PARAMETERS = 16  # its tensor is (part of) a DDP module's parameters
    GRADIENTS = 32  # its tensor is (part of) a DDP module's gradients
    FAILED = 64


COLLECTIVE = (  # every collective that is not a bucket's own (those are bucket rows, with the same count)
    ("group", "u2"),
    ("kind", "u1"),
    ("flags", "u1"),
    ("dtype", "u1"),  # index into DTYPES
    ("count", "u4"),  # own count of collectives on this group, from 0; pairs with the same count on the other ranks
    ("numel", "u8"),
    ("begin", "i8"),
    ("end", "i8"),  # 0: not known
    ("site", "u4"),
)

DTYPES = ("?", "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "int16", "bool", "other")


class LayerFlag(IntFlag):
    HAS_LOCAL = 1
    HAS_NORM = 2


LAYER = (  # only in sampled passes
    ("module", "u2"),
    ("flags", "u2"),
    ("pass", "u4"),
    ("param", "u4"),
    ("local_norm", "f4"),
    ("norm", "f4"),
)

CLEAR = (  # zero_grad, or gradients found gone; the passes of `window` end here
    ("module", "u2"),
    ("by_step", "u2"),  # 1: these gradients had reached a step
    ("window", "u4"),
    ("after", "i4"),  # the module's last pass before it
    ("at", "i8"),
    ("site", "u4"),
)


class RowKind(IntEnum):
    """Block kinds of a trace file. RECORDS blocks hold msgspec records; the others one kind of row each."""

    RECORDS = 0
    PASS = 1
    BUCKET = 2
    STEP = 3
    COLLECTIVE = 4
    LAYER = 5
    CLEAR = 6


COLUMNS: dict[RowKind, tuple[tuple[str, str], ...]] = {
    RowKind.PASS: PASS,
    RowKind.BUCKET: BUCKET,
    RowKind.STEP: STEP,
    RowKind.COLLECTIVE: COLLECTIVE,
    RowKind.LAYER: LAYER,
    RowKind.CLEAR: CLEAR,
}

_STRUCT = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}


def column_at(kind: RowKind, name: str) -> tuple[int, int]:
    """Where a column lies in a row: offset and size in bytes."""
    offset = 0
    for column, code in COLUMNS[kind]:
        size = int(code[1])
        if column == name:
            return offset, size
        offset += size
    raise KeyError(name)


def struct_format(kind: RowKind) -> str:
    """The `struct` format of one row of this kind: little-endian, packed, no padding."""
    return "<" + "".join(_STRUCT[code] for _, code in COLUMNS[kind])
