#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# killed_training_test.sh LAUNCHER BACKEND PROGRAM: kills a training twice in the middle of epochs. The restarted training
# must see the remaining samples: on two ranks in the same order, on one rank each sample of the epoch once.
set -euo pipefail
launcher=$1 backend=$2 program=$3
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

fail() {
  echo "$1"
  exit 1
}

# train <ranks> <folder> [steps]
train() {
  mkdir -p "$folder/$2"
  "$launcher" --cpu --num_processes "$1" --backend "$backend" --main_process_port 0 "$program" "$folder/$2" "${@:3}" \
    >"$folder/output" 2>&1
}

train 2 whole || fail "the run that nobody kills failed: $(cat "$folder/output")"
! train 2 killed 7 || fail "the run was not killed after 7 steps"
! train 2 killed 6 || fail "the second run was not killed after 6 steps"
train 2 killed || fail "the run after the second kill failed: $(cat "$folder/output")"
for rank in 0 1; do
  diff "$folder/whole/order.$rank" "$folder/killed/order.$rank" || fail "rank $rank saw another order after the kills"
done
[ "$(grep -c . "$folder/whole/order.0")" = 27 ] || fail "an epoch has other than 9 steps"

! train 2 moved 7 || fail "the run was not killed after 7 steps"
train 1 moved || fail "the run on one rank failed: $(cat "$folder/output")"
seen=$(cat "$folder"/moved/order.* | sed -n 's/^0://p' | tr -s ' ' '\n' | grep . | sort -n)
[ "$seen" = "$(seq 0 49)" ] || fail "over the kill, two ranks and one saw of epoch 0: $(echo "$seen" | uniq -c | tr '\n' ' ')"
