#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shard_cases_test.sh PROGRAM: output of shard_cases for files with wrong cases, and for a missing file.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# expect <exit code> <output> <file's text>
expect() {
  echo "$3" >"$folder/cases.json"
  local code=0 output
  output=$("$program" "$folder/cases.json" 2>&1) || code=$?
  [[ $code == "$1" && $output == *"$2" ]] || {
    echo "exit code $code, expected $1; output: $output; expected: $2"
    exit 1
  }
}

expect 0 "0 passed, 0 failed" '{}'
expect 0 "1 passed, 0 failed" '{"variable_batches": [{"P": 2, "batches": [[0], [1, 2]], "shards": [[[0]], [[1, 2]]]}]}'
expect 1 "batch_sampler_shard: rank 1 reads [[2,3]], expected [[2,4]]
  {\"P\":2,\"batch\":2,\"n\":4,\"shards\":[[[0,1]],[[2,4]]]}
0 passed, 1 failed" '{"batch_sampler_shard": [{"P": 2, "n": 4, "batch": 2, "shards": [[[0, 1]], [[2, 4]]]}]}'
expect 1 "iterable_dataset_shard: P is 2, with 1 shards
  {\"P\":2,\"batch\":2,\"n\":4,\"shards\":[[0,1]]}
1 passed, 1 failed" '{"iterable_dataset_shard": [{"P": 2, "n": 4, "batch": 2, "shards": [[0, 1]]}],
                     "batch_sampler_shard": [{"P": 1, "n": 2, "batch": 2, "shards": [[[0, 1]]]}]}'
expect 2 "key 'n' not found" '{"batch_sampler_shard": [{"P": 1, "batch": 2, "shards": [[[0, 1]]]}]}'

code=0
output=$("$program" "$folder/none.json" 2>&1) || code=$?
[[ $code == 2 && $output == "shard_cases: $folder/none.json cannot be opened" ]]
