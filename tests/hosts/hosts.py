# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: each has its own address, name, processes, /tmp, /run and /dev/shm; other files are shared,
as in a cluster's home folder. `with Hosts(2) as hosts: hosts[0].start(["hostname"])`. The hosts end with this process."""
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ["PATH"] += ":/usr/sbin:/sbin"  # root's PATH may be without these
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "sshd": "openssh-server", "mpirun": "openmpi-bin", "munged": "munge",
            "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
SLURM = """ClusterName=hosts
SlurmctldHost=host1
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
StateSaveLocation=/run/slurm-state
SlurmdSpoolDir=/run/slurm-spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=3
MpiDefault=none
CommunicationParameters=EnableIPv6
NodeName=host[1-{count}] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Missing(Exception):
    """Reason why this machine cannot run such tests; they fail with this sentence."""


def need(*commands):
    if os.geteuid() != 0:
        raise Missing("tests on several hosts make network namespaces, which needs root")
    lacking = sorted({PACKAGES[each] for each in commands if not shutil.which(each)})
    if lacking:
        raise Missing(f"tests on several hosts need Debian packages: apt-get install {' '.join(lacking)}")


def until(condition, seconds, what, pause=0.02):
    """Polls. The timeout is long, because it only matters for conditions that never become true."""
    end = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(pause)


class Namespace:
    """A process in separate namespaces, and commands to enter them. They end with the process."""

    def __init__(self, kinds, command, **options):
        # unshare receives the signal for the death of its parent and ends the first process, so no process outlives the tests.
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", *kinds, "--fork", "--kill-child", *command],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options)
        self.pid = until(self._first_child, 20, "unshare")

    def _first_child(self):
        if self.process.poll() is not None:
            raise Missing("tests on several hosts make namespaces, and unshare may not: does this container lack CAP_SYS_ADMIN?")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return children[0] if children else None

    def enter(self, *kinds):
        return ["nsenter", "-t", self.pid, *kinds]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Host(Namespace):
    def __init__(self, network, number, services):
        self.network, self.number, self.name = network, number, f"host{number}"
        self.started = []
        self.log = network.folder / f"{self.name}.log"
        with open(self.log, "w") as log:
            super().__init__(["--net", "--uts", "--ipc", "--mount", "--pid"],
                             [HERE / "init", self.name, network.folder, " ".join(network.addresses(number)), services], stderr=log)

    def wait_until_up(self):
        if self.process.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name} did not come up: {self.log.read_text()}")

    def start(self, command, **options):
        """Runs the command on this host, in the folder of this process."""
        process = subprocess.Popen([*self.enter("-m", "-u", "-i", "-n", "-p"), "env", "-C", os.getcwd(), *map(str, command)],
                                   stdin=subprocess.DEVNULL, text=True, **options)
        self.started.append(process)
        return process

    def run(self, command):
        process = self.start(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return process.communicate(timeout=60)[0]

    def processes(self):
        """{process id: command line} without the inspecting processes."""
        lines = self.run("exec ps --no-headers -eo pid,ppid,args").splitlines()
        rows = [line.split(None, 2) for line in lines]
        return {pid: args for pid, _, args in rows if not args.startswith(("ps --no-headers", "sleep 1000", "[ps]", "[sleep]"))}

    def left_behind(self, patience=10):
        """Processes and files that still exist after this number of seconds and did not exist when the host started."""
        left = lambda: ([args for pid, args in self.processes().items() if pid not in self.at_rest] +  # noqa: E731
                        self.run("find /dev/shm /tmp -mindepth 1 '(' -type f -o -name 'accelerate_launch*' ')'").split())
        try:
            until(lambda: not left(), patience, "the end", pause=0.3)
        except TimeoutError:
            pass
        return left()

    # Faults of hosts.
    def cut(self):
        self.network.switch(f"ip link set {self.name} down")

    def power_off(self):
        self.cut()  # first, so that its closing sockets send nothing to the others
        self.end()

    def freeze(self):
        self.run("kill -STOP -1")

    def thaw(self):
        self.run("kill -CONT -1")
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # nsenter stops together with its child

    def rate(self, rate):
        queue = f"root tbf rate {rate} burst 256k latency 50ms"
        self.network.switch(f"tc qdisc replace dev {self.name} {queue}")
        self.run(f"tc qdisc replace dev eth0 {queue}")

    def bytes_sent(self):
        return int(self.run("cat /proc/net/dev | sed -n 's/^ *eth0: *//p'").split()[8])


class Hosts:
    """count     hosts, named host1, host2, ...
    family       4 or 6: the only kind of addresses
    dead_network each host has a second network, with an address, without connectivity
    ssh, slurm   the services that mpirun and srun need"""

    def __init__(self, count, family=4, dead_network=False, ssh=False, slurm=False):
        need("ip", "tc", *(["sshd", "mpirun"] if ssh else []), *(["munged", "slurmctld", "slurmd", "srun"] if slurm else []))
        self.count, self.family, self.dead_network, self.slurm = count, family, dead_network, slurm
        self.services = [*(["sshd"] if ssh else []), *(["munged", "slurmd"] if slurm else [])]
        self.hosts = []

    def address(self, number):
        return f"10.77.0.{number}" if self.family == 4 else f"fd77::{number}"

    def addresses(self, number):
        dead = [f"lan0=10.99.0.{number}/24"] if self.dead_network else []
        return [*dead, f"eth0={self.address(number)}/{24 if self.family == 4 else 64}"]

    def __enter__(self):
        # Not in /tmp, because each host has its own.
        self.folder = Path(tempfile.mkdtemp(prefix="accelerate-hosts-", dir="/var/tmp"))
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self):
        self._write_files()
        self._switch = Namespace(["--net"], ["sleep", "infinity"])
        self.switch("ip link add cables type bridge && ip link set cables up")
        for number in range(1, self.count + 1):
            first = " slurmctld" if self.slurm and number == 1 else ""
            host = Host(self, number, " ".join(self.services) + first)
            self.hosts.append(host)
            if self.dead_network:  # a virtual cable with an end that is not connected
                self.switch(f"ip link add dead{number} up type veth peer name lan0 netns {host.pid}")
            self.switch(f"ip link add {host.name} type veth peer name eth0 netns {host.pid} && "
                        f"ip link set {host.name} master cables up")
        for host in self.hosts:
            host.wait_until_up()
        for host in self.hosts:  # the first packets over a new virtual cable may be lost
            for number in range(1, self.count + 1):  # a refused connection shows that the network works
                ask = f"timeout 1 bash -c '</dev/tcp/{self.address(number)}/9'"
                until(lambda: "refused" in host.run(ask), 20, f"host{number} to answer {host.name}")
        if self.slurm:
            until(lambda: self[0].run("sinfo -h -t idle -o %D").strip() == str(self.count), 60, "Slurm's hosts to be idle")
        for host in self.hosts:  # sampled now, because daemons fork when they are ready
            host.at_rest = host.processes()

    def _write_files(self):
        self.folder.chmod(0o755)
        names = [f"{self.address(number)} host{number}" for number in range(1, self.count + 1)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        if "sshd" in self.services:
            for key in ("host_key", "user_key"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
            (self.folder / "sshd_config").write_text(
                f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/user_key.pub\nStrictModes no\nUsePAM no\nPidFile none\n")
            (self.folder / "ssh_config").write_text(
                f"IdentityFile {self.folder}/user_key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n")
        if self.slurm:
            (self.folder / "munge.key").write_bytes(os.urandom(128))
            (self.folder / "slurm").mkdir()
            (self.folder / "slurm" / "slurm.conf").write_text(SLURM.format(count=self.count))

    def switch(self, command):
        subprocess.run([*self._switch.enter("-n"), "bash", "-c", command], check=True, stdin=subprocess.DEVNULL)

    def __getitem__(self, index):
        return self.hosts[index]

    def __iter__(self):
        return iter(self.hosts)

    def __exit__(self, *_):
        for host in self.hosts:
            if host.process.poll() is None:
                host.end()
            for process in host.started:
                process.kill()
                process.wait()
        if hasattr(self, "_switch"):
            self._switch.end()
        shutil.rmtree(self.folder, ignore_errors=True)
