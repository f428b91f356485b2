"""Right training loops that a naive rule would flag, one after another in one job: no error and no warning is right.

Plain torch; every loop has a module class of its own, so that a false alarm names it.
"""

import copy
from contextlib import nullcontext

import more_right
import torch
import torch.distributed as dist
from common import batch, loss_of, net, rank, sgd, world
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers, utils
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

everyone = dist.new_group()


def gan_quiet_critic():
    gen, critic = DDP(net("GenA", out=6)), DDP(net("CriticA", out=1))
    g_opt, c_opt = sgd(gen), sgd(critic)
    for _ in range(4):
        c_opt.zero_grad()
        with torch.no_grad():
            fake = gen(batch())
        both = critic(torch.cat([batch(), fake]))
        (both[4:].mean() - both[:4].mean()).backward()
        c_opt.step()
        c_opt.zero_grad()
        g_opt.zero_grad()
        with critic.no_sync():
            g_loss = -critic(gen(batch())).mean()
            g_loss.backward()
        g_opt.step()


def gan_through_module():
    gen, critic = DDP(net("GenB", out=6)), DDP(net("CriticB", out=1))
    g_opt, c_opt = sgd(gen), sgd(critic)
    for _ in range(4):
        both = critic(torch.cat([batch(), gen(batch()).detach()]))
        c_opt.zero_grad()
        (both[4:].mean() - both[:4].mean()).backward()
        c_opt.step()
        c_opt.zero_grad()
        (-critic.module(gen(batch())).mean()).backward()
        g_opt.step()
        g_opt.zero_grad()


def attack():
    model = DDP(net("Attack"))
    opt = sgd(model)
    for _ in range(4):
        x = batch().requires_grad_(True)
        with model.no_sync():
            loss_of(model, x).backward()
        opt.zero_grad()
        loss_of(model, (x + 0.1 * x.grad.sign()).detach()).backward()
        opt.step()
        opt.zero_grad()


def sharpness_aware():
    model = DDP(net("Sam"))
    opt = sgd(model)
    for _ in range(4):
        x = batch()
        with model.no_sync():
            loss_of(model, x).backward()
        moves = [0.01 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
        with torch.no_grad():
            for p, e in zip(model.parameters(), moves, strict=True):
                p.add_(e)
        opt.zero_grad()
        second = loss_of(model, x)
        second.backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moves, strict=True):
                p.sub_(e)
        # the moves differ by rank, so equal parameters come back only up to rounding: take rank 0's
        for p in model.parameters():
            dist.broadcast(p.data, 0)
        opt.step()
        opt.zero_grad()


def scaler():
    model = DDP(net("Scaled"))
    opt = sgd(model)
    scale = torch.amp.GradScaler("cpu", growth_interval=1000)
    for i in range(6):
        opt.zero_grad()
        scale.scale(loss_of(model) * (1e36 if i < 2 else 1)).backward()
        scale.step(opt)
        scale.update()


def closure():
    model = DDP(net("Closure"))
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for _ in range(3):
        x = batch()

        def again(x=x):
            opt.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            return shown / world

        opt.step(again)


def local_sgd():
    model = DDP(net("LocalSgd"))
    opt = sgd(model)
    for i in range(6):
        with model.no_sync():
            loss_of(model).backward()
        opt.step()
        opt.zero_grad()
        if i % 3 == 2:
            utils.average_parameters(iter(model.module.parameters()), everyone)


def post_local_sgd():
    model = DDP(net("PostLocal"))
    opt = PostLocalSGDOptimizer(sgd(model), averagers.PeriodicModelAverager(period=2, warmup_steps=0))
    for _ in range(5):
        with model.no_sync():
            loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def by_hand_elsewhere():
    model = DDP(net("ByHand"))
    opt = sgd(model)
    for _ in range(3):
        with model.no_sync():
            for _ in range(2):
                loss_of(model).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=everyone)
            p.grad /= world
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        opt.step()
        opt.zero_grad()


def bypassed_by_hand():
    model = DDP(net("BypassByHand"))
    opt = sgd(model)
    for _ in range(3):
        loss_of(model.module).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()


def grad_by_hand():
    model = DDP(net("GradByHand"))
    opt, weights = sgd(model), list(model.parameters())
    for _ in range(3):
        for w, g in zip(weights, torch.autograd.grad(loss_of(model), weights), strict=True):
            dist.all_reduce(g)
            w.grad = g / world
        opt.step()


