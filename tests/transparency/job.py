"""Trains small models under many switches and writes down what came out, bit for bit. An ordinary script otherwise.

    torchrun job.py CASES.json OUT_DIR [--watch none|comm-hook|collectives|attach|attach-late]

Every rank writes OUT_DIR/<rank>.json: for each case digests of all parameters, buffers, optimizer states and random
states, and the exception where one was raised. Two runs of the same cases compare as dictionaries.
"""

import argparse
import contextlib
import copy
import hashlib
import io
import json
import pathlib
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Layers of several shapes, so that tiny buckets cut between them; some are left out now and then."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        sparse = kind == "sparse"
        self.embedding = nn.Embedding(12, 9, sparse=sparse) if kind in ("sparse", "embedding") else None
        self.first = nn.Linear(9, 31)
        self.norm = nn.BatchNorm1d(31) if kind == "batchnorm" else nn.LayerNorm(31)
        self.middle = nn.Linear(31, 31)
        self.maybe = nn.Linear(31, 31)
        self.last = nn.Linear(31, 5)
        self.checkpointing = kind.removeprefix("checkpoint-") if kind.startswith("checkpoint") else ""

    def forward(self, x, step):
        if self.embedding is not None:
            x = x + self.embedding((x[:, 0].abs() * 7).long() % 12)
        x = torch.relu(self.norm(self.first(x)))
        if self.checkpointing:
            x = checkpoint(self.middle, x, use_reentrant=self.checkpointing == "reentrant")
        else:
            x = self.middle(x)
        if self.kind == "shared":
            x = self.middle(torch.tanh(x))
        if self.kind != "unused" or step % 3 != 1:
            x = x + self.maybe(torch.tanh(x))
        return self.last(torch.relu(x))


def digest(value, into=None):
    """A hash over the bits of every tensor in a nest of containers; plain values by their repr."""
    h = into or hashlib.sha256()
    if isinstance(value, torch.Tensor):
        t = value.detach().cpu()
        t = t.coalesce().to_dense() if t.is_sparse else t
        h.update(
            str((t.dtype, tuple(t.shape))).encode() + t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    elif isinstance(value, dict):
        for key in value:
            h.update(repr(key).encode())
            digest(value[key], h)
    elif isinstance(value, (list, tuple)):
        for item in value:
            digest(item, h)
    else:
        h.update(repr(value).encode())
    return h.hexdigest()[:16] if into is None else ""


def scaled_sum(state, bucket):
    """A user's own hook: half of the sum."""
    work = dist.all_reduce(bucket.buffer().mul_(0.5), async_op=True)
    return work.get_future().then(lambda fut: fut.value()[0])


def hook_of(name, ddp):
    if name == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "allreduce":
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    elif name == "own":
        ddp.register_comm_hook(None, scaled_sum)
    elif name == "wrapped":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, warm_start=True)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "builtin-allreduce":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    elif name == "builtin-fp16":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


def wrap(case, module):
    options = {}
    for name in ("gradient_as_bucket_view", "find_unused_parameters", "static_graph", "bucket_cap_mb"):
        if name in case:
            options[name] = case[name]
    if case.get("mixed"):
        from torch.nn.parallel.distributed import _MixedPrecision

        options["mixed_precision"] = _MixedPrecision(torch.float16 if case["mixed"] == "fp16" else torch.bfloat16)
    if case.get("group") == "pair" and dist.get_world_size() > 2:
        options["process_group"] = PAIRS[dist.get_rank() // 2]
    return DDP(module, **options)


def optimizer_of(case, ddp):
    kind = case.get("optimizer", "sgd")
    if kind == "adam":
        return torch.optim.Adam(ddp.parameters(), lr=0.01)
    if kind == "lbfgs":
        return torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    return torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9 if kind == "momentum" else 0.0)


def batch(generator):
    return torch.randn(6, 9, generator=generator), torch.randn(6, 5, generator=generator)


def collectives():
    """How many collectives each group has counted so far, in all."""
    return sum(g._get_sequence_number_for_group() for g in list(dist.distributed_c10d._world.pg_map))


