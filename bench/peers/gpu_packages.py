# SPDX-License-Identifier: Apache-2.0
"""gpu_packages.py FOLDER NAME ...: exports compiled models that bench/gpu.cpp trains, each in a process of its own."""
import os
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "tools")]
import gpu_models as models
from export_compiled import export

# Reduces the compile time of the code around the kernels, which matters on a CPU with few cores.
OPTIONS = {"aot_inductor.compile_wrapper_opt_level": "O0"} if models.SMALL else None


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        return models.loss_of_tokens(lambda x: self.net(x).float(), tokens, None)


def gpt2_block(path):
    export(models.gpt2().blocks[0], models.hidden_states(), path, autocast=torch.bfloat16, evaluation=False, options=OPTIONS)


def gpt2(path):
    tokens, _ = models.on_device(models.tokens())
    export(WithLoss(models.gpt2()), tokens, path, autocast=torch.bfloat16, evaluation=False, options=OPTIONS)


def resnet18_channels_last(path):
    x, _ = models.on_device(models.images(), torch.channels_last)
    export(models.resnet().to(memory_format=torch.channels_last), x, path, evaluation=False, options=OPTIONS)


def cnn(path):
    x, _ = models.on_device(models.digits())
    export(models.cnn(), x, path, evaluation=False)


PACKAGES = {"gpt2-block": gpt2_block, "gpt2": gpt2, "resnet18-channels-last": resnet18_channels_last, "cnn": cnn}


def export_each(folder, names):
    started = {name: subprocess.Popen([sys.executable, os.path.abspath(__file__), folder, name]) for name in names}
    failed = [name for name, process in started.items() if process.wait() != 0]
    if failed:
        sys.exit(f"gpu_packages.py: the export of {', '.join(failed)} failed")


folder, *names = sys.argv[1:]
if len(names) == 1:
    PACKAGES[names[0]](f"{folder}/{names[0]}.pt2")
else:
    export_each(folder, names)
