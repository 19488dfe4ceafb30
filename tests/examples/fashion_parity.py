# SPDX-License-Identifier: Apache-2.0
"""fashion_resnet's network in PyTorch and in probe.cpp from the same weights on the same images: the losses must agree,
and after the last step the loss in evaluation mode, which depends on BatchNorm's running statistics.

fashion_parity.py DATA_DIR DTYPE STEPS BATCH TOLERANCE PROBE
"""
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn

from fashion_peer import LR, images, resnet18

DEVICE = os.environ.get("ACCELERATE_TEST_DEVICE", "cpu")


def main():
    folder, dtype_name, steps, batch, tolerance, probe = *sys.argv[1:6], sys.argv[6]
    steps, batch, tolerance = int(steps), int(batch), float(tolerance)
    dtype = getattr(torch, dtype_name)
    torch.set_num_threads(1)
    torch.manual_seed(42)
    net = resnet18().to(dtype)
    x, y = (part[:steps * batch] for part in images(folder, "train"))
    with tempfile.NamedTemporaryFile() as file:
        for part in [*net.parameters(), x, y]:
            file.write(part.detach().to(torch.float64).contiguous().numpy().tobytes())
        file.flush()
        printed = subprocess.run([probe, "resnet", file.name, dtype_name, str(steps), str(batch)], check=True, timeout=300,
                                 stdout=subprocess.PIPE, text=True).stdout
    ours = [float(line) for line in printed.split()]

    net.to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    x, y = x.to(DEVICE, dtype).split(batch), y.to(DEVICE).split(batch)
    theirs = []
    for part, labels in zip(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(part), labels)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    net.eval()
    with torch.no_grad():
        theirs.append(nn.functional.cross_entropy(net(x[0]), y[0]).item())
    assert len(ours) == len(theirs), (ours, theirs)
    print("here    ", *(f"{loss:.10g}" for loss in ours))
    print("PyTorch ", *(f"{loss:.10g}" for loss in theirs))
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    print(f"{steps} steps {dtype_name}: largest relative difference {worst:.3g}, allowed {tolerance:.3g}")
    sys.exit(0 if worst <= tolerance else 1)


main()
