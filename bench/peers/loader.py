# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate with torch's DataLoader: a TensorDataset of the same bytes, batches as floats in [0, 1];
blocks of tokens from a mapped file; torchvision's ImageFolder."""
import os

import accelerate
import numpy
import torch
import torchvision
from serve import serve

accelerator = accelerate.Accelerator(cpu=True)
files = os.environ["ACCELERATE_BENCH_DATA"]
images = torch.randint(256, (60000, 28, 28), dtype=torch.uint8)
labels = torch.randint(10, (60000,))


class TokenBlocks(torch.utils.data.Dataset):
    """Blocks of tokens in order, read as in nanoGPT."""

    def __init__(self, block_size):
        self.length = block_size + 1
        self.tokens = numpy.memmap(f"{files}/tokens.bin", dtype=numpy.uint16, mode="r")

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, i):
        block = torch.from_numpy(self.tokens[i * self.length:(i + 1) * self.length].astype(numpy.int64))
        return block[:-1], block[1:]


class Endless:
    """Iterates over a prepared loader without end, one batch per step."""

    def __init__(self, dataset, batch_size, workers, make=lambda batch: batch):
        self.make = make
        self.loader = accelerator.prepare(torch.utils.data.DataLoader(
            dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0))
        self.batches = None

    def step(self):
        batch = next(self.batches, None) if self.batches else None
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return self.make(batch)

    def begin(self):
        self.batches = None
        self.batches = iter(self.loader)
        return self.make(next(self.batches))


def digits(workers):
    return Endless(torch.utils.data.TensorDataset(images, labels), 64, workers, lambda batch: batch[0].float().div_(255))


alone, two, start_alone, start_two = digits(0), digits(2), digits(0), digits(2)
tokens = Endless(TokenBlocks(1024), 8, 0)
jpeg = Endless(torchvision.datasets.ImageFolder(f"{files}/images", torchvision.transforms.ToTensor()), 32, 2)
serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, torchvision {torchvision.__version__}, "
      f"{torch.get_num_threads()} thread(s)",
      {"batch": alone.step, "batch-2-workers": two.step, "epoch-start-0": start_alone.begin,
       "epoch-start-2": start_two.begin, "tokens": tokens.step, "jpeg-2-workers": jpeg.step})
