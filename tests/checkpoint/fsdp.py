# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Hugging Face Accelerate's FSDP read in C++: the loaded weights, AdamW states and random states must be
those of Python, and the next steps those of Python's uninterrupted training.

fsdp.py LAUNCHER PROBE FOLDER     trains two ranks in Python, then loads their checkpoints with the probe
"""
import copy
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

RANKS, ROWS, STEPS = 2, 12, 3
# name: version of FSDP, type of state dict, dtype. PyTorch 2.11 crashes when FSDP1 gathers a full state dict on CPUs and
# offloads it, as Accelerate does.
CASES = {
    "fsdp1_sharded": (1, "SHARDED_STATE_DICT", torch.float64),
    "fsdp2_sharded": (2, "SHARDED_STATE_DICT", torch.float64),
    "fsdp2_full": (2, "FULL_STATE_DICT", torch.float64),
    "fsdp2_float32": (2, "SHARDED_STATE_DICT", torch.float32),
    "fsdp2_bfloat16": (2, "SHARDED_STATE_DICT", torch.bfloat16),
}


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Net(torch.nn.Module):
    """Sizes that are divided unevenly over two ranks. Rank 1 has no part of the bias of `head`."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)
        self.first, self.second = Block(5, 7), Block(7, 3)
        self.register_buffer("scale", torch.tensor(0.75))
        self.register_buffer("shift", torch.tensor([0.25, -0.5, 0.125]))

    def forward(self, x):
        return self.head(self.second(self.first(x)) * self.scale + self.shift)


def rows(step, columns, rank):
    count = ROWS // RANKS
    row, column = torch.arange(rank * count, (rank + 1) * count).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    return (row * 31 + column * 17 + step * 7).remainder(13).double() / 16 - 0.375


def train(accelerator, model, optimizer, scheduler, dtype, first):
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        inputs, targets = (rows(step + i, columns, accelerator.process_index).to(dtype) for i, columns in ((0, 5), (1, 1)))
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        scheduler.step()


def whole(model, optimizer):
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                         get_optimizer_state_dict)
    options = StateDictOptions(full_state_dict=True, cpu_offload=False)
    weights, states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)
    # A copy, because the steps of parameters are counted in place.
    return copy.deepcopy({"weights": weights, "state": states["state"], "groups": states["param_groups"]})


def run_case(folder, name):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType
    AcceleratorState._reset_state()
    GradientState._reset_state()
    # Accelerate 1.15 runs FSDP on accelerators only. Its code for FSDP and checkpoints is the same on CPUs.
    PartialState._shared_state.update(distributed_type=DistributedType.MULTI_GPU, device=torch.device("cpu"))
    version, kind, dtype = CASES[name]
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type=kind, use_orig_params=True,
                                            auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=["Block"])
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, step_scheduler_with_optimizer=False)
    assert accelerator.num_processes == RANKS and accelerator.distributed_type == "FSDP", accelerator.state
    torch.manual_seed(5)
    net = Net().to(dtype)
    parameters = dict(net.named_parameters())
    groups = [{"params": [p for name, p in parameters.items() if name.endswith(".weight")], "weight_decay": 0.25},
              {"params": [p for name, p in parameters.items() if name.endswith(".bias")], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0625, betas=(0.75, 0.875))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    train(accelerator, model, optimizer, scheduler, dtype, 0)
    torch.manual_seed(100 + accelerator.process_index)
    accelerator.save_state(folder / name)
    draws = [None] * RANKS
    torch.distributed.all_gather_object(draws, torch.rand(3, dtype=torch.float64).tolist())
    found = {"draws": draws, "saved": whole(model, optimizer)}
    train(accelerator, model, optimizer, scheduler, dtype, STEPS)
    found["after"] = whole(model, optimizer)
    if accelerator.is_main_process:
        torch.save(found, folder / f"{name}.pt")


def run_rank(folder):
    from accelerate.state import PartialState
    PartialState(cpu=True)
    for name in CASES:
        run_case(folder, name)
    torch.distributed.destroy_process_group()
    # PyTorch's threads sometimes end the process during its exit: "terminate called without an active exception".
    sys.stdout.flush()
    os._exit(0)


def start_ranks(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [open(folder / f"rank{rank}.log", "w+") for rank in range(RANKS)]
    ranks = []
    for rank in range(RANKS):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS),
                       "LOCAL_WORLD_SIZE": str(RANKS), "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([sys.executable, __file__, "rank", str(folder)], env=environment,
                                      stdout=logs[rank], stderr=subprocess.STDOUT))
    codes = [rank.wait(timeout=500) for rank in ranks]
    for log in logs:
        log.seek(0)
    assert codes == [0] * RANKS, (codes, *(log.read()[-4000:] for log in logs))


