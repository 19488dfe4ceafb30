# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate's save_state and load_state, and three ways to load weights in Python."""
import logging
import os
import shutil
from pathlib import Path

import accelerate
import torch
from safetensors.torch import load_file
from serve import serve

folder = Path(os.environ["ACCELERATE_BENCH_DATA"]) / "peer"
accelerator = accelerate.Accelerator(cpu=True)
logging.disable(logging.WARNING)


def hundred_million():
    return torch.nn.Sequential(*[torch.nn.Linear(2000, 2000, bias=False) for _ in range(25)])


net = hundred_million()
model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
accelerator.backward(model(torch.randn(8, 2000)).square().mean())
optimizer.step()
optimizer.zero_grad()
accelerator.save_state(folder / "whole")
weights = hundred_million()
torch.save(weights.state_dict(), folder / "weights.bin")
accelerator.save_model(weights, folder, max_shard_size="1GB")


def save():
    accelerator.save_state(folder / "saved")


def save_durable():
    save()
    for path in [*(folder / "saved").iterdir(), folder / "saved", folder]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
      {"save": save, "save-durable": save_durable,
       "load": lambda: accelerator.load_state(folder / "whole"),
       "torch.load": lambda: weights.load_state_dict(torch.load(folder / "weights.bin", weights_only=True)),
       "torch.load-mmap": lambda: weights.load_state_dict(torch.load(folder / "weights.bin", weights_only=True, mmap=True)),
       "safetensors": lambda: weights.load_state_dict(load_file(folder / "model.safetensors"))})
shutil.rmtree(folder, ignore_errors=True)
