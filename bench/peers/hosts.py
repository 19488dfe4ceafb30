# SPDX-License-Identifier: Apache-2.0
"""bench/hosts.cpp with Hugging Face Accelerate and torch DistributedDataParallel."""
import accelerate
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from nets import mlp
from serve import serve

BATCHES, CLASSES = (32, 512), 250
POWER_SGD = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}
accelerator = accelerate.Accelerator(cpu=True)


def cases_of(name, **how):
    """how: options of DistributedDataParallel; if None, the step runs without communication"""
    torch.manual_seed(1)
    net = mlp(*[1024] * 7, CLASSES)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    if how:
        accelerator.ddp_handler = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True, **how)
        net, optimizer = accelerator.prepare(net, optimizer)

    def step_with(batch):
        x = torch.randn(batch, 1024)
        y = torch.randint(CLASSES, (batch,))

        def step():
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss) if how else loss.backward()
            optimizer.step()

        return step

    return {f"{batch}-{name}": step_with(batch) for batch in BATCHES}


serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {dist.get_backend()} on {accelerator.num_processes} "
      f"rank(s), {torch.get_num_threads()} thread(s), AdamW(fused=True), gradient_as_bucket_view, static_graph",
      cases_of("compute") | cases_of("25MB", bucket_cap_mb=25) | cases_of("4MB", bucket_cap_mb=4)
      | cases_of("fp16", comm_hook=DDPCommunicationHookType.FP16)
      # One bucket, because with several PyTorch's PowerSGD starts collectives in an order that differs between ranks, and gloo
    # then fails.
      | cases_of("powersgd", bucket_cap_mb=100, comm_hook=DDPCommunicationHookType.POWER_SGD, comm_state_option=POWER_SGD))
dist.destroy_process_group()
