# SPDX-License-Identifier: Apache-2.0
"""examples/checkpoint in a bad week: a rank is killed, one is told to save and stop, then the whole job is, and each time it is
started again. The trained weights are those of a run that nobody disturbed, to the last bit.

resume.py FOLDER LAUNCHER EXAMPLE DATA BACKEND
"""
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

folder, launcher, example, data, backend = Path(sys.argv[1]), *sys.argv[2:6]
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
disturbed = folder / "disturbed"


def command(project, *options):
    return [launcher, "--cpu", "--num_processes", "2", "--backend", backend, "--main_process_port", "0", *options, example,
            "--data-dir", data, "--project-dir", str(project), "--epochs", "1", "--checkpointing_steps", "5", "--resume"]


def start():
    return subprocess.Popen(command(disturbed, "--max_restarts", "1", "--resume_code", "75"), stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def ranks():
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
        except OSError:
            continue
        if words[0] == example.encode() and str(disturbed).encode() in words:
            found.append(int(entry.name))
    return sorted(found)


def newest():
    try:
        return max(int(entry.name.split("_")[1]) for entry in (disturbed / "checkpoints").iterdir() if entry.name[11:].isdigit())
    except (OSError, ValueError):
        return -1


def until(condition, what):
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end, f"waited 200 s for {what}"
        assert process.poll() is None, f"ended with {process.returncode} before {what}: {process.stderr.read()}"
        time.sleep(0.005)


def come_further():
    before = newest()
    until(lambda: newest() > before and len(ranks()) == 2, "a checkpoint")


subprocess.run(command(folder / "calm"), check=True, timeout=400, stdout=subprocess.DEVNULL)
process = start()
come_further()
old = ranks()
os.kill(old[1], signal.SIGKILL)
until(lambda: not set(old) & set(ranks()), "the end of a rank that was killed")
come_further()
old = ranks()
os.kill(old[0], signal.SIGUSR1)
until(lambda: not set(old) & set(ranks()), "the end of ranks that were told to save")
come_further()
process.send_signal(signal.SIGTERM)
told = process.communicate(timeout=200)[1]
assert process.returncode == 75, told
for line in ("ended first, signal 9 (killed); the others were stopped.", "accelerate_launch: restart 1 of 1 in 0.5 s\n",
             "accelerate_launch: the ranks ask for another start (exit code 75) in ",
             "accelerate_launch: the ranks ended with exit code 75 after signal 15 was passed on; they ask for another start\n"):
    assert line in told, f"'{line}' is not in:\n{told}"
process = start()
told = process.communicate(timeout=400)[1]
assert process.returncode == 0 and told == "", told
calm, after = ((folder / name / "model.safetensors").read_bytes() for name in ("calm", "disturbed"))
assert calm == after, "the weights differ"
print(f"{backend}: {len(calm)} bytes of weights alike")
shutil.rmtree(folder)
