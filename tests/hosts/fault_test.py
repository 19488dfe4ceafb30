#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host of a job is cut off, switched off or frozen while the ranks connect or between steps: fault_test.py [Gloo | Mpi | Gloo.test_connecting ...]. Every rank whose host is there ends within its timeout and some, says
which rank it misses, and leaves nothing behind."""
import re
import time
import unittest

import ways
from hosts import Hosts, until

TIMEOUT = 3   # seconds that the ranks wait for one another
SLACK = 20    # and what a busy machine may need beside: for a rank that never ends, not for one that is slow
SECONDS_TO_START = 60
PROGRAM = ways.BIN / "broken_rank"
STEPS = ("connect", "step", "rest")  # where broken_rank waits for the test
MOMENTS = {"connecting": "connect", "between steps": "rest"}
FAULTS = {"cut off": "cut", "switched off": "power_off", "frozen": "freeze"}


class Job:
    """Ranks that are broken: diaries are what they say of themselves."""

    def __init__(self, hosts, way):
        self.hosts, self.diaries = hosts, hosts.folder / "diaries"
        self.diaries.mkdir()
        self.job = way(hosts, [PROGRAM, self.diaries, 1], ACCELERATE_TIMEOUT=TIMEOUT, OMP_NUM_THREADS=1)

    def last_line(self, rank):
        diary = self.diaries / f"rank{rank}"
        return (diary.read_text() if diary.exists() else "").rpartition("\n")[0].rpartition("\n")[2]

    def all_wait_for(self, step):
        lines = lambda: [self.last_line(rank) for rank in range(self.hosts.count)]  # noqa: E731
        try:
            until(lambda: set(lines()) == {f"waits for {step}"}, SECONDS_TO_START, f"ranks to come to '{step}'")
        except TimeoutError as error:
            raise AssertionError(f"{error}; they say {lines()}\n{self.job.text()}") from None

    def go_on_to(self, step):
        (self.diaries / step).touch()

    def runs_on(self, host):
        return any(PROGRAM.name in args.split()[0] for args in host.processes().values())


class Faults(unittest.TestCase):
    def start_and_break(self, hosts, way, victim, fault, moment):
        """The job, broken a moment ago."""
        job = Job(hosts, way)
        for step in STEPS:
            job.all_wait_for(step)
            if step == MOMENTS[moment]:
                break
            job.go_on_to(step)
        getattr(hosts[victim], FAULTS[fault])()
        job.go_on_to(step)
        return job

    def check_ends(self, job, ranks):
        """These ranks end within their timeout and some after the fault."""
        hosts, end = job.hosts, time.monotonic() + TIMEOUT + SLACK
        for rank in ranks:
            try:
                until(lambda: not job.runs_on(hosts[rank]), max(1, end - time.monotonic()), "its end", pause=0.3)
            except TimeoutError:
                self.fail(f"rank {rank} still runs {TIMEOUT + SLACK} s after the fault, timeout {TIMEOUT} s; it says: {job.last_line(rank)}")

    def check_names(self, job, rank, missing):
        said = job.last_line(rank)
        self.assertTrue(said.startswith(f"[rank {rank} of {job.hosts.count}, host{rank + 1}] "), said)
        named = re.findall(r"ranks? (\d+(?:, \d+)*)", said.partition("]")[2])
        self.assertTrue({str(other) for other in missing} & set(", ".join(named).split(", ")), said)

    def check_all_name(self, job, way, ranks, missing):
        """mpirun ends the others when one has failed: then these need not have said anything."""
        if way is ways.mpirun:
            ranks = [rank for rank in ranks if job.last_line(rank).startswith("[")] or ranks
        for rank in ranks:
            self.check_names(job, rank, missing)

    def check(self, count, way, victim, fault, moment, **services):
        with self.subTest(f"{count} hosts, host{victim + 1} {fault} {moment}"), Hosts(count, **services) as hosts:
            job = self.start_and_break(hosts, way, victim, fault, moment)
            others = [rank for rank in range(count) if rank != victim]
            self.check_ends(job, others)
            self.check_all_name(job, way, others, missing=[victim])
            for rank in others:
                self.check_nothing_left(hosts[rank], way)
            if fault == "switched off":
                return
            if fault == "frozen":
                hosts[victim].thaw()
            self.check_ends(job, [victim])
            if fault == "cut off" or way is not ways.mpirun:  # else mpirun may end it before it looks
                self.check_names(job, victim, missing=others)
            self.check_nothing_left(hosts[victim], way)

    def check_nothing_left(self, host, way):
        if way is ways.by_hand:
            self.assertEqual(host.left_behind(), [], host.name)
        else:  # mpirun and its daemons wait for minutes for a host that is gone: they are not ours to end
            self.assertEqual(host.run("find /dev/shm -type f"), "", host.name)


class Gloo(Faults):
    def test_connecting(self):
        for fault in FAULTS:
            for victim in (0, 1):
                self.check(2, ways.by_hand, victim, fault, "connecting")


class Mpi(Faults):
    def test_between_steps(self):
        for fault in FAULTS:
            self.check(2, ways.mpirun, 0, fault, "between steps", ssh=True)
            self.check(3, ways.mpirun, 2, fault, "between steps", ssh=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
