# SPDX-License-Identifier: Apache-2.0
"""bench/parallel.cpp with PyTorch: parallel.py tensor|pipeline MODEL.

tensor: parallelize_module, and loss_parallel for the loss. pipeline: torch.distributed.pipelining's Schedule1F1B. Both with
the fused AdamW."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import Block, draw_weights
from serve import answer, seconds_per_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

kind, model = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
HEADS, LENGTH, MICRO_BATCHES = 4, 128, 8


class SplitBlock(Block):
    """The rows of qkv are grouped by heads, so that a part of them consists of whole heads."""

    def attention(self, qkv):
        batch, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = qkv.view(batch, length, HEADS // ranks, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)

    def group_by_heads(self):
        rows, width = self.qkv.weight.shape
        by_head = self.qkv.weight.view(3, HEADS, rows // 3 // HEADS, width).transpose(0, 1).reshape(rows, width)
        self.qkv.weight.copy_(by_head.clone())  # the bias is zero


class SplitTransformer(nn.Module):
    def __init__(self, layers, width, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(SplitBlock(width, HEADS) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def tensor_parallel_step(layers, width, vocabulary, sequences):
    text = torch.randint(vocabulary, (sequences, LENGTH + 1))
    x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    net = SplitTransformer(layers, width, vocabulary)
    draw_weights(net, 0.02)
    plan = {"token": RowwiseParallel(input_layouts=Replicate()),
            "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    with torch.no_grad():
        for i, block in enumerate(net.blocks):
            block.group_by_heads()
            plan |= {f"blocks.{i}.qkv": ColwiseParallel(), f"blocks.{i}.projection": RowwiseParallel(),
                     f"blocks.{i}.wide": ColwiseParallel(), f"blocks.{i}.narrow": RowwiseParallel()}
    parallelize_module(net, init_device_mesh("cpu", (ranks,)), plan)
    net.output.weight = net.token.weight
    # A parameter group of the fused optimizer must contain either DTensors or plain tensors.
    split = [parameter for parameter in net.parameters() if isinstance(parameter, DTensor)]
    whole = [parameter for parameter in net.parameters() if not isinstance(parameter, DTensor)]
    optimizer = torch.optim.AdamW([{"params": split}, {"params": whole}], lr=1e-5, fused=True)

    def step():
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda loss: loss.full_tensor().item()


def mlp():
    x, y = torch.randn(64, 512), torch.randn(64, 512)
    return x, y, nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU()))), (2 / 512) ** 0.5


def blocks():
    x, y = torch.randn(8, LENGTH, 256), torch.randn(8, LENGTH, 256)
    return x, y, nn.Sequential(*(Block(256, HEADS) for _ in range(8))), 0.02


def pipeline_step(make):
    x, y, net, deviation = make()
    draw_weights(net, deviation)
    half = len(net) // 2
    own = net[:half] if rank == 0 else net[half:]
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-5, fused=True)
    schedule = Schedule1F1B(PipelineStage(own, rank, ranks, torch.device("cpu")), MICRO_BATCHES, loss_fn=F.mse_loss)

    def step():
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        return losses

    def mean_loss(losses):
        result = torch.stack(losses).mean().double() if losses else torch.zeros((), dtype=torch.float64)
        dist.all_reduce(result)
        return result.item()

    return step, mean_loss


torch.manual_seed(100)  # the same batch on all ranks
step, loss_of = {
    "tensor transformer-128": lambda: tensor_parallel_step(4, 128, 256, 8),
    "tensor transformer-384": lambda: tensor_parallel_step(8, 384, 1000, 2),
    "pipeline mlp": lambda: pipeline_step(mlp),
    "pipeline blocks": lambda: pipeline_step(blocks),
}[f"{kind} {model}"]()
first_losses = [loss_of(step()) for _ in range(3)]
cases = {f"loss-{i + 1}": lambda _, loss=loss: loss for i, loss in enumerate(first_losses)}
cases["step"] = lambda iterations: seconds_per_step(iterations, step)
how = "parallelize_module, loss_parallel" if kind == "tensor" else f"Schedule1F1B, {MICRO_BATCHES} micro-batches"
answer(f"{kind} {model}, torch {torch.__version__}, {dist.get_backend()} on {ranks} rank(s), {torch.get_num_threads()} thread(s), "
       f"AdamW(fused=True), {how}", cases)
dist.destroy_process_group()
