"""Written for NCCL and CUDA alone, with every call that `--cpu` redirects. Says at the end that it came through."""

import io
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["LOCAL_RANK"])
if not torch.cuda.is_available():
    sys.exit("this script needs CUDA")
assert rank < torch.cuda.device_count()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group(backend="nccl", device_id=device)
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.backends.cudnn.benchmark = True
assert torch.cuda.current_device() == rank

model = nn.Sequential(nn.Linear(10, 20, device="cuda"), nn.ReLU(), nn.Linear(20, 5)).cuda().to("cuda:0").to(device)
model = model.to(rank)
ddp_model = DDP(model, device_ids=[rank], output_device=rank)
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
old_scaler = torch.cuda.amp.GradScaler(enabled=False)
generator = torch.Generator(device="cuda").manual_seed(rank)
assert isinstance(generator, torch.Generator)

torch.manual_seed(1 + rank)  # each rank its own data
data = TensorDataset(torch.randn(8, 10), torch.randn(8, 5))
loader = DataLoader(data, batch_size=4, pin_memory=True, pin_memory_device="cuda")
stream, event, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for x, y in loader:
    x, y = x.pin_memory().cuda(non_blocking=True), y.to("cuda", non_blocking=True)
    noise = torch.randn(4, 10, device="cuda", generator=generator) + torch.zeros_like(x, device="cuda:0")
    noise = noise + x.new_zeros(4, 10, device=device) + torch.tensor(0.0, device=rank)
    event.record()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(ddp_model(x + 0 * noise).float(), y)
    x.record_stream(stream)
    torch.cuda.current_stream().wait_stream(stream)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    with torch.cuda.amp.autocast():
        ddp_model.module(x)
    end.record()
    end.synchronize()
    assert event.elapsed_time(end) >= 0.0
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() > 0
assert torch.cuda.memory_allocated(device) > 0
assert torch.cuda.get_device_properties(0).total_memory > 0
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
with torch.cuda.device(rank):
    inside = torch.ones(2, device="cuda")

file = io.BytesIO()
torch.save(ddp_model.state_dict(), file)
for where in ("cuda:0", {"cuda:0": f"cuda:{rank}"}, torch.device("cuda", rank), None):
    file.seek(0)
    torch.load(file, map_location=where)
found = []
thread = threading.Thread(target=lambda: found.append(torch.zeros(1, device="cuda").cuda()))
thread.start()
thread.join()
assert len(found) == 1
assert not inside.is_cuda
assert inside.device.type == "cpu"
torch.cuda.FloatTensor([1.0]).type("torch.cuda.DoubleTensor")
states = torch.cuda.get_rng_state_all()
torch.cuda.set_rng_state_all(states)
torch.cuda.nvtx.range_push("x")
torch.cuda.nvtx.range_pop()
pair = dist.new_group(list(range(dist.get_world_size())), backend="nccl")
total = torch.ones(1).cuda()
dist.all_reduce(total, group=pair)
assert total.item() == dist.get_world_size()
dist.barrier(device_ids=[rank])
if rank == 0:
    print("came through on", dist.get_backend())
dist.destroy_process_group()
