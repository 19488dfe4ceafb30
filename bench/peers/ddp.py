# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate over torch DistributedDataParallel, started by torchrun: gradients as views of the buckets, no
search for unused parameters, fused AdamW."""
import accelerate
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import DistributedDataParallelKwargs
from nets import BasicNet, mlp
from serve import serve

ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
accelerator = accelerate.Accelerator(kwargs_handlers=[ddp])
torch.manual_seed(1)
y = torch.randint(10, (64,)).to(accelerator.device)


def training_step(net, x, loss):
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True))

    def step():
        optimizer.zero_grad()
        accelerator.backward(loss(model(x), y))
        optimizer.step()

    return step


cases = {
    "mlp": training_step(mlp(784, *[128] * 8, 10), torch.randn(64, 784).to(accelerator.device), F.cross_entropy),
    "basic-net": training_step(BasicNet(), torch.randn(64, 1, 28, 28).to(accelerator.device), F.nll_loss),
}
serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {dist.get_backend()} on "
      f"{accelerator.num_processes} rank(s), {torch.get_num_threads()} thread(s), AdamW(fused=True), "
      f"gradient_as_bucket_view, static_graph, {accelerator.device}", cases)
dist.destroy_process_group()
