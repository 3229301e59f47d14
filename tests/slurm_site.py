"""A real SLURM of one node, started by a test: its own keys, ports, folders and configuration, ended by process id."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")

# `high` takes the node from `low`: jobs there get SIGTERM, 40 s to stop, and are queued again.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=30
MinJobAge=3600
MpiDefault=none
NodeName={host} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=40
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> str:
    """Why no SLURM can be started here; empty when one can."""
    absent = [name for name in PROGRAMS if not _program(name)]
    if absent:
        return f"SLURM is not installed ({', '.join(absent)}); apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started by root only"


class Site:
    """The commands of a running SLURM."""

    def __init__(self, root: Path) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """The fields that `scontrol show job` knows of a job, also after its end."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def running_slurm() -> Iterator[Site]:
    """Start munge, the controller and one node with two CPUs or more; end them and their folders with the block."""
    root = Path(tempfile.mkdtemp(prefix="slurm-")).resolve()  # short: a socket's path has 107 characters at most
    site = Site(root)
    for name in ("state", "spool"):
        (root / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    ctld_port, slurmd_port = _free_ports(2)
    ports = {"ctld_port": ctld_port, "slurmd_port": slurmd_port}
    (root / "slurm.conf").write_text(
        CONFIGURATION.format(root=root, host=host, cpus=max(2, os.cpu_count() or 2), **ports)
    )
    (root / "munge.key").write_bytes(secrets.token_bytes(128))
    (root / "munge.key").chmod(0o400)
    files = [f"--{name}-file={root}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    conf = str(root / "slurm.conf")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        start = _starter(root, site, stack)
        start("munged", "--foreground", "--force", f"--socket={root}/munge.socket", *files)
        _wait_until(lambda: (root / "munge.socket").exists(), "munge", root)
        start("slurmctld", "-D", "-f", conf)
        start("slurmd", "-D", "-f", conf)
        _wait_until(lambda: "idle" in _state_of_node(site), "an idle node", root)
        yield site


def _starter(root: Path, site: Site, stack: ExitStack):
    def start(program: str, *arguments: str) -> None:
        with open(root / f"{program}.out", "ab") as log:
            daemon = subprocess.Popen(
                [_program(program), *arguments], env=site.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        stack.callback(_end, daemon)

    return start


def _end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _state_of_node(site: Site) -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], env=site.environment, capture_output=True, text=True, timeout=30
    )
    return done.stdout


def _wait_until(condition, what: str, root: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        logs = "\n".join(path.read_text()[-1500:] for path in root.glob("*.out"))
        assert time.monotonic() < deadline, f"{what} did not appear:\n{logs}"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
