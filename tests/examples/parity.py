# SPDX-License-Identifier: Apache-2.0
"""BasicNet in PyTorch and in probe.cpp from the same weights on the same batches: the losses must agree.

parity.py DATA_DIR DTYPE STEPS BATCH TOLERANCE COMMAND...   (COMMAND runs probe; its arguments are added here)

DTYPE is float64 or float32, or bf16 or fp16: float32 with mixed precision. bf16 is held against Hugging Face Accelerate's;
its fp16 computes in float32 on the CPU, so fp16 is held against PyTorch's autocast and GradScaler.
ACCELERATE_TEST_DEVICE=cuda: both on a GPU.
"""
import gzip
import os
import subprocess
import sys
import tempfile

import numpy
import torch
from torch import nn

DEVICE = os.environ.get("ACCELERATE_TEST_DEVICE", "cpu")


class BasicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = torch.max_pool2d(x, 2).flatten(1)
        return torch.log_softmax(self.fc2(torch.relu(self.fc1(x))), 1)


def digits(folder, count):
    with gzip.open(f"{folder}/train-images-idx3-ubyte.gz") as f:
        images = numpy.frombuffer(f.read(16 + 784 * count)[16:], dtype=numpy.uint8).reshape(count, 1, 28, 28)
    with gzip.open(f"{folder}/train-labels-idx1-ubyte.gz") as f:
        labels = numpy.frombuffer(f.read(8 + count)[8:], dtype=numpy.uint8)
    return (torch.tensor(images, dtype=torch.float64) / 255 - 0.1307) / 0.3081, torch.tensor(labels, dtype=torch.int64)


def mixed(dtype_name, net, optimizer):
    """Returns forward(images), backward(loss), step() for that precision."""
    if dtype_name == "bf16":
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=DEVICE == "cpu", mixed_precision="bf16")
        model, prepared = accelerator.prepare(net, optimizer)
        return model, accelerator.backward, prepared.step
    if dtype_name == "fp16":
        scaler = torch.amp.GradScaler(DEVICE)

        def forward(images):
            with torch.autocast(DEVICE, torch.float16):
                return net(images).float()

        def step():
            scaler.step(optimizer)
            scaler.update()

        return forward, lambda loss: scaler.scale(loss).backward(), step
    return net, lambda loss: loss.backward(), optimizer.step


def main():
    folder, dtype_name, steps, batch, tolerance, command = *sys.argv[1:6], sys.argv[6:]
    steps, batch, tolerance = int(steps), int(batch), float(tolerance)
    dtype = torch.float32 if dtype_name in ("bf16", "fp16") else getattr(torch, dtype_name)
    torch.set_num_threads(1)
    torch.manual_seed(42)
    net = BasicNet().to(dtype)
    images, labels = digits(folder, steps * batch)
    with tempfile.NamedTemporaryFile() as file:
        for part in [*net.parameters(), images, labels]:
            file.write(part.detach().to(torch.float64).contiguous().numpy().tobytes())
        file.flush()
        printed = subprocess.run([*command, "train", file.name, dtype_name, str(steps), str(batch)], check=True, timeout=300,
                                 stdout=subprocess.PIPE, text=True).stdout
    ours = [float(line) for line in printed.split()]
    assert len(ours) == steps, f"{len(ours)} losses from {command}, {steps} expected"

    net.to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    forward, backward, make_step = mixed(dtype_name, net, optimizer)
    images = images.to(DEVICE, dtype).reshape(steps, batch, 1, 28, 28)
    labels = labels.to(DEVICE).reshape(steps, batch)
    worst = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(forward(images[step]), labels[step])
        backward(loss)
        make_step()
        worst = max(worst, abs(ours[step] - loss.item()) / abs(loss.item()))
    print(f"{steps} steps {dtype_name}: largest relative difference of the losses {worst:.3g}, allowed {tolerance:.3g}; "
          f"last losses {ours[-1]:.10g} and {loss.item():.10g}")
    sys.exit(0 if worst <= tolerance else 1)


main()