def norm_reader():
    model = DDP(net("NormReader"))
    opt = sgd(model)
    for i in range(6):
        closing = i % 3 == 2
        with nullcontext() if closing else model.no_sync():
            loss_of(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        if closing:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            opt.step()
            opt.zero_grad()


def warm_up_and_probe():
    model = DDP(net("WarmUp"))
    opt = sgd(model)
    opt.step()  # silences a scheduler's warning
    loss_of(model).backward()
    opt.zero_grad(set_to_none=False)
    opt.step()  # all gradients are zero
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
        with torch.no_grad():
            loss_of(model)
    with model.no_sync():
        (loss_of(model) * 2).backward()  # a look at the gradients at the end, no step


def guarded():
    model = DDP(net("Guarded"))
    opt = sgd(model)
    for i in range(4):
        x = batch()
        if i == 1 and rank == 0:
            x[0, 0] = float("inf")
        loss_of(model, x).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            opt.step()
        opt.zero_grad()


def penalty():
    critic = DDP(net("Penalty", out=1))
    opt = sgd(critic)
    for _ in range(3):
        x = batch().requires_grad_(True)
        y = critic(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + (g.norm(dim=1) - 1).square().mean()).backward()
        opt.step()
        opt.zero_grad()


def hooks():
    for name, state, hook in (
        ("Fp16", None, default_hooks.fp16_compress_hook),
        ("Power", powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
        ("Noop", None, debugging_hooks.noop_hook),
    ):
        model = DDP(net(name))
        model.register_comm_hook(state, hook)
        opt = sgd(model)
        for _ in range(5):
            loss_of(model).backward()
            if name == "Noop":
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
            opt.step()
            opt.zero_grad()


def buffers():
    torch.manual_seed(0)
    kind = type("Buffers", (nn.Sequential,), {})
    model = DDP(kind(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    opt = sgd(model)
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def uneven_windows():
    """Windows by tokens: another number of micro-steps on each rank, closed together."""
    model = DDP(net("Tokens"))
    opt = sgd(model)
    for w in range(4):
        for _ in range(1 + (w + rank) % 3):
            with model.no_sync():
                loss_of(model).backward()
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def growing():
    model = DDP(net("Growing"))
    opt = sgd(model)
    for size in (1, 2, 2, 4, 4):
        for i in range(size):
            with nullcontext() if i == size - 1 else model.no_sync():
                loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def tail_in_last_window():
    model = DDP(net("LastTakesRest"))
    opt = sgd(model)
    for _ in range(2):
        for size in (3, 3, 4):
            for i in range(size):
                with nullcontext() if i == size - 1 else model.no_sync():
                    loss_of(model).backward()
            opt.step()
            opt.zero_grad()


def one_backward_of_two():
    model = DDP(net("Summed"))
    opt = sgd(model)
    for _ in range(3):
        (loss_of(model) + loss_of(model)).backward()
        opt.step()
        opt.zero_grad()


def zero_optimizer():
    model = DDP(net("Zero"))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def two_optimizers():
    model = DDP(net("TwoOpts"))
    a = torch.optim.SGD(model.module[0].parameters(), lr=0.1)
    b = torch.optim.Adam(model.module[2].parameters(), lr=0.01)
    shadow = copy.deepcopy(model.module)
    for _ in range(3):
        loss_of(model).backward()
        a.step()
        b.step()
        a.zero_grad()
        b.zero_grad()
        with torch.no_grad():
            for s, p in zip(shadow.parameters(), model.module.parameters(), strict=True):
                s.lerp_(p, 0.1)


def by_flag():
    model = DDP(net("Flag"), gradient_as_bucket_view=True)
    opt = sgd(model)
    for i in range(6):
        model.require_backward_grad_sync = i % 2 == 1
        loss_of(model).backward()
        if i % 2:
            opt.step()
            opt.zero_grad()


def branches():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(6, 2), nn.Linear(6, 2)
            self.frozen = nn.Linear(6, 2).requires_grad_(False)

        def forward(self, x, left):
            return self.left(x) if left else self.right(x) + self.frozen(x)

    torch.manual_seed(0)
    model = DDP(Branches(), find_unused_parameters=True)
    opt = sgd(model)
    for i in range(4):
        model(batch(), (i + rank) % 2 == 0).square().mean().backward()
        opt.step()
        opt.zero_grad()


def alone():
    groups = [dist.new_group([k]) for k in range(world)]
    model = DDP(net("Alone"), process_group=groups[rank])
    opt = sgd(model)
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def joined():
    model = DDP(net("Joined"))
    opt = sgd(model)
    with model.join():
        for _ in range(3 + 2 * rank):
            opt.zero_grad()
            loss_of(model).backward()
            opt.step()


LOOPS = [f for name, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == "__main__"]
for loop in [*LOOPS, *more_right.LOOPS]:
    loop()
dist.barrier()
dist.destroy_process_group()
