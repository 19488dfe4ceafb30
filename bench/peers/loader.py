# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate over torch's DataLoader: a TensorDataset of the same bytes, batches as floats in [0, 1]."""
import accelerate
import torch
from serve import serve

accelerator = accelerate.Accelerator(cpu=True)
images = torch.randint(256, (60000, 28, 28), dtype=torch.uint8)
labels = torch.randint(10, (60000,))
dataset = torch.utils.data.TensorDataset(images, labels)


class Endless:
    """Walks a prepared loader for ever, a batch a step."""

    def __init__(self, workers):
        self.loader = accelerator.prepare(torch.utils.data.DataLoader(
            dataset, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=workers > 0))
        self.batches = None

    def step(self):
        batch = next(self.batches, None) if self.batches else None
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return batch[0].float().div_(255)

    def begin(self):
        self.batches = None
        self.batches = iter(self.loader)
        return next(self.batches)[0].float().div_(255)


alone, two = Endless(0), Endless(2)
start_alone, start_two = Endless(0), Endless(2)
serve(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
      {"batch": alone.step, "batch-2-workers": two.step, "epoch-start-0": start_alone.begin,
       "epoch-start-2": start_two.begin})
