# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Hugging Face Accelerate read in C++, and C++ checkpoints read in Python: a training that switches twice
must have the losses of an uninterrupted one.

parity.py PROBE FOLDER
"""
import json
import logging
import random
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy
import torch
from accelerate import Accelerator, load_checkpoint_in_model
from safetensors.torch import load_file, save_file
from torch.optim import lr_scheduler

STEPS = 10


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn, self.fc2 = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.fc2(torch.tanh(self.bn(self.fc1(x))))


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
}


def batch(step, columns):
    row, column = torch.arange(4).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    return (row * 31 + column * 17 + step * 7).remainder(13).float() / 16 - 0.375


class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append(record.getMessage())


class Python:
    """Trains in Python with new objects, as in a new process."""

    def __init__(self, name):
        torch.manual_seed(99)  # loaded values must not depend on it
        self.accelerator = Accelerator(cpu=True)
        net = Net()
        parameters = list(net.parameters())
        optimizer = OPTIMIZERS[name]([{"params": parameters[:2]}, {"params": parameters[2:]}])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(net, optimizer, scheduler)

    def load(self, folder):
        messages, logger = Messages(), logging.getLogger("accelerate.checkpointing")
        logger.setLevel(logging.INFO)
        logger.addHandler(messages)
        self.accelerator.load_state(folder)
        logger.removeHandler(messages)
        assert any("All random states loaded" in message for message in messages.seen), messages.seen

    def train(self, first, steps):
        losses = []
        for step in range(first, first + steps):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(batch(step, 8)), batch(step + 1, 2))
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses


def ours(probe, name, load, steps, save):
    printed = subprocess.run([probe, "train", name, str(load), str(steps), str(save)], check=True, timeout=100,
                             stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [float(line) for line in printed[:-1]], [float(word) for word in printed[-1].split()[1:]]


def steps_found(probe, name, folder):
    """Returns the steps that load_state() finds in the folder, and its log."""
    ran = subprocess.run([probe, "loaded", name, str(folder)], check=True, timeout=100, capture_output=True, text=True)
    return ran.stdout.strip(), ran.stderr


def close(mine, other, what):
    for i, (a, b) in enumerate(zip(mine, other, strict=True)):
        assert abs(a - b) <= 2e-5 * max(abs(a), abs(b)), f"{what}: loss {i} is {b} here, {a} in Python"


def draws():
    return [*torch.rand(3).tolist(), random.random(), numpy.random.rand()]


def option_spellings(probe, folder, name):
    whole = Python(name)
    whole.accelerator.save_state(folder / "start")
    expected = whole.train(0, 3 * STEPS)

    python = Python(name)
    python.load(folder / "start")
    losses = python.train(0, STEPS)
    random.seed(5), numpy.random.seed(6)
    python.accelerator.save_state(folder / "python")
    # Accelerate does not save the number of steps. SGD is the only optimizer here without that number in its state.
    found, output = steps_found(probe, name, folder / "python")
    unknown = f"{folder}/python does not contain the number of optimizer steps; LoadedState::step is 0 and counts from here"
    assert found == ("unknown, 0" if name == "sgd" else str(STEPS)) and (unknown in output) == (name == "sgd"), (found, output)
    losses_here, drawn_here = ours(probe, name, folder / "python", STEPS, folder / "ours")
    again = Python(name)
    again.load(folder / "ours")
    drawn = draws()
    close(expected, losses + losses_here + again.train(2 * STEPS, STEPS), f"{name}, Python, here, Python")

    assert steps_found(probe, name, folder / "ours") == ("10" if name == "sgd" else str(2 * STEPS), ""), name

    # Generators: LibTorch's continues in Python, Python's own are passed on unchanged.
    assert drawn[:3] == [torch.tensor(d).item() for d in drawn_here], (drawn, drawn_here)
    random.seed(5), numpy.random.seed(6)
    assert drawn[3:] == [random.random(), numpy.random.rand()], drawn

    # C++, Python, C++; and C++ without a switch.
    first, _ = ours(probe, name, folder / "start", STEPS, folder / "first")
    middle = Python(name)
    middle.load(folder / "first")
    second = middle.train(STEPS, STEPS)
    middle.accelerator.save_state(folder / "second")
    third, _ = ours(probe, name, folder / "second", STEPS, "-")
    close(expected, first + second + third, f"{name}, here, Python, here")
    alone, _ = ours(probe, name, folder / "start", 3 * STEPS, "-")
    close(expected, alone, f"{name}, here alone")

    # Results of torch.load and safetensors.
    optimizer = torch.load(folder / "ours" / "optimizer.bin", weights_only=True)
    OPTIMIZERS[name](list(Net().parameters())).state_dict()
    pythons = torch.load(folder / "python" / "optimizer.bin", weights_only=True)
    assert [set(group) for group in pythons["param_groups"]] == [
        set(group) for group in optimizer["param_groups"]], (pythons["param_groups"], optimizer["param_groups"])
    assert {k: {n: (t.dtype, t.shape) for n, t in v.items()} for k, v in pythons["state"].items()} == {
        k: {n: (t.dtype, t.shape) for n, t in v.items()} for k, v in optimizer["state"].items()}
    assert torch.load(folder / "ours" / "scheduler.bin", weights_only=True)["last_epoch"] == 2 * STEPS
    weights = load_file(folder / "ours" / "model.safetensors")
    assert {k: (v.dtype, v.shape) for k, v in weights.items()} == {
        k: (v.dtype, v.shape) for k, v in Net().state_dict().items()}
    print(f"{name}: last loss {expected[-1]:.7f} in Python, {third[-1]:.7f} here")


def fresh(probe, folder):
    """A checkpoint that was written without Python contains valid states of Python's generators."""
    ours(probe, "sgd", "-", 2, folder / "fresh")
    python = Python("sgd")
    python.load(folder / "fresh")
    assert len(set(draws())) == 5


