# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate with torch DistributedDataParallel, started by torchrun: gradients as views of the buckets, no
search for unused parameters, fused optimizers. Without torchrun it is one rank without DistributedDataParallel."""
import accelerate
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import DistributedDataParallelKwargs
from nets import BasicNet, Transformer, mlp
from serve import serve

ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
accelerator = accelerate.Accelerator(kwargs_handlers=[ddp])
torch.manual_seed(1)


def training_step(net, x, y, loss, optimizer=torch.optim.AdamW):
    model, optimizer = accelerator.prepare(net, optimizer(net.parameters(), lr=1e-3, fused=True))
    x, y = x.to(accelerator.device), y.to(accelerator.device)

    def step():
        optimizer.zero_grad()
        accelerator.backward(loss(model(x), y))
        optimizer.step()

    return step


def cross_entropy_of_tokens(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def basic_net_step(batch):
    return training_step(BasicNet(), torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,)), F.nll_loss)


tokens = torch.randint(256, (8, 129))
cases = {
    "mlp": training_step(mlp(784, *[128] * 8, 10), torch.randn(64, 784), torch.randint(10, (64,)), F.cross_entropy),
    "tiny-mlp": training_step(mlp(16, 16, 10), torch.randn(8, 16), torch.randint(10, (8,)), F.cross_entropy, torch.optim.SGD),
    "transformer": training_step(Transformer(), tokens[:, :-1], tokens[:, 1:], cross_entropy_of_tokens),
    "basic-net": basic_net_step(64),
    "basic-net-32": basic_net_step(32),
}
several = accelerator.num_processes > 1
serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {dist.get_backend() if several else 'no group'} on "
      f"{accelerator.num_processes} rank(s), {torch.get_num_threads()} thread(s), fused optimizers, "
      f"gradient_as_bucket_view, static_graph, {accelerator.device}", cases)
if several:
    dist.destroy_process_group()