def train(case, watch):
    rank = dist.get_rank()
    began = collectives()
    torch.manual_seed(7)
    module = Block(case.get("model", "plain"))
    if case.get("frozen"):
        module.maybe.requires_grad_(False)
    if case.get("optimizer") == "in-backward":
        from torch.distributed.optim import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05})
    ddp = wrap(case, module)
    if case.get("hook_when", "before") == "before":
        hook_of(case.get("hook"), ddp)
    watch(ddp)
    if case.get("hook_when") == "after":
        hook_of(case.get("hook"), ddp)
    run = torch.compile(ddp, backend=case["compile"]) if case.get("compile") else ddp
    optimizer = None if case.get("optimizer") == "in-backward" else optimizer_of(case, ddp)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2) if case.get("scaler") else None
    generator = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(50 + rank)
    if case.get("copy"):
        copy.deepcopy(module)
        ddp.state_dict()
    none = case.get("set_to_none", True)
    accumulation = case.get("accumulation", 1)

    def loss_of(x, y, step):
        context = torch.autocast("cpu", torch.bfloat16) if case.get("autocast") else contextlib.nullcontext()
        with context:
            if case.get("forwards", 1) == 2:
                return ((run(x, step) + run(x.flip(0), step)).float() - y).square().mean()
            return (run(x, step).float() - y).square().mean()

    def backward(loss):
        loss = scaler.scale(loss) if scaler else loss
        if case.get("create_graph"):
            loss.backward(create_graph=True)
        elif case.get("retain"):
            loss.backward(retain_graph=True)
            loss.backward()
        else:
            loss.backward()

    def one_step(step):
        for micro in range(accumulation):
            x, y = batch(generator)
            local = micro + 1 < accumulation and not case.get("sync_all")
            with ddp.no_sync() if local else contextlib.nullcontext():
                loss = loss_of(x, y, step * accumulation + micro)
                if case.get("autograd_grad"):
                    torch.autograd.grad(loss, ddp.module.last.weight, retain_graph=True)
                backward(loss)
        if optimizer is None:
            return
        if scaler:
            if step == 1:
                next(p.grad for p in ddp.parameters() if p.grad is not None and not p.grad.is_sparse).view(-1)[0] = (
                    float("inf")
                )
            scaler.unscale_(optimizer)
        if case.get("create_graph"):
            for p in ddp.parameters():
                p.grad = None if p.grad is None else p.grad.detach().clone()
        if case.get("clip"):
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        gradients = [weakref.ref(p.grad) for p in ddp.parameters() if p.grad is not None]
        optimizer.zero_grad(set_to_none=none)
        alive.append(sum(g() is not None for g in gradients))

    def lbfgs_step(step):
        x, y = batch(generator)

        def closure():
            optimizer.zero_grad(set_to_none=none)
            loss = loss_of(x, y, step)
            backward(loss)
            return loss

        optimizer.step(closure)

    steps = case.get("steps", 5)
    alive = []
    if case.get("late_attach"):
        one_step(0)
        watch.late(ddp)
    if case.get("join") is not None:
        with ddp.join(divide_by_initial_world_size=case["join"] == "initial"):
            for step in range(steps + 2 * rank):
                one_step(step)
        one_step(steps)
    else:
        for step in range(steps):
            lbfgs_step(step) if case.get("optimizer") == "lbfgs" else one_step(step)
            if case.get("hook_when") == f"step {step}":
                hook_of(case.get("hook"), ddp)
    if case.get("copy"):
        torch.save(ddp.state_dict(), io.BytesIO())
        copy.deepcopy(ddp.module)
    if case.get("second_hook"):
        hook_of("allreduce", ddp)
        hook_of("allreduce", ddp)
    if case.get("optimizer") == "zero":
        optimizer.consolidate_state_dict(0)
    state = {} if optimizer is None or (case.get("optimizer") == "zero" and rank) else optimizer.state_dict()
    return {
        "parameters": {n: digest(p) for n, p in ddp.module.named_parameters()},
        "gradients": {n: None if p.grad is None else digest(p.grad) for n, p in ddp.module.named_parameters()},
        "buffers": {n: digest(b) for n, b in ddp.module.named_buffers()},
        "optimizer": digest(state),
        "gradients alive after zero_grad": alive,
        "scaler": scaler.get_scale() if scaler else None,
        "collectives": collectives() - began,
        "random": digest([torch.get_rng_state(), generator.get_state()]),
        "graphs": None if not case.get("compile") else dict(torch._dynamo.utils.counters["stats"]),
        "breaks": None if not case.get("compile") else dict(torch._dynamo.utils.counters["graph_break"]),
    }


def train_pair(case, watch):
    """Two modules of a GAN in one job: one accumulates, the other does not, in the same backward."""
    torch.manual_seed(3)
    maker, judge = wrap(case, nn.Linear(9, 9)), wrap(case, Block("plain"))
    watch(maker)
    watch(judge)
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (maker, judge)]
    for step in range(5):
        x, y = batch(generator)
        with judge.no_sync() if step % 2 else contextlib.nullcontext():
            (judge(maker(x), step) - y).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=case.get("set_to_none", True))
    return {f"{i}.{n}": digest(p) for i, m in enumerate((maker, judge)) for n, p in m.named_parameters()}


class Plain:
    """Watches nothing."""

    def __call__(self, ddp):
        pass

    def late(self, ddp):
        pass


def watcher(kind):
    if kind == "none":
        return Plain()
    import by_hand

    return by_hand.WATCHERS[kind]()


parser = argparse.ArgumentParser()
parser.add_argument("cases", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--watch", default="none")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
PAIRS = []
if dist.get_world_size() > 2:
    PAIRS = [dist.new_group([0, 1]), dist.new_group(list(range(2, dist.get_world_size())))]
watch = watcher(args.watch)
results = {}
for name, case in json.loads(args.cases.read_text()).items():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        results[name] = train_pair(case, watch) if case.get("pair") else train(case, watch)
    except Exception as error:
        results[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{dist.get_rank()}.json").write_text(json.dumps(results, indent=1))
    dist.barrier()
if args.watch != "none":
    import by_hand

    said = {"seen": getattr(watch, "seen", 1), "faults": by_hand.FAULTS}
    (args.out / f"{dist.get_rank()}.watch.json").write_text(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