def named_by_itself(probe, folder):
    """Loads Accelerate's numbered folders: the newest complete one by number; the log names it."""
    python = Python("adam")
    python.accelerator.project_configuration.set_directories(folder)
    python.accelerator.project_configuration.automatic_checkpoint_naming = True
    for iteration in (9, 10, 11):  # in the order of texts, 9 would be the newest
        python.accelerator.project_configuration.iteration = iteration
        python.train(iteration, 1)
        python.accelerator.save_state()
    all_of_them = folder / "checkpoints"

    def load():
        ran = subprocess.run([probe, "train", "adam", str(all_of_them), str(STEPS), "-"], timeout=100, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return [float(line) for line in ran.stdout.splitlines()[:-1]], ran.stderr

    def has_no_manifest(output, newest):
        return f"{all_of_them}/checkpoint_{newest} has no manifest.json: it was written by Hugging Face Accelerate and cannot be verified" in output

    # The schedule steps with the optimizer, so the probe continues from the third step.
    losses, output = load()
    assert len(losses) == STEPS and has_no_manifest(output, 11) and "skipped checkpoint" not in output, output
    python = Python("adam")
    python.load(all_of_them / "checkpoint_11")
    close(python.train(3, STEPS), losses, "Accelerate's newest, here")

    weights = all_of_them / "checkpoint_11" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    _, output = load()
    assert has_no_manifest(output, 10) and "skipped checkpoint_11: " in output and "model.safetensors" in output, output
    (all_of_them / "checkpoint_10" / "random_states_0.pkl").unlink()
    _, output = load()
    assert has_no_manifest(output, 9) and "skipped checkpoint_10: random_states_0.pkl is missing" in output, output
    (all_of_them / "checkpoint_9" / "optimizer.bin").unlink()
    ran = subprocess.run([probe, "train", "adam", str(all_of_them), "1", "-"], timeout=100, capture_output=True, text=True)
    assert ran.returncode == 1 and "checkpoint_9: optimizer.bin is missing" in ran.stderr, ran.stderr


SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "LibTorchs_StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 9, 11], 0.5),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20, 0.01),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 10, 2.0),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, 2, 0.01),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, step_size_up=3),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, 20),
    "OneCycleLR_of_three": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.5, 20, anneal_strategy="linear", cycle_momentum=False, three_phase=True),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
                    lr_scheduler.ExponentialLR(optimizer, 0.9)], [3, 10]),
    "SequentialLR_to_come": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5), lr_scheduler.OneCycleLR(optimizer, 0.5, 20)], [8]),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 9), lr_scheduler.ExponentialLR(optimizer, 0.9)]),
    "ChainedScheduler_of_sequences": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3),
                                               lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]),
         lr_scheduler.StepLR(optimizer, 2, 0.5)]),
}


