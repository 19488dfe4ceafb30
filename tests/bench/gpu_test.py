# SPDX-License-Identifier: Apache-2.0
"""gpu_test.py BIN_FOLDER PYTHON: runs the gpu bench with small models on the CPU through bench/gpu.sh, with all peers that
a machine without a GPU has, and checks every row. PYTHON has torch, torchvision and accelerate."""
import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
from run_test import load

PYTHON, BIN = sys.argv.pop(), sys.argv.pop()
HERE = os.path.dirname(os.path.abspath(__file__))
GPU_SH = os.path.join(HERE, "..", "..", "bench", "gpu.sh")


class GpuTest(unittest.TestCase):
    def test_the_dry_run_measures_every_row_and_both_sides_have_equal_losses(self):
        with unittest.mock.patch.dict(os.environ, ACCELERATE_BENCH_GPUS="0"):
            bench = load()
        # Rules of bench/run: Lightning Fabric is a peer on GPUs only.
        self.assertEqual(list(bench.GPU_PEERS), ["Accelerate", "Accelerate inductor", "torch.compile", "torch.compile reduce-overhead"])
        wanted = [row.name for row in bench.BENCHES["gpu"].rows]
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([GPU_SH, "--bin", BIN, "--results", folder, "--dry-run", "benches"],
                                 env=dict(os.environ, ACCELERATE_BENCH_PYTHON=PYTHON), capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)  # a difference of losses is a failure
            (path,) = glob.glob(f"{folder}/*-0-dry-run.jsonl")
            with open(path) as file:
                rows = [json.loads(line) for line in file]
        self.assertEqual([row["row"] for row in rows], wanted)
        self.assertEqual([row for row in rows if not (0 < row["ours"] < math.inf and 0 < row["peer"] < math.inf)], [])


if __name__ == "__main__":
    unittest.main()
