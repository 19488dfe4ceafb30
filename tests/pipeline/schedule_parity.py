# SPDX-License-Identifier: Apache-2.0
"""Compares the order of computations of every plan (schedule_probe.cpp) with torch.distributed.pipelining.

schedule_parity.py PROBE
"""
import subprocess
import sys

from torch.distributed.pipelining import schedules

LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B"}


def schedule_object(cls, **fields):
    """A schedule without the stages and the process group that its constructor needs."""
    schedule = cls.__new__(cls)
    for name, value in fields.items():
        setattr(schedule, name, value)
    return schedule


def expected_order(name, ranks, micro_batches, stages, rank):
    """The computations in PyTorch's notation, or None where PyTorch has no such schedule."""
    if name == "interleaved":
        rounds = max(1, micro_batches // ranks)
        if micro_batches % rounds:
            return None  # PyTorch refuses unequal rounds
        schedule = schedule_object(schedules.ScheduleInterleaved1F1B, pp_group_size=ranks, n_local_stages=stages,
                                   _n_microbatches=micro_batches, number_of_rounds=rounds,
                                   microbatches_per_round=micro_batches // rounds)
        actions = schedule._calculate_single_rank_operations(rank)
    else:
        if name == "1f1b" and micro_batches < ranks:
            return None  # PyTorch's order has forwards of micro-batches that do not exist
        cls = schedules.ScheduleGPipe if name == "gpipe" else schedules.Schedule1F1B
        schedule = schedule_object(cls, _num_stages=ranks, _n_microbatches=micro_batches)
        actions = schedule._get_pipeline_order()[rank]
    order = []
    for action in actions:
        if action is None or action.computation_type.name not in LETTERS:
            continue
        letter, index = LETTERS[action.computation_type.name], action.microbatch_index
        if name == "1f1b" and rank == ranks - 1 and letter == "F":
            index -= 1  # PyTorch 2.11 numbers the forwards of the last rank from 1
        order.append(f"{action.stage_index}{letter}{index}")
    return " ".join(order)


def main():
    lines = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    compared = 0
    for line in lines:
        head, order = line.split(": ")
        name, *numbers = head.split()
        expected = expected_order(name, *map(int, numbers))
        if expected is None:
            continue
        compared += 1
        if order != expected:
            sys.exit(f"{head}\n  plan:    {order}\n  PyTorch: {expected}")
    if compared < 700:
        sys.exit(f"only {compared} of {len(lines)} orders were compared")
    print(f"{compared} orders are those of torch.distributed.pipelining")


main()
