# SPDX-License-Identifier: Apache-2.0
"""Compares the loss scales of torch.amp.GradScaler and accelerate::precision::GradScaler after each iteration of recorded
overflows.

scaler.py PROBE
"""
import os
import random
import subprocess
import sys

import torch

DEVICE = os.environ.get("ACCELERATE_TEST_DEVICE", "cpu")

def pythons(init, growth, backoff, interval, flags):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=init, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    weight = torch.zeros(3, requires_grad=True, device=DEVICE)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = []
    for flag in flags:
        scaler.scale(weight.sum())  # makes the scale
        weight.grad = torch.full((3,), float("inf") if flag == "1" else 1.0, device=DEVICE)
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
    return seen


def ours(probe, *options):
    printed = subprocess.run([probe, "scaler", *map(str, options)], check=True, timeout=60, stdout=subprocess.PIPE,
                             text=True).stdout
    return [(float(scale), int(tracker)) for scale, tracker in (line.split() for line in printed.splitlines())]


def main():
    random.seed(7)
    jobs = [(65536.0, 2.0, 0.5, 2000, "".join(random.choices("01", (9, 1), k=300))),
            (65536.0, 2.0, 0.5, 3, "".join(random.choices("01", (7, 3), k=300))),
            (3.0, 1.7, 0.3, 2, "".join(random.choices("01", (3, 1), k=300))),
            (1.0, 2.0, 0.5, 1, "0" * 140),   # as far as float32 goes
            (1.0, 2.0, 0.5, 1, "1" * 160)]
    for job in jobs:
        python, cpp = pythons(*job), ours(sys.argv[1], *job)
        assert python == cpp, next(f"{job}: iteration {i}: {p} in Python, {c} here"
                                   for i, (p, c) in enumerate(zip(python, cpp)) if p != c)
        print(f"init {job[0]}, x {job[1]} after {job[3]}, x {job[2]}: {len(cpp)} equal iterations, last {cpp[-1]}")


main()
