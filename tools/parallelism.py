#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calculates the tables of docs/explanation/parallelism.md. The page has the formulas and their assumptions.

  parallelism.py PAGE          exits with 1 if a table of the page differs from the calculation
  parallelism.py PAGE --write  writes the tables into the page
"""
from dataclasses import dataclass

from calculated_tables import main, number, table

# Assumptions, not measurements.
PARAMETER, GRADIENT, OPTIMIZER = 2, 4, 12  # bytes: bfloat16, float32, master with AdamW's state
ACTIVATION = 2  # bytes of a number between layers
WITHIN, BETWEEN = 400e9, 50e9  # bytes per second that a device sends within and between machines
MACHINE = 8  # devices
OPERATIONS = 400e12  # per second and device
SEQUENCE = 4096  # tokens
SEQUENCES = 2  # of each device in a step
MEMORY = 80e9  # bytes of a device
OVERLAPS = (1, 0.42, 0)  # all transfers of gradients, parameters and activations hidden, the measured share, none


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    layers: int
    width: int


@dataclass(frozen=True)
class Layout:
    """A mesh: replicas x shards x tensor x stages devices."""
    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    stages: int = 1
    micro_batches: int = 1

    @property
    def devices(self):
        return self.replicas * self.shards * self.tensor * self.stages

    @property
    def name(self):
        kinds = (("data", self.replicas), ("sharded", self.shards), ("tensor", self.tensor), ("pipeline", self.stages))
        return " x ".join(f"{name} {size}" for name, size in kinds if size > 1)


@dataclass
class Costs:
    state: float  # bytes of a device: parameters, gradients, optimizer; with gathered units
    activations: float  # bytes of a device
    within: float  # bytes that a device sends to devices of its machine in a step
    between: float  # bytes that a device sends to other machines in a step
    bubble: float  # share of the time of the stages
    compute: float  # seconds, without the bubble
    waits: float  # seconds of transfers for which the next operation waits
    hidden_at_most: float  # seconds of transfers that other operations can hide

    def step(self, overlap):
        return self.compute / (1 - self.bubble) + self.waits + self.hidden_at_most - min(overlap * self.hidden_at_most, self.compute)


def ring(size, amount):
    """Bytes that a rank sends in an all-gather or reduce-scatter; an all-reduce is both."""
    return amount * (size - 1) / size


def costs(model, layout):
    tensor, shards, stages = layout.tensor, layout.shards, layout.stages
    own = model.parameters / tensor / stages  # parameters of a device before they are sharded
    layers = model.layers / stages
    tokens = SEQUENCE * SEQUENCES * layout.tensor * stages  # of a device in a step
    micro_batch = tokens / layout.micro_batches  # tokens
    state = (PARAMETER + GRADIENT + OPTIMIZER) * own / shards
    if shards > 1:
        state += 2 * (PARAMETER + GRADIENT) * own / layers
    # Recomputation keeps the input of each block, and the activations of the block that is computed.
    live = min(stages, layout.micro_batches)
    activations = micro_batch * model.width * (ACTIVATION * layers * live + 10 + 24 / tensor)

    # (bytes, whether the group is in one machine, whether other operations can hide the transfer)
    block_inputs = tokens * model.width * ACTIVATION
    transfers = [(6 * ring(tensor, 2 * block_inputs) * layers, tensor <= MACHINE, False),
                 (layout.micro_batches * ring(shards, GRADIENT + 2 * PARAMETER) * own, tensor * shards <= MACHINE, True),
                 (2 * ring(layout.replicas, GRADIENT) * own / shards, tensor * shards * layout.replicas <= MACHINE, True),
                 (2 * block_inputs if stages > 1 else 0, layout.devices <= MACHINE, True)]

    def total(of, choose):
        return sum(of(amount, near) for amount, near, hideable in transfers if choose(near, hideable))

    def seconds(amount, near):
        return amount / (WITHIN if near else BETWEEN)

    return Costs(state, activations,
                 within=total(lambda amount, _: amount, lambda near, _: near),
                 between=total(lambda amount, _: amount, lambda near, _: not near),
                 bubble=(stages - 1) / (layout.micro_batches + stages - 1),
                 compute=8 * model.parameters * SEQUENCE * SEQUENCES / OPERATIONS,
                 waits=total(seconds, lambda _, hideable: not hideable),
                 hidden_at_most=total(seconds, lambda _, hideable: hideable))


MODELS = (Model("7B", 7e9, 32, 4096), Model("70B", 70e9, 80, 8192))
LAYOUTS = (
    Layout(replicas=8, micro_batches=2), Layout(shards=8), Layout(tensor=8, micro_batches=16), Layout(stages=8, micro_batches=16),
    Layout(replicas=64, micro_batches=2), Layout(shards=64), Layout(replicas=8, shards=8),
    Layout(replicas=8, tensor=8, micro_batches=16), Layout(shards=8, tensor=8, micro_batches=4),
    Layout(replicas=8, stages=8, micro_batches=16), Layout(tensor=8, stages=8, micro_batches=128),
    Layout(replicas=512, micro_batches=2), Layout(shards=512), Layout(replicas=64, shards=8),
    Layout(replicas=64, tensor=8, micro_batches=16), Layout(shards=64, tensor=8, micro_batches=4),
    Layout(replicas=64, stages=8, micro_batches=16), Layout(replicas=8, tensor=8, stages=8, micro_batches=128),
)


def layout_row(model, layout):
    cost = costs(model, layout)
    return [str(layout.devices), layout.name, f"{number(cost.state / 1e9)}, {number(cost.activations / 1e9)}",
            "yes" if cost.state + cost.activations <= MEMORY else "no",
            f"{layout.micro_batches}" + (f", {100 * cost.bubble:.1f} %" if cost.bubble else ""),
            f"{number(cost.within / 1e9)}, {number(cost.between / 1e9)}",
            ", ".join(number(cost.step(overlap)) for overlap in OVERLAPS)]


HEADER = ["devices", "layout", "state, activations, GB", "fits", "micro-batches, bubble", "GB sent within, between", "step, s"]

if __name__ == "__main__":
    main(__doc__, {f"layouts of {model.name}": table(HEADER, [layout_row(model, layout) for layout in LAYOUTS]) for model in MODELS})
