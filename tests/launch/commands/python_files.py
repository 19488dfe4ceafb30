# SPDX-License-Identifier: Apache-2.0
"""Runs the programs that inspect files on files that safetensors, torch and Accelerate wrote in Python."""
import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file

PROGRAMS = Path(sys.argv.pop(1))


def run(program, *arguments):
    return subprocess.run([PROGRAMS / f"accelerate_{program}", *map(str, arguments)], capture_output=True, text=True, timeout=60)


class PythonFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 10))
        self.parameters = sum(t.numel() for t in self.model.state_dict().values() if t.is_floating_point())

    def test_estimate_of_torch_and_safetensors_files_is_the_same(self):
        state = self.model.state_dict()
        torch.save(state, self.folder / "pytorch_model.bin")
        save_file(state, self.folder / "model.safetensors")
        reports = [run("estimate_memory", self.folder / name) for name in ("pytorch_model.bin", "model.safetensors")]
        for report in reports:
            self.assertEqual(report.stderr, "")
            self.assertIn(f"{self.parameters:,} parameters", report.stdout)
            self.assertIn("largest layer: 0 (bias, weight), 100,480 parameters", report.stdout)
        self.assertEqual(*(report.stdout.split("\n", 1)[1] for report in reports))

    def test_estimate_reads_every_dtype_of_torch_and_counts_shared_memory_once(self):
        dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
                  torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
                  torch.float8_e5m2]
        state = {str(dtype): torch.zeros(3).to(dtype) for dtype in dtypes}
        state["parameter"] = torch.nn.Parameter(torch.ones(4, 2).t())
        state["tied"] = state["parameter"]
        torch.save(state, self.folder / "all.bin")
        report = run("estimate_memory", self.folder / "all.bin")
        self.assertEqual(report.stderr, "")
        self.assertIn("18 tensors, 29 parameters", report.stdout)
        self.assertIn("1 of them in memory of another, counted once", report.stdout)
        for name in "F64 F32 F16 BF16 C64 C128 I64 I32 I16 I8 U8 U16 U32 U64 BOOL F8_E4M3 F8_E5M2".split():
            self.assertRegex(report.stdout, rf"(?m)^{name} ")

    def test_estimate_reads_a_sharded_torch_model(self):
        state = self.model.state_dict()
        names = list(state)
        index = {}
        for shard, keys in enumerate((names[:3], names[3:])):
            torch.save({key: state[key] for key in keys}, self.folder / f"{shard}.bin")
            index.update({key: f"{shard}.bin" for key in keys})
        (self.folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
        report = run("estimate_memory", self.folder)
        self.assertEqual(report.stderr, "")
        self.assertIn(f"{self.parameters:,} parameters", report.stdout)

    def test_merged_shards_of_accelerate_can_be_loaded_in_python(self):
        import accelerate
        accelerate.Accelerator(cpu=True).save_model(self.model, self.folder / "sharded", max_shard_size="300KB")
        self.assertTrue((self.folder / "sharded" / "model.safetensors.index.json").exists())
        merged = run("merge_weights", self.folder / "sharded", self.folder / "one.safetensors")
        self.assertEqual(merged.stderr, "")
        loaded = load_file(self.folder / "one.safetensors")
        state = self.model.state_dict()
        self.assertEqual(set(loaded), set(state))
        for name, tensor in state.items():
            self.assertTrue(torch.equal(loaded[name], tensor), name)

    def test_diff_of_two_states_of_accelerate_prints_the_changes(self):
        import accelerate
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(self.model, torch.optim.AdamW(self.model.parameters(), lr=1e-3))
        random.seed(1), numpy.random.seed(1)
        for name in "ab":
            accelerator.backward(model(torch.rand(4, 784)).square().mean())
            optimizer.step()
            accelerator.save_state(self.folder / name)
            optimizer.param_groups[0]["lr"] = 0.25
        report = run("checkpoint", "diff", "--most", 1000, self.folder / "a", self.folder / "b")
        self.assertEqual((report.returncode, report.stderr), (1, ""))
        self.assertRegex(report.stdout, r"model.safetensors: 0.weight [\d,]+ of 100,352 elements differ, most by ")
        self.assertIn("optimizer.bin: state.0.step 1 of 1 elements differ, most by 1: 1, 2 at 0", report.stdout)
        self.assertIn("optimizer.bin: param_groups.0.lr is 0.001, 0.25", report.stdout)
        self.assertRegex(report.stdout, r"random_states_0.pkl: torch_manual_seed ")
        self.assertNotIn("bytes differ", report.stdout)
        self.assertEqual(run("checkpoint", "diff", self.folder / "a", self.folder / "a").stdout, "")

    def test_diff_of_equal_values_in_other_bytes_is_none(self):
        tensor = torch.rand(3, 4)
        torch.save({"w": tensor}, self.folder / "a.bin")
        torch.save({"w": tensor}, self.folder / "b.pt")
        self.assertNotEqual((self.folder / "a.bin").read_bytes(), (self.folder / "b.pt").read_bytes())
        self.assertEqual(run("checkpoint", "diff", self.folder / "a.bin", self.folder / "b.pt").returncode, 0)

    def test_files_that_would_run_code_or_are_too_old_are_refused_by_name(self):
        class Trap:
            def __reduce__(self):
                return (print, ("executed",))
        torch.save({"w": Trap()}, self.folder / "trap.bin")
        trapped = run("estimate_memory", self.folder / "trap.bin")
        self.assertEqual((trapped.returncode, trapped.stdout), (1, ""))
        self.assertIn("it names '__builtin__.print', which is not read", trapped.stderr)
        torch.save({"w": torch.ones(2)}, self.folder / "old.bin", _use_new_zipfile_serialization=False)
        self.assertIn("the file is of PyTorch's format before 1.6", run("estimate_memory", self.folder / "old.bin").stderr)


if __name__ == "__main__":
    unittest.main()
