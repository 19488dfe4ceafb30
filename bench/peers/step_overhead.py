# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate, one rank, the smallest network: its fastest settings for that."""
import accelerate
import torch
import torch.nn.functional as F
from nets import mlp
from serve import serve

accelerator = accelerate.Accelerator()
torch.manual_seed(1)
net = mlp(16, 16, 10)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01, fused=True))
x = torch.randn(8, 16).to(accelerator.device)
y = torch.randint(10, (8,)).to(accelerator.device)


deep = mlp(*[16] * 51)
deep_model, deep_optimizer = accelerator.prepare(deep, torch.optim.Adam(deep.parameters(), lr=1e-3, fused=True))


def step_of(model, optimizer):
    def step():
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()

    return step


serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
      f"SGD and Adam with fused=True, {accelerator.device}",
      {"step": step_of(model, optimizer), "adam-100": step_of(deep_model, deep_optimizer)})
