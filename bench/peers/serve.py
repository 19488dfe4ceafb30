# SPDX-License-Identifier: Apache-2.0
"""The Python half of bench/harness.hpp: answers the driver's questions, each rank on a pipe of its own."""
import functools
import os
import time

import torch


def finish():
    """A GPU works on after the last step returned."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds_per_step(iterations, step):
    """As in bench/harness.cpp: two untimed steps, none before a round of one."""
    for _ in range(min(iterations, 3) - 1):
        step()
    finish()
    start = time.perf_counter()
    for _ in range(iterations):
        step()
    finish()
    return (time.perf_counter() - start) / iterations


def serve(about, cases):
    """cases: name -> step, a function of nothing."""
    answer(about, {name: functools.partial(seconds_per_step, step=step) for name, step in cases.items()})


def answer(about, cases):
    """cases: name -> a round, a function of the number of steps that returns what is measured."""
    folder = os.environ["ACCELERATE_BENCH_PIPES"]
    rank = int(os.environ.get("RANK", "0"))
    out = None
    if rank == 0:
        out = open(f"{folder}/out", "w", buffering=1)
        print(about, file=out)
    with open(f"{folder}/{rank}.in") as questions:
        while question := questions.readline():
            name, iterations = question.split()
            value = cases[name](int(iterations))
            if out:
                print(value, file=out)
