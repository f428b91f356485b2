"""PyTorch's obscure errors of this field, and what they mean. Data for the rule torch-refused.

Each pattern is taken from text that PyTorch really raised: all on 2.13.0 and 2.14.1 with gloo on a CPU unless a
comment says otherwise; the tests provoke them again. `explain` gets the rank, the module and the match, and adds the
parameter names that PyTorch leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddpviz.findings import standing, words
from ddpviz.language import _
from ddpviz.timeline.model import Module, RankState, Timeline


@dataclass(frozen=True, slots=True)
class Case:
    """One rank's error, with what is known around it."""

    tl: Timeline
    state: RankState
    module: Module | None
    message: str
    where: str  # "forward", "backward", ...; empty if not known
    site: int
    pass_index: int
    missing: tuple[int, ...]  # parameters without a gradient by then, as far as the probe knew
    match: re.Match[str] | None = None

    @property
    def rank(self) -> int:
        return self.state.rank

    def with_match(self, match: re.Match[str]) -> Case:
        return replace(self, match=match)

    def group(self, name: str) -> str:
        return (self.match.group(name) or "") if self.match is not None else ""

    def names(self, indices: list[int] | tuple[int, ...]) -> str:
        """Parameter names, or their numbers where the module is not known."""
        if self.module is None or not indices:
            return (
                _("the parameters number {numbers}", numbers=words.ranges(indices)) if indices else _("some parameters")
            )
        return words.layers(self.module, indices)

    def ungraded(self) -> list[int]:
        """Parameters without a gradient: as PyTorch lists them, else as the probe saw."""
        listed = re.search(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)", self.message)
        return [int(n) for n in listed.group(1).split()] if listed else list(self.missing)


