#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs on two and three hosts, started in every way and over networks of several kinds: start_test.py [Gloo | Mpi | Gloo.test_by_hand ...]. Each runs
the conformance of the collectives and five steps of training beside one process (rank_tests)."""
import unittest

import ways
from hosts import Hosts

CASES = "--source-file=*tests/comm/collectives_test.cpp,*tests/comm/collectives_cases.hpp,*tests/hosts/equivalence_test.cpp"
PROGRAM = [ways.BIN / "rank_tests", CASES, "--no-skipped-summary", "--no-colors"]


class Starts(unittest.TestCase):
    def check(self, count, way, address=None, **kind):
        """kind   of the hosts and their network, as Hosts takes it"""
        title = ", ".join([way.__name__, f"{count} hosts", *(f"{name} {value}" for name, value in kind.items()), f"address {address}"])
        options = {"address": address} if address else {}
        with self.subTest(title), Hosts(count, **kind) as hosts:
            job = way(hosts, PROGRAM, OMP_NUM_THREADS=1, **options)
            codes = job.codes(240)
            self.assertEqual(codes, [0] * len(codes), job.text())
            self.assertEqual(job.text().count("Status: SUCCESS!"), count, job.text())
            for host in hosts:
                self.assertEqual(host.left_behind(), [], host.name)


class Gloo(Starts):
    def test_by_hand(self):
        self.check(2, ways.by_hand)
        self.check(3, ways.by_hand)

    def test_torchrun(self):
        self.check(2, ways.torchrun, address="10.77.0.1")
        self.check(3, ways.torchrun)

    def test_mpirun(self):
        self.check(2, ways.mpirun_gloo, ssh=True)
        self.check(3, ways.mpirun_gloo, ssh=True)

    def test_srun(self):
        self.check(2, ways.srun, slurm=True)
        self.check(3, ways.srun, slurm=True)

    def test_master_addr_as_address(self):
        self.check(3, ways.by_hand, address="10.77.0.1")

    def test_ipv6_alone(self):
        self.check(2, ways.by_hand, family=6)
        self.check(3, ways.by_hand, family=6, address="fd77::1")
        self.check(2, ways.torchrun, family=6, address="fd77::1")
        self.check(2, ways.srun, family=6, slurm=True)

    def test_a_second_network_that_leads_nowhere(self):
        self.check(3, ways.by_hand, dead_network=True)
        self.check(2, ways.torchrun, dead_network=True)
        self.check(2, ways.srun, dead_network=True, slurm=True)
        self.check(2, ways.mpirun_gloo, dead_network=True, ssh=True)


class Mpi(Starts):
    def test_mpirun(self):
        self.check(2, ways.mpirun, ssh=True)
        self.check(3, ways.mpirun, ssh=True)

    def test_srun_with_pmix(self):
        self.check(2, ways.srun_pmix, slurm=True)
        self.check(3, ways.srun_pmix, slurm=True)

    def test_ipv6_alone(self):
        self.check(2, ways.mpirun, family=6, ssh=True)
        self.check(2, ways.srun_pmix, family=6, slurm=True)

    def test_a_second_network_that_leads_nowhere(self):
        self.check(2, ways.mpirun, dead_network=True, ssh=True)
        self.check(3, ways.srun_pmix, dead_network=True, slurm=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
