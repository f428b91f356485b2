"""Every way in which a backward pass stays local or is all-reduced, each with a DDP module of its own.

    kinds.py [NAME ...]

An ordinary script: data differs by rank, and no kind knows that anybody watches.
"""

import math
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.Generator().manual_seed(100 + rank)
KINDS = {}


def kind(function):
    KINDS[function.__name__.replace("_", "-")] = function
    return function


def batch(rows=4):
    return torch.randn(rows, 6, generator=data)


def net(**options):
    torch.manual_seed(1)
    return DDP(nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 9), nn.Tanh(), nn.Linear(9, 3)), **options)


def sgd(*models, lr=0.05):
    return torch.optim.SGD([p for m in models for p in m.parameters()], lr=lr)


def loss_of(model):
    return model(batch()).square().mean()


def accumulate(model, sync, steps=2, micros=3, optimizer=None):
    """`sync(micro)` says which micro-steps are outside no_sync."""
    optimizer = optimizer or sgd(model)
    for _ in range(steps):
        for micro in range(micros):
            with nullcontext() if sync(micro) else model.no_sync():
                loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def never_synced():
    accumulate(net(), lambda micro: False)


@kind
def last_one_syncs():
    accumulate(net(), lambda micro: micro == 2)


@kind
def first_one_syncs():
    accumulate(net(), lambda micro: micro == 0)


@kind
def every_one_syncs_in_small_buckets_that_are_views():
    accumulate(net(bucket_cap_mb=0.0003, gradient_as_bucket_view=True), lambda micro: True)


@kind
def kept_gradients():
    model = net(bucket_cap_mb=0.0003, gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for i in range(6):
        with nullcontext() if i % 2 else model.no_sync():
            loss_of(model).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@kind
def no_sync_around_backward_only():
    model = net()
    optimizer = sgd(model)
    for i in range(4):
        loss = loss_of(model)
        with nullcontext() if i % 2 else model.no_sync():
            loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@kind
def no_sync_around_forward_only():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        with model.no_sync():
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def flag_by_hand():
    model = net()
    optimizer = sgd(model)
    for i in range(4):
        model.require_backward_grad_sync = i % 2 == 1
        loss_of(model).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@kind
def reducer_armed_late():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        with model.no_sync():
            loss = loss_of(model)
        model.require_backward_grad_sync = True
        model.reducer.prepare_for_backward([])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def two_forwards_one_backward():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        (loss_of(model) + loss_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def two_forwards_two_backwards():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        with model.no_sync():
            first = loss_of(model)
        second = loss_of(model)
        first.backward()
        second.backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def two_backwards_of_one_graph():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        loss = loss_of(model)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def forward_for_a_metric():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        model(batch()).mean().item()
        with model.no_sync():
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def wrapper_bypassed():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        loss_of(model.module).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def averaged_by_hand():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        with model.no_sync():
            loss_of(model).backward()
            loss_of(model).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        optimizer.zero_grad()


@kind
def autograd_grad():
    model = net()
    optimizer = sgd(model)
    for _ in range(2):
        grads = torch.autograd.grad(loss_of(model), list(model.parameters()))
        for p, g in zip(model.parameters(), grads, strict=True):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()


@kind
def layer_added_after_wrapping():
    model = net()
    optimizer = sgd(model)
    torch.manual_seed(2)
    model.module.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model.module[-1].parameters())})
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def weights_replaced_after_wrapping():
    model = net()
    model.module.load_state_dict({n: t.clone() for n, t in model.module.state_dict().items()}, assign=True)
    optimizer = sgd(model)
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def compressed():
    model = net(bucket_cap_mb=0.0003)
    model.register_comm_hook(None, fp16_compress_hook)
    accumulate(model, lambda micro: micro == 2)


@kind
def hook_that_sends_nothing():
    model = net()

    def quiet(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, quiet)
    accumulate(model, lambda micro: micro == 2)


@kind
def hook_that_sums():
    model = net()
    model.register_comm_hook(
        None,
        lambda state, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0]),
    )
    accumulate(model, lambda micro: True, micros=1)


@kind
def static_graph():
    accumulate(net(static_graph=True, bucket_cap_mb=0.0003), lambda micro: True, steps=3, micros=2)


@kind
def branches():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.end = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x, left):
            return self.end(self.left(x) if left else self.right(x))

    torch.manual_seed(1)
    model = DDP(Branches(), find_unused_parameters=True)
    optimizer = sgd(model)
    for i in range(4):
        with nullcontext() if i % 2 else model.no_sync():
            model(batch(), i % 4 < 2).square().mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@kind
def checkpointed():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(checkpoint(self.a, x.requires_grad_(), use_reentrant=True))

    torch.manual_seed(1)
    accumulate(DDP(Checkpointed()), lambda micro: micro == 2)


@kind
def sparse_embedding():
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Linear(6, 2)))
    optimizer = sgd(model)
    for _ in range(2):
        model(torch.randint(0, 20, (5,), generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def closure():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x = batch()

    def evaluate():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(evaluate)
    optimizer.step(evaluate)


@kind
def maker_and_judge():
    torch.manual_seed(1)
    maker, judge = DDP(nn.Linear(6, 6)), net()
    optimizers = [sgd(maker), sgd(judge)]
    for i in range(4):
        with nullcontext() if i % 2 else judge.no_sync():
            judge(maker(batch())).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@kind
def not_a_number():
    model = net()
    optimizer = sgd(model)
    for i in range(2):
        loss = loss_of(model)
        (loss * math.nan if i == 1 and rank == world - 1 else loss).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def parameters_averaged_now_and_then():
    model = net()
    optimizer = sgd(model)
    for i in range(4):
        with model.no_sync():
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 2:
            with torch.no_grad():
                for p in model.parameters():
                    dist.all_reduce(p)
                    p /= world


for name in sys.argv[1:] or list(KINDS):
    KINDS[name]()
dist.barrier()
dist.destroy_process_group()
