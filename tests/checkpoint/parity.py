# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Hugging Face Accelerate read here, and ours there: a training that changes sides twice must have the
losses of one that stays.

parity.py PROBE FOLDER
"""
import logging
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

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
    """A training in Python; a new one each time, as in a new process."""

    def __init__(self, name):
        torch.manual_seed(99)  # what is loaded must not depend on it
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


def close(mine, other, what):
    for i, (a, b) in enumerate(zip(mine, other, strict=True)):
        assert abs(a - b) <= 2e-5 * max(abs(a), abs(b)), f"{what}: loss {i} is {b} here, {a} in Python"


def draws():
    return [*torch.rand(3).tolist(), random.random(), numpy.random.rand()]


def both_ways(probe, folder, name):
    whole = Python(name)
    whole.accelerator.save_state(folder / "start")
    expected = whole.train(0, 3 * STEPS)

    python = Python(name)
    python.load(folder / "start")
    losses = python.train(0, STEPS)
    random.seed(5), numpy.random.seed(6)
    python.accelerator.save_state(folder / "python")
    losses_here, drawn_here = ours(probe, name, folder / "python", STEPS, folder / "ours")
    again = Python(name)
    again.load(folder / "ours")
    drawn = draws()
    close(expected, losses + losses_here + again.train(2 * STEPS, STEPS), f"{name}, Python, here, Python")

    # The generators: LibTorch's goes on in Python, Python's own are handed on unchanged.
    assert drawn[:3] == [torch.tensor(d).item() for d in drawn_here], (drawn, drawn_here)
    random.seed(5), numpy.random.seed(6)
    assert drawn[3:] == [random.random(), numpy.random.rand()], drawn

    # Here, Python, here; and here alone.
    first, _ = ours(probe, name, folder / "start", STEPS, folder / "first")
    middle = Python(name)
    middle.load(folder / "first")
    second = middle.train(STEPS, STEPS)
    middle.accelerator.save_state(folder / "second")
    third, _ = ours(probe, name, folder / "second", STEPS, "-")
    close(expected, first + second + third, f"{name}, here, Python, here")
    alone, _ = ours(probe, name, folder / "start", 3 * STEPS, "-")
    close(expected, alone, f"{name}, here alone")

    # What torch.load and safetensors say.
    optimizer = torch.load(folder / "ours" / "optimizer.bin", weights_only=True)
    OPTIMIZERS[name](list(Net().parameters())).state_dict()
    pythons = torch.load(folder / "python" / "optimizer.bin", weights_only=True)
    assert [set(group) - {"initial_lr"} for group in pythons["param_groups"]] == [
        set(group) for group in optimizer["param_groups"]], (pythons["param_groups"], optimizer["param_groups"])
    assert {k: {n: (t.dtype, t.shape) for n, t in v.items()} for k, v in pythons["state"].items()} == {
        k: {n: (t.dtype, t.shape) for n, t in v.items()} for k, v in optimizer["state"].items()}
    assert torch.load(folder / "ours" / "scheduler.bin", weights_only=True)["last_epoch"] == 2 * STEPS
    weights = load_file(folder / "ours" / "model.safetensors")
    assert {k: (v.dtype, v.shape) for k, v in weights.items()} == {
        k: (v.dtype, v.shape) for k, v in Net().state_dict().items()}
    print(f"{name}: last loss {expected[-1]:.7f} in Python, {third[-1]:.7f} here")


def fresh(probe, folder):
    """A checkpoint that never saw Python: Python's generators get states that are valid."""
    ours(probe, "sgd", "-", 2, folder / "fresh")
    python = Python("sgd")
    python.load(folder / "fresh")
    assert len(set(draws())) == 5


def named_by_itself(probe, folder):
    """Accelerate's numbered folders: the newest that has all is loaded, in the order of their numbers, and the log says what it is."""
    python = Python("adam")
    python.accelerator.project_configuration.set_directories(folder)
    python.accelerator.project_configuration.automatic_checkpoint_naming = True
    for iteration in (9, 10, 11):  # as text 9 would be the newest
        python.accelerator.project_configuration.iteration = iteration
        python.train(iteration, 1)
        python.accelerator.save_state()
    all_of_them = folder / "checkpoints"

    def load():
        ran = subprocess.run([probe, "train", "adam", str(all_of_them), str(STEPS), "-"], timeout=100, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return [float(line) for line in ran.stdout.splitlines()[:-1]], ran.stderr

    def says(told, newest):
        return f"{all_of_them}/checkpoint_{newest} has no manifest.json: it is of Hugging Face Accelerate, and cannot be verified" in told

    # The schedule is stepped with the steps, so the probe's steps go on from the third.
    losses, told = load()
    assert len(losses) == STEPS and says(told, 11) and "passed over" not in told, told
    python = Python("adam")
    python.load(all_of_them / "checkpoint_11")
    close(python.train(3, STEPS), losses, "Accelerate's newest, here")

    weights = all_of_them / "checkpoint_11" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    _, told = load()
    assert says(told, 10) and "passed over checkpoint_11: " in told and "model.safetensors" in told, told
    (all_of_them / "checkpoint_10" / "random_states_0.pkl").unlink()
    _, told = load()
    assert says(told, 9) and "passed over checkpoint_10: random_states_0.pkl is missing" in told, told
    (all_of_them / "checkpoint_9" / "optimizer.bin").unlink()
    ran = subprocess.run([probe, "train", "adam", str(all_of_them), "1", "-"], timeout=100, capture_output=True, text=True)
    assert ran.returncode == 1 and "checkpoint_9: optimizer.bin is missing" in ran.stderr, ran.stderr


def main():
    probe, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    for name in OPTIMIZERS:
        both_ways(probe, folder / name, name)
    fresh(probe, folder)
    named_by_itself(probe, folder / "named")
    shutil.rmtree(folder)


main()
