# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate on one rank with the smallest network and its fastest settings. The settings apply to the whole
process, so each side is a process: step_overhead.py [--mixed_precision bf16] [--gradient_accumulation_steps 4]."""
import argparse

import accelerate
import torch
import torch.nn.functional as F
from nets import mlp
from serve import serve

parser = argparse.ArgumentParser()
parser.add_argument("--mixed_precision", default="no")
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
options = parser.parse_args()
accelerator = accelerate.Accelerator(**vars(options))
torch.manual_seed(1)
x = torch.randn(8, 16).to(accelerator.device)
y = torch.randint(10, (8,)).to(accelerator.device)


def step_of(sizes, optimizer, lr, prepared=True):
    net = mlp(*sizes).to(accelerator.device)
    optimizer = optimizer(net.parameters(), lr=lr, fused=True)
    if prepared:
        net, optimizer = accelerator.prepare(net, optimizer)

    def step():  # zeroed last, because within a window Accelerate otherwise drops micro-batches
        loss = F.cross_entropy(net(x), y)
        accelerator.backward(loss) if prepared else loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def window():
        for _ in range(options.gradient_accumulation_steps):
            with accelerator.accumulate(net):
                step()

    return step if options.gradient_accumulation_steps == 1 else window


tiny, deep = (16, 16, 10), [16] * 51
serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
      f"SGD and Adam with fused=True, {vars(options)}, {accelerator.device}",
      {"step": step_of(tiny, torch.optim.SGD, 0.01),
       "eager": step_of(tiny, torch.optim.SGD, 0.01, prepared=False),
       "adam-100": step_of(deep, torch.optim.Adam, 1e-3)})
