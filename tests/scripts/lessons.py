"""Lessons one after the other in one job: `lessons.py FOLDER NAME[:ARGUMENT...] ...`.

Their own init_process_group and destroy_process_group do nothing; one that raises does not end the others.
"""

import runpy
import sys
from pathlib import Path

import torch.distributed as dist

folder, words = Path(sys.argv[1]), sys.argv[2:]
dist.init_process_group("gloo")
destroy = dist.destroy_process_group
dist.init_process_group = dist.destroy_process_group = lambda *args, **kwargs: None
for word in words:
    name, *sys.argv[1:] = word.split(":")
    try:
        runpy.run_path(str(folder / f"{name}.py"))
    except RuntimeError as error:
        print(f"{name}: {error}")
        dist.barrier()
destroy()
