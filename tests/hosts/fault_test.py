#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host of a job is cut off, switched off or frozen while the ranks connect, in the middle of an all-reduce, or between
steps: fault_test.py [Gloo | Mpi | Sharded | Gloo.test_connecting ...]. With a sharded model also in the middle of a gather,
a reduce-scatter or a save, or a rank is killed. Every other rank must end within its timeout plus a margin, name the missing
rank and what it waited for, and leave nothing behind."""
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
STEPS_OF_A_SHARDED_MODEL = ("connect", "step", "backward", "save")
MOMENTS = {"connecting": "connect", "in an all-reduce": "step", "between steps": "rest"}
# A sharded model: the point, and the error of a rank that waits.
NOT_REDUCED = r"backward: the gradients of unit 0 \(w\) are not reduced: "
SHARDED_MOMENTS = {"in a gather": ("step", r"forward: unit 0 \(w\) is not gathered: "), "in a reduce-scatter": ("backward", NOT_REDUCED),
                   "between forward and backward": ("backward", NOT_REDUCED),
                   # The last text is that of a rank that has sent its part.
                   "in a save": ("save", r"save_model: (the parts of parameter w are not gathered|it is unknown whether the other ranks failed): ")}
WITHOUT_A_TRANSFER = ("connecting", "between steps", "between forward and backward")
FAULTS = {"cut off": "cut", "switched off": "power_off", "frozen": "freeze"}  # and "killed", a rank
LAUNCHERS = (launch_modes.launcher_on_one_host_gloo, launch_modes.launcher_on_one_host_mpi, launch_modes.launcher_by_hand,
             launch_modes.launcher_ssh, launch_modes.launcher_mpirun)
MPIRUNS = (launch_modes.mpirun_on_one_host, launch_modes.mpirun)
# Output of a program that ends the other ranks after one was killed.
REPORTS = {**dict.fromkeys(LAUNCHERS, r"accelerate_launch: worker {rank} \({host}, pid \d+, .*\) .*signal 9 \(killed\)"),
           **dict.fromkeys(MPIRUNS, r"mpirun noticed that process rank {rank} with PID \d+ on node {host} exited on signal 9 \(Killed\)")}
# If one rank has failed, the others may have printed nothing.
ENDS_THE_OTHERS = {launch_modes.torchrun, launch_modes.srun_pmix, launch_modes.launcher_mpirun, *MPIRUNS}
FIRST_OF_TWO, LAST_OF_TWO, LAST_OF_THREE, ON_ONE_HOST = (2, 0), (2, 1), (3, 2), (1, 1)  # number of hosts, and the lost rank


def slack():
    """Margin in seconds besides the timeout; larger if many processes share a processor."""
    return 5 + min(15, os.getloadavg()[0] / os.cpu_count())


class Job:
    """Ranks with faults; `diaries` are their progress files."""

    def __init__(self, hosts, way, timeout, *arguments):
        self.hosts, self.timeout, self.diaries = hosts, timeout, hosts.folder / "diaries"
        self.per_host = launch_modes.RANKS_PER_HOST.get(way, 1)
        self.ranks = range(hosts.count * self.per_host)
        self.diaries.mkdir()
        options = ["--grace_time", 60] if way in LAUNCHERS else []  # until the other ranks have reported their errors
        self.job = way(hosts, [*options, PROGRAM, self.diaries, *arguments], ACCELERATE_TIMEOUT=timeout, OMP_NUM_THREADS=1,
                       SLURM_KILL_BAD_EXIT=0)

    def host_of(self, rank):
        return self.hosts[rank // self.per_host]

    def lines(self, rank):
        diary = self.diaries / f"rank{rank}"
        return (diary.read_text() if diary.exists() else "").rpartition("\n")[0].split("\n")

    def last_line(self, rank):
        return self.lines(rank)[-1]

    def signal(self, rank, name):
        self.host_of(rank).run(f"kill -{name} {self.lines(rank)[0].removeprefix('process ')}")

    def all_wait_for(self, step):
        lines = lambda: [self.last_line(rank) for rank in self.ranks]  # noqa: E731
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
        in_a_transfer, is_sharded = moment not in WITHOUT_A_TRANSFER, moment in SHARDED_MOMENTS
        timeout = 4 if moment == "connecting" else 10  # which must suffice to connect
        job = Job(hosts, way, timeout, 32 if in_a_transfer else 1, *(["full_shard"] if is_sharded else []))
        last = SHARDED_MOMENTS[moment][0] if is_sharded else MOMENTS[moment]
        for step in STEPS_OF_A_SHARDED_MODEL if is_sharded else STEPS:
            job.all_wait_for(step)
            if step == last:
                break
            job.go_on_to(step)
        if in_a_transfer:
            self.begin_transfer(job, step, victim, is_sharded)
        job.signal(victim, "KILL") if fault == "killed" else getattr(hosts[victim], FAULTS[fault])()
        if not in_a_transfer:
            job.go_on_to(step)
        return job

    def begin_transfer(self, job, step, victim, is_sharded):
        if job.per_host > 1:  # through memory, in a moment: the other ranks wait for one that is stopped
            job.signal(victim, "STOP")
            job.go_on_to(step)
            until(lambda: all(job.last_line(rank) == f"goes on to {step}" for rank in job.ranks if rank != victim), 60, step)
            time.sleep(0.5)
            return
        # A slow network and a large tensor, so that the collective has begun and has not ended.
        for host in job.hosts:
            host.rate("20mbit" if is_sharded else "100mbit")  # a rank sends half of it, and a kill takes time
        before = [host.bytes_sent() for host in job.hosts]
        job.go_on_to(step)
        sent = lambda: [host.bytes_sent() > was + 4e6 for host, was in zip(job.hosts, before)]  # noqa: E731
        until(lambda: any(sent()) if step == "save" else all(sent()), 60, "4 MB to be sent")  # rank 0 saves the others' parts

    def check_ends(self, job, ranks):
        begun, most = time.monotonic(), job.timeout + slack()
        for rank in ranks:
            try:
                until(lambda: not job.runs_on(job.host_of(rank)), max(1, begun + most - time.monotonic()), "its end", pause=0.3)
            except TimeoutError:
                self.fail(f"rank {rank} still runs {most:.1f} s after the fault, timeout {job.timeout} s; its last line: {job.last_line(rank)}")

    def check_names(self, job, rank, missing, operation):
        message = job.last_line(rank)
        self.assertRegex(message, rf"^\[rank {rank} of {len(job.ranks)}, {job.host_of(rank).name}\] {operation}")
        named = re.findall(r"ranks? (\d+(?:, \d+)*)", message.partition("]")[2])
        self.assertTrue({str(other) for other in missing} & set(", ".join(named).split(", ")), message)

    def check_all_name(self, job, way, ranks, missing, operation="", reported=False):
        """reported   the launcher names the missing rank, so that the ranks need not"""
        if way in ENDS_THE_OTHERS:
            ranks = [rank for rank in ranks if job.last_line(rank).startswith("[")] or ([] if reported else ranks)
        for rank in ranks:
            self.check_names(job, rank, missing, operation)

    def check_nothing_left(self, host, way, is_whole=False):
        """is_whole   no host is lost, so that every launcher ends"""
        if is_whole or way is launch_modes.by_hand:
            self.assertEqual(host.left_behind(), [], host.name)
        else:  # launchers and their daemons wait for minutes for a lost host, and the library does not end them
            self.assertEqual(host.run("find /dev/shm -type f"), "", host.name)

    def check(self, way, hosts_and_victim, fault, moment):
        count, victim = hosts_and_victim
        with Hosts(count, **launch_modes.SERVICES.get(way, {})) as hosts:
            job = self.start_and_break(hosts, way, victim, fault, moment)
            others = [rank for rank in job.ranks if rank != victim]
            self.check_ends(job, others)
            operation, is_killed = SHARDED_MOMENTS.get(moment, ("", ""))[1], fault == "killed"
            self.check_all_name(job, way, others, [victim], operation, reported=is_killed and way in REPORTS)
            if is_killed:
                if way in REPORTS:
                    self.assertFalse({0, None} & set(job.job.codes(30)), job.job.text())
                    self.assertRegex(job.job.text(), REPORTS[way].format(rank=victim, host=job.host_of(victim).name))
                for host in hosts:
                    self.check_nothing_left(host, way, is_whole=True)
                return
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
        """rows   the way to start, the number of hosts and the lost rank, and the faults"""
        cells = {f"{way.__name__}, rank {at[1]} on {at[0]} hosts {fault} {moment}": functools.partial(self.check, way, at, fault, moment)
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


class Sharded(Faults):
    """A model with full_shard, over both backends."""

    def check_moment(self, moment):
        one_host = (launch_modes.launcher_on_one_host_gloo, launch_modes.launcher_on_one_host_mpi, launch_modes.mpirun_on_one_host)
        two_hosts = (launch_modes.launcher_by_hand, launch_modes.launcher_ssh, launch_modes.launcher_mpirun, launch_modes.mpirun)
        self.check_all(moment, (launch_modes.by_hand, LAST_OF_TWO, "killed", *FAULTS), (launch_modes.by_hand, FIRST_OF_TWO, "killed"),
                       (launch_modes.by_hand, LAST_OF_THREE, "killed"), *((way, ON_ONE_HOST, "killed") for way in one_host),
                       *((way, LAST_OF_TWO, "killed") for way in two_hosts))

    def test_in_a_gather(self):
        self.check_moment("in a gather")

    def test_in_a_reduce_scatter(self):
        self.check_moment("in a reduce-scatter")

    def test_between_forward_and_backward(self):
        self.check_moment("between forward and backward")

    def test_in_a_save(self):
        self.check_moment("in a save")


if __name__ == "__main__":
    unittest.main(verbosity=2)
