# SPDX-License-Identifier: Apache-2.0
"""compiled_packages.py SOURCE_FOLDER OUTPUT_FOLDER: exports the packages of compiled_module_test, with the results of eager PyTorch.

An export takes about a minute, so the packages are also kept in the user's cache folder, under a hash of all that they depend on:
the exporter, this file, torch, the compiler and the instruction sets of the processor.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

import torch

source, folder = sys.argv[1:]
sys.path.insert(0, os.path.join(source, "tools"))
import export_compiled

STEPS = 10
WRAPPER = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # reduces the compile time of the code around the kernels by a third
KEPT = 4  # exports in the cache folder, of 4 MB each


class Mlp(torch.nn.Module):
    """BatchNorm, dropout with p = 0, a frozen bias, tied weights and a buffer that is not in state_dict."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.0)
        self.a, self.b, self.head = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        self.b.weight = self.a.weight
        self.fc.bias.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.fc(x))))
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)) * self.scale)))


class Conv(torch.nn.Module):
    """Channels last, dropout, two outputs of which one has no gradient, and an input with a gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 3)
        self.drop, self.head = torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)

    def forward(self, x):
        x = self.second(self.drop(torch.relu(self.first(x)))).mean((2, 3))
        logits = self.head(self.drop(x))
        return logits, logits.argmax(1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return (x + torch.tanh(self.linear(x))).float()


class Layer(torch.nn.Module):
    """A layer of Gpt. The projection has no bias: the true gradient of the bias of the keys is 0, and AdamW divides its rounding errors."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)
        self.qkv, self.projection = torch.nn.Linear(8, 24, bias=False), torch.nn.Linear(8, 8)
        self.wide, self.narrow = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """GPT-2's form: tokens as int64, embeddings, causal attention, a head tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.token, self.position = torch.nn.Embedding(11, 8), torch.nn.Embedding(5, 8)
        self.layers, self.norm = torch.nn.Sequential(Layer(), Layer()), torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.token(tokens) + self.position.weight)))


class Padded(torch.nn.Module):
    """Saved activations with padded strides, which Inductor makes by default on GPUs."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(4, 1500), torch.nn.Linear(1500, 2)

    def forward(self, x):
        h = torch.tanh(self.wide(x))
        return self.narrow(torch.sigmoid(torch.nn.functional.layer_norm(h * h.sum(0), (1500,))))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(module, batches, loss, make_optimizer=sgd):
    """Losses, gradients of the first step, and the state after all steps."""
    optimizer = make_optimizer([p for p in module.parameters() if p.requires_grad])
    losses, gradients = [], {}
    module.train()
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(module(x), y)
        value.backward()
        if not losses:
            gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(value.item())
    module.eval()
    with torch.no_grad():
        evaluated = module(batches[0][0])
    return {"x": [x.detach() for x, _ in batches], "y": [y for _, y in batches], "losses": torch.tensor(losses, dtype=torch.double),
            "gradients": gradients, "evaluated": evaluated if isinstance(evaluated, torch.Tensor) else evaluated[0],
            "state": {name: t.clone() for name, t in module.state_dict().items()},
            "parameters": [name for name, _ in module.named_parameters()]}


def mlp():
    module = Mlp().double()
    export_compiled.export(module, torch.randn(6, 6, dtype=torch.double), f"{folder}/mlp.pt2", dynamic_batch=True, options=WRAPPER)
    sizes = [6 if i % 2 else 5 for i in range(STEPS)]
    batches = [(torch.randn(n, 6, dtype=torch.double), torch.randn(n, 3, dtype=torch.double)) for n in sizes]
    return train(module, batches, torch.nn.functional.mse_loss)


def conv():
    module = Conv().double().to(memory_format=torch.channels_last)
    images = [torch.randn(4, 3, 6, 6, dtype=torch.double).to(memory_format=torch.channels_last) for _ in range(STEPS)]
    batches = [(x.requires_grad_(), torch.randint(2, (4,))) for x in images]
    export_compiled.export(module, batches[0][0], f"{folder}/conv.pt2", options={"fallback_random": True} | WRAPPER)
    torch.manual_seed(7)
    result = train(module, batches, lambda out, y: torch.nn.functional.cross_entropy(out[0], y))
    result["input_gradient"] = batches[0][0].grad
    return result


