#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with NVIDIA GPUs: builds, runs the tests that can run on a GPU, and runs the benches against Accelerate
# 1.15, Lightning Fabric and torch.compile. Results are written to bench/results/, in files with the machine's name.
#   bench/gpu.sh [--bin FOLDER] [--results FOLDER] [--rows REGEX] [--dry-run] [tests | one_gpu | benches]
#   tests includes one_gpu: several ranks on one GPU over NCCL (bench/ranks_on_one_gpu.sh).
#   --rows: only the bench gpu, and in it only rows with a name that the regular expression matches.
#   --dry-run: only one_gpu, over gloo on the CPU, or with "benches" the bench gpu with small models on the CPU. Tests this
#     script on a machine without a GPU.
#   --bin: uses programs from this folder and builds nothing, for a machine on which nothing can be installed. python3
#     must have torch and the peers.
# With one GPU, a process group of one rank is created; with several GPUs, there is one rank per GPU.
# The benches also run if tests fail. The failed tests are listed at the end, and the exit code is 1.
set -euo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup/log.sh

bin="" results=$PWD/bench/results part=all backend=nccl rows="" dry=""
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$(cd "$called_from" && realpath "$2") && shift 2 ;;
    --results) results=$(cd "$called_from" && realpath -m "${2:?a folder}") && shift 2 ;;
    --rows) rows=${2:?a regular expression} && shift 2 ;;
    --dry-run) dry=yes backend=gloo && shift ;;
    tests | one_gpu | benches) part=$1 && shift ;;
    *) log_line "bench/gpu.sh: what is '$1'? --bin FOLDER, --results FOLDER, --rows REGEX, --dry-run, tests, one_gpu or benches" && exit 2 ;;
  esac
done
[ -z "$dry" ] || [ $part = benches ] || part=one_gpu

gpus=0
[ -n "$dry" ] || gpus=$(nvidia-smi --list-gpus | wc -l)
[ -n "$dry" ] || [ "$gpus" -ge 1 ] || { echo "bench/gpu.sh: nvidia-smi lists no GPU" >&2; exit 1; }
python=$(command -v python3)
[ -z "$dry" ] || python=${ACCELERATE_BENCH_PYTHON-}   # if unset, bench/run searches for a Python with torch
if [ -z "$bin" ] && [ -n "$dry" ]; then
  bin=$PWD/build/bin   # the output folder of ./run build
elif [ -z "$bin" ]; then
  bin=$PWD/build/bin
  source cmake/setup/packages.sh
  source cmake/setup/libtorch.sh
  need_test_python   # also if CMake finds another LibTorch than that of this Python
  python=$venv/bin/python
  ./run build release -DACCELERATE_BUILD_BENCHES=ON -DACCELERATE_WITH_CUDA=ON "-DACCELERATE_TEST_PYTHON=$python"
  # The benches are linked to this version of torch, so no dependency may replace it.
  "$python" -c "import lightning" 2> /dev/null ||
    "$python" -m pip install "${pip_options[@]}" -r cmake/setup/requirements-test.txt "torch==$torch_version" lightning
fi
export ACCELERATE_BENCH_BIN=$bin ACCELERATE_BENCH_PYTHON=$python

failed=()
if [ -n "$dry" ] && [ $part = benches ] && [ "$results" = "$PWD/bench/results" ]; then
  results=$(mktemp -d)   # bench/results contains measurements only
fi
logs=$results/logs
[ "$part" = benches ] || { rm -rf "$logs" && mkdir -p "$logs"; }

