#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with NVIDIA GPUs, in one call: build, every test with those of label gpu, the rank tests on nccl, and the
# benches beside Accelerate 1.15 and Lightning Fabric. Figures go to bench/results/, with the machine's name on them.
# With one GPU the group of one rank is forced; with more, one rank per GPU.
# Never run so far: we had no GPU, so there are no results.
# A test that fails does not keep the benches from running; the end says so, and the exit code is 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpus=$(nvidia-smi --list-gpus | wc -l)
[ "$gpus" -ge 1 ] || { echo "bench/gpu.sh: nvidia-smi lists no GPU" >&2; exit 1; }
source cmake/setup/say.sh
source cmake/setup/packages.sh
source cmake/setup/libtorch.sh
need_test_python   # also where CMake finds another LibTorch than the one beside this Python
python=$venv/bin/python
./run build release -DACCELERATE_BUILD_BENCHES=ON -DACCELERATE_WITH_CUDA=ON -DACCELERATE_TEST_GPU=ON \
  "-DACCELERATE_TEST_PYTHON=$python"
# torch is what the benches are linked to: nothing may bring another one.
"$python" -c "import lightning" 2> /dev/null ||
  "$python" -m pip install "${pip_options[@]}" -r cmake/setup/requirements-test.txt "torch==$torch_version" lightning

echo "bench/gpu.sh: every test, and the rank tests on nccl with $gpus rank(s)" >&2
failed=()
ctest --test-dir build --output-on-failure -LE "full|hosts" || failed+=("tests")
ACCELERATE_TEST_NCCL=1 build/bin/accelerate_launch --num_processes "$gpus" --backend nccl --main_process_port 0 \
  build/bin/rank_tests || failed+=("rank tests on nccl")

mkdir -p bench/results
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr ' /' '--')
results=bench/results/$(date +%Y-%m-%d)-$gpus-$name
{ git rev-parse HEAD; nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv; "$python" -m pip freeze; } > "$results.txt"
echo "bench/gpu.sh: benches on $gpus GPU(s), into $results.jsonl" >&2
for bench in gpu step_overhead ddp; do
  ACCELERATE_BENCH_GPUS=$gpus bench/run "$bench" || failed+=("bench $bench")
done > "$results.jsonl"
for what in ${failed[@]+"${failed[@]}"}; do echo "bench/gpu.sh: failed: $what" >&2; done
[ ${#failed[@]} -eq 0 ]
