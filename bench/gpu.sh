#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with NVIDIA GPUs: the conformance tests of the collectives on nccl, then the benches on the GPU.
# Never run so far: we had no GPU. With one GPU the group of one rank is forced; with more, one rank per GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpus=$(nvidia-smi --list-gpus | wc -l)
[ "$gpus" -ge 1 ] || { echo "bench/gpu.sh: nvidia-smi lists no GPU" >&2; exit 1; }
./run build release -DACCELERATE_BUILD_BENCHES=ON -DACCELERATE_WITH_CUDA=ON -DACCELERATE_TEST_GPU=ON

echo "bench/gpu.sh: every test, and the rank tests on nccl with $gpus rank(s)" >&2
ctest --test-dir build --output-on-failure
build/bin/accelerate_launch --num_processes "$gpus" --backend nccl --main_process_port 0 build/bin/rank_tests

echo "bench/gpu.sh: step_overhead and ddp on the GPU" >&2
ACCELERATE_BENCH_GPUS=$gpus bench/run step_overhead ddp
