# SPDX-License-Identifier: Apache-2.0
"""bench/gpu.cpp in Python: gpu.py accelerate | fabric | inductor | compile | reduce-overhead."""
import functools
import gc
import os
import sys

import gpu_models as models
import torch
from serve import CaseError, answer, seconds_per_step

LOSSES = 8  # as in bench/gpu.cpp: these steps also compile and warm up
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


class WithAccelerate:
    def __init__(self, **options):
        import accelerate

        self.accelerate, self.options, self.accelerator = accelerate, options, None
        self.new_accelerator(False)
        self.name = ", ".join([f"accelerate {accelerate.__version__}", *(f"{key}={value}" for key, value in options.items())])

    def new_accelerator(self, bf16):
        """A process has one mixed_precision, but the models need two."""
        if self.accelerator is not None:
            self.accelerator.free_memory()
        ddp = self.accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
        self.accelerate.state.AcceleratorState._reset_state()
        self.accelerator = self.accelerate.Accelerator(mixed_precision="bf16" if bf16 else "no", kwargs_handlers=[ddp], **self.options)

    def prepare(self, net, optimizer, loss, bf16):
        self.new_accelerator(bf16)
        net, optimizer = self.accelerator.prepare(net, optimizer)
        return functools.partial(loss, net), optimizer, self.accelerator.backward


class WithFabric:
    def __init__(self):
        import lightning
        from lightning.fabric.strategies import DDPStrategy

        strategy = DDPStrategy(gradient_as_bucket_view=True, static_graph=True) if RANKS > 1 else "auto"
        self.fabric = lightning.Fabric(accelerator="cuda", devices=RANKS, strategy=strategy)
        self.fabric.launch()
        self.name = f"lightning {lightning.__version__}"

    def prepare(self, net, optimizer, loss, bf16):
        net, optimizer = self.fabric.setup(net, optimizer)

        def forward(x):  # as Fabric with precision="bf16-mixed": the model runs within autocast and returns float32
            with torch.autocast(models.DEVICE.type, torch.bfloat16, enabled=bf16):
                return net(x).float()

        return functools.partial(loss, forward), optimizer, self.fabric.backward


class WithCompile:
    """torch.compile of the network with its loss."""

    def __init__(self, mode):
        self.mode = mode
        self.name = f"torch.compile, mode {mode}"

    def prepare(self, net, optimizer, loss, bf16):
        def with_loss(x, y):
            return loss(lambda part: net(part).float(), x, y)

        compiled = torch.compile(with_loss, mode=self.mode)

        def step_loss(x, y):
            torch.compiler.cudagraph_mark_step_begin()
            # Autocast's cache of weights in bf16 would be an input that changes between steps.
            with torch.autocast(models.DEVICE.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
                return compiled(x, y)

        return step_loss, optimizer, torch.Tensor.backward


class Training:
    def __init__(self, make_net, batch, loss, bf16=False, memory_format=torch.contiguous_format):
        net = make_net().to(memory_format=memory_format)
        self.x, self.y = models.on_device(batch(), memory_format)
        adamw = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        self.loss, self.optimizer, self.backward = framework.prepare(net, adamw, loss, bf16)
        self.losses = [self.step().clone() for _ in range(LOSSES)]

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.x, self.y)
        self.backward(loss)
        self.optimizer.step()
        return loss.detach()


class Trainings:
    """Keeps the training that was used last. bench/run uses them one after another."""

    def __init__(self, makers):
        self.makers, self.name, self.training, self.peak, self.errors = makers, None, None, 0, {}

    def get(self, name):
        if name in self.errors:  # another attempt would compile for minutes again
            raise RuntimeError(self.errors[name])
        if name != self.name:
            self.name = self.training = None
            torch._dynamo.reset()
            gc.collect()
            if models.DEVICE.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                self.training = self.makers[name]()
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {error}"
                raise
            self.peak = torch.cuda.max_memory_allocated() if models.DEVICE.type == "cuda" else 0
            self.name = name
        return self.training

    def peak_of(self, name):
        self.get(name)
        return self.peak

    def cases(self):
        """NAME (seconds), NAME/loss (the loss of a step from 1 to LOSSES), and NAME/peak (bytes)."""
        cases = {}
        for name in self.makers:
            cases |= {name: lambda count, name=name: seconds_per_step(count, self.get(name).step),
                      f"{name}/loss": lambda step, name=name: self.get(name).losses[step - 1].item(),
                      f"{name}/peak": lambda _, name=name: self.peak_of(name)}
        return {name: or_case_error(measure) for name, measure in cases.items()}


def or_case_error(measure):
    def checked(count):
        try:
            return measure(count)
        except Exception as error:
            if RANKS > 1:
                raise
            raise CaseError(f"{type(error).__name__}: {error}") from error

    return checked


frameworks = {"accelerate": WithAccelerate, "fabric": WithFabric, "inductor": functools.partial(WithAccelerate, dynamo_backend="inductor"),
              "compile": functools.partial(WithCompile, "default"), "reduce-overhead": functools.partial(WithCompile, "reduce-overhead")}
framework = frameworks[sys.argv[1]]()
answer(f"{framework.name}, torch {torch.__version__}, AdamW(fused=True), {models.DEVICE}", Trainings({
    "gpt2": lambda: Training(models.gpt2, models.tokens, models.loss_of_tokens, bf16=True),
    "resnet18": lambda: Training(models.resnet, models.images, models.cross_entropy),
    "resnet18-channels-last": lambda: Training(models.resnet, models.images, models.cross_entropy, memory_format=torch.channels_last),
    "cnn": lambda: Training(models.cnn, models.digits, models.nll)}).cases())
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