class Scheduled:
    """A schedule in Python, with access to the rates and momenta of its optimizer."""

    def __init__(self, kind):
        net = torch.nn.Linear(1, 1)
        self.of = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.metric = [1.0] if kind == "ReduceLROnPlateau" else []
        self.accelerator = Accelerator(cpu=True)
        _, self.optimizer, self.scheduler = self.accelerator.prepare(net, self.of, SCHEDULES[kind](self.of))

    def step(self, times):
        seen = []
        for _ in range(times):
            self.optimizer.step()
            self.scheduler.step(*self.metric)
            seen += [self.of.param_groups[0][name] for name in ("lr", "momentum")]
        return seen


# Fields for warnings only, rates of an inactive part, and arguments that are passed to the constructor again.
NOT_COMPARED = {"_is_initial", "_get_lr_called_within_step", "_step_count", "_last_lr", "start_factor", "end_factor", "factor",
                "total_iters", "gamma", "step_size"}


def differs(ours, python):
    """State of a schedule in Python that is missing or different in C++."""
    if isinstance(python, list):
        return [name for pair in zip(ours, python, strict=True) for name in differs(*pair)]
    if isinstance(python, dict):
        names = set(python) - NOT_COMPARED
        return [name for name in names if name not in ours] + [one for name in names & set(ours) for one in differs(ours[name], python[name])]
    same = abs(ours - python) <= 1e-12 if isinstance(python, float) else ours == python
    return [] if same else [f"{ours} for {python}"]


def schedules(probe, folder):
    """Each kind of schedule in the README continues in Python from a C++ state, and in C++ from a Python state."""
    expected, pythons = {}, {}
    for kind in SCHEDULES:
        whole = Scheduled(kind)
        # A call of LibTorch's schedule returns the rate of Python's previous call.
        whole.step(6 if kind == "LibTorchs_StepLR" else 7)
        whole.accelerator.save_state(folder / "python" / kind)
        pythons[kind] = {name: torch.load(folder / "python" / kind / name, weights_only=True) for name in ("scheduler.bin", "optimizer.bin")}
        expected[kind] = whole.step(5)
    printed = subprocess.run([probe, "schedules", str(folder / "ours"), str(folder / "python")], check=True, timeout=200,
                             stdout=subprocess.PIPE, text=True).stdout
    here = {tuple(line.split()[:2]): [float(word) for word in line.split()[2:]] for line in printed.splitlines()}
    assert set(here) == {(how, kind) for how in ("saved", "loaded") for kind in SCHEDULES}, here

    def same(found, kind, what):
        for a, b in zip(expected[kind], found, strict=True):
            assert abs(a - b) <= 1e-7 * abs(a), f"{kind}, {what}: {expected[kind]} in Python, {found} there"

    for kind in SCHEDULES:
        same(here["saved", kind], kind, "here")
        same(here["loaded", kind], kind, "here, from Python's")
        again = Scheduled(kind)
        again.accelerator.load_state(folder / "ours" / kind)
        same(again.step(5), kind, "Python, from ours")
        state = torch.load(folder / "ours" / kind / "scheduler.bin", weights_only=True)
        groups = torch.load(folder / "ours" / kind / "optimizer.bin", weights_only=True)["param_groups"]
        kept = {name: value for group in groups for name, value in group.items() if name.endswith(("_lr", "_momentum"))}
        in_python = pythons[kind]["optimizer.bin"]["param_groups"][0]
        assert all(abs(value - in_python[name]) <= 1e-12 for name, value in kept.items()), (kept, in_python)
        assert kind in ("ReduceLROnPlateau", "LibTorchs_StepLR") or "initial_lr" in kept
        if kind.startswith(("CosineAnnealingWarm", "OneCycle", "Sequential", "Chained")):
            assert differs(state, pythons[kind]["scheduler.bin"]) == [], (kind, state, pythons[kind]["scheduler.bin"])
    other = Scheduled("LambdaLR")  # this class stores its initial rates, which LibTorch's schedules do not expose
    other.accelerator.load_state(folder / "ours" / "LibTorchs_StepLR")
    other.step(1)


