# SPDX-License-Identifier: Apache-2.0
"""Ways to start a job on several hosts, one rank on each. A way returns the processes that the tests start; the job is
correct if all of them end with 0."""
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
        """Exit codes in starting order; None for a process that still runs after this total number of seconds."""
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(seconds))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def text(self):
        there = [path for path in self.outputs if path.exists()]  # sbatch creates its own file when the job begins
        return "\n".join(f"--- {path.name.split('-')[0]}\n{path.read_text(errors='replace')}" for path in there)


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
    # Each host binds its first rank to its first core, which is the same core for all hosts here.
    binding = ["--bind-to", "none"]
    job.start(hosts[0], ["env", *pairs(variables), "mpirun", "--allow-run-as-root", *binding, "-H", names, *exported, *options, *command])
    return job


def mpirun_gloo(hosts, command, **variables):
    return mpirun(hosts, command, ACCELERATE_BACKEND="gloo", MASTER_ADDR="host1", MASTER_PORT=PORT, **variables)


def srun(hosts, command, options=("--mpi=none",), **variables):
    job = Job(hosts)
    job.start(hosts[0], ["env", *pairs(variables), "srun", "-N", hosts.count, "-n", hosts.count, *options, *command])
    return job


def srun_pmix(hosts, command, **variables):
    return srun(hosts, command, options=("--mpi=pmix",), **variables)


def srun_pmix_gloo(hosts, command, **variables):
    return srun_pmix(hosts, command, ACCELERATE_BACKEND="gloo", **variables)


# accelerate_launch, with every way to start.
LAUNCHER = (BIN / "accelerate_launch").resolve()


def launcher_by_hand(hosts, command, address=None, **variables):
    job = Job(hosts)
    for rank, host in enumerate(hosts):
        job.start(host, ["env", *pairs(variables), LAUNCHER, "--backend", "gloo", "--num_machines", hosts.count, "--machine_rank", rank,
                         "--main_process_ip", address or "host1", "--main_process_port", PORT, "--num_processes", hosts.count, *command])
    return job


def on_host1(hosts, words, command, variables):
    job = Job(hosts)
    job.start(hosts[0], ["env", *pairs(variables), *words, *command])
    return job


def launcher_ssh(hosts, command, **variables):
    names = ",".join(f"{host.name}:1" for host in hosts)
    return on_host1(hosts, [LAUNCHER, "--backend", "gloo", "--hosts", names], command, variables)


def launcher_mpirun(hosts, command, options=(), **variables):
    hostfile = hosts.folder / "hostfile"
    hostfile.write_text("".join(f"{host.name} slots=1\n" for host in hosts))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
    return on_host1(hosts, [LAUNCHER, "--cpu", "--mpirun_hostfile", hostfile, *options], command, {**root, **variables})


def launcher_on_one_host_gloo(hosts, command, **variables):
    return on_host1(hosts, [LAUNCHER, "--cpu", "--num_processes", 2, "--backend", "gloo"], command, variables)


def launcher_on_one_host_mpi(hosts, command, **variables):
    return on_host1(hosts, [LAUNCHER, "--cpu", "--num_processes", 2, "--backend", "mpi"], command, variables)


def mpirun_on_one_host(hosts, command, **variables):
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-n", 2]
    return on_host1(hosts, words, command, variables)


def launcher_per_node(hosts, command, **variables):
    words = ["srun", "-N", hosts.count, "-n", hosts.count, "--mpi=none", LAUNCHER, "--backend", "gloo", "--num_processes", hosts.count]
    return on_host1(hosts, words, command, variables)


def launcher_ntasks_per_node(hosts, command, **variables):
    words = ["srun", "-N", hosts.count, "--ntasks-per-node=1", "--mpi=none", LAUNCHER, "--backend", "gloo", "--num_processes", hosts.count]
    return on_host1(hosts, words, command, variables)


def launcher_per_task(hosts, command, **variables):
    words = ["srun", "-N", hosts.count, "-n", 2 * hosts.count, "--mpi=none", LAUNCHER, "--backend", "gloo"]
    return on_host1(hosts, words, command, variables)


def launcher_per_task_pmix(hosts, command, **variables):
    words = ["srun", "-N", hosts.count, "-n", 2 * hosts.count, "--mpi=pmix", LAUNCHER, "--backend", "mpi"]
    return on_host1(hosts, words, command, variables)


def launcher_salloc(hosts, command, **variables):
    return on_host1(hosts, ["salloc", "-N", hosts.count, "-n", hosts.count, LAUNCHER, "--backend", "gloo"], command, variables)


def launcher_sbatch(hosts, command, options=("--backend", "gloo"), tasks=None, **variables):
    """tasks   the job's options for the number of tasks; if none, one task per host. sbatch --wait polls after 2, 10 and 42 s, so
    a test of 44 s took little longer than one of 12 s."""
    tasks = ["-n", hosts.count] if tasks is None else tasks
    script, output = hosts.folder / "batch.sh", hosts.folder / "batch.out"
    words = " ".join(f"'{word}'" for word in [*pairs(variables), LAUNCHER, *options, *command])
    script.write_text(f"#!/bin/sh\nexec env {words}\n")
    job = on_host1(hosts, ["sbatch", "--wait", "-N", hosts.count, *tasks, "-o", output, script], [], {})
    job.outputs.append(output)
    return job


def launcher_sbatch_nodes(hosts, command, **variables):
    """The job does not set a number of tasks."""
    return launcher_sbatch(hosts, command, tasks=[], **variables)


def launcher_sbatch_ntasks_per_node(hosts, command, **variables):
    return launcher_sbatch(hosts, command, tasks=["--ntasks-per-node=2"], **variables)


def launcher_sbatch_pmix(hosts, command, **variables):
    return launcher_sbatch(hosts, command, options=("--backend", "mpi"), **variables)


def launcher_sbatch_pmix_labels(hosts, command, **variables):
    """With a per-rank wrapper of accelerate_launch."""
    logs = hosts.folder / "logs"
    return launcher_sbatch(hosts, command, options=("--backend", "mpi", "--label", "--log_dir", logs), **variables)


RANKS_PER_HOST = {launcher_per_task: 2, launcher_per_task_pmix: 2, launcher_sbatch_ntasks_per_node: 2,
                  launcher_on_one_host_gloo: 2, launcher_on_one_host_mpi: 2, mpirun_on_one_host: 2}
SERVICES = {launcher_ssh: {"ssh": True}, launcher_mpirun: {"ssh": True}, mpirun: {"ssh": True}, mpirun_gloo: {"ssh": True},
            **{way: {"slurm": True} for way in (srun, srun_pmix, srun_pmix_gloo, launcher_per_node, launcher_ntasks_per_node, launcher_per_task,
                                                launcher_per_task_pmix, launcher_salloc, launcher_sbatch, launcher_sbatch_nodes,
                                                launcher_sbatch_ntasks_per_node, launcher_sbatch_pmix, launcher_sbatch_pmix_labels)}}
