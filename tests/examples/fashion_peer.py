# SPDX-License-Identifier: Apache-2.0
"""Compares examples/fashion_resnet with the same network, data and settings in PyTorch: test accuracy after each epoch.

fashion_peer.py DATA EPOCHS [COMMAND...]    COMMAND: fashion_resnet, on any number of ranks and devices; without it
only PyTorch. Both are seeded with SEED, but draw different numbers. PyTorch then trains with the batch and the rate of all
ranks, as the program prints them; its BatchNorm uses the whole batch, that of the program each part separately.
"""
import gzip
import re
import subprocess
import sys
import time

import numpy
import torch
from torch import nn

BATCH, LR, SEED = 256, 0.1, 42


class Residual(nn.Module):
    def __init__(self, of, to, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(of, to, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(to, to, 3, padding=1)
        self.conv3 = nn.Conv2d(of, to, 1, stride=stride) if of != to else nn.Identity()
        self.bn1, self.bn2 = nn.BatchNorm2d(to), nn.BatchNorm2d(to)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.conv3(x))


def resnet18():
    layers, of = [nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()], 64
    for to in (64, 128, 256, 512):
        layers += [Residual(of, to, 1 if of == to else 2), Residual(to, to)]
        of = to
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=0.01)
    return net


def images(folder, split):
    def read(what, header):
        with gzip.open(f"{folder}/{split}-{what}-ubyte.gz") as file:
            return torch.tensor(numpy.frombuffer(file.read()[header:], dtype=numpy.uint8))
    pixels = read("images-idx3", 16).reshape(-1, 1, 28, 28)
    return (pixels.float() / 255 - 0.2860) / 0.3530, read("labels-idx1", 8).long()


def pytorch(folder, epochs, batch=BATCH, lr=LR):
    print(f"PyTorch: batch {batch}, learning rate {lr:g}, seed {SEED}", flush=True)
    torch.manual_seed(SEED)
    net = resnet18()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    (x, y), (test_x, test_y) = images(folder, "train"), images(folder, "t10k")
    curve = []
    for _ in range(epochs):
        began = time.monotonic()
        net.train()
        for part in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = sum((net(a).argmax(1) == b).sum().item() for a, b in zip(test_x.split(batch), test_y.split(batch)))
        curve.append(right / len(test_y))
        print(f"PyTorch: test accuracy {curve[-1]:.3f} after epoch {len(curve)}, {time.monotonic() - began:.1f} s", flush=True)
    return curve


def main():
    folder, epochs, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if not command:
        pytorch(folder, epochs)
        return
    options = ["--data-dir", folder, "--num_epochs", str(epochs), "--batch_size", str(BATCH), "--lr", str(LR),
               "--seed", str(SEED)]
    printed = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(printed, end="")
    ours = [float(number) for number in re.findall(r"(\d\.\d\d\d) \(epoch", printed)]
    assert len(ours) == epochs, printed
    batch, lr = re.search(r"batch (\d+), learning rate (\S+)", printed).groups()
    theirs = pytorch(folder, epochs, int(batch), float(lr))
    print(f"last: {ours[-1]:.3f} here, {theirs[-1]:.3f} in PyTorch")


if __name__ == "__main__":
    main()
