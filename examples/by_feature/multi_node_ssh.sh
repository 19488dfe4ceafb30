#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# multi_node_ssh.sh gpu-a:2,gpu-b:2 PROGRAM ARGUMENTS: PROGRAM as two ranks on each of two machines, from the first of them.
# ssh reaches them without a password, and the program lies in the same folder on all.
exec "${ACCELERATE_LAUNCH:-build/bin/accelerate_launch}" --hosts "$@"
