# SPDX-License-Identifier: Apache-2.0
"""Writes rare kinds of PyTorch and safetensors files, and reads them again in Python: python record_python_files.py
(the recorded files are from PyTorch 2.11.0, NumPy 2.4.6 and safetensors 0.8.0)."""
import pathlib
import struct

import numpy as np
import torch
from safetensors.torch import load_file

here = pathlib.Path(__file__).parent


def save(name, value):
    torch.save(value, here / name)
    return torch.load(here / name, weights_only=True)


# Parameters and tensors with Python attributes: _rebuild_parameter_with_state and _rebuild_from_type_v2.
weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
weight.is_shared, weight.tags = True, ["a", "b"]
bias = torch.arange(3.0) - 1
bias.source = {"file": "x"}
small = torch.tensor([0, 1, 2], dtype=torch.uint16)  # _rebuild_tensor_v3
small.bits = 16
read = save("attributes.pt", {"weight": weight, "bias": bias, "small": small, "plain": torch.ones(2)})
assert read["weight"].tags == ["a", "b"] and read["bias"].source == {"file": "x"} and read["small"].bits == 16

# Conj and neg bits: z is [1+2j, 3-4j].
z = torch.tensor([1 + 2j, 3 - 4j])
conj = z.conj()
parameter = torch.nn.Parameter(z.to(torch.complex128).conj())
read = save("conj_neg.pt", {"z": z, "conj": conj, "neg": z.clone().conj().imag, "both": torch._neg_view(conj), "parameter": parameter})
assert read["conj"].is_conj() and read["neg"].is_neg() and torch.equal(read["neg"], torch.tensor([-2.0, 4.0]))
assert read["both"].is_conj() and read["both"].is_neg() and read["parameter"].is_conj()

# A NumPy scalar beside weights.
torch.save({"weight": torch.ones(2), "best": np.float64(0.5)}, here / "numpy_scalar.pt")

# The format before PyTorch 1.6, with weights that contain the signature "PK\\5\\6" of a ZIP file.
signature = torch.frombuffer(bytearray(b"PK\x05\x06" + bytes(60)), dtype=torch.uint8)
for name, protocol in (("before_1_6.pt", 2), ("before_1_6_protocol_4.pt", 4)):
    torch.save({"weight": signature}, here / name, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
save("signature.pt", {"weight": signature})

# A BatchNorm without num_batches_tracked, as saved by PyTorch before 0.4.1: load_state_dict() is strict.
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
state = {name: torch.full_like(value, i + 2.0) for i, (name, value) in enumerate(net.state_dict().items()) if "tracked" not in name}
net.load_state_dict(save("batch_norm.pt", state), strict=True)
assert net[1].num_batches_tracked == 0

header = b'{"__metadata__":null,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
(here / "null_metadata.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2))
assert load_file(here / "null_metadata.safetensors")["a"].tolist() == [1.5, -2]
