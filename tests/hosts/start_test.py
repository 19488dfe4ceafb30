#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs on two and three hosts, with every runner and several kinds of networks: start_test.py [Gloo | Mpi |
Gloo.test_by_hand ...]. Each runs the conformance tests of the collectives and five training steps (rank_tests)."""
import functools
import unittest

import launch_modes
from hosts import Hosts
from side_by_side import side_by_side

CASES = "--source-file=*tests/comm/collectives_test.cpp,*tests/comm/collectives_cases.hpp,*tests/hosts/equivalence_test.cpp"
PROGRAM = [launch_modes.BIN / "rank_tests", CASES, "--no-skipped-summary", "--no-colors"]


class Starts(unittest.TestCase):
    def check(self, count, way, address=None, **kind):
        options = {"address": address} if address else {}
        with Hosts(count, **kind) as hosts:
            job = way(hosts, PROGRAM, OMP_NUM_THREADS=1, **options)
            codes = job.codes(240)
            self.assertEqual(codes, [0] * len(codes), job.text())
            ranks = count * launch_modes.RANKS_PER_HOST.get(way, 1)
            self.assertEqual(job.text().count("Status: SUCCESS!"), ranks, job.text())
            for host in hosts:
                self.assertEqual(host.left_behind(), [], host.name)

    def check_all(self, *rows, **kind):
        """rows   number of hosts, the way to start, its arguments; kind: keyword arguments of Hosts for the hosts and their network"""
        cells = {}
        for count, way, *address in rows:
            title = ", ".join([way.__name__, f"{count} hosts", *address, *(f"{name} {value}" for name, value in kind.items())])
            cells[title] = functools.partial(self.check, count, way, *address, **launch_modes.SERVICES.get(way, {}), **kind)
        side_by_side(self, cells)


class Gloo(Starts):
    def test_by_hand(self):
        self.check_all((2, launch_modes.by_hand, "10.77.0.1"), (3, launch_modes.by_hand))

    def test_torchrun(self):
        self.check_all((2, launch_modes.torchrun, "10.77.0.1"), (3, launch_modes.torchrun))

    def test_mpirun(self):
        self.check_all((2, launch_modes.mpirun_gloo), (3, launch_modes.mpirun_gloo))

    def test_srun(self):
        self.check_all((2, launch_modes.srun), (3, launch_modes.srun), (2, launch_modes.srun_pmix_gloo), (3, launch_modes.srun_pmix_gloo))

    def test_launcher_by_hand(self):
        self.check_all((2, launch_modes.launcher_by_hand, "10.77.0.1"), (3, launch_modes.launcher_by_hand))

    def test_launcher_over_ssh(self):
        self.check_all((2, launch_modes.launcher_ssh), (3, launch_modes.launcher_ssh))

    def test_launcher_under_slurm(self):
        self.check_all((2, launch_modes.launcher_per_node), (3, launch_modes.launcher_per_node), (2, launch_modes.launcher_per_task), (3, launch_modes.launcher_per_task),
                       (2, launch_modes.launcher_salloc), (3, launch_modes.launcher_salloc), (2, launch_modes.launcher_sbatch), (3, launch_modes.launcher_sbatch))

    def test_launcher_with_other_slurm_task_counts(self):
        self.check_all((2, launch_modes.launcher_ntasks_per_node), (2, launch_modes.launcher_sbatch_nodes), (2, launch_modes.launcher_sbatch_ntasks_per_node))

    def test_ipv6_alone(self):
        self.check_all((3, launch_modes.by_hand), (2, launch_modes.torchrun, "fd77::1"), (2, launch_modes.srun), (2, launch_modes.launcher_by_hand), (2, launch_modes.launcher_ssh),
                       (2, launch_modes.mpirun_gloo), (2, launch_modes.srun_pmix_gloo), family=6)

    def test_an_unreachable_second_network(self):
        self.check_all((3, launch_modes.by_hand), (2, launch_modes.srun), (2, launch_modes.torchrun), (2, launch_modes.launcher_by_hand), (2, launch_modes.launcher_ssh),
                       (2, launch_modes.mpirun_gloo), dead_network=True)


class Mpi(Starts):
    def test_mpirun(self):
        self.check_all((2, launch_modes.mpirun), (3, launch_modes.mpirun))

    def test_launcher_with_mpirun(self):
        self.check_all((2, launch_modes.launcher_mpirun), (3, launch_modes.launcher_mpirun))

    def test_launcher_under_slurm_with_pmix(self):
        self.check_all((2, launch_modes.launcher_per_task_pmix), (3, launch_modes.launcher_per_task_pmix), (2, launch_modes.launcher_sbatch_pmix),
                       (3, launch_modes.launcher_sbatch_pmix), (3, launch_modes.launcher_sbatch_pmix_labels))

    def test_short_jobs_under_slurm_with_pmix(self):
        """With Slurm 22.05 and PMIx 4.2.2, MPI_Init and MPI_Finalize do not wait for the ranks of other hosts. Without waits of this library
        one of ten jobs of a plain MPI program had a rank with a segmentation fault or was aborted."""
        with Hosts(3, slurm=True) as hosts:
            for _ in range(15):
                job = launch_modes.launcher_per_task_pmix(hosts, [*PROGRAM, "--test-case=the group contains all ranks*"], OMP_NUM_THREADS=1)
                codes = job.codes(50)
                self.assertEqual(codes, [0] * len(codes), job.text())
                self.assertEqual(job.text().count("1 passed"), 6, job.text())
                self.assertNotIn("MPI_Finalize", job.text())

    def test_srun_with_pmix(self):
        self.check_all((2, launch_modes.srun_pmix), (3, launch_modes.srun_pmix))

    def test_ipv6_alone(self):
        self.check_all((2, launch_modes.mpirun), (2, launch_modes.srun_pmix), (2, launch_modes.launcher_mpirun), family=6)

    def test_an_unreachable_second_network(self):
        self.check_all((2, launch_modes.mpirun), (3, launch_modes.srun_pmix), (2, launch_modes.launcher_mpirun), dead_network=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