def rates(probe, folder):
    """If another schedule or the user changed the rate after a schedule's last step, the rate in the optimizer's file applies."""

    def begun(order):
        of = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        made = {"exp": lr_scheduler.ExponentialLR(of, 0.9), "plateau": lr_scheduler.ReduceLROnPlateau(of, factor=0.5, patience=0)}
        accelerator = Accelerator(cpu=True)
        _, optimizer = accelerator.prepare(torch.nn.Linear(1, 1), of)
        return accelerator, optimizer, {name: accelerator.prepare(made[name]) for name in order.split(",")}

    def step(optimizer, schedules, times):
        seen = []
        for _ in range(times):
            optimizer.step()
            schedules["exp"].step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    for order in ("exp,plateau", "plateau,exp", "exp"):
        accelerator, optimizer, schedules = begun(order)
        step(optimizer, schedules, 2)
        if order == "exp":
            optimizer.param_groups[0]["lr"] = 0.02
        else:
            schedules["plateau"].step(1.0)
        if order == "exp,plateau":  # the schedule has set another rate since
            step(optimizer, schedules, 1)
        if order == "plateau,exp":  # it now reduces the rate as the last step
            schedules["plateau"].step(2.0)
        accelerator.save_state(folder / order)
        expected = step(optimizer, schedules, 3)
        again, optimizer, schedules = begun(order)
        again.load_state(folder / order)
        assert step(optimizer, schedules, 3) == expected
        printed = subprocess.run([probe, "rates", order, str(folder / order)], check=True, timeout=100, stdout=subprocess.PIPE, text=True).stdout
        for a, b in zip(expected, map(float, printed.split()), strict=True):
            assert abs(a - b) <= 1e-12, f"{order}: {expected} in Python, {printed.split()} here"


def counted(net):
    """The checksum that the probe prints: all tensors of a module, each element weighted by its position."""
    return sum((t.double().flatten() * torch.arange(1, t.numel() + 1)).sum().item() for t in net.state_dict().values())


def named(prefix, values):
    """The lines that the probe prints for tensors: name, dtype, sum."""
    lines = []
    for name, value in values.items():
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        dtype = {torch.float32: "Float", torch.int64: "Long", torch.bool: "Bool"}[tensor.dtype]
        if tensor is not value and dtype == "Float":  # Python's floats have 64 bits
            tensor, dtype = torch.tensor(value, dtype=torch.float64), "Double"
        lines.append(f"{prefix}{name} {dtype} {tensor.double().sum().item():.17g}")
    return lines


