# SPDX-License-Identifier: Apache-2.0
"""export_net.py FILE: the network of digits.hpp, written in Python, as a TorchScript module for torchscript.cpp."""
import sys

import torch
from torch import nn

torch.manual_seed(42)
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10), nn.LogSoftmax(1))
torch.jit.script(net).save(sys.argv[1])
