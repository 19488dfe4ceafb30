# SPDX-License-Identifier: Apache-2.0
"""bench/offload.cpp with Hugging Face Accelerate: disk_offload, which writes a file for each weight, and
load_checkpoint_and_dispatch, which reads the safetensors file."""
import logging
import os
import shutil
import time
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
import accelerate  # noqa: E402
import torch
from serve import answer, seconds_per_step

WIDTH, LAYERS = 2048, 64
folder = Path(os.environ["ACCELERATE_BENCH_DATA"]) / "peer"
torch.manual_seed(1)
torch.set_grad_enabled(False)
logging.disable(logging.WARNING)


def wide_layers():
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def drop_pages(place):
    for path in place.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def forward(net):
    assert net(x).equal(expected)


def from_disk(steps):
    """Steps that read the disk, because no page of the files is in memory. The dispatched model has no such row, because
    its file is mapped, and mapped pages stay in memory."""
    seconds = 0
    for _ in range(steps):
        drop_pages(folder / "weights")
        start = time.perf_counter()
        forward(net)
        seconds += time.perf_counter() - start
    return seconds / steps


x = torch.randn(1, WIDTH)
net = wide_layers()
expected = net(x)
accelerate.Accelerator(cpu=True).save_model(net, folder / "checkpoint", max_shard_size="2GB")
accelerate.disk_offload(net, folder / "weights", execution_device="cpu")
with accelerate.init_empty_weights():
    empty = wide_layers()
# One layer is on the CPU: Accelerate 1.15 refuses a safetensors file of which all weights stay on the disk.
dispatched = accelerate.load_checkpoint_and_dispatch(
    empty, str(folder / "checkpoint" / "model.safetensors"), device_map={str(i): "disk" if i else "cpu" for i in range(LAYERS)},
    offload_folder=folder / "unused")
for model in (net, dispatched):
    forward(model)
answer(f"accelerate {accelerate.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
       {"disk_offload": lambda steps: seconds_per_step(steps, lambda: forward(net)),
        "dispatch": lambda steps: seconds_per_step(steps, lambda: forward(dispatched)), "disk_offload-disk": from_disk})
shutil.rmtree(folder, ignore_errors=True)
