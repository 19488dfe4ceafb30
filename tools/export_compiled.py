#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports a torch.nn.Module to a .pt2 package that accelerate::nn::CompiledModule trains in C++.

    from export_compiled import export
    export(module, torch.randn(8, 128), "net.pt2", dynamic_batch=True)

    export_compiled.py package.module:factory --example 8x128:float32 --output net.pt2 --dynamic-batch

AOTAutograd traces the joint graph of forward and backward, Inductor's partitioner splits it, and AOTInductor compiles each
half and a third graph for evaluation. Parameters and buffers are inputs of the compiled code, so an optimizer changes them
without a new export. The functions of PyTorch used here are private, therefore only versions with a test are accepted.
"""
import argparse
import contextlib
import copy
import ctypes
import glob
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile

import torch

SUPPORTED = ("2.11", "2.15")
if ".".join(torch.__version__.split(".")[:2]) not in SUPPORTED:
    refusal = (f"export_compiled: torch is {torch.__version__}, supported are {' and '.join(SUPPORTED)}; "
               "install the version of the LibTorch that the C++ program uses")
    raise SystemExit(refusal) if __name__ == "__main__" else ImportError(refusal)

from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import get_metrics_context
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors
from torch._guards import TracingContext
from torch._inductor import compile_fx, config
from torch._inductor.codecache import code_hash
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.export.pt2_archive._package import PT2ArchiveWriter, _package_aoti_files
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

FORMAT = 1  # of the record; kRecordFormat in accelerate/nn/compiled_record.cpp


class ExportError(RuntimeError):
    """The module cannot be exported; the text contains the reason and the remedy."""


def export(module, example_inputs, path, *, dynamic_batch=False, dynamic=(), autocast=None, evaluation=True, options=None):
    """Compiles a module for training and evaluation and writes a package.

    module          returns a tensor or a tuple of tensors; its parameters, buffers and inputs are on one device
    example_inputs  a tensor or a tuple of tensors with the shapes, dtypes and strides of training; an input that needs a
                    gradient, such as that of a block within a network, has requires_grad
    dynamic_batch   dimension 0 of every input may differ between calls; the example has at least 2 samples
    dynamic         further pairs (input, dimension) with a variable size; equal example sizes must stay equal
    autocast        dtype, for example torch.bfloat16: the forward is traced within torch.autocast
    evaluation      False omits the evaluation graph, and eval() is then refused in C++
    options         options of Inductor, for example {"fallback_random": True} for the random numbers of eager mode
    """
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    device = _check(module, inputs)
    dynamic = _dynamic_dimensions(inputs, dynamic_batch, dynamic)
    unique = _Unique(module)
    weights, tensors = _weights(unique)
    modes = {part: part.training for part in module.modules()}
    models = {}
    amp = torch.autocast(device.type, autocast, cache_enabled=False) if autocast else contextlib.nullcontext()
    try:
        with amp, config.patch(options or {}), _libraries_of_cuda(device):
            module.train()
            training = _Training(unique, inputs, dynamic, options, models)
            record = training.compile(tensors)
            traces = [(training.mode.shape_env, training.symbols)]
            if evaluation:
                module.eval()
                traces.append(_compile_evaluation(unique, inputs, dynamic, options, models))
    finally:
        for part, mode in modes.items():
            part.training = mode
    record |= _origin(device) | {"autocast": str(autocast).removeprefix("torch.") if autocast else "", "evaluation": evaluation,
                                 "symbols": _symbols(traces), "aliases": unique.aliases, "threads": _threads(models)}
    _write(path, models, record, weights)
    return path


@contextlib.contextmanager
def _libraries_of_cuda(device):
    """AOTInductor links with libcuda.so and libcudart.so. Without a CUDA toolkit only files with a version number exist."""
    if device.type != "cuda":
        yield
        return
    site_packages = os.path.dirname(os.path.dirname(torch.__file__))
    wanted = {"libcuda.so": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"],
              "libcudart.so": glob.glob(f"{site_packages}/nvidia/*/lib/libcudart.so.*")}
    before = os.environ.get("LIBRARY_PATH")
    with tempfile.TemporaryDirectory(prefix="accelerate-link-") as folder:
        for name, paths in wanted.items():
            for path in filter(os.path.exists, paths):
                os.symlink(path, f"{folder}/{name}")
                break
        os.environ["LIBRARY_PATH"] = ":".join(filter(None, [before, folder]))
        try:
            yield
        finally:
            if before is None:
                del os.environ["LIBRARY_PATH"]
            else:
                os.environ["LIBRARY_PATH"] = before


def _check(module, inputs):
    """Returns the common device."""
    tensors = [*module.parameters(), *module.buffers(), *inputs]
    if not all(isinstance(x, torch.Tensor) for x in inputs):
        raise ExportError("the example inputs must be tensors; bind other arguments in a wrapper module")
    other = [name for name, part in module.named_modules() if part.training != module.training]
    if other:
        raise ExportError(f"{other[0]} is in {'training' if not module.training else 'evaluation'} mode and the module is not, but the "
                          "package has one graph in which all parts train and one in which all are evaluated; call train() of the "
                          "module, and replace a layer that must not train, as torchvision does with FrozenBatchNorm2d")
    if not any(p.requires_grad for p in module.parameters()):
        raise ExportError("no parameter requires a gradient, so there is no backward to compile; use torch.export for inference")
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise ExportError(f"module and inputs are on {', '.join(sorted(map(str, devices)))}; move them to one device")
    device = devices.pop()
    if device.type not in ("cpu", "cuda"):
        raise ExportError(f"the module is on {device}; supported are cpu and cuda")
    return device


def _dynamic_dimensions(inputs, dynamic_batch, dynamic):
    """Returns (input, dimension) pairs."""
    dynamic = list(dynamic)
    if dynamic_batch:
        sizes = {x.size(0) for x in inputs if x.dim() > 0}
        if len(sizes) > 1:
            raise ExportError(f"dynamic_batch needs one size in dimension 0 of all inputs, the examples have {sorted(sizes)}; "
                              "name the dimensions with dynamic=[(input, dimension), ...]")
        dynamic += [(i, 0) for i, x in enumerate(inputs) if x.dim() > 0]
    for i, d in dynamic:
        if not (0 <= i < len(inputs) and 0 <= d < inputs[i].dim()):
            raise ExportError(f"dynamic names dimension {d} of input {i}, which does not exist")
        if inputs[i].size(d) < 2:
            raise ExportError(f"dimension {d} of input {i} is {inputs[i].size(d)} in the example; a dynamic dimension needs at "
                              "least 2, because PyTorch compiles 0 and 1 as constants")
    return dynamic


class _Unique(torch.nn.Module):
    """The module with each of its tensors once: tied weights are one input, so their gradients are summed in the graph."""

    def __init__(self, module):
        super().__init__()
        self.__dict__["module"] = module
        self.__dict__["names"], self.__dict__["aliases"], self.__dict__["transient"] = {}, {}, set()
        first = {}
        for kind, listed in (("p", module.named_parameters(remove_duplicate=False)), ("b", module.named_buffers(remove_duplicate=False))):
            for name, t in listed:
                if id(t) in first:
                    self.aliases[name] = first[id(t)]
                    continue
                first[id(t)] = name
                key = f"{kind}{len(self.names)}"
                self.names[key] = name
                (self._parameters if kind == "p" else self._buffers)[key] = t
        for prefix, part in module.named_modules():
            self.transient.update(f"{prefix}.{name}".lstrip(".") for name in part._non_persistent_buffers_set)

    def forward(self, *inputs):
        tensors = {self.names[key]: t for key, t in {**self._parameters, **self._buffers}.items()}
        out = torch.func.functional_call(self.module, tensors, inputs, tie_weights=True)
        self.__dict__["returns_tensor"] = isinstance(out, torch.Tensor)
        out = (out,) if isinstance(out, torch.Tensor) else out
        if not isinstance(out, (tuple, list)) or not all(isinstance(t, torch.Tensor) for t in out):
            raise ExportError(f"the module returned {type(out).__name__}, must be a tensor or a tuple of tensors; "
                              "return them from a wrapper module")
        return tuple(out)


def _weights(unique):
    """Returns the bytes of all initial values and their positions by name."""
    blob, tensors = bytearray(), {}
    for key, t in {**unique._parameters, **unique._buffers}.items():
        blob += bytes(-len(blob) % 64)
        values = t.detach().cpu().contiguous()
        tensors[unique.names[key]] = {"offset": len(blob), "bytes": values.nbytes}
        blob += ctypes.string_at(values.data_ptr(), values.nbytes) if values.nbytes else b""
    return bytes(blob), tensors


def _fake(inputs, dynamic):
    """The inputs as fake tensors with symbols as dynamic dimensions."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic else None)
    fakes = []
    for i, x in enumerate(inputs):
        sizes = [DimDynamic.DUCK if (i, d) in dynamic else DimDynamic.STATIC for d in range(x.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * x.dim()) if dynamic else None
        fakes.append(mode.from_tensor(x, symbolic_context=context, source=ConstantSource(f"input{i}")))
    return mode, tuple(fakes)


def _symbols_of(fakes, dynamic):
    """Symbols of the dynamic dimensions in the order of the inputs."""
    found = []
    for i, d in sorted(dynamic):
        if fakes[i].shape[d].node.expr not in found:
            found.append(fakes[i].shape[d].node.expr)
    return found


def _symbols(traces):
    """Sizes for which the compiled code is valid, from the guards of all traces.

    traces  pairs of a ShapeEnv and its symbols; symbols at the same position are the same size
    """
    allowed = []
    for at in range(len(traces[0][1])):
        guards = []
        for env, symbols in traces:
            symbol = symbols[at]
            if symbol in env.replacements:
                raise ExportError(f"the module's code fixes a dynamic size to {env.replacements[symbol]}; "
                                  "remove the dependence on the size, or export without dynamic sizes")
            for expr in (guard.expr for guard in env.guards if symbol in guard.expr.free_symbols):
                if expr.free_symbols != {symbol}:
                    raise ExportError(f"the module's code relates two dynamic sizes: {expr}; "
                                      "make their example sizes equal if they are equal in training, or fix one of them")
                guards.append((expr, symbol))
        allowed.append(_sizes(guards))
    return allowed


def _sizes(guards):
    """Minimum, maximum and excluded sizes for which all guards hold."""
    small, most = 512, 1 << 40

    def holds(n):
        return all(bool(expr.subs(s, n)) for expr, s in guards)

    good = [n for n in range(2, small) if holds(n)]
    if not good:
        raise ExportError(f"the module's code needs sizes {[str(e) for e, _ in guards]}; export without dynamic sizes")
    excluded = sorted(set(range(good[0], good[-1])) - set(good))
    upper = good[-1]
    if upper == small - 1 and holds(most):
        upper = 0  # unlimited
    elif upper == small - 1:
        high = most
        while high - upper > 1:
            middle = (upper + high) // 2
            upper, high = (middle, high) if holds(middle) else (upper, middle)
    if len(excluded) > 16:
        raise ExportError(f"the module's code allows only some sizes: {[str(e) for e, _ in guards]}; export without dynamic sizes")
    return {"min": good[0], "max": upper, "excluded": excluded}


def _describe(t, what, symbols):
    """Dtype, shape and strides; a dynamic size is the position of its symbol from -1 downwards."""
    def size(s):
        if isinstance(s, int) or s.node.expr.is_number:
            return int(s)
        return -1 - symbols.index(s.node.expr) if s.node.expr in symbols else -1 - len(symbols)

    dynamic = any(not (isinstance(s, int) or s.node.expr.is_number) for s in t.stride())
    if dynamic and not t.is_contiguous():
        raise ExportError(f"{what} is not contiguous and its strides depend on a dynamic size; "
                          "use a contiguous tensor, or export without dynamic sizes")
    return {"dtype": str(t.dtype).removeprefix("torch."), "shape": [size(s) for s in t.shape],
            "stride": [] if dynamic else [int(s) for s in t.stride()], "contiguous": bool(dynamic)}


def _aot(gm, example_inputs, visible, options, **kwargs):
    """Compiles one graph. Returns the files of its package and the strides of its outputs."""
    strides, codegen = [], GraphLowering.codegen_with_cpp_wrapper

    def record(graph):
        strides[:] = [tuple(out.get_layout().stride) if getattr(out, "has_tensor_output", bool)() else None for out in graph.graph_outputs]
        return codegen(graph)

    gm.graph.output_node().meta["user_visible_output_idxs"] = visible
    patches = {"cpp_wrapper": True, "aot_inductor.package": True, "aot_inductor.output_path": code_hash(gm.code), **(options or {})}
    with (config.patch(patches), config.patch(compile_fx.get_cpp_wrapper_config()), V.set_aot_compilation(True),
          get_metrics_context(), torch.utils._python_dispatch._disable_current_modes()):
        GraphLowering.codegen_with_cpp_wrapper = record
        try:
            files = compile_fx.compile_fx_inner(gm, example_inputs, cpp_wrapper=True, **kwargs).filename
        finally:
            GraphLowering.codegen_with_cpp_wrapper = codegen
    return files, strides


def _is_tensor(node):
    return isinstance(node.meta["val"], torch.Tensor)


def _without_symbols(gm, example_inputs):
    """AOTInductor accepts only tensors, so a size that AOTAutograd passes as a number is read from a tensor that has it."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    tensors, kept = [n for n in placeholders if _is_tensor(n)], []
    for node, example in zip(placeholders, example_inputs, strict=True):
        if _is_tensor(node):
            kept.append(example)
            continue
        size = node.meta["val"]
        expr = size.node.expr if isinstance(size, torch.SymInt) else size
        for t in tensors:
            for d, s in enumerate(t.meta["val"].shape):
                if node.users and isinstance(s, torch.SymInt) and s.node.expr == expr:
                    with gm.graph.inserting_after(tensors[-1]):
                        read = gm.graph.call_function(torch.ops.aten.sym_size.int, (t, d))
                    read.meta["val"] = size
                    node.replace_all_uses_with(read)
        if node.users:
            raise ExportError(f"the backward needs the size {expr}, which no saved tensor has; export without dynamic sizes")
        gm.graph.erase_node(node)
    gm.recompile()
    return kept


def _set_outputs(gm, nodes):
    output = gm.graph.output_node()
    output.args = (tuple(nodes),)
    output.meta.pop("desc", None)
    gm.graph.lint()
    gm.recompile()


def _check_outputs(meta):
    if meta.num_mutated_inp_runtime_indices or meta.num_intermediate_bases or meta.tokens:
        raise ExportError("an input that needs a gradient is changed in place, or an output is a view of another; use a clone")
    if any(info.output_type not in (OutputType.non_alias, OutputType.unsafe_view_alias) for info in meta.output_info):
        raise ExportError("an output is an input or a view of one; return a clone of it")


class _Training:
    """Compiles forward and backward, and fills the record."""

    def __init__(self, module, inputs, dynamic, options, models):
        self.module, self.dynamic, self.options, self.models = module, dynamic, options, models
        self.mode, self.fakes = _fake(inputs, dynamic)
        self.symbols = _symbols_of(self.fakes, dynamic)
        self.requires_grad = [x.requires_grad for x in inputs]

    def compile(self, tensors):
        self.positions = tensors
        self.record = {"format": FORMAT, "tensors": [], "outputs": [], "takes": [], "gradients": [], "gives": []}
        with contextlib.ExitStack() as stack:
            stack.enter_context(functorch_config.patch(unlift_effect_tokens=True))
            joint = aot_export_joint_with_descriptors(stack, self.module, self.fakes, decompositions=select_decomp_table(),
                                                      keep_inference_input_mutations=True)
            stack.enter_context(V.set_fake_mode(self.mode))
            aot_compile_joint_with_descriptors(joint, partition_fn=compile_fx.partition_fn, fw_compiler=self._forward,
                                               bw_compiler=self._backward)
        if "backward" not in self.models:
            raise ExportError("no output depends on a parameter that requires a gradient")
        return self.record

    def _describe_inputs(self, gm, meta):
        parameters, mutated = dict(self.module._parameters), [info.mutates_data for info in meta.input_info]
        for at, n in enumerate(n for n in gm.graph.find_nodes(op="placeholder") if _is_tensor(n)):
            desc = n.meta.get("desc")
            kind = {"ParamAOTInput": "parameter", "BufferAOTInput": "buffer", "PlainAOTInput": "input"}.get(type(desc).__name__)
            if kind is None:
                raise ExportError(f"the graph has an input of an unknown kind, {type(desc).__name__}")
            key = desc.target if kind != "input" else str(desc.idx)
            name = self.module.names.get(key, key)
            needs = parameters[key].requires_grad if kind == "parameter" else kind == "input" and self.requires_grad[desc.idx]
            if kind != "buffer" and mutated[at]:
                raise ExportError(f"{kind} {name} is changed in place; change a clone of it")
            row = {"kind": kind, "name": name, "requires_grad": needs, "mutated": mutated[at],
                   "persistent": name not in self.module.transient}
            self.record["tensors"].append(row | _describe(n.meta["val"], f"{kind} {name}", self.symbols) | self.positions.get(name, {}))

    def _forward(self, gm, example_inputs):
        meta = TracingContext.get().fw_metadata
        _check_outputs(meta)
        _symbols([(self.mode.shape_env, self.symbols)])  # refuses before minutes of compilation
        gm = copy.deepcopy(gm)
        old, user, new = list(gm.graph.output_node().args[0]), len(meta.output_info), []
        self.inputs_of = {n.name: i for i, n in enumerate(n for n in gm.graph.find_nodes(op="placeholder") if _is_tensor(n))}
        for i, n in enumerate(old):  # saved inputs and saved numbers are no outputs of the compiled code
            if i < user or (n.name not in self.inputs_of and _is_tensor(n) and n not in new):
                new.append(n)
        if len(set(new[:user])) != user:
            raise ExportError("an output is returned twice; return a clone of it")
        self.outputs_of = {n.name: i for i, n in reversed(list(enumerate(new)))}
        _set_outputs(gm, new)
        self._describe_inputs(gm, meta)
        for i, n in enumerate(new[:user]):
            _describe(n.meta["val"], f"output {i}", self.symbols)  # also refuses strides that the backward could not expect
            self.record["outputs"].append({"requires_grad": meta.output_info[i].requires_grad})
        self.record["saved"] = len(new) - user
        self.record["returns_tensor"] = self.module.returns_tensor
        example_inputs = _without_symbols(gm, example_inputs)
        self.models["forward"], strides = _aot(gm, example_inputs, list(range(user)), self.options)
        context = TracingContext.get()
        if context.output_strides is not None:  # Inductor may choose other strides than traced, and AOT mode does not report them
            env = self.mode.shape_env
            for n in old:
                at = self.outputs_of.get(n.name) if isinstance(n, torch.fx.Node) else None
                real = strides[at] if at is not None else None
                context.output_strides.append(None if real is None else tuple(
                    int(s) if isinstance(s, int) or s.is_number else env.create_symintnode(s, hint=None) for s in real))
        return _never

    def _backward(self, gm, example_inputs):
        gm = copy.deepcopy(gm)
        meta = TracingContext.get().fw_metadata
        numbers = [i for i, n in enumerate(gm.graph.find_nodes(op="placeholder")) if not _is_tensor(n)]
        example_inputs = _without_symbols(gm, example_inputs)
        # Positions of activations that the backward may overwrite. Without this shift it would overwrite parameters.
        meta.bw_donated_idxs = [i - sum(at < i for at in numbers) for i in meta.bw_donated_idxs or []]
        for n, example in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
            if n.name in self.outputs_of:
                self.record["takes"].append(["output", self.outputs_of[n.name]])
            elif n.name in self.inputs_of:
                self.record["takes"].append(["input", self.inputs_of[n.name]])
            else:
                output = n.meta.get("desc").output.idx
                self.record["takes"].append(["gradient", output])
                self.record["gradients"].append(_describe(example, f"the gradient of output {output}", self.symbols))
        new = []
        listed = [n for n in gm.graph.output_node().args[0] if not isinstance(n, torch.fx.Node) or _is_tensor(n)]
        for at, n in enumerate(listed):
            if n is None:
                continue
            if n in new or n.op == "placeholder":  # outputs of AOTInductor are tensors of their own
                with gm.graph.inserting_before(gm.graph.output_node()):
                    copied = gm.graph.call_function(torch.ops.aten.clone.default, (n,))
                copied.meta["val"] = n.meta["val"]
                n = copied
            new.append(n)
            self.record["gives"].append(at)
        _set_outputs(gm, new)
        self.models["backward"], _ = _aot(gm, example_inputs, list(range(len(new))), self.options, is_backward=True)
        return _never


def _compile_evaluation(module, inputs, dynamic, options, models):
    """Returns the ShapeEnv of the trace and its symbols."""
    mode, fakes = _fake(inputs, dynamic)
    symbols = _symbols_of(fakes, dynamic)

    def compiler(gm, example_inputs):
        _check_outputs(TracingContext.get().fw_metadata)
        gm = copy.deepcopy(gm)
        example_inputs = _without_symbols(gm, example_inputs)
        gm = compile_fx._recursive_joint_graph_passes(gm) or gm
        outputs = list(range(len(gm.graph.output_node().args[0])))
        models["evaluate"], _ = _aot(gm, example_inputs, outputs, options, is_inference=True)
        return _never

    with contextlib.ExitStack() as stack, torch.no_grad():
        stack.enter_context(functorch_config.patch(unlift_effect_tokens=True))
        joint = aot_export_joint_with_descriptors(stack, module, fakes, decompositions=select_decomp_table(),
                                                  keep_inference_input_mutations=True)
        stack.enter_context(V.set_fake_mode(mode))
        aot_compile_joint_with_descriptors(joint, partition_fn=compile_fx.partition_fn, fw_compiler=compiler, bw_compiler=compiler)
    return mode.shape_env, symbols


def _never(*_):
    raise AssertionError("the compiled code runs in C++ only")


# Predefined macros of GCC and Clang for instruction sets, where the name in /proc/cpuinfo is not that of the macro.
_FLAG_OF_MACRO = {"sse3": "pni", "lzcnt": "abm", "pclmul": "pclmulqdq", "rdrnd": "rdrand", "sha": "sha_ni", "avx512vpopcntdq": "avx512_vpopcntdq",
                  "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni", "avx512bitalg": "avx512_bitalg", "avx512bf16": "avx512_bf16",
                  "avx512fp16": "avx512_fp16", "avxvnni": "avx_vnni", "avx512vp2intersect": "avx512_vp2intersect", "bmi": "bmi1"}


def _processor_flags():
    """Flags of /proc/cpuinfo that the compiler uses with -march=native, as Inductor passes it."""
    with open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("flags", "Features"))]
    present = set(lines[0].partition(":")[2].split()) if lines else set()
    if platform.machine() != "x86_64":
        return sorted(present)
    compiler = os.environ.get("CXX", "g++")
    macros = subprocess.run([compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[1].strip("_").lower() for line in macros.splitlines() if line.startswith("#define __")}
    return sorted(present & {_FLAG_OF_MACRO.get(name, name) for name in names})


def _origin(device):
    capability = "{}.{}".format(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else ""
    return {"torch": torch.__version__, "cuda": (torch.version.cuda or "") if device.type == "cuda" else "", "device": device.type,
            "cuda_capability": capability, "machine": platform.machine(), "processor_flags": _processor_flags()}


def _threads(models):
    """Number of threads of parallel CPU kernels, which Inductor writes into the code; 0 if no kernel has one."""
    sources = [file for files in models.values() for file in map(str, files) if file.endswith(".cpp")]
    found = [int(n) for file in sources for n in re.findall(r"#pragma omp parallel num_threads\((\d+)\)", open(file).read())]
    return max(found, default=0)


def _write(path, models, record, weights):
    path = os.path.abspath(path)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".export_compiled.") as folder:
        made = os.path.join(folder, "package.pt2")
        with PT2ArchiveWriter(made) as archive:
            _package_aoti_files(archive, models)
            archive.write_bytes("extra/accelerate.json", json.dumps(record).encode())
            archive.write_bytes("extra/accelerate_weights.bin", weights or b"\0")
        os.replace(made, path)


def _example(spec):
    """A tensor for SHAPE[:DTYPE[:HIGH]]: "8x128:float32", or "8x1024:int64:50257" for integers below 50257."""
    given = spec.split(":")
    shape, dtype, high = given + ["8", "float32", "2"][len(given):]
    sizes, dtype = [int(n) for n in shape.split("x")], getattr(torch, dtype)
    return torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.randint(int(high), sizes, dtype=dtype)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Exports a Python module for accelerate::nn::CompiledModule in C++.")
    parser.add_argument("factory", help="package.module:function; the function returns the module")
    parser.add_argument("--example", action="append", required=True, metavar="SHAPE[:DTYPE[:HIGH]]",
                        help="an example input, once for each input: 8x128:float32, or 8x1024:int64:50257 for integers below 50257")
    parser.add_argument("--output", required=True, metavar="FILE.pt2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--dynamic-batch", action="store_true", help="dimension 0 of every input may differ between calls")
    parser.add_argument("--autocast", choices=["bfloat16", "float16"], help="compile within torch.autocast")
    parser.add_argument("--no-evaluation", action="store_true", help="omit the evaluation graph; eval() is then refused in C++")
    given = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    name, colon, function = given.factory.partition(":")
    if not colon:
        parser.error(f"the factory is {given.factory!r}, must be package.module:function")
    module = getattr(importlib.import_module(name), function)().to(given.device)
    inputs = tuple(_example(spec).to(given.device) for spec in given.example)
    try:
        export(module, inputs, given.output, dynamic_batch=given.dynamic_batch, evaluation=not given.no_evaluation,
               autocast=getattr(torch, given.autocast) if given.autocast else None)
    except ExportError as error:
        sys.exit(f"export_compiled: {error}")
    print(f"{given.output}: {os.path.getsize(given.output) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
