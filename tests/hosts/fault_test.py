#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host of a job is cut off, switched off or frozen while the ranks connect, in the middle of an all-reduce, or between
steps: fault_test.py [Gloo | Mpi | Gloo.test_connecting ...]. Every rank on a remaining host must end within its timeout
plus a margin, name the missing rank, and leave nothing behind."""
import functools
import os
import re
import time
import unittest

import launch_modes
from hosts import Hosts, until
from side_by_side import side_by_side

SECONDS_TO_START = 120  # for five tests at a time with Python programs that import LibTorch, on a busy machine
PROGRAM = launch_modes.BIN / "broken_rank"
STEPS = ("connect", "step", "rest")  # points at which broken_rank waits for the test
MOMENTS = {"connecting": "connect", "in an all-reduce": "step", "between steps": "rest"}
TIMEOUTS = {"connecting": 4, "in an all-reduce": 10, "between steps": 10}  # the latter two must suffice to connect
FAULTS = {"cut off": "cut", "switched off": "power_off", "frozen": "freeze"}
SERVICES = {launch_modes.mpirun: {"ssh": True}, launch_modes.srun: {"slurm": True}, launch_modes.srun_pmix: {"slurm": True}}
ENDS_THE_OTHERS = {launch_modes.torchrun, launch_modes.mpirun, launch_modes.srun_pmix}  # if one rank has failed, the others may have printed nothing
FIRST_OF_TWO, LAST_OF_THREE = (2, 0), (3, 2)  # number of hosts, and the lost one


def slack():
    """Margin in seconds besides the timeout; larger if many processes share a processor."""
    return 5 + min(15, os.getloadavg()[0] / os.cpu_count())


class Job:
    """Ranks with faults; `diaries` are their progress files."""

    def __init__(self, hosts, way, timeout, megabytes):
        self.hosts, self.timeout, self.diaries = hosts, timeout, hosts.folder / "diaries"
        self.diaries.mkdir()
        self.job = way(hosts, [PROGRAM, self.diaries, megabytes], ACCELERATE_TIMEOUT=timeout, OMP_NUM_THREADS=1,
                       SLURM_KILL_BAD_EXIT=0)

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
        """Returns the job after the fault."""
        in_a_step = moment == "in an all-reduce"
        job = Job(hosts, way, TIMEOUTS[moment], megabytes=32 if in_a_step else 1)
        for step in STEPS:
            job.all_wait_for(step)
            if step == MOMENTS[moment]:
                break
            job.go_on_to(step)
        if in_a_step:  # a slow network and a large tensor, so that the all-reduce has begun and has not ended
            for host in hosts:
                host.rate("100mbit")
            before = [host.bytes_sent() for host in hosts]
            job.go_on_to(step)
            until(lambda: all(host.bytes_sent() > was + 4e6 for host, was in zip(hosts, before)), 60, "4 MB to be sent")
        getattr(hosts[victim], FAULTS[fault])()
        if not in_a_step:
            job.go_on_to(step)
        return job

    def check_ends(self, job, ranks):
        begun, most = time.monotonic(), job.timeout + slack()
        for rank in ranks:
            try:
                until(lambda: not job.runs_on(job.hosts[rank]), max(1, begun + most - time.monotonic()), "its end", pause=0.3)
            except TimeoutError:
                self.fail(f"rank {rank} still runs {most:.1f} s after the fault, timeout {job.timeout} s; its last line: {job.last_line(rank)}")

    def check_names(self, job, rank, missing):
        message = job.last_line(rank)
        self.assertTrue(message.startswith(f"[rank {rank} of {job.hosts.count}, host{rank + 1}] "), message)
        named = re.findall(r"ranks? (\d+(?:, \d+)*)", message.partition("]")[2])
        self.assertTrue({str(other) for other in missing} & set(", ".join(named).split(", ")), message)

    def check_all_name(self, job, way, ranks, missing):
        if way in ENDS_THE_OTHERS:
            ranks = [rank for rank in ranks if job.last_line(rank).startswith("[")] or ranks
        for rank in ranks:
            self.check_names(job, rank, missing)

    def check_nothing_left(self, host, way):
        if way is launch_modes.by_hand:
            self.assertEqual(host.left_behind(), [], host.name)
        else:  # launchers and their daemons wait for minutes for a lost host, and the library does not end them
            self.assertEqual(host.run("find /dev/shm -type f"), "", host.name)

    def check(self, way, hosts_and_victim, fault, moment):
        count, victim = hosts_and_victim
        with Hosts(count, **SERVICES.get(way, {})) as hosts:
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
            if fault == "cut off":  # a resumed rank finds that the others have ended, or its launcher ends it
                self.check_all_name(job, way, [victim], missing=others)
            self.check_nothing_left(hosts[victim], way)

    def check_all(self, moment, *rows):
        """rows   the way to start, the number of hosts and the lost one, and the faults"""
        cells = {f"{way.__name__}, host{at[1] + 1} of {at[0]} {fault} {moment}": functools.partial(self.check, way, at, fault, moment)
                 for way, at, *faults in rows for fault in faults}
        side_by_side(self, cells)


class Gloo(Faults):
    def test_connecting(self):
        self.check_all("connecting", (launch_modes.by_hand, FIRST_OF_TWO, *FAULTS), (launch_modes.by_hand, LAST_OF_THREE, *FAULTS),
                       (launch_modes.srun, FIRST_OF_TWO, "frozen"), (launch_modes.srun, LAST_OF_THREE, "cut off"),
                       (launch_modes.torchrun, FIRST_OF_TWO, "switched off"))

    def test_in_an_all_reduce(self):
        self.check_all("in an all-reduce", (launch_modes.by_hand, FIRST_OF_TWO, *FAULTS), (launch_modes.by_hand, LAST_OF_THREE, *FAULTS),
                       (launch_modes.srun, FIRST_OF_TWO, "cut off"), (launch_modes.srun, LAST_OF_THREE, "switched off"),
                       (launch_modes.torchrun, FIRST_OF_TWO, "frozen"))

    def test_between_steps(self):
        self.check_all("between steps", (launch_modes.by_hand, FIRST_OF_TWO, *FAULTS), (launch_modes.by_hand, LAST_OF_THREE, *FAULTS),
                       (launch_modes.srun, FIRST_OF_TWO, "switched off"), (launch_modes.srun, LAST_OF_THREE, "frozen"),
                       (launch_modes.torchrun, FIRST_OF_TWO, "cut off"))


class Mpi(Faults):
    def check_moment(self, moment):
        self.check_all(moment, *((way, at, *FAULTS) for way in (launch_modes.mpirun, launch_modes.srun_pmix) for at in (FIRST_OF_TWO, LAST_OF_THREE)))

    def test_connecting(self):
        self.check_moment("connecting")

    def test_in_an_all_reduce(self):
        self.check_moment("in an all-reduce")

    def test_between_steps(self):
        self.check_moment("between steps")


if __name__ == "__main__":
    unittest.main(verbosity=2)
