"""What PyTorch's obscure errors mean, in plain words: one function for each kind, which also knows what to do.

Each gets the rank, the module and what its pattern in `refusals.py` found, and adds the parameter names that PyTorch
leaves out.
"""

from __future__ import annotations

import re
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


def unused(case: Case) -> tuple[str, str]:
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


def static_unused(case: Case) -> tuple[str, str]:
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


def static_changed(case: Case) -> tuple[str, str]:
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


def twice(case: Case) -> tuple[str, str]:
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


def static_no_sync(case: Case) -> tuple[str, str]:
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


def count(case: Case) -> tuple[str, str]:
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


def shape(case: Case) -> tuple[str, str]:
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


def monitored(case: Case) -> tuple[str, str]:
    who = case.group("who")
    last = standing.last_event(case.tl, int(who))
    return (
        _("rank {who} did not come to the monitored barrier in time.", who=who)
        + (_(" The last that rank did: {last}.", last=last) if last else ""),
        _("Look at what rank {who} does instead: its log, or an error it ran into before the barrier.", who=who),
    )


def monitored_peer(case: Case) -> tuple[str, str]:
    return (
        _("this rank reached the monitored barrier; rank 0, which checks the others off, had given up or was gone."),
        _("Read rank 0's error: it names the rank that did not come."),
    )


def timeout(case: Case) -> tuple[str, str]:
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


def watchdog(case: Case) -> tuple[str, str]:
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


def mismatch(case: Case) -> tuple[str, str]:
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


def duplicate(case: Case) -> tuple[str, str]:
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


def nccl_missing(case: Case) -> tuple[str, str]:
    return (
        _(
            "the script asks for the NCCL backend, which works on NVIDIA GPUs only, and this PyTorch or this "
            "machine has none."
        ),
        _("Use backend='gloo' on a CPU, or run it as `ddpviz run --cpu SCRIPT.py`, which redirects it."),
    )


def no_group(case: Case) -> tuple[str, str]:
    return (
        _("the model was wrapped before the process group was there."),
        _("Call torch.distributed.init_process_group() before DistributedDataParallel(model)."),
    )


def no_env(case: Case) -> tuple[str, str]:
    return (
        _(
            "init_process_group() found no {group} in the environment: the script was started as one plain process.",
            group=case.group("name"),
        ),
        _("Start it with a launcher: `ddpviz run SCRIPT.py` or `torchrun --nproc-per-node 2 SCRIPT.py`."),
    )


def clients(case: Case) -> tuple[str, str]:
    return (
        _(
            "only {group} of {group2} ranks came to init_process_group() in time.",
            group=case.group("there"),
            group2=case.group("all"),
        ),
        _("Look at the log of the rank that is missing: it failed, or is still loading, before it got there."),
    )


def no_host(case: Case) -> tuple[str, str]:
    return (
        _(
            "this rank could not reach rank 0 at {group}: nobody listens there. Rank 0 failed before "
            "init_process_group(), or MASTER_ADDR or MASTER_PORT is wrong.",
            group=case.group("host"),
        ),
        _("Look at rank 0's log; check MASTER_ADDR, MASTER_PORT and the firewall."),
    )


def hook(case: Case) -> tuple[str, str]:
    return (
        _("a communication hook was registered a second time on the same module; DDP takes one, and for ever."),
        _("Register one hook that does both things, right after wrapping."),
    )


def frozen(case: Case) -> tuple[str, str]:
    return (
        _("the module that was wrapped has no trainable parameter: all are frozen, or it has none."),
        _("Wrap only modules that are trained, and unfreeze (requires_grad_(True)) before wrapping."),
    )


def devices(case: Case) -> tuple[str, str]:
    return (
        _("device_ids names a GPU, and the module's parameters are on another device."),
        _(
            "Move the module first (model.to(device)), and pass device_ids=[local_rank] for a module on one "
            "GPU only; leave it out on a CPU. `ddpviz run --cpu` does that for you."
        ),
    )


def detail(case: Case) -> tuple[str, str]:
    return (
        _(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes PyTorch itself crash (segmentation fault) while "
            "DistributedDataParallel is built on gloo."
        ),
        _("Unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO; ddpviz shows what DETAIL would tell."),
    )
