# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo, the CPU backend in the wheel of PyTorch."""
import torch
import torch.distributed as dist
from serve import serve

dist.init_process_group("gloo")


def all_reduce_of(size):
    tensor = torch.zeros(size // 4)
    return lambda: dist.all_reduce(tensor)


cases = {name: all_reduce_of(size) for name, size in {"1KB": 1 << 10, "1MB": 1 << 20, "25MB": 25 << 20}.items()}
serve(f"torch.distributed {torch.__version__}, {dist.get_backend()} on {dist.get_world_size()} ranks, "
      f"{torch.get_num_threads()} thread(s)", cases)
dist.destroy_process_group()