def equal(here, there, what, tolerance):
    here, there = here.double().reshape(-1), there.double().reshape(-1)
    assert here.shape == there.shape, (what, here.shape, there.shape)
    difference = (here - there).abs().max().item() if here.numel() else 0.0
    assert difference <= tolerance, f"{what}: differs by {difference} from Python's"


def compare(folder, expected, what, tolerance):
    """A checkpoint that the probe saved, with Python's weights and states."""
    from safetensors.torch import load_file
    weights, optimizer = load_file(folder / "model.safetensors"), torch.load(folder / "optimizer.bin", weights_only=True)
    assert set(weights) == set(expected["weights"]), (what, set(weights))
    for name, tensor in expected["weights"].items():
        assert weights[name].dtype == tensor.dtype, (what, name)
        equal(weights[name], tensor, f"{what}: {name}", tolerance)
    # The probe's parameters: the weights in their order in the module, then the biases.
    names = [f"{layer}.{part}" for part in ("weight", "bias") for layer in ("head", "first.fc", "second.fc")]
    assert set(optimizer["state"]) == set(range(len(names))), (what, optimizer["state"].keys())
    for number, name in enumerate(names):
        state = expected["state"][name]
        assert set(optimizer["state"][number]) == set(state) == {"step", "exp_avg", "exp_avg_sq"}, (what, name)
        for field, tensor in state.items():
            equal(optimizer["state"][number][field], tensor, f"{what}: {field} of {name}", tolerance)
    for group, other in zip(optimizer["param_groups"], expected["groups"], strict=True):
        for option in ("lr", "betas", "eps", "weight_decay"):
            assert group[option] == other[option], (what, option, group[option], other[option])


def check_case(launcher, probe, folder, name, ranks, strategy):
    what, dtype = f"{name}, {ranks} ranks, {strategy}", CASES[name][2]
    python = torch.load(folder / f"{name}.pt", weights_only=True)
    out = folder / f"{name}.{ranks}.{strategy}"
    ran = subprocess.run([launcher, "--cpu", "--num_processes", str(ranks), "--main_process_port", "0", probe,
                          str(dtype).removeprefix("torch."), strategy, str(folder / name), str(out)],
                         timeout=100, capture_output=True, text=True)
    assert ran.returncode == 0, (what, ran.stdout, ran.stderr)
    assert f"step {STEPS}\n" in ran.stdout, (what, ran.stdout)
    compare(out / "loaded", python["saved"], what + ", loaded", 0.0)
    # Rounding differs with the number of ranks; in bfloat16 and float32 it is too coarse to compare.
    if dtype == torch.float64:
        compare(out / "after", python["after"], what + f", {STEPS} steps later", 1e-12)
    from safetensors.torch import load_file
    for place in ("checkpoint", "weights"):  # load_model() alone
        weights = load_file(out / place / "model.safetensors")
        for key, tensor in python["saved"]["weights"].items():
            equal(weights[key], tensor, f"{what}: {key} of {place}", 0.0)
    if ranks == RANKS:
        for rank, draws in enumerate(python["draws"]):
            assert "draws {} {:.17g} {:.17g} {:.17g}\n".format(rank, *draws) in ran.stdout, (what, draws, ran.stdout)


def main(launcher, probe, folder):
    import shutil
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start_ranks(folder)
    for name in ("fsdp1_sharded", "fsdp2_sharded"):
        assert (folder / name / "pytorch_model_fsdp_0" / "__1_0.distcp").exists(), "rank 1 wrote no part"
    for name in CASES:
        check_case(launcher, probe, folder, name, 1, "no_shard")
    for name in ("fsdp1_sharded", "fsdp2_sharded", "fsdp2_full"):
        check_case(launcher, probe, folder, name, 2, "full_shard")
    check_case(launcher, probe, folder, "fsdp2_sharded", 3, "full_shard")
    shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(Path(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
