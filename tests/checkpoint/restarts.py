# SPDX-License-Identifier: Apache-2.0
"""Kills ranks repeatedly at random times: the launcher restarts them, they resume from their checkpoints, and the trained
weights are bit-equal to those of an uninterrupted run.

restarts.py FOLDER LAUNCHER EXAMPLE DATA KILLS
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LIFE = 10.5  # seconds; the launcher ends a job after consecutive attempts of less than ten
PATIENCE = 2400  # seconds; a run takes some five minutes, and longer beside other tests of `full`
folder, launcher, example, data, KILLS = Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
EPOCHS = 3 * KILLS  # as many attempts on a machine that needs 4 s or more for each
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)


def command(project, restarts):
    return [launcher, "--cpu", "--num_processes", "2", "--main_process_port", "0", "--max_restarts", str(restarts), example,
            "--data-dir", data, "--project-dir", str(project), "--epochs", str(EPOCHS), "--checkpointing_steps", "5",
            "--resume"]


def ranks_of(project):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(example.encode()) and \
                    str(project).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def newest(project):
    try:
        return max(int(entry.name.split("_")[1]) for entry in (project / "checkpoints").iterdir() if entry.name[11:].isdigit())
    except (OSError, ValueError):
        return -1


subprocess.run(command(folder / "calm", 0), check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)

random.seed(1)
process = subprocess.Popen(command(folder / "killed", 3 * KILLS), stdout=subprocess.DEVNULL)
kills = 0
while kills < KILLS and process.poll() is None:
    while not ranks_of(folder / "killed") and process.poll() is None:
        time.sleep(0.01)
    # Each attempt saves a newer checkpoint before it is killed, at any moment of a step or a save.
    started, before = time.monotonic(), newest(folder / "killed")
    while (newest(folder / "killed") == before or time.monotonic() - started < LIFE) and process.poll() is None:
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.5))
    ranks = ranks_of(folder / "killed")
    if ranks:
        os.kill(random.choice(ranks), signal.SIGKILL)
        kills += 1
        while set(ranks) & set(ranks_of(folder / "killed")) and process.poll() is None:
            time.sleep(0.01)
assert process.wait(timeout=PATIENCE) == 0, process.returncode
assert kills == KILLS, f"{kills} kills before it had ended"
calm, killed = ((folder / name / "model.safetensors").read_bytes() for name in ("calm", "killed"))
assert calm == killed, "the weights differ"
print(f"{kills} kills, {len(calm)} bytes of weights are equal")
shutil.rmtree(folder)
