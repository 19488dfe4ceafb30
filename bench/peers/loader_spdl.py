# SPDX-License-Identifier: Apache-2.0
"""SPDL: the images of loader.py decoded by two threads of one process, as its guide to loading images shows. SPDL
decodes with FFmpeg's libraries of the system."""
import os
import random
from importlib.metadata import version

import spdl.io
import torch
from serve import serve
from spdl.pipeline import PipelineBuilder

folder = os.environ["ACCELERATE_BENCH_DATA"] + "/images"
classes = sorted(os.listdir(folder))
files = [(f"{folder}/{name}/{file}", label) for label, name in enumerate(classes) for file in os.listdir(f"{folder}/{name}")]


class Shuffled:
    """Epochs without end."""

    def __iter__(self):
        while True:
            yield from random.sample(files, len(files))


def decode(batch):
    paths, labels = zip(*batch)
    pixels = spdl.io.to_torch(spdl.io.load_image_batch(paths, width=None, height=None))
    return pixels.permute(0, 3, 1, 2).float().div_(255), torch.tensor(labels)


pipeline = PipelineBuilder().add_source(Shuffled()).aggregate(32).pipe(decode, concurrency=2).add_sink(4).build(num_threads=2)
pipeline.start()
batches = pipeline.get_iterator()
serve(f"SPDL {version('spdl')}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
      {"jpeg-2-threads": lambda: next(batches)})
os._exit(0)  # the endless source has no regular end
