"""What a rank can say: the record types of a trace. The one contract between a training process and everything else.

Two kinds. *Rows* happen for every micro-step and are fixed-width, packed little-endian (`struct`; `numpy.dtype` reads a
block of them at once). *Records* are rare and are msgspec Structs, tagged by their name. All times are nanoseconds of
the writing host's monotonic clock; `Process` carries what turns them into wall time. Imported by every room; imports
none. FORMAT.md beside this file writes the bytes down.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpviz.trace.rows import (
    BUCKET as BUCKET,
    CLEAR as CLEAR,
    COLLECTIVE as COLLECTIVE,
    COLUMNS as COLUMNS,
    DTYPES as DTYPES,
    LAYER as LAYER,
    NO_INDEX as NO_INDEX,
    PASS as PASS,
    STEP as STEP,
    BucketFlag as BucketFlag,
    CollectiveFlag as CollectiveFlag,
    CollectiveKind as CollectiveKind,
    LayerFlag as LayerFlag,
    PassFlag as PassFlag,
    RowKind as RowKind,
    StepFlag as StepFlag,
    struct_format as struct_format,
)

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
    ranks: list[int]  # empty: `span` says it
    backend: str
    at: int
    destroyed: bool = False
    span: int = 0  # the ranks from 0 up to this: thousands of ranks need not be listed by each of them

    @classmethod
    def of(cls, id: int, name: str, ranks: Sequence[int], backend: str, at: int) -> Group:
        """A large group of the first ranks is written as a span."""
        whole = len(ranks) > 64 and list(ranks) == list(range(len(ranks)))
        return cls(id, name, [] if whole else list(ranks), backend, at, span=len(ranks) if whole else 0)


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
    strays: int = 0  # elements of its parameters if none is a watched module's, in a type that these have


class Learning(Record, frozen=True):
    """The optimizer's learning rates, when they change, and with them its other settings."""

    optimizer: int
    rates: list[float]
    step: int
    others: dict[str, list[float]] = {}  # "momentum", "weight_decay", ...: of each parameter group


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
