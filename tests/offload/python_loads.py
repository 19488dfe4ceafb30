# SPDX-License-Identifier: Apache-2.0
"""Compares dtypes, values and outputs after load_checkpoint_and_dispatch() with Hugging Face Accelerate's.

python_loads.py PROBE
"""
import itertools
import json
import logging
import random
import subprocess
import sys
import tempfile
from collections import OrderedDict

import accelerate
import torch
from accelerate.utils import modeling
from safetensors.torch import load_file, save_file

logging.disable(logging.WARNING)
modeling.is_tqdm_available = lambda: False
DTYPES = ["float16", "bfloat16", "float32", "float64"]
# Accelerate 1.15 refuses a safetensors file of which all weights stay on the disk.
MAPS = [{"": "cpu"}, {"first": "disk", "norm": "disk", "head": "cpu"}, {"first": "cpu", "norm": "cpu", "head": "disk"}]


def net():
    return torch.nn.Sequential(
        OrderedDict(
            first=torch.nn.Linear(8, 16), norm=torch.nn.BatchNorm1d(16), tanh=torch.nn.Tanh(), head=torch.nn.Linear(16, 3)
        )
    )


def write_checkpoint(path, dtype, safe):
    torch.manual_seed(1)
    saved = net()
    for _ in range(3):
        saved(torch.randn(32, 8) * 3 + 1)  # statistics of the norm
    tensors = saved.to(getattr(torch, dtype)).state_dict()
    save_file(tensors, path, metadata={"format": "pt"}) if safe else torch.save(tensors, path)


def expected(task):
    with accelerate.init_empty_weights():
        model = net().to(getattr(torch, task["built"])).eval()
    device_map = {**task["map"], **({} if "" in task["map"] else {"tanh": "cpu"})}
    dtype = task["dtype"] and getattr(torch, task["dtype"])
    accelerate.load_checkpoint_and_dispatch(
        model, task["checkpoint"], device_map, offload_folder=task["offload_dir"] + "-peer", dtype=dtype,
        offload_buffers=task["offload_buffers"],
    )
    tensors = {}
    for name in ["first", "norm", "head"]:
        module = getattr(model, name)
        with modeling.align_module_device(module):
            tensors |= {f"{name}.{key}": value.detach().clone() for key, value in module.state_dict().items()}
    return tensors


def differences(task, python, own):
    wanted = getattr(torch, task["dtype"] or task["built"])
    for name, value in python.items():
        on_disk = task["map"].get(name.split(".")[0]) == "disk"
        is_lost = on_disk and not task["offload_buffers"] and ("running" in name or "tracked" in name)
        if is_lost:  # Accelerate 1.15 does not load these buffers
            value = load_tensors(task["checkpoint"])[name]
        # Without dtype, and if the map has the disk, Accelerate 1.15 keeps the dtypes of the file for the whole model.
        keeps_dtypes = not task["dtype"] and "disk" in task["map"].values()
        if value.is_floating_point() and (is_lost or keeps_dtypes):
            value = value.to(wanted)
        if value.dtype != own[name].dtype or not value.equal(own[name]):
            yield name
    x = torch.linspace(-1, 1, 16).view(2, 8).to(wanted)
    model = net().to(wanted).eval()
    model.load_state_dict({name: own[name] for name in python})
    if not torch.allclose(model(x), own["output"], rtol=0, atol=8 * torch.finfo(wanted).eps):
        yield "output"


def load_tensors(path):
    return load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True)


def main():
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        tasks = []
        for saved, safe in itertools.product(DTYPES, [True, False]):
            path = f"{folder}/{saved}" + (".safetensors" if safe else ".bin")
            write_checkpoint(path, saved, safe)
            for built, dtype, places, buffers in itertools.product(
                ["float32", "float16"], [None, "bfloat16", "float64"], MAPS, [False, True]
            ):
                tasks.append(
                    dict(checkpoint=path, built=built, dtype=dtype, map=places, offload_buffers=buffers,
                         output=f"{folder}/{len(tasks)}.safetensors", offload_dir=f"{folder}/offload-{len(tasks)}")
                )  # fmt: skip
        tasks = random.Random(1).sample(tasks, 60)
        text = "".join(json.dumps(task) + "\n" for task in tasks)
        subprocess.run([sys.argv[1]], input=text, text=True, check=True)
        failures = 0
        for task in tasks:
            for name in differences(task, expected(task), load_file(task["output"])):
                failures += 1
                print(f"{name} differs: {task}", file=sys.stderr)
        print(f"{len(tasks)} loads are equal" if not failures else f"{failures} tensors differ")
        sys.exit(failures > 0)


if __name__ == "__main__":
    main()
