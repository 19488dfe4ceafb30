#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calculates the tables of docs/explanation/sharding_costs.md. The page has the formulas and their assumptions.

  sharding_costs.py PAGE          exits with 1 if a table of the page differs from the calculation
  sharding_costs.py PAGE --write  writes the tables into the page
"""
from dataclasses import dataclass

from calculated_tables import main, number, table

TOKENS = 8192  # of a GPU in a step
BANDWIDTHS = (50e9, 400e9)  # bytes per second
GPUS = (8, 64, 512)
MODELS = {"7B": (7e9, 32), "70B": (70e9, 80)}  # parameters, blocks
HIDDEN = 0.94  # share of the transfers that full_shard hid on a simulated wire, on the CPU
STRATEGIES = ("no_shard", "shard_optim_op", "shard_grad_op", "full_shard")


@dataclass(frozen=True)
class Precision:
    parameter: int  # bytes
    gradient: int
    optimizer: int
    operations: float  # per second


PRECISIONS = {"bf16": Precision(2, 4, 12, 400e12), "float32": Precision(4, 4, 8, 100e12)}


def memory(strategy, parameters, unit, gpus, of):
    """Bytes between steps, and at the peak."""
    p, g, s = of.parameter, of.gradient, of.optimizer
    part = parameters * p / gpus  # a copy, until the others have received it
    kept, added = {"no_shard": (p + g + s, 0), "shard_optim_op": (p + g + s / gpus, part),
                   "shard_grad_op": (p + (g + s) / gpus, max(part, 2 * unit * g)),
                   "full_shard": ((p + g + s) / gpus, 2 * unit * (p + g))}[strategy]
    return parameters * kept, parameters * kept + added


def sent(strategy, parameters, gpus, of):
    p, g = of.parameter, of.gradient
    each = {"no_shard": 2 * g, "shard_optim_op": 2 * g + p, "shard_grad_op": g + p, "full_shard": g + 2 * p}[strategy]
    return parameters * each * (gpus - 1) / gpus


def step(strategy, parameters, gpus, of, bandwidth):
    """Seconds with full overlap, with the measured share, and without overlap."""
    compute = 6 * parameters * TOKENS / of.operations
    transfer = sent(strategy, parameters, gpus, of) / bandwidth
    return [compute + transfer - min(hidden * transfer, compute) for hidden in (1, HIDDEN, 0)]


def memory_cell(strategy, parameters, unit, gpus, of):
    return " / ".join(number(amount / 1e9) for amount in memory(strategy, parameters, unit, gpus, of))


def sent_cell(strategy, parameters, _, gpus, of):
    amount = sent(strategy, parameters, gpus, of)
    return f"{number(amount / 1e9)}: {', '.join(f'{number(amount / bandwidth)}' for bandwidth in BANDWIDTHS)}"


def step_cell(strategy, parameters, _, gpus, of):
    return "; ".join(", ".join(map(number, step(strategy, parameters, gpus, of, bandwidth))) for bandwidth in BANDWIDTHS)


def costs_table(cell, of):
    return table(["model", "strategy", *(f"{gpus} GPUs" for gpus in GPUS)],
                 [[name, f"`{strategy}`", *(cell(strategy, parameters, parameters / blocks, gpus, of) for gpus in GPUS)]
                  for name, (parameters, blocks) in MODELS.items() for strategy in STRATEGIES])


if __name__ == "__main__":
    main(__doc__, {f"{what}, {name}": costs_table(cell, of) for name, of in PRECISIONS.items()
                   for what, cell in (("memory", memory_cell), ("bytes", sent_cell), ("step", step_cell))})