def pieces(probe, folder):
    """Single files in both directions: loss scale, registered objects, shards, weights of torch.save."""
    wrote, other = folder / "of_python", Net()
    with torch.no_grad():
        other.bn.running_mean.uniform_(), other.bn.num_batches_tracked.fill_(9)
    wrote.mkdir(parents=True)
    torch.save(other.state_dict(), wrote / "pytorch_model.bin")
    save_file(other.state_dict(), wrote / "model.safetensors")
    Accelerator(cpu=True).save_model(other, str(wrote / "sharded"), max_shard_size=300)
    assert (wrote / "sharded" / "model.safetensors.index.json").exists()
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    values = {"base": base, "view": base[:, 1], "turned": base.t(), "bf16": torch.full((3,), 1.5, dtype=torch.bfloat16),
              "long": torch.tensor(1 << 40), "parameter": torch.nn.Parameter(torch.ones(2)), "flags": torch.tensor([True, False])}
    torch.save(OrderedDict(values), wrote / "values.pt")
    nested = {"model": other.state_dict(), "epoch": 3, "rates": [0.1, 0.2], "name": "net", "best": None}
    torch.save(nested, wrote / "nested.pt")
    registering, schedule = Accelerator(cpu=True), lr_scheduler.StepLR(torch.optim.SGD(other.parameters(), lr=0.1), 3, 0.5)
    registering.prepare(other)
    registering.register_for_checkpointing(schedule)
    scalers = {"state": torch.amp.GradScaler("cpu", init_scale=512.0), "state_of_disabled": torch.amp.GradScaler("cpu", enabled=False)}
    for name, of_python in scalers.items():
        registering.save_state(wrote / name)
        torch.save(of_python.state_dict(), wrote / name / "scaler.pt")
    assert torch.load(wrote / "state_of_disabled" / "scaler.pt", weights_only=True) == {}
    printed = subprocess.run([probe, "pieces", str(folder / "ours"), str(wrote)], check=True, timeout=100, stdout=subprocess.PIPE,
                             text=True).stdout.splitlines()
    for line, file in zip(printed, ("/pytorch_model.bin", "/model.safetensors", "/sharded")):
        assert line.split()[0] == file and abs(float(line.split()[1]) - counted(other)) <= 1e-9 * abs(counted(other)), line
    dtypes = {"bf16": "BFloat16", "long": "Long", "flags": "Bool"}
    lines = [f"{name} {dtypes.get(name, 'Float')} {value.double().sum().item():.17g}" for name, value in values.items()]
    lines += named("model.", nested["model"]) + named("", {"epoch": 3, "rates": [0.1, 0.2]})
    for name, scale in (("state", 512), ("state_of_disabled", 1024)):
        lines += [f"/{name} {scale}", *named("", schedule.state_dict())]
    assert printed[3:] == lines, (printed[3:], lines)

    net = Net()
    expected = {name: torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape) for name, p in net.named_parameters()}
    state, scaler = folder / "ours" / "state", torch.amp.GradScaler("cpu")
    scaler.load_state_dict(torch.load(state / "scaler.pt", weights_only=True))
    assert scaler.get_scale() == 1024 and scaler.get_growth_interval() == 50
    averages = torch.load(state / "custom_checkpoint_0.pkl", weights_only=True)
    assert torch.equal(averages["mean"], torch.arange(3.0)) and averages["count"].dtype == torch.int64 and averages["count"] == 7
    assert torch.load(state / "custom_checkpoint_1.pkl", weights_only=True) == b"a\0\xff"
    for kind, name in (("sharded", "model.safetensors"), ("sharded_bin", "pytorch_model.bin"), ("bin", None)):
        found = {}
        if name is None:
            found = torch.load(folder / "ours" / "bin" / "pytorch_model.bin", weights_only=True)
        else:
            index = json.loads((folder / "ours" / kind / f"{name}.index.json").read_text())
            shards = sorted(set(index["weight_map"].values()))
            assert len(shards) > 1 and set(index["weight_map"]) == set(net.state_dict()), index
            for shard in shards:
                path = folder / "ours" / kind / shard
                read = load_file(path) if name == "model.safetensors" else torch.load(path, weights_only=True)
                assert {tensor for tensor, file in index["weight_map"].items() if file == shard} == set(read)
                found.update(read)
        net.load_state_dict(found)
        for tensor, value in expected.items():
            assert torch.equal(net.state_dict()[tensor], value), (kind, tensor)
        load_checkpoint_in_model(net, str(folder / "ours" / kind))
    sharded = folder / "ours" / "state_sharded"
    assert not (sharded / "model.safetensors").exists()
    net = Net()
    load_checkpoint_in_model(net, str(sharded))
    for tensor, value in expected.items():
        assert torch.equal(net.state_dict()[tensor], value), ("state_sharded", tensor)


def main():
    probe, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    for name in OPTIMIZERS:
        option_spellings(probe, folder / name, name)
    fresh(probe, folder)
    named_by_itself(probe, folder / "named")
    schedules(probe, folder / "schedules")
    rates(probe, folder / "rates")
    pieces(probe, folder / "pieces")
    shutil.rmtree(folder)


main()
