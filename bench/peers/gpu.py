# SPDX-License-Identifier: Apache-2.0
"""bench/gpu.cpp with Hugging Face Accelerate or Lightning Fabric: gpu.py accelerate | fabric."""
import os
import sys

import torch
import torch.nn.functional as F
import torchvision
from nets import BasicNet, Transformer
from serve import serve


class WithAccelerate:
    def __init__(self):
        import accelerate
        from accelerate.utils import DistributedDataParallelKwargs

        ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
        self.accelerator = accelerate.Accelerator(kwargs_handlers=[ddp])
        self.device, self.name = self.accelerator.device, f"accelerate {accelerate.__version__}"

    def prepare(self, net, optimizer, bf16):
        net, optimizer = self.accelerator.prepare(net, optimizer)
        autocast = torch.autocast("cuda", torch.bfloat16, enabled=bf16)  # one process has one mixed_precision, but the models need two
        return net, optimizer, self.accelerator.backward, autocast


class WithFabric:
    def __init__(self):
        import lightning
        from lightning.fabric.strategies import DDPStrategy

        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        strategy = DDPStrategy(gradient_as_bucket_view=True, static_graph=True) if ranks > 1 else "auto"
        self.fabric = lightning.Fabric(accelerator="cuda", devices=ranks, strategy=strategy)
        self.fabric.launch()
        self.device, self.name = self.fabric.device, f"lightning {lightning.__version__}"

    def prepare(self, net, optimizer, bf16):
        net, optimizer = self.fabric.setup(net, optimizer)
        return net, optimizer, self.fabric.backward, torch.autocast("cuda", torch.bfloat16, enabled=bf16)


framework = {"accelerate": WithAccelerate, "fabric": WithFabric}[sys.argv[1]]()
torch.manual_seed(1)


def training_step(net, x, loss, bf16=False):
    net = net.to(framework.device)
    net, optimizer, backward, autocast = framework.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True), bf16)
    x = x.to(framework.device)

    def forward(part):  # as in both frameworks: the model runs within autocast and returns float32
        with autocast:
            return net(part).float()

    def step():
        optimizer.zero_grad()
        backward(loss(forward, x))
        optimizer.step()

    return step


def of_tokens(net, tokens):
    return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


classes, digits = (torch.randint(n, (64,)).to(framework.device) for n in (1000, 10))
serve(f"{framework.name}, torch {torch.__version__}, AdamW(fused=True), {framework.device}", {
    "gpt2": training_step(Transformer(50257, 1024, 12, 12, 768), torch.randint(50257, (8, 1025)), of_tokens, bf16=True),
    "resnet18": training_step(torchvision.models.resnet18(), torch.randn(64, 3, 224, 224), lambda net, x: F.cross_entropy(net(x), classes)),
    "cnn": training_step(BasicNet(), torch.randn(64, 1, 28, 28), lambda net, x: F.nll_loss(net(x), digits))})
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
