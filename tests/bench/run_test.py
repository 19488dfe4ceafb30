# SPDX-License-Identifier: Apache-2.0
"""Tests bench/run with sides that return given times."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.join(HERE, "fake_side.py")
sys.dont_write_bytecode = True


def load():
    path = os.path.join(HERE, "..", "..", "bench", "run")
    loader = importlib.machinery.SourceFileLoader("bench_run", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    sys.modules["bench_run"] = module
    loader.exec_module(module)
    return module


class RunTest(unittest.TestCase):
    def setUp(self):
        self.bench = load()

    def call(self, bench, *arguments):
        """Returns the exit code or message, the lines on stdout, and the text on stderr."""
        self.bench.BENCHES = {"fake": bench}
        out = io.StringIO()
        errors = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"bench_run_test.{os.getpid()}")
        sys.argv = ["run", *arguments]
        with open(errors, "w+") as err:
            os.unlink(errors)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
                self.bench.main()
            err.seek(0)
            return end.exception.code, out.getvalue().splitlines(), err.read()

    def sides(self, ours, theirs):
        return {"ours": ([sys.executable, FAKE, *ours], 1), "peer": ([sys.executable, FAKE, *theirs], 1)}

    def fake(self, after=None):
        return self.bench.Bench("ms", self.sides(["step=0.002"], ["step=0.005"]),
                                [self.bench.Row("a row", ("ours", "step"), ("peer", "step"))], after)

    def test_a_row_is_one_json_line_with_a_ratio_above_one_if_ours_is_faster(self):
        code, lines, table = self.call(self.fake(), "--rounds", "5", "fake")
        self.assertEqual(code, 0)
        self.assertEqual([json.loads(line) for line in lines],
                         [{"bench": "fake", "row": "a row", "unit": "ms", "ours": 2.0, "peer": 5.0, "ratio": 2.5}])
        self.assertIn("a row", table)
        self.assertIn("ours: a fake", table)

    def starting(self, start):
        return self.bench.Bench("ms", lambda: {"ours": self.bench.Starts("ours", {"case": start})},
                                [self.bench.Row("a row", ("ours", "case"), ("ours", "case"))])

    def test_a_restarted_program_is_timed_to_its_end_to_a_text_or_from_its_failure(self):
        timed = {"to its end": self.bench.Start(["sleep", "0.3"]),
                 "to a text": self.bench.Start(["sh", "-c", "sleep 0.3; echo ready; sleep 3"], until="ready\n"),
                 "from its failure": self.bench.Start(["sh", "-c", "sleep 3; date +%s%N; sleep 0.3; exit 1"], fails=True)}
        for name, start in timed.items():
            seconds = start.seconds()
            self.assertGreaterEqual(seconds, 0.295, name)
            if name != "to its end":  # excludes the time before and after
                self.assertLess(seconds, 2.9, name)
        code, lines, _ = self.call(self.starting(timed["to its end"]), "--rounds", "1")
        self.assertEqual((code, json.loads(lines[0])["row"]), (0, "a row"))
        self.assertGreater(self.bench.Start(["sh", "-c", "yes | head -c 5000000"], bytes_expected=5_000_000).seconds(), 0)

    def test_an_unexpected_result_of_a_program_ends_the_bench_with_its_output(self):
        for start in (self.bench.Start(["sh", "-c", "echo oh >&2; exit 3"]), self.bench.Start(["sh", "-c", "echo oh >&2"], fails=True),
                      self.bench.Start(["sh", "-c", "echo oh >&2"], until="ready"),
                      self.bench.Start(["sh", "-c", "echo oh >&2; echo x"], bytes_expected=1)):
            code, lines, _ = self.call(self.starting(start), "--rounds", "1")
            self.assertEqual(lines, [])
            self.assertRegex(code, r"bench/run: sh -c .* ended with code [03] and printed [0-9] bytes: oh")

    def test_a_failed_check_of_a_bench_ends_it_with_code_one(self):
        code, lines, table = self.call(self.fake(lambda sides: ["too slow"]), "--rounds", "5")
        self.assertEqual((code, len(lines)), (1, 1))
        self.assertTrue(table.endswith("bench/run: too slow\n"))

    def test_a_side_that_ends_is_named_with_its_code(self):
        bench = self.fake()
        bench.sides = self.sides(["die"], ["step=1"])
        self.assertEqual(self.call(bench, "fake")[0], "bench/run: ours ended with code 3")

    def test_a_case_that_a_side_cannot_measure_is_reported_and_the_other_rows_are_measured(self):
        bench = self.fake()
        bench.sides = self.sides(["step=error no package", "other=0.001"], ["step=0.005", "other=0.002"])
        bench.rows.append(self.bench.Row("another row", ("ours", "other"), ("peer", "other")))
        code, lines, table = self.call(bench, "--rounds", "1", "fake")
        self.assertEqual((code, [json.loads(line)["row"] for line in lines]), (1, ["another row"]))
        self.assertTrue(table.endswith("bench/run: a row: ours: step: no package\n"))

    def test_first_losses_that_differ_by_more_than_the_tolerance_are_a_failure(self):
        for theirs, code in ((2.004, 0), (2.02, 1)):
            bench = self.fake()
            bench.sides = self.sides(["step=0.002", "step/loss=2"], ["step=0.005", f"step/loss={theirs}"])
            bench.rows[0].tolerance, bench.check = 0.01, self.bench.first_losses
            ended, lines, table = self.call(bench, "--rounds", "1", "fake")
            self.assertEqual((ended, len(lines)), (code, 1))
            text = "bench/run: a row: the loss of step 8 is 2, the peer's 2.02; must differ by less than 0.01\n"
            self.assertEqual(table.endswith(text), code == 1)

    def test_a_failed_script_of_data_is_a_failure_and_the_rows_are_measured(self):
        bench = self.fake()
        bench.data = "no_such_script.py"
        with unittest.mock.patch.dict(os.environ, ACCELERATE_BENCH_PYTHON=sys.executable):
            code, lines, table = self.call(bench, "--rounds", "1", "fake")
        self.assertEqual((code, len(lines)), (1, 1))
        self.assertTrue(table.endswith("bench/run: no_such_script.py ended with code 2\n"))

    def test_an_unknown_bench_is_refused_with_the_known_ones(self):
        self.assertEqual(self.call(self.fake(), "fast")[0], "bench/run: there is no bench 'fast'; there are fake")

    def test_published_rows_keep_their_names(self):
        rows = {(name, row.name, bench.unit) for name, bench in load().BENCHES.items() for row in bench.rows}
        for row in [("ddp", "MLP, 2 ranks, mpi, vs torchrun+Accelerate", "ms"),
                    ("ddp", "BasicNet, 2 ranks, mpi, vs torchrun+Accelerate", "ms"),
                    ("ddp", "tiny MLP, 2 ranks, mpi, vs torchrun+Accelerate", "ms"),
                    ("ddp", "transformer 4x128, 2 ranks, mpi, vs torchrun+Accelerate", "ms"),
                    ("ddp", "BasicNet, 2 ranks, vs 1 rank", "ms"),
                    ("memory", "25 M parameters AdamW, peak resident of a process, vs Accelerate", "MB"),
                    ("compiled", "BasicNet, compiled, 1 CPU thread, vs torch.compile", "ms"),
                    ("step_overhead", "tiny MLP, 1 rank, vs Accelerate", "us"),
                    ("step_overhead", "tiny MLP, 1 rank, vs eager PyTorch", "us"),
                    ("step_overhead", "tiny MLP, accumulate 4, vs Accelerate", "us"),
                    ("step_overhead", "tiny MLP, bf16, vs Accelerate", "us"),
                    ("step_overhead", "100 parameters Adam, vs Python fused", "us"),
                    ("step_overhead", "100 parameters Adam, vs stock torch::optim", "us"),
                    ("step_overhead", "tiny MLP, prepared, vs hand-written loop", "us"),
                    ("collectives", "all_reduce 1 KB, 2 ranks, mpi, vs torch.distributed gloo", "us")]:
            self.assertIn(row, rows)

    def rows_on(self, gpus):
        with unittest.mock.patch.dict(os.environ, ACCELERATE_BENCH_GPUS=str(gpus)):
            return [row.name for name in ("gpu", "ddp") for row in load().BENCHES[name].rows]

    def test_rows_on_gpus_contain_their_number_and_the_speed_up_is_for_two(self):
        one, two, four = (self.rows_on(gpus) for gpus in (1, 2, 4))
        self.assertIn("MLP, 1 GPU, vs Accelerate", one)
        self.assertIn("BasicNet, 64 x 28x28, 1 GPU, vs Accelerate", one)
        self.assertEqual([name for name in one if "torchrun" in name or "nccl" in name or "vs 1 rank" in name], [])
        self.assertIn("MLP, 2 GPUs, nccl, vs torchrun+Accelerate", two)
        self.assertIn("BasicNet, 2 ranks, vs 1 rank", two)
        self.assertEqual([name for name in four if "vs 1 rank" in name], [])

    def test_torch_compile_is_a_peer_of_every_row_on_one_gpu(self):
        one, two = (self.rows_on(gpus) for gpus in (1, 2))
        of = {other: {name.removesuffix(f", vs {other}") for name in one if name.endswith(f", vs {other}")}
              for other in ("Lightning Fabric", "Accelerate inductor", "torch.compile", "torch.compile reduce-overhead")}
        self.assertEqual([other for other, names in of.items() if names != of["torch.compile"]], [])
        for name in ("GPT-2 124M, linear_cross_entropy, graphed_step, 1 GPU", "GPT-2 124M, compiled blocks, graphed_step, 1 GPU",
                     "GPT-2 124M, compiled blocks, graphed_step, peak memory, 1 GPU",
                     "ResNet-18, 64 x 224x224, channels_last, compiled, 1 GPU", "BasicNet, graphed_step, 1 GPU"):
            self.assertIn(name, of["torch.compile"])
        self.assertEqual([name for name in two if "torch.compile" in name or "inductor" in name], [])

    def test_rows_without_a_gpu_do_not_have_the_names_of_published_rows(self):
        self.assertEqual([name for name in self.rows_on(0) if "124M" in name or "ResNet-18" in name or "GPU" in name or "Fabric" in name], [])


if __name__ == "__main__":
    unittest.main()
