"""A job that takes orders: trains twice the same (held, stepped, paced the first time), then obeys until told to stop.

The module's own group times out after `--timeout` seconds: whoever waits in a collective for a rank that holds fails.
"""

import argparse
import hashlib
import itertools
import random
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--no-sync", choices=("on", "off"), default="on")
parser.add_argument("--stop", type=int, default=0)
parser.add_argument("--timeout", type=float, default=2.0)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
late = random.Random(rank)


def model_and_optimizer():
    torch.manual_seed(0)
    dist.barrier()  # all ranks are here: from now on nobody is late by much
    group = dist.new_group(timeout=timedelta(seconds=args.timeout))
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), process_group=group, bucket_cap_mb=0.0005)
    torch.manual_seed(1 + rank)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def micro(model, optimizer, local, last):
    with model.no_sync() if local else nullcontext():
        model(torch.randn(2, 8)).square().mean().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()


def bits(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:12]


found = []
for _ in range(2):
    model, optimizer = model_and_optimizer()
    for i in range(40):
        micro(model, optimizer, i % 2 == 0, i % 2 == 1)
    found.append(bits(model))
print(f"rank {rank} bits {' '.join(found)}", flush=True)

model, optimizer = model_and_optimizer()
log = []
held = 0
while not args.stop:
    held += 1
    last = held >= args.accumulation
    micro(model, optimizer, not last and args.no_sync == "on", last)
    log.append((args.accumulation, args.no_sync, held))
    held = 0 if last else held
    time.sleep(late.random() * 0.02 if rank == 3 and late.random() < 0.1 else 0.002)
changes = sum(a[:2] != b[:2] for a, b in itertools.pairwise(log))
told = hashlib.sha256(repr(log).encode()).hexdigest()[:12]
print(f"rank {rank} micro-steps {len(log)} changes {changes} log {told} bits {bits(model)}", flush=True)
dist.barrier()
dist.destroy_process_group()
