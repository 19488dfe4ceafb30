# SPDX-License-Identifier: Apache-2.0
"""The Python counterpart of bench/harness.hpp: executes the requests of bench/run. Each rank has its own pipe."""
import functools
import os
import time

import torch


def finish():
    """Waits for the GPU, because steps return before their kernels end."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds_per_step(iterations, step):
    """As in bench/harness.cpp: at most two untimed steps first, and none before a round of one step."""
    for _ in range(min(iterations, 3) - 1):
        step()
    finish()
    start = time.perf_counter()
    for _ in range(iterations):
        step()
    finish()
    return (time.perf_counter() - start) / iterations


def serve(about, cases):
    """cases: name -> step, a function without arguments."""
    answer(about, {name: functools.partial(seconds_per_step, step=step) for name, step in cases.items()})


class CaseError(Exception):
    """An error of one case. bench/run reports it and continues with the next row. Only for jobs of one rank."""


def measured(measure, iterations):
    try:
        return measure(iterations)
    except CaseError as error:
        return "error " + " ".join(str(error).split())


def answer(about, cases):
    """cases: name -> a function that takes the number of steps and returns the measured value."""
    folder = os.environ["ACCELERATE_BENCH_PIPES"]
    rank = int(os.environ.get("RANK", "0"))
    out = None
    if rank == 0:
        out = open(f"{folder}/out", "w", buffering=1)
        print(about, file=out)
    with open(f"{folder}/{rank}.in") as questions:
        while question := questions.readline():
            name, iterations = question.split()
            value = measured(cases[name], int(iterations))
            if out:
                print(value, file=out)
