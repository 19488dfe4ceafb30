# SPDX-License-Identifier: Apache-2.0
"""Writes distributed_sampler.json: samples of torch.utils.data.DistributedSampler, and the batches of a DataLoader with it."""
import itertools
import json
import pathlib

from torch.utils.data import BatchSampler, DistributedSampler

cases = []
for samples, ranks, batch_size in itertools.product([0, 1, 3, 7, 8, 13, 16, 21], [1, 2, 3, 4], [1, 2, 4]):
    number = len(cases)
    case = {"samples": samples, "num_replicas": ranks, "batch_size": batch_size, "shuffle": number % 3 != 0,
            "seed": 40 + number, "epoch": number % 5, "drop_last": number % 2 == 1, "drop_short": number % 7 == 0}
    case["ranks"] = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(samples), num_replicas=ranks, rank=rank, shuffle=case["shuffle"],
                                     seed=case["seed"], drop_last=case["drop_last"]) if samples else []
        if samples:
            sampler.set_epoch(case["epoch"])
        case["ranks"].append(list(BatchSampler(sampler, batch_size, drop_last=case["drop_short"])))
    cases.append(case)

lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
pathlib.Path(__file__).with_name("distributed_sampler.json").write_text("[\n" + lines + "\n]\n")
