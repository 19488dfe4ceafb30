# SPDX-License-Identifier: Apache-2.0
"""export_compiled_test.py SOURCE_FOLDER: tests the modules that the exporter refuses before it compiles."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

tools = os.path.join(sys.argv.pop(1), "tools")
sys.path.insert(0, tools)
import export_compiled
from export_compiled import ExportError, _example, _sizes, _symbols, _threads, export


class Returns(torch.nn.Module):
    """Applies a function to the output of a layer."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(3, 3), function
        self.drop = torch.nn.Dropout()

    def forward(self, x):
        return self.function(self, x, self.layer(x))


class Refusals(unittest.TestCase):
    def refuses(self, text, module, *inputs, **options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.pt2")
            with self.assertRaisesRegex(ExportError, re.escape(text)):
                export(module, inputs, path, **options)
            self.assertEqual(os.listdir(folder), [])

    def refuses_result(self, text, function, **options):
        self.refuses(text, Returns(function), torch.randn(4, 3), **options)

    def test_modules_and_inputs(self):
        frozen = torch.nn.Linear(3, 3).requires_grad_(False)
        self.refuses("no parameter requires a gradient, so there is no backward to compile; use torch.export for inference", frozen, torch.randn(4, 3))
        self.refuses("the example inputs must be tensors; bind other arguments in a wrapper module", torch.nn.Linear(3, 3), 3)
        self.refuses("module and inputs are on cpu, meta; move them to one device", torch.nn.Linear(3, 3), torch.randn(4, 3, device="meta"))
        self.refuses("the module is on meta; supported are cpu and cuda", torch.nn.Linear(3, 3).to("meta"), torch.randn(4, 3, device="meta"))

    def test_dynamic_sizes(self):
        net = torch.nn.Bilinear(3, 3, 3)
        self.refuses("dynamic_batch needs one size in dimension 0 of all inputs, the examples have [4, 5]; name the dimensions with "
                     "dynamic=[(input, dimension), ...]", net, torch.randn(4, 3), torch.randn(5, 3), dynamic_batch=True)
        self.refuses("dynamic names dimension 2 of input 0, which does not exist", net, torch.randn(4, 3), torch.randn(4, 3), dynamic=[(0, 2)])
        self.refuses("dimension 0 of input 0 is 1 in the example; a dynamic dimension needs at least 2, because PyTorch compiles 0 and 1 as "
                     "constants", torch.nn.Linear(3, 3), torch.randn(1, 3), dynamic_batch=True)

    def test_outputs(self):
        self.refuses_result("the module returned dict, must be a tensor or a tuple of tensors; return them from a wrapper module",
                            lambda net, x, y: {"y": y})
        self.refuses_result("an output is an input or a view of one; return a clone of it", lambda net, x, y: (y, x.view(3, 4)))
        self.refuses_result("an output is returned twice; return a clone of it", lambda net, x, y: (y, y))
        self.refuses_result("input 0 is changed in place; change a clone of it", lambda net, x, y: net.layer(x.mul_(2)))
        self.refuses_result("no output depends on a parameter that requires a gradient", lambda net, x, y: x * 2)
        self.refuses("an input that needs a gradient is changed in place, or an output is a view of another; use a clone",
                     Returns(lambda net, x, y: net.layer(x.mul_(2))), torch.randn(4, 3, requires_grad=True).clone())

    def test_a_parameter_that_the_forward_changes(self):
        def forward(net, x, y):
            with torch.no_grad():
                net.layer.bias.add_(1)
            return y
        self.refuses_result("parameter layer.bias is changed in place; change a clone of it", forward)

    def test_a_refused_export_restores_the_modes(self):
        for training in (True, False):
            net = Returns(lambda net, x, y: {"y": y}).train(training)
            with self.assertRaises(ExportError):
                export(net, torch.randn(4, 3), "never.pt2")
            self.assertEqual([net.training, net.layer.training, net.drop.training], 3 * [training])

    def test_parts_in_another_mode_than_the_module(self):
        net = Returns(lambda net, x, y: y)
        net.drop.eval()
        self.refuses("drop is in evaluation mode and the module is not, but the package has one graph in which all parts train and one "
                     "in which all are evaluated; call train() of the module, and replace a layer that must not train, as torchvision "
                     "does with FrozenBatchNorm2d", net, torch.randn(4, 3))
        net.train().eval().drop.train()
        self.refuses("drop is in training mode and the module is not", net, torch.randn(4, 3))

    def test_the_linker_finds_the_libraries_of_cuda_in_the_wheel(self):
        if torch.version.cuda is None:
            self.skipTest("this torch has no CUDA")
        before = os.environ.get("LIBRARY_PATH")
        with export_compiled._libraries_of_cuda(torch.device("cuda")):
            folder = os.environ["LIBRARY_PATH"].split(":")[-1]
            self.assertIn("libcudart.so", os.listdir(folder))
            self.assertTrue(os.path.exists(f"{folder}/libcudart.so"))
        self.assertEqual(os.environ.get("LIBRARY_PATH"), before)
        self.assertFalse(os.path.exists(folder))
        with export_compiled._libraries_of_cuda(torch.device("cpu")):
            self.assertEqual(os.environ.get("LIBRARY_PATH"), before)

    def test_sizes_that_guards_allow(self):
        import sympy
        n = sympy.Symbol("n", integer=True, positive=True)
        self.assertEqual(_sizes([]), {"min": 2, "max": 0, "excluded": []})
        self.assertEqual(_sizes([(sympy.Le(256 * n, 2**31 - 1), n)]), {"min": 2, "max": 8388607, "excluded": []})
        self.assertEqual(_sizes([(sympy.Ne(n, 8), n), (sympy.Ge(n, 3), n)]), {"min": 3, "max": 0, "excluded": [8]})
        with self.assertRaisesRegex(ExportError, "allows only some sizes"):
            _sizes([(sympy.Eq(n % 2, 0), n)])
        with self.assertRaisesRegex(ExportError, "export without dynamic sizes"):
            _sizes([(sympy.Lt(n, 2), n)])

    def test_symbols_that_the_code_fixes_or_relates(self):
        import sympy
        n, m = sympy.symbols("n m", integer=True, positive=True)

        class Guard:
            def __init__(self, expr):
                self.expr = expr

        class Env:
            replacements, guards = {n: sympy.Integer(6)}, []
        with self.assertRaisesRegex(ExportError, "fixes a dynamic size to 6"):
            _symbols([(Env, [n])])
        Env.replacements, Env.guards = {}, [Guard(sympy.Ne(n, m))]
        with self.assertRaisesRegex(ExportError, "relates two dynamic sizes"):
            _symbols([(Env, [n, m])])

    def test_code_that_depends_on_a_dynamic_size(self):
        self.refuses_result("the module's code fixes a dynamic size to 4; remove the dependence on the size, or export without dynamic sizes",
                            lambda net, x, y: y * int(x.shape[0]), dynamic_batch=True)
        self.refuses_result("the module's code allows only some sizes", lambda net, x, y: y * 2 if x.shape[0] % 2 == 0 else y, dynamic_batch=True)
        self.refuses_result("output 0 is not contiguous and its strides depend on a dynamic size; use a contiguous tensor, or export without "
                            "dynamic sizes", lambda net, x, y: torch.stack([y, y]).transpose(0, 1) * 2, dynamic_batch=True)

    def test_threads_of_parallel_kernels(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = {"a.kernel.cpp": "#pragma omp parallel num_threads(2)\n #pragma omp parallel num_threads(16)\n", "b.cpp": "#pragma omp parallel\n",
                     "c.so": "#pragma omp parallel num_threads(32)"}
            for name, text in texts.items():
                with open(f"{folder}/{name}", "w") as file:
                    file.write(text)
            files = {name: f"{folder}/{name}" for name in texts}
            self.assertEqual(_threads({"forward": list(files.values()), "backward": [files["b.cpp"]]}), 16)
            self.assertEqual(_threads({"forward": [files["b.cpp"], files["c.so"]]}), 0)

    def test_examples_of_the_command(self):
        self.assertEqual((_example("2x3").shape, _example("2x3").dtype), ((2, 3), torch.float32))
        self.assertEqual(_example("4:float64").dtype, torch.float64)
        self.assertLess(_example("1000:int64:3").max().item(), 3)

    def test_another_version_of_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/torch")
            with open(f"{folder}/torch/__init__.py", "w") as file:
                file.write("__version__ = '2.12.0+cpu'\n")
            run = subprocess.run([sys.executable, f"{tools}/export_compiled.py", "m:f", "--example", "2", "--output", "x.pt2"],
                                 env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr),
                         (1, "export_compiled: torch is 2.12.0+cpu, supported are 2.11 and 2.15; install the version of the LibTorch that the "
                             "C++ program uses\n"))


if __name__ == "__main__":
    unittest.main()
