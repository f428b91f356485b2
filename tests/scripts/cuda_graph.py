"""Captures a CUDA graph: nothing on a CPU stands for that."""

import torch

x = torch.ones(3, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
