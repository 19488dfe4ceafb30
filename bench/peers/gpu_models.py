# SPDX-License-Identifier: Apache-2.0
"""The models of bench/gpu_models.hpp: the same sizes, initial weights and inputs."""
import os

import torch
import torch.nn.functional as F
import torchvision
from nets import BasicNet, Transformer, draw_weights
from torch import nn

SMALL = "ACCELERATE_BENCH_SMALL" in os.environ
DEVICE = torch.device("cpu" if "ACCELERATE_USE_CPU" in os.environ else f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH = (512, 64, 2, 2, 64) if SMALL else (50257, 1024, 12, 12, 768)
SEQUENCES, IMAGES, PIXELS = (2, 4, 32) if SMALL else (8, 64, 224)


def gpt2():
    return with_weights(Transformer(VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH))


def tokens():
    """[B, T + 1]; the targets are the same tokens, one place later."""
    torch.manual_seed(2)
    return torch.randint(VOCABULARY, (SEQUENCES, LENGTH + 1)), None


def hidden_states():
    """An input of a block, [B, T, W]."""
    return torch.randn(SEQUENCES, LENGTH, WIDTH, requires_grad=True, device=DEVICE)


def resnet():
    if not SMALL:
        return with_weights(torchvision.models.resnet18())
    net = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    net.layer3 = net.layer4 = nn.Identity()
    net.fc = nn.Linear(128, 1000)
    return with_weights(net)


def images():
    torch.manual_seed(2)
    return torch.randn(IMAGES, 3, PIXELS, PIXELS), torch.randint(1000, (IMAGES,))


def cnn():
    return with_weights(BasicNet())


def digits():
    torch.manual_seed(2)
    return torch.randn(64, 1, 28, 28), torch.randint(10, (64,))


def loss_of_tokens(net, x, _):
    return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def cross_entropy(net, x, y):
    return F.cross_entropy(net(x), y)


def nll(net, x, y):
    return F.nll_loss(net(x), y)


def with_weights(net):
    draw_weights(net, 0.02)
    return net.to(DEVICE)


def on_device(batch, memory_format=torch.contiguous_format):
    x, y = batch
    return x.to(DEVICE).contiguous(memory_format=memory_format), y if y is None else y.to(DEVICE)
