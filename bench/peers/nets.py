# SPDX-License-Identifier: Apache-2.0
"""The networks of bench/nets.hpp."""
import torch
import torch.nn.functional as F
from torch import nn


def mlp(*sizes):
    layers = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class BasicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(F.dropout(x, 0.25, self.training), 1)
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        return F.log_softmax(self.fc2(x), 1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.projection(self.attention(self.qkv(self.norm1(x))))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))

    def attention(self, qkv):
        batch, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = qkv.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Transformer(nn.Module):
    def __init__(self, vocabulary=256, length=128, layers=4, heads=4, width=128):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, 0.0, 0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def draw_weights(net, deviation):
    """The same values as bench::draw_weights()."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, deviation)
            if name.endswith("bias"):
                parameter.zero_()