Explain = Callable[[Case], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: str
    pattern: re.Pattern[str]
    explain: Explain
    crash: bool = False  # no exception: the process died
    rank_of_words: int = 0  # of several kinds of text for one cause, the lowest tells most

    def crashed(self, state: RankState) -> bool:
        """TORCH_DISTRIBUTED_DEBUG=DETAIL with gloo ends in a segmentation fault while DDP is built."""
        died = state.signal == 11 or state.exit_code in (-11, 139)
        return self.crash and died and state.debug.upper() == "DETAIL" and "gloo" in state.backend


def _unused(case: Case) -> tuple[str, str]:
    ungraded = case.ungraded()
    names = case.names(ungraded)
    return (
        _(
            "the forward before this one left {names} without a gradient. DDP waits for every parameter's "
            "gradient before it averages a bucket, so the last backward was never fully averaged, and a step "
            "after it used each rank's own gradients.",
            names=names,
        ),
        _(
            "Use {names} in the loss, or remove or freeze (requires_grad_(False)) before wrapping what is not "
            "used, or pass find_unused_parameters=True. Every output of the forward has to reach the loss.",
            names=names,
        ),
    )


def _static_unused(case: Case) -> tuple[str, str]:
    return (
        _(
            "static_graph=True promises that every iteration uses the same parameters, and {names} got a "
            "gradient in the first iteration but not in this one.",
            names=case.names(case.ungraded()),
        ),
        _(
            "Use the same parameters in every iteration, or drop static_graph=True and pass "
            "find_unused_parameters=True."
        ),
    )


def _static_changed(case: Case) -> tuple[str, str]:
    return (
        _(
            "static_graph=True promises that every iteration uses the same parameters, and this backward gave "
            "a gradient to one that the first iteration did not use."
        ),
        _(
            "Use the same parameters in every iteration, or drop static_graph=True and pass "
            "find_unused_parameters=True."
        ),
    )


def _twice(case: Case) -> tuple[str, str]:
    index = case.group("index")
    name = case.group("name") or (case.names([int(index)]) if index else _("a parameter"))
    return (
        _(
            "{name} received its gradient twice in one backward pass, and DDP counts each parameter once. It "
            "is used in two re-entrant checkpoints (use_reentrant=True), or by two forwards of one module "
            "while find_unused_parameters=True.",
            name=name,
        ),
        _(
            "Pass use_reentrant=False to torch.utils.checkpoint.checkpoint, or static_graph=True to "
            "DistributedDataParallel if the graph never changes."
        ),
    )


def _static_no_sync(case: Case) -> tuple[str, str]:
    return (
        _(
            "with static_graph=True the very first backward may not run under no_sync(): in that pass DDP "
            "learns the graph, and PyTorch only has an internal assert for it. No bug of yours is being "
            "reported; the combination is refused."
        ),
        _(
            "Let the first micro-step of the run synchronise (leave no_sync() for it), and accumulate from the "
            "next on; or drop static_graph=True."
        ),
    )


def _count(case: Case) -> tuple[str, str]:
    return (
        _(
            "the ranks built different models: rank {group} has {group2} trainable parameters and rank "
            "{group3} has {group4}.",
            group=case.group("a"),
            group2=case.group("n"),
            group3=case.group("b"),
            group4=case.group("m"),
        ),
        _(
            "Build the model from settings that all ranks share; freeze and add layers alike on every rank "
            "before wrapping."
        ),
    )


def _shape(case: Case) -> tuple[str, str]:
    index = case.group("index")
    return (
        _(
            "the ranks built different models: parameter number {index} has the sizes [{group}] on rank "
            "{group2} and others on rank 0. Ranks that see no difference themselves then fail with a lost "
            "connection.",
            index=index,
            group=case.group("sizes"),
            group2=case.group("a"),
        ),
        _(
            "Build the model from settings that all ranks share (vocabulary, number of classes, seed of the "
            "architecture), not from what one rank sees of the data."
        ),
    )


def _monitored(case: Case) -> tuple[str, str]:
    who = case.group("who")
    last = standing.last_event(case.tl, int(who))
    return (
        _("rank {who} did not come to the monitored barrier in time.", who=who)
        + (_(" The last that rank did: {last}.", last=last) if last else ""),
        _("Look at what rank {who} does instead: its log, or an error it ran into before the barrier.", who=who),
    )


def _monitored_peer(case: Case) -> tuple[str, str]:
    return (
        _("this rank reached the monitored barrier; rank 0, which checks the others off, had given up or was gone."),
        _("Read rank 0's error: it names the rank that did not come."),
    )


def _timeout(case: Case) -> tuple[str, str]:
    missing = _behind(case)
    names = _(" {ranks} did not come", ranks=words.start(words.ranks([k for k, _rest in missing]))) if missing else ""
    lasts = "; ".join(_("rank {k} last did: {text}", k=k, text=text) for k, text in missing if text)
    return (
        _("this rank waited for the others in a collective until the process group's time-out.{names}", names=names)
        + (f" ({lasts})." if lasts else "." if names else ""),
        _(
            "All ranks have to issue the same collectives in the same order; look for one that only some ranks "
            "reach. If a rank is only slow, pass a larger timeout= to init_process_group."
        ),
    )


def _behind(case: Case) -> list[tuple[int, str]]:
    """Ranks with fewer collectives than this one on some group, and the last thing they did."""
    found: dict[int, str] = {}
    for key, count in case.state.collectives.items():
        for other in case.tl.ranks.values():
            if other.rank != case.rank and key in other.collectives and other.collectives[key] < count:
                found[other.rank] = standing.last_event(case.tl, other.rank)
    return sorted(found.items())[:4]


def _watchdog(case: Case) -> tuple[str, str]:
    missing = _behind(case)
    names = _(" {ranks} did not come.", ranks=words.start(words.ranks([k for k, _rest in missing]))) if missing else ""
    return (
        _(
            "a collective ({group}) did not end within {value} s, and NCCL's watchdog ends the process. It "
            "names the rank that waited, not the one that is missing.{names}",
            group=case.group("op"),
            value=int(case.group("ms")) // 1000,
            names=names,
        ),
        _(
            "Find the rank with the fewest collectives: that one did something else. If it is only slow, pass "
            "a larger timeout= to init_process_group."
        ),
    )


def _mismatch(case: Case) -> tuple[str, str]:
    ranks = sorted(case.tl.ranks)
    lasts = [(k, standing.last_event(case.tl, k)) for k in ranks]
    return (
        _(
            "two ranks are in different collectives, or bring tensors of different size: one received {group} bytes "
            "where it expected {group2}.",
            group=case.group("got"),
            group2=case.group("want"),
        )
        + "".join(_(" The last that is known of rank {rank}: {last}.", rank=k, last=x) for k, x in lasts[:4] if x),
        _("All ranks have to issue the same collectives in the same order, with tensors of the same size and type."),
    )


def _duplicate(case: Case) -> tuple[str, str]:
    return (
        _(
            "ranks {group} and {group2} use the same GPU, and NCCL wants one for each rank.",
            group=case.group("a"),
            group2=case.group("b"),
        ),
        _(
            "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else, and start no more "
            "ranks on a machine than it has GPUs; for several ranks on one GPU or on a CPU use the gloo "
            "backend."
        ),
    )


def _nccl_missing(case: Case) -> tuple[str, str]:
    return (
        _(
            "the script asks for the NCCL backend, which works on NVIDIA GPUs only, and this PyTorch or this "
            "machine has none."
        ),
        _("Use backend='gloo' on a CPU, or run it as `ddpviz run --cpu SCRIPT.py`, which redirects it."),
    )


def _no_group(case: Case) -> tuple[str, str]:
    return (
        _("the model was wrapped before the process group was there."),
        _("Call torch.distributed.init_process_group() before DistributedDataParallel(model)."),
    )


def _no_env(case: Case) -> tuple[str, str]:
    return (
        _(
            "init_process_group() found no {group} in the environment: the script was started as one plain process.",
            group=case.group("name"),
        ),
        _("Start it with a launcher: `ddpviz run SCRIPT.py` or `torchrun --nproc-per-node 2 SCRIPT.py`."),
    )


def _clients(case: Case) -> tuple[str, str]:
    return (
        _(
            "only {group} of {group2} ranks came to init_process_group() in time.",
            group=case.group("there"),
            group2=case.group("all"),
        ),
        _("Look at the log of the rank that is missing: it failed, or is still loading, before it got there."),
    )


def _no_host(case: Case) -> tuple[str, str]:
    return (
        _(
            "this rank could not reach rank 0 at {group}: nobody listens there. Rank 0 failed before "
            "init_process_group(), or MASTER_ADDR or MASTER_PORT is wrong.",
            group=case.group("host"),
        ),
        _("Look at rank 0's log; check MASTER_ADDR, MASTER_PORT and the firewall."),
    )


def _hook(case: Case) -> tuple[str, str]:
    return (
        _("a communication hook was registered a second time on the same module; DDP takes one, and for ever."),
        _("Register one hook that does both things, right after wrapping."),
    )


def _frozen(case: Case) -> tuple[str, str]:
    return (
        _("the module that was wrapped has no trainable parameter: all are frozen, or it has none."),
        _("Wrap only modules that are trained, and unfreeze (requires_grad_(True)) before wrapping."),
    )


def _devices(case: Case) -> tuple[str, str]:
    return (
        _("device_ids names a GPU, and the module's parameters are on another device."),
        _(
            "Move the module first (model.to(device)), and pass device_ids=[local_rank] for a module on one "
            "GPU only; leave it out on a CPU. `ddpviz run --cpu` does that for you."
        ),
    )


def _detail(case: Case) -> tuple[str, str]:
    return (
        _(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes PyTorch itself crash (segmentation fault) while "
            "DistributedDataParallel is built on gloo."
        ),
        _("Unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO; ddpviz shows what DETAIL would tell."),
    )


def _re(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "static-unused",
        _re(r"Expected to have finished reduction in the prior iteration.*?your training graph has changed"),
        _static_unused,
    ),
    Refusal("unused", _re(r"Expected to have finished reduction in the prior iteration"), _unused),
    Refusal("static-changed", _re(r"Your training graph has changed in this iteration"), _static_changed),
    Refusal(
        "twice",
        _re(
            r"Expected to mark a variable ready only once(?:.*?Parameter at index (?P<index>\d+)"
            r"(?: with name (?P<name>\S+))? has been marked as ready twice)?"
        ),
        _twice,
    ),
    Refusal("static-no-sync", _re(r"expect_autograd_hooks_ INTERNAL ASSERT FAILED"), _static_no_sync),
    Refusal(
        "models",
        _re(r"Rank (?P<a>\d+) has (?P<n>\d+) params, while rank (?P<b>\d+) has inconsistent (?P<m>\d+) params"),
        _count,
    ),
    Refusal(
        "models",
        _re(r"\[(?P<a>\d+)\]: params\[(?P<index>\d+)\] in this process with sizes \[(?P<sizes>[\d, ]*)\]"),
        _shape,
    ),
    Refusal("monitored", _re(r"Rank (?P<who>\d+) failed to pass monitoredBarrier"), _monitored),
    Refusal(
        "monitored",
        _re(r"successfully reached monitoredBarrier, but received errors"),
        _monitored_peer,
        rank_of_words=1,
    ),
    # NCCL: the text in libtorch_cuda 2.14.1, and public reports; not run here for want of two GPUs
    Refusal(
        "timeout",
        _re(r"Watchdog caught collective operation timeout: .*?OpType=(?P<op>\w+).*?ran for (?P<ms>\d+) milliseconds"),
        _watchdog,
    ),
    Refusal("timeout", _re(r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation to complete"), _timeout),
    Refusal("mismatch", _re(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<want>\d+)"), _mismatch),
    # NCCL: public reports of NCCL 2.17 to 2.21; not run here for want of a GPU
    Refusal(
        "duplicate",
        _re(r"Duplicate GPU detected : rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device"),
        _duplicate,
    ),
    Refusal("nccl", _re(r"ProcessGroupNCCL is only supported with GPUs"), _nccl_missing),  # CUDA builds: 2.14.1
    Refusal("nccl", _re(r"Distributed package doesn't have NCCL built in"), _nccl_missing),  # CPU builds: 2.13.0
    Refusal("no-group", _re(r"Default process group has not been initialized"), _no_group),
    Refusal("no-env", _re(r"environment variable (?P<name>\w+) expected, but not set"), _no_env),
    Refusal(
        "clients",
        _re(r"Timed out after \d+ seconds waiting for clients\. (?P<there>\d+)/(?P<all>\d+) clients joined"),
        _clients,
    ),
    Refusal(
        "clients",
        _re(r"client socket has timed out after \d+ms while trying to connect to \((?P<host>[^)]*)\)"),
        _no_host,
    ),
    Refusal("hook", _re(r"register_comm_hook or register_builtin_comm_hook can only be called once"), _hook),
    Refusal("frozen", _re(r"DistributedDataParallel is not needed when a module doesn't have any parameter"), _frozen),
    Refusal("devices", _re(r"DistributedDataParallel device_ids and output_device arguments only work with"), _devices),
    Refusal("detail", _re(r"(?!)"), _detail, crash=True),
)
