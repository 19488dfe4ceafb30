# SPDX-License-Identifier: Apache-2.0
"""Compares device maps, sizes and balanced limits of random models with Hugging Face Accelerate's.

python_device_maps.py PROBE [CASES]
"""
import json
import logging
import random
import subprocess
import sys
import warnings

import torch
from accelerate.utils import modeling

logging.disable(logging.WARNING)


class Builder:
    """A random model as JSON; the same model as a module of PyTorch is built from it."""

    def __init__(self, rng):
        self.rng = rng
        self.ids = 0
        self.ties = rng.choice([0, 0.1])  # probability
        self.sizes = {}

    def parameter(self, name):
        tied = self.sizes and self.rng.random() < self.ties
        if tied:
            number = self.rng.choice(list(self.sizes))
        else:
            number, self.ids = self.ids, self.ids + 1
            self.sizes[number] = (self.rng.randrange(1, 60), self.rng.random() < 0.2)
        numel, half = self.sizes[number]
        return {"name": name, "id": number, "numel": numel, "half": half}

    def module(self, name, depth):
        children = self.rng.randrange(1, 5) if depth > 0 and self.rng.random() < 0.8 else 0
        return {
            "name": name,
            "class": self.rng.choice(["Plain", "Plain", "Block"]),
            "parameters": [self.parameter(f"p{i}") for i in range(self.rng.randrange(0 if children else 1, 3))],
            "buffers": [
                {"name": f"b{i}", "numel": self.rng.randrange(1, 20), "half": False}
                for i in range(self.rng.random() < 0.3)
            ],
            "children": [self.module(f"m{i}", depth - 1) for i in range(children)],
        }


CLASSES = {name: type(name, (torch.nn.Module,), {}) for name in ("Plain", "Block")}


def build(spec, shared):
    module = CLASSES[spec["class"]]()
    dtype = {True: torch.half, False: torch.float}
    for t in spec["parameters"]:
        if t["id"] not in shared:
            shared[t["id"]] = torch.nn.Parameter(torch.empty(t["numel"], dtype=dtype[t["half"]]))
        module.register_parameter(t["name"], shared[t["id"]])
    for t in spec["buffers"]:
        module.register_buffer(t["name"], torch.empty(t["numel"], dtype=dtype[t["half"]]))
    for child in spec["children"]:
        module.add_module(child["name"], build(child, shared))
    return module


def create_task(seed):
    rng = random.Random(seed)
    model = Builder(rng).module("", rng.randrange(1, 5))
    built = build(model, {})
    whole = modeling.compute_module_sizes(built)[""]
    names = [name for name, _ in modeling.named_module_tensors(built, recurse=True)]
    limits = {str(i): rng.randrange(1, max(2, whole)) for i in range(rng.randrange(0, 4))}
    if rng.random() < 0.8 or not limits:
        limits["cpu"] = rng.randrange(1, max(2, 2 * whole))
    return {
        "model": model,
        "max_memory": limits,
        "no_split": ["Block"] if rng.random() < 0.6 else [],
        "half": rng.random() < 0.3,
        "clean": rng.random() < 0.7,
        "special": {name: rng.random() < 0.5 for name in names if rng.random() < 0.1},
        "offload_buffers": rng.random() < 0.3,
        "fallback": rng.random() < 0.8,
        "low_zero": len(limits) > 2 and rng.random() < 0.5,
    }


def expected(task):
    model = build(task["model"], {})
    as_key = lambda device: int(device) if device.isdigit() else device
    limits = {as_key(device): size for device, size in task["max_memory"].items()}
    dtype = torch.half if task["half"] else None
    special = {name: torch.half if half else torch.float for name, half in task["special"].items()}
    sizes = {"dtype": dtype, "special_dtypes": special}
    common = {"no_split_module_classes": task["no_split"], **sizes}
    infer = dict(
        clean_result=task["clean"], offload_buffers=task["offload_buffers"], fallback_allocation=task["fallback"]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            device_map = modeling.infer_auto_device_map(model, dict(limits), **infer, **common)
        except IndexError:  # a tied parameter is itself an item of the list, or its item was taken out of the list
            device_map = None
    balanced = modeling.get_balanced_memory(model, dict(limits), low_zero=task["low_zero"], **common)
    return {
        "tied": sorted(modeling.find_tied_parameters(model)),
        "sizes": dict(modeling.compute_module_sizes(model, **sizes)),
        "buffers": modeling.compute_module_total_buffer_size(model, **sizes),
        "map": device_map and {name: str(device) for name, device in device_map.items()},
        "warnings": len(caught),
        "balanced": {str(device): size for device, size in balanced.items()},
    }


def main():
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    tasks, answers, placed = [], [], 0
    while placed < cases:  # further models for those that Hugging Face Accelerate cannot place
        tasks.append(create_task(len(tasks)))
        answers.append(expected(tasks[-1]))
        placed += answers[-1]["map"] is not None
    text = "".join(json.dumps(task) + "\n" for task in tasks)
    output = subprocess.run([sys.argv[1]], input=text, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(tasks), f"{len(found)} answers for {len(tasks)} models"
    failures = devices = fallbacks = warned = 0
    for seed, (python, own) in enumerate(zip(answers, found)):
        own["tied"].sort()
        if python["map"] is None:
            python["map"], python["warnings"] = own["map"], own["warnings"]
        else:
            devices += len(set(own["map"].values())) > 1
            warned += own["warnings"]
            fallbacks += tasks[seed]["fallback"] and expected({**tasks[seed], "fallback": False})["map"] != python["map"]
        for key in python:
            if python[key] != own[key]:
                failures += 1
                print(f"model {seed}: {key} is {own[key]}, Hugging Face Accelerate has {python[key]}", file=sys.stderr)
    kinds = f"{devices} with several devices, {fallbacks} with another map by fallback, {warned} with a warning"
    print(f"{cases} device maps are equal, {kinds}" if not failures else f"{failures} differ")
    sys.exit(failures > 0 or devices < cases / 4 or fallbacks < cases / 100 or warned < cases / 100)


if __name__ == "__main__":
    main()
