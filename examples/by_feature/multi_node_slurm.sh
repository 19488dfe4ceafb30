#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# sbatch --nodes 2 multi_node_slurm.sh PROGRAM ARGUMENTS: runs PROGRAM on all allocated nodes, one rank per task.
# Addresses and ports are determined from Slurm. With GPUs: --gpus-per-node 4 --ntasks-per-node 4.
#SBATCH --job-name=accelerate
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
exec "${ACCELERATE_LAUNCH:-build/bin/accelerate_launch}" "$@"
