# SPDX-License-Identifier: Apache-2.0
"""tracking.py <command of the example>: checks output and files of a run, on any number of ranks."""
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def expect(what, holds):
    if not holds:
        sys.exit(f"tracking.py: {what}")


def mean(values):
    return sum(values) / len(values)


def check_files(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    config, rows = lines[0]["config"], lines[1:]
    expect(f"configuration {config}", config["lr"] == 1e-3 and config["batch_size"] == 64)
    verdict = rows.pop()["loader"]
    expect(f"the loader's verdict {verdict}", " is the bottleneck" in verdict or " are the bottleneck" in verdict)
    expect("steps", [row["step"] for row in rows] == list(range(len(rows))) and len(rows) >= 30)
    losses = [row["loss"] for row in rows if "loss" in row]
    expect(f"losses {losses}", mean(losses[-5:]) < 0.5 * mean(losses[:5]))
    expect("learning rates", all(row["lr"] == 1e-3 for row in rows if "loss" in row))
    expect("memory", all(row["resident_bytes"] > 1 << 20 for row in rows))
    with open(run / "metrics.csv") as file:
        cells = [row for row in csv.DictReader(file) if row["loss"]]
    expect("cells", [float(row["loss"]) for row in cells] == losses)
    events = list(run.glob("events.out.tfevents.*"))
    expect(f"event files {events}", len(events) == 1 and events[0].read_bytes().count(b"\x89PNG") == 4)
    ranks = json.loads((run / "profile/profile_summary.json").read_text())["ranks"]
    expect(f"a profile of {len(ranks)} ranks", [one["rank"] for one in ranks] == list(range(config["ranks"])))
    for one in ranks:
        expect(f"what rank {one['rank']} recorded", len(one["step_ms"]) == 3 and one["gflop"] > 0 and one["operators"])
        expect(f"rank {one['rank']}'s communication", (one["communication_ms"] > 0) == (config["ranks"] > 1))
    return len(rows), config["ranks"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(sys.argv[1:] + [folder], capture_output=True, text=True)
        expect(f"ended with {ran.returncode}:\n{ran.stderr}", ran.returncode == 0)
        steps, ranks = check_files(Path(folder) / "digits")
        # A slow run has a line each ten seconds, and 221 of 222 steps are 100 % too.
        bars = [line for line in ran.stderr.splitlines() if f"| {steps}/{steps} [" in line]
        whole = len(bars) == 1 and bars[0].startswith("epoch 1: 100%|") and "loss=" in bars[0]
        expect(f"one whole bar in\n{ran.stderr}", whole)
        expect(f"the table in\n{ran.stdout}", ran.stdout.startswith("3 steps in ") and "aten::" in ran.stdout)
        print(ran.stdout)
        print(f"tracked on {ranks} rank(s)")


main()
