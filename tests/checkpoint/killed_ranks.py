# SPDX-License-Identifier: Apache-2.0
"""Kills one of two ranks (fp16 with a changing loss scale, windows of three) after some micro-batch, saved or not. The
restarted job must end with the checkpoint of an uninterrupted run, byte for byte.

killed_ranks.py FOLDER LAUNCHER KILLS_PROGRAM
"""
import shutil
import subprocess
import sys
from pathlib import Path

folder, (launcher, program) = Path(sys.argv[1]), sys.argv[2:4]
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)


def launch(project, after=0, unsaved=0):
    return subprocess.run([launcher, "--cpu", "--num_processes", "2", "--main_process_port", "0", program, str(project), str(after),
                           str(unsaved)], timeout=200, capture_output=True, text=True)


def end_of(project):
    return {path.name: path.read_bytes() for path in (project / "end").iterdir()}


calm = launch(folder / "calm")
assert calm.returncode == 0, calm.stderr
expected = end_of(folder / "calm")
assert {"random_states_0.pkl", "random_states_1.pkl", "scaler.pt"} <= set(expected), set(expected)
KILLS = [(1, 1), (2, 0), (3, 1), (5, 0), (6, 1)]  # epochs of four: at each place of a window, in both of them
for after, unsaved in KILLS:
    project = folder / f"killed_{after}"
    killed = launch(project, after, unsaved)
    assert killed.returncode != 0 and "signal 9" in killed.stderr, killed.stderr
    again = launch(project)
    assert again.returncode == 0, again.stderr
    found = end_of(project)
    assert set(found) == set(expected), (after, set(found) ^ set(expected))
    assert not (differ := [name for name in expected if found[name] != expected[name]]), (after, unsaved, differ)
print(f"{len(KILLS)} kills, {len(expected)} files are equal")
shutil.rmtree(folder)