def gpt():
    module = Gpt().double()
    rows = [4 if i % 2 else 3 for i in range(STEPS)]
    batches = [(tokens[:, :-1], tokens[:, 1:]) for tokens in (torch.randint(11, (n, 6)) for n in rows)]
    torch.backends.cuda.enable_flash_sdp(False)  # PyTorch cannot compile it for CPUs in float64
    try:
        export_compiled.export(module, batches[0][0].contiguous(), f"{folder}/gpt.pt2", dynamic_batch=True, evaluation=False,
                               options=WRAPPER)
        return train(module, batches, lambda out, y: torch.nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()), adamw)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def in_autocast(name, dtype):
    module = Block()
    x = torch.randn(5, 4)
    export_compiled.export(module, x.clone().requires_grad_(), f"{folder}/{name}.pt2", autocast=dtype, evaluation=False, options=WRAPPER)
    with torch.autocast("cpu", dtype):
        out = module(x)
    return {"x": [x], "out": out.detach()}


def block():
    return in_autocast("block", torch.bfloat16)


def block_fp16():
    return in_autocast("block_fp16", torch.float16)


def padded():
    module = Padded()
    x = torch.randn(8, 4)
    export_compiled.export(module, x, f"{folder}/padded.pt2", evaluation=False,
                           options={"disable_padding_cpu": False, "padding_stride_threshold": 16} | WRAPPER)
    module(x).square().sum().backward()
    return {"x": [x], "gradients": {name: p.grad.clone() for name, p in module.named_parameters()}}


def export_all():
    for make in (block, block_fp16, mlp, conv, padded, gpt):
        torch.manual_seed(1)
        torch.save(make(), f"{folder}/{make.__name__}.pt")
        print(f"{make.__name__}.pt2: {os.path.getsize(f'{folder}/{make.__name__}.pt2')} bytes", flush=True)
    # The command in a separate process, as a user runs it.
    os.makedirs(f"{folder}/command", exist_ok=True)
    with open(f"{folder}/command/my_net.py", "w") as file:
        file.write("import torch\ndef net():\n    return torch.nn.Linear(3, 2)\n")
    subprocess.run([sys.executable, export_compiled.__file__, "my_net:net", "--example", "4x3:float32", "--output", "linear.pt2",
                    "--dynamic-batch", "--no-evaluation"], check=True, cwd=f"{folder}/command")


def stamp():
    texts = [open(name).read() for name in (__file__, export_compiled.__file__)]
    compiler = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, text=True, check=True).stdout
    return hashlib.sha256(str((texts, torch.__version__, compiler, export_compiled._processor_flags())).encode()).hexdigest()


def is_current(packages, current):
    stamp_file = f"{packages}/stamp.txt"
    return os.path.exists(stamp_file) and open(stamp_file).read() == current


def keep(cached):
    """Copies the packages to the cache folder with one rename, so that no other build folder finds an incomplete copy."""
    parent = os.path.dirname(cached)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".new-") as copied:
        shutil.copytree(folder, f"{copied}/packages")
        try:
            os.rename(f"{copied}/packages", cached)
        except OSError:
            if not os.path.exists(f"{cached}/stamp.txt"):  # unless another build folder has written it first
                raise
    kept = sorted((entry for entry in os.scandir(parent) if not entry.name.startswith(".")), key=lambda entry: entry.stat().st_mtime)
    for old in kept[:-KEPT]:
        shutil.rmtree(old.path, ignore_errors=True)


current = stamp()
cached = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "accelerate", "compiled_packages", current[:16])
if is_current(folder, current):
    print("the packages are current")
elif is_current(cached, current):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cached, folder)
    print(f"copied the packages from {cached}")
else:
    os.makedirs(folder, exist_ok=True)
    export_all()
    with open(f"{folder}/stamp.txt", "w") as file:
        file.write(current)
    keep(cached)
