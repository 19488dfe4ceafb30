# SPDX-License-Identifier: Apache-2.0
"""A program that prints "test accuracy 0.9812" must reach the float32 accuracy in mixed precision.

accuracy.py bf16|fp16 POINTS COMMAND...   {} in COMMAND is replaced by the precision; otherwise the environment sets it
"""
import os
import re
import subprocess
import sys


def accuracy(precision, command):
    environment = {**os.environ, "ACCELERATE_MIXED_PRECISION": precision}
    run = subprocess.run([word.format(precision) for word in command], check=True, timeout=1500, env=environment,
                         stdout=subprocess.PIPE, text=True)
    return 100 * float(re.search(r"test accuracy ([0-9.]+)", run.stdout)[1])


def main():
    precision, points, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    mixed, full = accuracy(precision, command), accuracy("no", command)
    print(f"test accuracy {mixed:.2f} % in {precision}, {full:.2f} % in float32, allowed {points} points apart")
    sys.exit(0 if full > 85 and abs(mixed - full) <= points else 1)


main()
