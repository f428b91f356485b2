"""Two models, each wrapped on its own: the critic's turn all-reduces the critic, the generator's the generator."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=6, help="optimizer steps of each model")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 6))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))


torch.manual_seed(0)  # the same start on every rank
generator, critic = DDP(Generator().to(device)), DDP(Critic().to(device))
generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.05)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

for _ in range(args.steps):
    real, noise = torch.randn(8, 6, device=device), torch.randn(8, 4, device=device)
    with torch.no_grad():
        fake = generator(noise)
    scores = critic(torch.cat([real, fake]))
    (scores[8:].mean() - scores[:8].mean()).backward()
    critic_optimizer.step()

    with critic.no_sync():  # the critic only passes the gradient on; its own is thrown away
        (-critic(generator(noise)).mean()).backward()
    generator_optimizer.step()
    generator_optimizer.zero_grad()
    critic_optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
