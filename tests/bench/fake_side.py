# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison that returns given times: fake_side.py CASE=SECONDS ..., or 'die'."""
import os
import sys

cases = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
folder = os.environ["ACCELERATE_BENCH_PIPES"]
if "die" in sys.argv:
    sys.exit(3)
with open(f"{folder}/out", "w", buffering=1) as out, open(f"{folder}/0.in") as questions:
    print("a fake", file=out)
    for question in questions:
        print(cases[question.split()[0]], file=out)
