# SPDX-License-Identifier: Apache-2.0
"""BasicNet in PyTorch and in probe.cpp from the same weights on the same batches: the losses must agree.

parity.py DATA_DIR DTYPE STEPS BATCH TOLERANCE COMMAND...   (COMMAND runs probe; its arguments are added here)
"""
import gzip
import subprocess
import sys
import tempfile

import numpy
import torch
from torch import nn


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


def main():
    folder, dtype_name, steps, batch, tolerance, command = *sys.argv[1:6], sys.argv[6:]
    steps, batch, tolerance = int(steps), int(batch), float(tolerance)
    dtype = getattr(torch, dtype_name)
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

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    images = images.to(dtype).reshape(steps, batch, 1, 28, 28)
    labels = labels.reshape(steps, batch)
    worst = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(net(images[step]), labels[step])
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(ours[step] - loss.item()) / abs(loss.item()))
    print(f"{steps} steps {dtype_name}: largest relative difference of the losses {worst:.3g}, allowed {tolerance:.3g}; "
          f"last losses {ours[-1]:.10g} and {loss.item():.10g}")
    sys.exit(0 if worst <= tolerance else 1)


main()
