# SPDX-License-Identifier: Apache-2.0
"""The Python function of the documentation reads a checkpoint with parts, and accelerate_merge_weights joins its weights.

python_parts.py PROBE MERGE PAGE FOLDER
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

probe, merge, page, folder = sys.argv[1:]
folder = Path(folder)
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
subprocess.run([probe, str(folder)], check=True)

blocks = re.findall(r"```python\n(.*?)```", Path(page).read_text(encoding="utf-8"), re.DOTALL)
assert len(blocks) == 1, f"{page} has {len(blocks)} Python blocks, expected one"
assert len(blocks[0].splitlines()) <= 20, "the page promises at most 20 lines"
names = {}
exec(compile(blocks[0], page, "exec"), names)

tensors = names["read_checkpoint"](folder / "parts")
model = load_file(folder / "model" / "model.safetensors")
saved = {name.removeprefix("model.0/"): tensor for name, tensor in tensors.items() if name.startswith("model.0/")}
assert set(model) <= set(saved), (set(model), set(saved))
for name, tensor in model.items():
    assert saved[name].dtype == tensor.dtype and torch.equal(saved[name], tensor), name

state = torch.load(folder / "full" / "optimizer.bin", weights_only=True)["state"]
assert state
for number, fields in state.items():
    for field, value in fields.items():
        assert torch.equal(tensors[f"optimizer.0/{number}.{field}"].to(value.dtype), value), (number, field)

subprocess.run([merge, str(folder / "parts"), str(folder / "merged.safetensors")], check=True)
merged = load_file(folder / "merged.safetensors")
assert set(merged) == set(model)
for name, tensor in model.items():
    assert torch.equal(merged[name], tensor), name
shutil.rmtree(folder)
