"""Mistakes, one after another in one job; each has a module class of its own. `EXPECTED` in test_real.py says which
findings each has to give, and no others of that severity.

Plain torch; the job goes on to its end, so what kills or hangs a job is elsewhere.
"""

import copy
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import batch, loss_of, net, rank, sgd, world
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def quietly(model, quiet):
    return model.no_sync() if quiet else nullcontext()


def train(model, sync, passes=6, accumulation=3, between=None):
    """The usual loop; `sync(i)` decides, `between(i)` runs between backward and step."""
    opt = sgd(model)
    for i in range(passes):
        with quietly(model, not sync(i)):
            loss_of(model).backward()
        if (i + 1) % accumulation == 0:
            if between:
                between(i)
            opt.step()
            opt.zero_grad()


def stale_by_helper():
    train(DDP(net("Stale")), lambda i: i % 3 == 1)


def never():
    train(DDP(net("Never")), lambda i: False)


def late_by_one_step():
    """The condition lags: only every second step is synchronised."""
    train(DDP(net("EverySecond")), lambda i: i % 6 == 5, passes=12)


def two_backwards_of_one_graph():
    model = DDP(net("Retained"))
    opt = sgd(model)
    for _ in range(2):
        loss = loss_of(model)
        loss.backward(retain_graph=True)
        (loss * 2).backward()
        opt.step()
        opt.zero_grad()


def metric_arms():
    model = DDP(net("Metric"))
    opt = sgd(model)
    for _ in range(2):
        for i in range(2):
            loss_of(model)  # a metric, without no_grad
            with quietly(model, i == 0):
                loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def quiet_hook(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def twice_hook(state, bucket):
    flat = bucket.buffer().div_(world)
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda f: f.value()[0] / world)


def own_hook(state, bucket):
    mine = bucket.buffer().clone()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: mine)


def hooks():
    for name, hook in (("HookQuiet", quiet_hook), ("HookTwice", twice_hook), ("HookOwn", own_hook)):
        model = DDP(net(name))
        model.register_comm_hook(None, hook)
        train(model, lambda i: True, passes=3, accumulation=1)


def unfrozen():
    inner = net("Unfrozen")
    inner[0].requires_grad_(False)
    model = DDP(inner)
    inner[0].requires_grad_(True)
    train(model, lambda i: True, passes=3, accumulation=1)


def outside():
    model = DDP(net("Outside"))
    scale = nn.Parameter(torch.ones(()))
    opt = torch.optim.SGD([*model.parameters(), scale], lr=0.05)
    for _ in range(3):
        (loss_of(model) * scale).backward()
        opt.step()
        opt.zero_grad()


def scaled_by_rank():
    model = DDP(net("ScaledByRank"))

    def scale(i):
        for p in model.parameters():
            p.grad *= 1 + rank

    train(model, lambda i: True, passes=2, accumulation=1, between=scale)


def skips_alone():
    model = DDP(net("SkipsAlone"))
    opt = sgd(model)
    for i in range(4):
        loss_of(model).backward()
        if not (rank == 1 and i == 1):
            opt.step()
        opt.zero_grad()


def edits_in_place():
    model = DDP(net("Edited"))
    opt = sgd(model)
    for i in range(4):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()
        if i == 1 and rank == 1:
            with torch.no_grad():
                model.module[0].weight.add_(0.1)


def clears_in_branches():
    model = DDP(net("ClearsInBranches"))
    opt = sgd(model)
    for i in range(9):
        opt.zero_grad()
        if i % 3 == 2:
            loss_of(model).backward()
            opt.step()
        else:
            with model.no_sync():
                loss_of(model).backward()


def clears_before_step():
    model = DDP(net("ClearsBeforeStep"))
    opt = sgd(model)
    for _ in range(3):
        with model.no_sync():
            loss_of(model).backward()
        opt.zero_grad()
        opt.step()


def left_over():
    train(DDP(net("LeftOver")), lambda i: i % 4 == 3, passes=10, accumulation=4)


def carried():
    model = DDP(net("Carried"))
    opt = sgd(model)
    for _ in range(3):
        for i in range(7):
            with quietly(model, i % 3 != 2):
                loss_of(model).backward()
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()


def clips_values():
    model = DDP(net("ClipsValues"))
    opt = sgd(model)
    for i in range(4):
        with quietly(model, i % 2 == 0):
            loss_of(model).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        if i % 2:
            opt.step()
            opt.zero_grad()


