# SPDX-License-Identifier: Apache-2.0
"""bench/sharding.cpp with PyTorch: sharding.py fsdp2|ddp MODEL.

fsdp2: fully_shard of each linear layer or block and of the model, reshard_after_forward. ddp: Hugging Face Accelerate over
torch DistributedDataParallel with gradients as views of the buckets and a static graph. Both with the fused AdamW."""
import sys

import accelerate
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import DistributedDataParallelKwargs
from nets import Block, Transformer, draw_weights
from resident import peak_bytes_of, resident_bytes, resident_bytes_after
from serve import answer, seconds_per_step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

strategy, model = sys.argv[1:]
ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[ddp])
rank, ranks = accelerator.process_index, accelerator.num_processes


def training_step(net, x, y, loss, deviation, units=()):
    """units: types of the modules that are units of fsdp2"""
    draw_weights(net, deviation)
    if strategy == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,))
        for module in [*(m for m in net.modules() if isinstance(m, units)), net]:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    if strategy == "ddp":
        net, optimizer = accelerator.prepare(net, optimizer)

    def step():
        optimizer.zero_grad()
        value = loss(net(x), y)
        accelerator.backward(value) if strategy == "ddp" else value.backward()
        optimizer.step()
        return value.detach()

    return step


def mlp_step(layers, width, batch, relu, units=(torch.nn.Linear,)):
    x, y = torch.randn(batch, width), torch.randn(batch, width)
    modules = []
    for _ in range(layers):
        modules += [torch.nn.Linear(width, width)] + [torch.nn.ReLU()] * relu
    return training_step(torch.nn.Sequential(*modules), x, y, F.mse_loss, ((2 if relu else 1) / width) ** 0.5, units)


def transformer_step(sequences, length):
    tokens = torch.randint(1000, (sequences, length + 1))
    net = Transformer(vocabulary=1000, length=length, layers=8, heads=4, width=384)
    return training_step(net, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(),
                         lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()), 0.02, (Block,))


STEPS = {
    "mlp": lambda: mlp_step(16, 1024, 4, True),
    "tiny": lambda: mlp_step(50, 16, 8, False, ()),
    "tiny-units": lambda: mlp_step(50, 16, 8, False),
    "transformer-256": lambda: transformer_step(2, 128),
    "transformer-4096": lambda: transformer_step(8, 512),
}


def step_of(name):
    torch.manual_seed(100 + rank)
    return STEPS[name]()


def over_ranks(value, op):
    result = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(result, op)
    return result.item()


# A first model loads code and buffers of the process before the baseline is read.
warm_up = step_of("tiny")
for _ in range(3):
    warm_up()
before = resident_bytes()
step = step_of(model)
losses = [over_ranks(step().item(), dist.ReduceOp.SUM) / ranks for _ in range(3)]


def two_steps():
    step()
    step()


cases = {f"loss-{i + 1}": lambda _, loss=loss: loss for i, loss in enumerate(losses)}
cases |= {
    "step": lambda iterations: seconds_per_step(iterations, step),
    "resident": lambda _: over_ranks(resident_bytes_after(two_steps) - before, dist.ReduceOp.MAX),
    "peak": lambda _: over_ranks(peak_bytes_of(two_steps) - before, dist.ReduceOp.MAX),
}
how = "gradient_as_bucket_view, static_graph" if strategy == "ddp" else "reshard_after_forward"
answer(f"{strategy} {model}, accelerate {accelerate.__version__}, torch {torch.__version__}, {dist.get_backend()} on {ranks} "
       f"rank(s), {torch.get_num_threads()} thread(s), AdamW(fused=True), {how}", cases)
dist.destroy_process_group()
