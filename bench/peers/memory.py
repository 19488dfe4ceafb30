# SPDX-License-Identifier: Apache-2.0
"""bench/memory.cpp with Hugging Face Accelerate. Gradients as views of the buckets and the fused AdamW need the least
memory."""
import accelerate
import torch
import torch.distributed as dist
from accelerate.utils import DistributedDataParallelKwargs
from serve import answer


def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) * 1024


ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[ddp])
torch.manual_seed(1)
before = peak_bytes()
net = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000, bias=False) for _ in range(25)])
model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True))
x = torch.randn(8, 1000)


def peak_of_steps(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
    return peak_bytes()


several = accelerator.num_processes > 1
answer(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {accelerator.num_processes} rank(s), "
       f"{torch.get_num_threads()} thread(s), AdamW(fused=True), gradient_as_bucket_view, static_graph",
       {"peak": peak_of_steps, "added": lambda steps: peak_of_steps(steps) - before})
if several:
    dist.destroy_process_group()
