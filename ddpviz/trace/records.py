"""What a rank can say: the record types of a trace. The one contract between a training process and everything else.

Two kinds. *Rows* happen for every micro-step and are fixed-width, packed little-endian (`struct`; `numpy.dtype` reads a
block of them at once). *Records* are rare and are msgspec Structs, tagged by their name. All times are nanoseconds of
the writing host's monotonic clock; `Process` carries what turns them into wall time. Imported by every room; imports
none. FORMAT.md beside this file writes the bytes down.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import msgspec

# --- rows ------------------------------------------------------------------------------------------------------------

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


def struct_format(kind: RowKind) -> str:
    """The `struct` format of one row of this kind: little-endian, packed, no padding."""
    return "<" + "".join(_STRUCT[code] for _, code in COLUMNS[kind])


# --- records ---------------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, tag=True, tag_field="record", frozen=True, omit_defaults=True):
    """Base of the rare records. Unknown fields are ignored and unknown tags skipped, so newer traces stay readable."""


class Process(Record, frozen=True):
    """First record of every file: who writes."""

    pid: int
    host: str
    job: str  # one process-group rendezvous: master address and port, or the elastic run id
    attempt: int  # elastic restart count
    argv: list[str]
    python: str
    torch: str
    ddpviz: str
    observed_by: str  # "collectives" | "comm-hook"
    wall_ns: int  # wall clock and monotonic clock, read together
    monotonic_ns: int
    budget: float | None = None  # percent; None: full
    redirected: bool = False  # --cpu is in force
    rank: int | None = None  # from the environment, before any process group exists
    distributed_debug: str = ""  # TORCH_DISTRIBUTED_DEBUG: PyTorch itself crashes on gloo with DETAIL


class RankIs(Record, frozen=True):
    rank: int
    world_size: int
    local_rank: int
    backend: str
    at: int
    device: str = "cpu"


class Group(Record, frozen=True):
    """A process group of this process. `name` and `ranks` together are the same on all its members."""

    id: int
    name: str
    ranks: list[int]
    backend: str
    at: int
    destroyed: bool = False


class Site(Record, frozen=True):
    """A place in the user's code: the innermost frame outside site-packages, with the framework's call beside it."""

    id: int  # from 1; 0 is "unknown"
    file: str
    line: int
    function: str
    code: str = ""  # the source line, stripped
    via: str = ""  # the framework's call nearest to it, such as "lightning.pytorch ... optimizer_step"


class Module(Record, frozen=True):
    """A DDP module of this process, in the order of construction."""

    id: int
    name: str  # class name of the wrapped module
    group: int
    params: list[str]  # managed parameters first, in the reducer's order; later ones are appended by `Unmanaged`
    numels: list[int]
    dtype: str
    itemsize: int
    device: str
    site: int
    at: int
    options: dict[str, bool | int | float | str]  # DDP's arguments


class Layout(Record, frozen=True):
    """A bucket layout. A module's first is recorded at construction, then one when the reducer rebuilds."""

    module: int
    layout: int
    buckets: list[list[int]]  # parameter indices
    bytes: list[int]
    at: int


class Unmanaged(Record, frozen=True):
    """Parameters of the module that the reducer does not manage."""

    module: int
    names: list[str]
    numels: list[int]
    first: int  # index given to the first of them
    reason: str  # "added" | "replaced" | "unfrozen" | "outside"
    after: int  # the module's last pass when they were found
    at: int


class Unused(Record, frozen=True):
    """Parameters that no pass has given a gradient yet. A later record of the same module replaces it."""

    module: int
    params: list[int]
    passes: int
    final: bool = False


class NonFinite(Record, frozen=True):
    """The first NaN or Inf in this rank's own gradients of a module, before any averaging."""

    module: int
    pass_index: int
    param: int
    kind: str  # "nan" | "inf"
    bucket: int = -1


class Clip(Record, frozen=True):
    """A call of clip_grad_norm_ or clip_grad_value_ on gradients of the module. `norm` is the total it returned."""

    module: int
    after: int
    at: int
    site: int
    how: str
    limit: float
    norm: float | None = None


class HookIs(Record, frozen=True):
    """A user's communication hook was registered on the module."""

    module: int
    name: str
    builtin: bool
    at: int


class Buffers(Record, frozen=True):
    """Checksum of the module's buffers, by buffer, when the process ended (or the module was detached)."""

    module: int
    names: list[str]
    checksums: list[int]
    broadcast: bool  # DDP broadcasts them at the next forward
    at: int


class Replica(Record, frozen=True):
    """Checksum of the module's parameters outside a step: after an averaging by hand, or (`final`) at the end."""

    module: int
    step: int  # executed steps of this rank so far, less one: the step it comes after; -1: none yet
    checksum: int  # comparable with a step row's param_checksum
    at: int
    final: bool = False


class Optimizer(Record, frozen=True):
    id: int
    name: str
    site: int
    modules: list[int]


class Learning(Record, frozen=True):
    """The optimizer's learning rates, when they change."""

    optimizer: int
    rates: list[float]
    step: int


class Unanswered(Record, frozen=True):
    """A DDP forward with gradients whose output no backward pass used before the next such forward, or before the end.

    One on a single rank is a batch that this rank skipped. The first hundred of a module are recorded.
    """

    module: int
    after: int  # the module's last pass before that forward
    at: int
    site: int  # of that forward


class Joined(Record, frozen=True):
    """The rank ran out of inputs inside a join context and shadows the others from here."""

    module: int
    after: int
    at: int


class Stack(Record, frozen=True):
    """What the main thread is blocked in: taken by the writer thread, innermost frame first."""

    at: int
    since: int
    doing: str  # "all-reduce" | "broadcast" | "barrier" | ... | "computing" | "init_process_group" | "DDP constructor"
    frames: list[str]  # 'file:line function'
    site: int
    group: int = -1
    count: int = -1  # of the collective it is in, on that group
    kind: int = 0
    numel: int = 0
    module: int = -1
    bucket: int = -1
    pass_index: int = -1


class Beat(Record, frozen=True):
    """The interpreter answers. About one a second; `progress` counts everything the probe has seen."""

    at: int
    progress: int
    doing: str = ""
    cpu_ns: int = -1  # CPU time of the main thread so far (-1: not known): tells computing from waiting


class Refused(Record, frozen=True):
    """PyTorch raised out of a DDP call (constructor, forward, backward): its own words, and the names it leaves out."""

    at: int
    where: str  # "constructor" | "forward" | "backward" | "init_process_group" | "step"
    type: str
    message: str
    site: int
    module: int = -1
    pass_index: int = -1
    params: list[int] = []


class Note(Record, frozen=True):
    """Something a person should know about the watching itself."""

    text: str
    at: int


class Dropped(Record, frozen=True):
    """Records that could not be written, and why: counted, never silently lost."""

    count: int
    why: str
    at: int


class Exit(Record, frozen=True):
    """The process's last word: absent if it was killed."""

    at: int
    code: int | None
    reason: str  # "finished" | "exception" | "signal" | "os._exit" | "detached"
    error: str = ""
    traceback: str = ""
    site: int = 0


AnyRecord = (
    Process
    | RankIs
    | Group
    | Site
    | Module
    | Layout
    | Unmanaged
    | Unused
    | NonFinite
    | Clip
    | HookIs
    | Buffers
    | Replica
    | Optimizer
    | Learning
    | Joined
    | Unanswered
    | Stack
    | Beat
    | Refused
    | Note
    | Dropped
    | Exit
)