def unused_head():
    class UnusedHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.body(x)

    torch.manual_seed(0)
    train(DDP(UnusedHead(), find_unused_parameters=True), lambda i: True, passes=10, accumulation=1)


def not_a_number():
    model = DDP(net("NotANumber"))
    opt = sgd(model)
    for i in range(3):
        x = batch()
        if i == 1 and rank == 1:
            x[0, 0] = float("nan")
        loss_of(model, x).backward()
        opt.step()
        opt.zero_grad()


def disagrees():
    model = DDP(net("Disagrees"))
    opt = sgd(model)
    for i in range(6):
        with quietly(model, i % 3 != (1 if rank else 2)):
            loss_of(model).backward()
        if i % 3 == 2:
            opt.step()
            opt.zero_grad()


def same_data():
    model = DDP(net("SameData"))
    opt = sgd(model)
    for i in range(3):
        loss_of(model, torch.randn(4, 6, generator=torch.Generator().manual_seed(i))).backward()
        opt.step()
        opt.zero_grad()


def two_losses():
    model = DDP(net("TwoLosses"))
    opt = sgd(model)
    for _ in range(2):
        loss_of(model).backward()
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def late_rank():
    torch.manual_seed(0)
    kind = type("LateRank", (nn.Sequential,), {})
    model = DDP(kind(nn.Linear(6, 2)))
    opt = sgd(model)
    for _ in range(25):
        x = batch()
        if rank == 1:
            time.sleep(0.02)
        loss_of(model, x).backward()
        opt.step()
        opt.zero_grad()


def bypassed():
    model = DDP(net("Bypassed"))
    opt = sgd(model)
    for _ in range(2):
        loss_of(model.module).backward()
        opt.step()
        opt.zero_grad()


def steps_in_hooks():
    """An optimizer for each parameter, stepping in its gradient hook: before DDP has averaged."""
    model = DDP(net("StepsInHooks"))
    opts = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def now(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in opts:
        p.register_post_accumulate_grad_hook(now)
    for _ in range(2):
        loss_of(model).backward()


def averaged_twice():
    def again(i):
        for p in model.parameters():
            dist.all_reduce(p.grad)

    model = DDP(net("AveragedTwice"))
    train(model, lambda i: i % 2, passes=4, accumulation=2, between=again)


def other_momentum():
    model = DDP(net("Momentum"))
    opt = sgd(model, momentum=0.9 if rank else 0.8)
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def scaler_of_one_rank():
    """Gradients are averaged by hand after GradScaler has looked for an Inf on each rank alone."""
    model = DDP(net("ScalerAlone"))
    opt, scale = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(4):
        with model.no_sync():
            scale.scale(loss_of(model) * (1e38 if rank and i == 1 else 1)).backward()
        scale.unscale_(opt)
        for p in model.parameters():
            p.grad.nan_to_num_(0, 0, 0)
            dist.all_reduce(p.grad)
            p.grad /= world
        scale.step(opt)
        scale.update()
        opt.zero_grad()


def state_of_one_rank():
    model = DDP(net("StateOfOne"))
    old = sgd(model, momentum=0.9)
    loss_of(model).backward()
    old.step()
    old.zero_grad()
    opt = sgd(model, momentum=0.9)
    if rank == 0:
        opt.load_state_dict(old.state_dict())
    for _ in range(2):
        loss_of(model).backward()
        opt.step()
        opt.zero_grad()


def optimizer_of_a_copy():
    inner = net("CopyStepped")
    opt = sgd(copy.deepcopy(inner))
    model = DDP(inner)
    for _ in range(3):
        loss_of(model).backward()
        opt.step()
        model.zero_grad()


for loop in (
    stale_by_helper, never, late_by_one_step, two_backwards_of_one_graph, metric_arms, hooks, unfrozen, outside,
    scaled_by_rank, skips_alone, edits_in_place, clears_in_branches, clears_before_step, left_over, carried,
    clips_values,
    unused_head, not_a_number, disagrees, same_data, two_losses, late_rank, bypassed,
    steps_in_hooks, averaged_twice, other_momentum, scaler_of_one_rank, state_of_one_rank,
    optimizer_of_a_copy,
):  # fmt: skip
    loop()
dist.barrier()
dist.destroy_process_group()