# check <name> <command>: runs the command and stores its output and exit code. The output is printed only on failure.
check() {
  local name=${1//\//.} code=0
  shift
  timeout -k 5 300 "$@" > "$logs/$name.log" 2>&1 < /dev/null || code=$?
  ! grep -q "test cases: *0 " "$logs/$name.log" || code="no test"
  echo "$code" > "$logs/$name.code"
}

tests() {
  local file feature precision name on_gpu=(env ACCELERATE_TEST_DEVICE=cuda) launch=("$bin/accelerate_launch" --num_processes "$gpus" --main_process_port 0)
  local digits=$PWD/examples/data/mnist examples=tests/examples
  # Runs alone, because other kernels on the GPU would change its times.
  check gpu/profile "$bin/unit_tests" "--source-file=*tests/gpu/profile_test.cpp"
  for file in checkpoint cross_entropy graph precision failure; do
    check "gpu/$file" "$bin/unit_tests" "--source-file=*tests/gpu/${file}_test.cpp" &
  done
  check optim/recorded_gradients "${on_gpu[@]}" "$bin/unit_tests" "--source-file=*tests/optim/recorded_gradients_test.cpp" &
  # The tests of the stand-in device that compare results with the CPU and count host waits. Tests of the stand-in itself
  # and of two devices are not part of this run.
  for file in training features uneven loader fused_step host_sync loss_scaling placement nn checkpoint graph trainer; do
    check "stand_in/$file" "${on_gpu[@]}" "$bin/stand_in_tests" "--source-file=*tests/stand_in/${file}_test.cpp" &
  done
  check nccl/rank_tests env ACCELERATE_TEST_NCCL=1 "${launch[@]}" --backend nccl "$bin/rank_tests" &
  check parity/float64 "${on_gpu[@]}" "$python" $examples/parity.py "$digits" float64 20 8 1e-10 "$bin/probe" &
  check parity/float32 "${on_gpu[@]}" "$python" $examples/parity.py "$digits" float32 20 64 1e-3 "$bin/probe" &
  check parity/bf16 "${on_gpu[@]}" "$python" $examples/parity.py "$digits" bf16 20 64 1e-2 "$bin/probe" &
  check parity/fp16 "${on_gpu[@]}" "$python" $examples/parity.py "$digits" fp16 20 64 1e-2 "$bin/probe" &
  check parity/resnet "${on_gpu[@]}" "$python" $examples/fashion_parity.py "$PWD/examples/data/fashion-mnist" float64 6 8 1e-9 "$bin/probe" &
  check parity/loss_scale "${on_gpu[@]}" "$python" $examples/scaler.py "$bin/probe" &
  for feature in $(cd examples/by_feature && ls *.cpp | sed 's/\.cpp$//'); do
    case $feature in programs | launch_workers | embed_in_program) continue ;; esac   # no feature; fixed at two ranks; works without ranks
    check "by_feature/$feature" "$python" $examples/by_feature.py run "$feature" "$PWD/examples/by_feature" "${launch[@]}" "$bin/by_feature" "$feature" &
  done
  # After an error in a kernel the program ends within the time limit and prints CUDA's message.
  check failure/bad_index sh -c '"$@" 2> "$0"; test $? = 3 && cat "$0" && grep -q "device-side assert" "$0"' "$logs/bad_index" \
    "${on_gpu[@]}" "$bin/probe" bad_index &
  # The assertion is that of the fused kernel.
  check failure/bad_target sh -c '"$@" > "$0" 2>&1; test $? = 3 && cat "$0" && grep -q "device-side assert" "$0" && grep -q "cross_entropy.cu" "$0"' \
    "$logs/bad_target" "${on_gpu[@]}" "$bin/probe" bad_target &
  check launch/accelerate_test "$bin/accelerate_test" --num_processes "$gpus" &
  check launch/accelerate_env "$bin/accelerate_env" &
  # One rank too many is refused. The error contains both counts.
  check launch/a_rank_too_many sh -c '! "$@" 2> "$0" && cat "$0" && grep -q "ranks on this machine, but .* visible; start fewer" "$0"' "$logs/too_many" \
    "$bin/accelerate_launch" --num_processes $((gpus + 1)) "$bin/mnist" --data-dir "$digits" &
  local learns=(sh -c '"$@" > "$0" && tail -n 1 "$0" && grep -q "test accuracy 0\.9[6-9]" "$0"')
  for precision in no bf16 fp16; do
    check "examples/mnist_$precision" "${learns[@]}" "$logs/mnist_$precision" "${launch[@]}" --mixed_precision $precision "$bin/mnist" \
      --data-dir "$digits" --epochs 1 &
  done
  check examples/trainer "${learns[@]}" "$logs/trainer" "${launch[@]}" "$bin/trainer" --data-dir "$digits" &
  wait
}

# Two to four ranks on one GPU. The rank tests run concurrently; checks with a time limit run alone.
one_gpu() {
  local case digits=$PWD/examples/data/mnist
  for case in ${ONE_GPU_CASES-$(bench/ranks_on_one_gpu.sh cases)}; do
    [[ $case == rank_tests_* ]] || wait
    check "one_gpu/$case" bench/ranks_on_one_gpu.sh "$bin" "$digits" "$backend" "$case" &
    [[ $case == rank_tests_* ]] || wait
  done
  wait
}

say_results() {
  local file name
  for file in "$logs"/*.code; do
    name=$(basename "$file" .code)
    [ "$(cat "$file")" != 0 ] || { log_line "passed: $name: $(grep -v '^\[doctest\] Status' "$logs/$name.log" | tail -n 1)"; continue; }
    failed+=("$name")
    log_line "failed ($(cat "$file")): $name"
    tail -n 60 "$logs/$name.log" >&2
  done
}

benches() {
  mkdir -p "$results"
  local name to bench list=(gpu step_overhead ddp) options=()
  if [ -n "$dry" ]; then
    name=dry-run list=(gpu) options=(--rounds 1)
  else
    name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr ' /' '--')
  fi
  [ -z "$rows" ] || { list=(gpu) && options+=(--rows "$rows"); }
  to=$results/$(date +%Y-%m-%d)-$gpus-$name
  { git rev-parse HEAD || true
    [ -n "$dry" ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
    [ -n "$dry" ] || "$python" -m pip freeze || true; } > "$to.txt"
  log_line "benches on $gpus GPU(s), into $to.jsonl"
  for bench in "${list[@]}"; do
    ACCELERATE_BENCH_GPUS=$gpus "${python:-python3}" bench/run "$bench" ${options[@]+"${options[@]}"} || failed+=("bench $bench")
  done > "$to.jsonl"
}

case $part in all | tests) tests ;; esac
case $part in all | tests | one_gpu) one_gpu && say_results ;; esac
case $part in all | benches) benches ;; esac
for what in ${failed[@]+"${failed[@]}"}; do log_line "bench/gpu.sh: failed: $what"; done
[ ${#failed[@]} -eq 0 ]
