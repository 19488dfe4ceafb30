# SPDX-License-Identifier: Apache-2.0
"""The ways in which a job of several hosts starts, one rank on each. A way gives the processes that the tests start; the
job is right when all of them end with 0."""
import os
import subprocess
from pathlib import Path

from hosts import need

PORT = 29777
BIN = Path(os.environ.get("HOSTS_BIN", "bin"))
PYTHON_BIN = Path(os.environ.get("HOSTS_PYTHON", "python3")).parent


def pairs(variables):
    return [f"{name}={value}" for name, value in variables.items()]


class Job:
    """Processes with the file that each writes to."""

    def __init__(self, hosts):
        self.hosts, self.processes, self.outputs = hosts, [], []

    def start(self, host, command):
        path = self.hosts.folder / f"output{len(self.outputs)}-{id(self)}"
        with open(path, "w") as output:
            self.processes.append(host.start(command, stdout=output, stderr=subprocess.STDOUT))
        self.outputs.append(path)

    def codes(self, seconds):
        """As they end, in the order of starting; None is one that still runs after so many seconds all together."""
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(seconds))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def text(self):
        return "\n".join(f"--- {path.name.split('-')[0]}\n{path.read_text(errors='replace')}" for path in self.outputs)


def by_hand(hosts, command, address=None, **variables):
    job = Job(hosts)
    for rank, host in enumerate(hosts):
        own = {"RANK": rank, "WORLD_SIZE": hosts.count, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
               "MASTER_ADDR": address or "host1", "MASTER_PORT": PORT, **variables}
        job.start(host, ["env", *pairs(own), *command])
    return job


def torchrun(hosts, command, address=None, **variables):
    job = Job(hosts)
    for rank, host in enumerate(hosts):
        job.start(host, ["env", *pairs(variables), PYTHON_BIN / "torchrun", "--nnodes", hosts.count, "--node-rank", rank,
                         "--nproc-per-node", 1, "--master-addr", address or "host1", "--master-port", PORT, "--no-python", *command])
    return job


def mpirun(hosts, command, options=(), **variables):
    job = Job(hosts)
    exported = [word for name in variables for word in ("-x", name)]
    names = ",".join(host.name for host in hosts)
    job.start(hosts[0], ["env", *pairs(variables), "mpirun", "--allow-run-as-root", "-H", names, *exported, *options, *command])
    return job


def mpirun_gloo(hosts, command, **variables):
    return mpirun(hosts, command, ACCELERATE_BACKEND="gloo", MASTER_ADDR="host1", MASTER_PORT=PORT, **variables)


def srun(hosts, command, options=("--mpi=none",), **variables):
    job = Job(hosts)
    job.start(hosts[0], ["env", *pairs(variables), "srun", "-N", hosts.count, "-n", hosts.count, *options, *command])
    return job


def srun_pmix(hosts, command, **variables):
    return srun(hosts, command, options=("--mpi=pmix",), **variables)
