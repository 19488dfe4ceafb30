# SPDX-License-Identifier: Apache-2.0
"""A training that receives a stop signal saves at the next step and exits with 75. Restarted by the test or by the launcher, it
ends with weights that are bit-equal to those of an uninterrupted run.

preemption.py FOLDER LAUNCHER EXAMPLE [the launcher's options]
"""
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

folder, launcher, example = Path(sys.argv[1]), *sys.argv[2:4]
RESUME = 75
SECONDS = 200  # limit for events that do not happen
SAMPLES = 160  # 20 steps of 8 in an epoch
os.environ["OMP_NUM_THREADS"] = "1"


def write_digits(data):
    """Writes random images with the labels of digits in the format of MNIST."""
    data.mkdir()
    random.seed(1)
    for part in ("train", "t10k"):
        (data / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, SAMPLES, 28, 28) + random.randbytes(SAMPLES * 28 * 28))
        (data / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, SAMPLES) + bytes(i % 10 for i in range(SAMPLES)))


def program(project):
    return [example, "--data-dir", str(folder / "data"), "--project-dir", str(project), "--batch-size", "8", "--epochs", "12",
            "--checkpointing_steps", "10", "--resume"]


def on_two(project, *options):
    return [launcher, "--cpu", "--num_processes", "2", "--main_process_port", "0", *sys.argv[4:], *options, *program(project)]


def run(command):
    return subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.PIPE, text=True).stdout


def weights(project):
    return (project / "model.safetensors").read_bytes()


def wait_until(condition, process):
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.poll()
        time.sleep(0.005)


def ranks_of(project):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if words.startswith(example.encode()) and str(project).encode() in words:
            found.append(int(entry.name))
    return found


def started(command, project):
    """Starts the command and returns its process when the first checkpoint exists."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: (project / "checkpoints" / "checkpoint_0").exists(), process)
    return process


def ended(process):
    output = process.communicate(timeout=SECONDS)[0]
    return process.returncode, output


def alone(calm):
    """One process receives Slurm's signal, and the test restarts it."""
    process = started(program(folder / "alone"), folder / "alone")
    process.send_signal(signal.SIGUSR1)
    code, output = ended(process)
    assert code == RESUME and "stopped on request: saved after step" in output, (code, output)
    output = run(program(folder / "alone"))
    assert "continues after step" in output, output
    assert weights(folder / "alone") == calm, "the weights differ"


def two_ranks():
    """A single rank receives the signal, and the launcher restarts the job if allowed; or the launcher forwards it to all."""
    run(on_two(folder / "calm_two"))
    process = started(on_two(folder / "two", "--resume_code", str(RESUME)), folder / "two")
    os.kill(ranks_of(folder / "two")[-1], signal.SIGUSR1)
    code, output = ended(process)
    assert code == 0 and "the ranks requested a restart (exit code 75)" in output and "continues after step" in output, (code, output)
    assert weights(folder / "two") == weights(folder / "calm_two"), "the weights differ"

    process = started(on_two(folder / "ended"), folder / "ended")
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == RESUME and "stopped on request: saved after step" in output, (code, output)
    run(on_two(folder / "ended"))
    assert weights(folder / "ended") == weights(folder / "calm_two"), "the weights differ"


shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
write_digits(folder / "data")
run(program(folder / "calm"))
alone(weights(folder / "calm"))
two_ranks()
shutil.rmtree(folder)
