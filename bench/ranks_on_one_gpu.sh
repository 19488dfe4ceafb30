#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One check of several ranks on one GPU over NCCL. Each rank has an NCCL_HOSTID of its own, so NCCL treats the ranks as hosts
# and uses its network transport over loopback. The kernels of the ranks take turns on the GPU, so no figure is a benchmark;
# collectives, errors and timeouts are NCCL's.
#   bench/ranks_on_one_gpu.sh cases | parallel_cases    prints the names of all checks, or of those of sharded training and
#     model parallelism
#   bench/ranks_on_one_gpu.sh BIN_FOLDER MNIST_FOLDER nccl|gloo CASE
# gloo runs the same check on the CPU, which tests this script on a machine without a GPU.
# The exit code is 0 if the job ended as expected; otherwise the expectation is printed.
set -euo pipefail
parallel_cases="sharded_2 sharded_4 gpt2_2 gpt2_4 tensor_2 pipeline_2 context_2 mesh_4 kill_sharded"
cases="rank_tests_2 rank_tests_3 rank_tests_4 mnist_2 mnist_3 mnist_4 mnist_bf16_2 mnist_bf16_4 kill stop exception leave shape overlap"
cases+=" $parallel_cases"
[ "${1-}" != cases ] || { printf '%s\n' $cases; exit; }
[ "${1-}" != parallel_cases ] || { printf '%s\n' $parallel_cases; exit; }
bin=$(realpath "$1") mnist=$(realpath "$2") backend=$3 case=$4
[[ " $cases " == *" $case "* ]] || { echo "there is no case '$case'; the cases are $cases" >&2; exit 2; }

cd "$(dirname "${BASH_SOURCE[0]}")/.."   # the example tracking looks for its data relative to this folder
folder=$(mktemp -d "${TMPDIR:-/tmp}/accelerate-one-gpu-XXXXXX")
export folder OMP_NUM_THREADS=${OMP_NUM_THREADS-2}
trap 'rm -rf "$folder"' EXIT
case $backend in
  nccl)
    placement=(--backend nccl) device=cuda
    export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0} ACCELERATE_ALLOW_SHARED_GPUS=1 ACCELERATE_TEST_NCCL=1 \
      NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=WARN
    ;;
  gloo) placement=(--cpu --backend gloo) device=cpu ;;
  *) echo "the backend is '$backend', must be nccl or gloo" >&2 && exit 2 ;;
esac

# start RANKS [options of the launcher] -- PROGRAM [ARGUMENTS]: runs the job. Its output is in $folder/log, its exit code in $code.
start() {
  local ranks=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  code=0
  timeout -k 5 240 "$bin/accelerate_launch" --num_processes "$ranks" --main_process_port 0 "${placement[@]}" ${options[@]+"${options[@]}"} \
    sh -c 'export NCCL_HOSTID=host$RANK; echo $$ > "$folder/pid.$RANK"; exec "$0" "$@"' "$@" > "$folder/log" 2>&1 || code=$?
}

# expect CODES TEXT: one of the exit codes (a regular expression), and a line of the output that the regular expression TEXT finds.
expect() {
  cat "$folder/log"
  [[ $code =~ ^($1)$ ]] || { echo "$case over $backend: the exit code is $code, must be $1"; exit 1; }
  grep -aqE "$2" "$folder/log" || { echo "$case over $backend: no line of the output matches: $2"; exit 1; }
  grep -aE "$2" "$folder/log" | tail -n 1   # the line that gpu.sh shows
}

# send SIGNAL: sends it to rank 1 as soon as the job trains.
send() {
  local try
  for try in $(seq 600); do
    sleep 0.1
    grep -aqs "step 20/" "$folder/log" || continue
    kill "-$1" "$(cat "$folder/pid.1")"
    return
  done
  echo "the job did not reach step 20 within 60 s" >&2
}

case $case in
  rank_tests_*)
    # shellcheck disable=SC2086  # a list of options
    start "${case##*_}" -- "$bin/rank_tests" ${RANK_TESTS-}
    expect 0 '^\[doctest\] assertions: +[1-9][0-9]* .* 0 failed'
    ;;
  mnist_bf16_*)
    start "${case##*_}" --mixed_precision bf16 -- "$bin/mnist" --data-dir "$mnist" --epochs 1
    expect 0 '^test accuracy 0\.9[0-9]*$'
    ;;
  mnist_*)
    start "${case##*_}" -- "$bin/mnist" --data-dir "$mnist" --epochs 1
    expect 0 '^test accuracy 0\.9[0-9]*$'
    ;;
  kill)
    send KILL &
    start 2 -- "$bin/mnist" --data-dir "$mnist" --epochs 99
    expect 137 'worker 1 .* ended first, signal 9 \(killed\)'
    ;;
  stop)
    send STOP &
    start 2 --hang_timeout 15 -- "$bin/mnist" --data-dir "$mnist" --epochs 99
    expect 124 'worker 1 is (missing|stopped), worker 0 waits in .*operation [0-9]+'
    ;;
  exception)
    start 2 -- env ACCELERATE_TEST_DEVICE=$device "$bin/probe" fail 1
    expect 3 'worker 1 .* ended first, exit code 3'
    ;;
  leave)   # rank 1 exits with 0 before a collective of rank 0
    start 2 -- env ACCELERATE_TEST_DEVICE=$device "$bin/probe" leave 1
    expect 3 '\[rank 0 of 2, .*\] all_reduce: '
    ;;
  shape)
    start 2 --debug -- env ACCELERATE_TEST_DEVICE=$device "$bin/probe" shape 1
    expect 3 'this rank sends \[[45]\] float32, rank [01] sends \[[45]\] float32; they must be equal'
    ;;
  sharded_* | gpt2_* | tensor_* | pipeline_* | context_* | mesh_*)
    # On 4 ranks the suites of model parallelism have the meshes of 2x2.
    suite=${case%_*} ranks=${case##*_}
    [ "$suite" != mesh ] || suite=tensor,pipeline,context
    start "$ranks" -- "$bin/parallel_ranks" --test-suite="$suite"
    for one in ${suite//,/ }; do expect 0 "^$one: .* on $ranks ranks, .*$device"; done
    ;;
  kill_sharded)   # rank 1 is killed in a forward, while a unit is gathered
    start 2 -- env ACCELERATE_TEST_DEVICE=$device "$bin/sharding_fault_ranks" forward
    expect 137 'worker 1 .* ended first, signal 9 \(killed\)'
    ;;
  overlap)   # a trace of three training steps in which all-reduce runs while backward computes
    start 2 -- "$bin/tracking" "$folder/logs"
    [ "$code" = 0 ] || expect 0 .
    python3 - "$folder/logs/digits/profile/profile_summary.json" << 'PYTHON' >> "$folder/log"
import json, sys
for rank in json.load(open(sys.argv[1]))["ranks"]:
    hidden, all_reduce = rank["overlapped_ms"], rank["communication_ms"]
    print(f"rank {rank['rank']}: {hidden:.3f} of {all_reduce:.3f} ms of communication overlap with computation" if hidden > 0
          else f"rank {rank['rank']}: none of {all_reduce:.3f} ms of communication overlaps")
PYTHON
    ! grep -a "communication overlaps" "$folder/log" || exit 1
    expect 0 '^rank 1: .* ms of communication overlap with computation'
    ;;
esac
