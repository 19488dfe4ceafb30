#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# multi_node_ssh.sh gpu-a:2,gpu-b:2 PROGRAM ARGUMENTS: runs PROGRAM with two ranks on each of two machines. Run it on the
# first machine. ssh must work without a password, and the program must be in the same folder on all machines.
exec "${ACCELERATE_LAUNCH:-build/bin/accelerate_launch}" --hosts "$@"
