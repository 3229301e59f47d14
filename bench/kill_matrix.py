"""Kill a run with SIGKILL at random moments of every phase, start it again with resume=true, and compare the results.

    python -m bench.kill_matrix [--kills 20] [--seed 0] [--out DIR] [--nproc 2]

One uninterrupted run of a small chain (`kill_phases.SETTINGS`, CPU) is the reference; it also tells how long each phase
lasts. For a kill, the run directory is cut back to what stood there right before the phase, the command is started, and
at a random moment inside the phase a random process of its tree (command, rank, wandb's service, recorder's worker,
shell) gets SIGKILL. A kill passes when

    the moment was inside the phase (else it is repeated with another moment),
    the command then ends by itself in time and leaves no process,
    the next start with resume=true exits with 0,
    it goes on from the newest checkpoint that was whole at that time: no more is computed twice,
    metrics (each step once; loss, grad_norm, reward, lr to 1e-6), samples, training facts, exported files, evaluations
    and report equal the reference's.

To save time both starts run `stage=` the stage in question, and what follows is left out, because it reads the equal
export only; after a kill in recording, preparation or report the next start runs to the end. Sessions are recorded anew
after a kill in recording and hold dates and process ids: there the commands, the deterministic turns and the counts are
compared. The reference and the other kills read sessions that one recording made. Exit code 1 unless every kill passes.
About 12 minutes on two free cores; Linux only.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from bench import kill_compare, kill_phases, process_tree
from bench.kill_phases import AFTER, BEFORE, INSIDE, Phase
from bench.kill_table import Kill, line, write

POLL_SECONDS = 0.001
RUN_SECONDS = 600.0  # a start that lasts longer hangs
LEFT_SECONDS = 5.0  # until every process of an ended run must be gone
TRIES = 8


class Bench:
    """The directories and the command of one matrix."""

    def __init__(self, out: Path, nproc: int, rng: random.Random, victim: str) -> None:
        self.out, self.rng, self.victim = out, rng, victim
        self.run, self.finished, self.recording = out / "runs" / "chain", out / "reference", out / "recording"
        self.sessions = self.recording / "data" / "recorded.jsonl"
        self.temporary = out / "tmp"
        self.temporary.mkdir(parents=True)
        self.durations: dict[str, float] = {}
        self._fixed = [*kill_phases.SETTINGS, f"nproc={nproc}", f"run.root={self.run.parent}", "run.name=chain"]

    def start(self, log: Path, verb: str, recorded: bool, *more: str) -> subprocess.Popen[bytes]:
        """Start the command with its output in `log`."""
        command = Path(sys.executable).with_name("agentworld")
        data = [f"data.trajectories=[{self.sessions}]"] if recorded else []
        arguments = [str(command), "train", *self._fixed, *data, f"stage={verb}", *more]
        environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        with open(log, "wb") as file:
            return subprocess.Popen(arguments, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of phases, moments and victims")
    parser.add_argument("--out", type=Path, help="a new directory for everything; default: one in the temporary folder")
    parser.add_argument("--nproc", type=int, default=2, help="ranks of a stage")
    parser.add_argument("--phase", help="only phases whose name holds this text, such as 'rl save'")
    parser.add_argument("--victim", default="", help="only processes whose name holds this text, such as rank")
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp(prefix="kill-matrix-"))).resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out {out} holds something; name a new directory")
    process_tree.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs is ended
    bench = Bench(out, options.nproc, random.Random(options.seed), options.victim)
    phases = kill_phases.schedule(options.kills, options.seed)
    if options.phase:
        phases = [phase for phase in kill_phases.every_phase() if options.phase in str(phase)][: options.kills]
    say(f"{out}: {len(phases)} kills, seed {options.seed}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    started = time.monotonic()
    kills: list[Kill] = []
    try:
        make_reference(bench)
        for number, phase in enumerate(phases, start=1):
            kills.append(attempt(bench, number, phase))
            say(line(kills[-1]))
            write(out, options, kills, bench.durations, time.monotonic() - started)
    finally:
        process_tree.end_all()
    failed = [kill.number for kill in kills if kill.wrong]
    say(f"\n{len(kills) - len(failed)} of {len(kills)} pass in {time.monotonic() - started:.0f} s; {out}/kills.json")
    return 1 if failed else 0


def make_reference(bench: Bench) -> None:
    """One recording, then one whole run of it, watched for the length of every phase; then the report alone."""
    phases = kill_phases.every_phase()
    bench.durations |= watched(bench, "recording", "data", recorded=False, phases=phases[:1])
    bench.run.rename(bench.recording)
    bench.durations |= watched(bench, "reference", "all", recorded=True, phases=phases[1:-1])
    bench.run.rename(bench.finished)
    kill_phases.cut_back(bench.finished, bench.run, phases[-1])
    bench.durations |= watched(bench, "report", "all", True, phases[-1:], "resume=true")
    wrong = list(kill_compare.differences(bench.finished, bench.run, kill_phases.STAGES))
    assert not wrong, f"the reference does not equal itself: {wrong}"
    say("phases of the reference in s: " + ", ".join(f"{name} {s:.3f}" for name, s in bench.durations.items()))


def watched(bench: Bench, name: str, verb: str, recorded: bool, phases: list[Phase], *more: str) -> dict[str, float]:
    """Run to the end and return how long each phase was seen, in seconds."""
    log = bench.out / f"{name}.log"
    process = bench.start(log, verb, recorded, *more)
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    while process.poll() is None:
        output, now = log.read_text(errors="replace"), time.monotonic()
        for phase in [phase for phase in phases if str(phase) not in ended]:
            where = kill_phases.position(phase, bench.run, output)
            if where == BEFORE:
                break  # the phases are in order
            begun.setdefault(str(phase), now)
            if where == AFTER:
                ended[str(phase)] = now
        time.sleep(POLL_SECONDS)
    if process.returncode != 0:
        raise SystemExit(f"the uninterrupted run failed:\n{log.read_text()[-3000:]}")
    now = time.monotonic()
    unseen = [str(phase) for phase in phases if str(phase) not in begun]
    assert not unseen, f"phases that were not seen: {unseen}"
    return {key: ended.get(key, now) - begun[key] for key in begun}


def attempt(bench: Bench, number: int, phase: Phase) -> Kill:
    """Kill, start again, compare; a directory that shows a fault is kept as `failed-<number>`."""
    kill = Kill(number, str(phase), phase_seconds=round(bench.durations[str(phase)], 4))
    started = time.monotonic()
    verb, next_verb = kill_phases.verbs(phase)
    recorded = phase.kind != "recording"
    while not kill.victim and kill.tries < TRIES:
        kill.tries += 1
        kill_phases.cut_back(bench.finished, bench.run, phase)
        resume = ["resume=true"] if bench.run.exists() else []
        process = bench.start(bench.out / f"kill-{number}-first.log", verb, recorded, *resume)
        kill_inside(bench, kill, phase, process)
    if not kill.victim:
        kill.wrong.append(f"no kill inside the phase in {TRIES} tries")
        return kill
    wait_for_end(kill, process)
    if not kill.wrong:
        start_again(bench, kill, phase, next_verb, recorded)
    if kill.wrong and bench.run.exists():
        bench.run.rename(bench.out / f"failed-{number}")
    kill.seconds = round(time.monotonic() - started, 1)
    return kill


def kill_inside(bench: Bench, kill: Kill, phase: Phase, process: subprocess.Popen[bytes]) -> None:
    """Wait for a random moment of the phase and kill a random process of the tree; `kill.victim` stays empty when the
    phase was over before."""
    log = bench.out / f"kill-{kill.number}-first.log"
    root = process_tree.read(process.pid)
    begun: float | None = None
    moment = bench.rng.uniform(0.0, kill.phase_seconds)
    while process.poll() is None and root is not None:
        where, now = kill_phases.position(phase, bench.run, log.read_text(errors="replace")), time.monotonic()
        if where == AFTER:
            break
        begun = now if where == INSIDE and begun is None else begun
        if begun is not None and now - begun >= moment:
            victims = {one: process_tree.described(one) for one in (root, *process_tree.below(root.pid))}
            victims = {one: what for one, what in victims.items() if bench.victim in what}
            victim = bench.rng.choice(list(victims)) if victims else None
            if victim is None or not process_tree.kill(victim, root.pid):
                continue  # none there, or it has ended by itself since it was listed
            if kill_phases.position(phase, bench.run, log.read_text(errors="replace")) == INSIDE:
                kill.victim, kill.moment = victims[victim], round(now - begun, 4)
                return
            break
        time.sleep(POLL_SECONDS)
    process_tree.end_all()
    process.wait()
    process_tree.collect_orphans()


def wait_for_end(kill: Kill, process: subprocess.Popen[bytes]) -> None:
    """The killed start must end by itself, with the victim's death or an exit code, and leave no process."""
    try:
        kill.first_exit = process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        kill.wrong.append(f"hangs: no end {RUN_SECONDS:.0f} s after the kill")
        process_tree.end_all()
        process.wait()
    expected = (-9,) if kill.victim == "command" else (0, 1)
    if kill.first_exit is not None and kill.first_exit not in expected:
        kill.wrong.append(f"the killed start exits with {kill.first_exit}")
    kill.left_processes = [process_tree.described(left) for left in process_tree.wait_until_empty(LEFT_SECONDS)]
    if kill.left_processes:
        kill.wrong.append(f"alive {LEFT_SECONDS:.0f} s after the end: {', '.join(kill.left_processes)}")
        process_tree.end_all()


def start_again(bench: Bench, kill: Kill, phase: Phase, verb: str, recorded: bool) -> None:
    """The next start, and everything that is asked of it."""
    folder = bench.run / phase.stage
    if phase.stage in kill_phases.TRAINED:
        kill.last_step = max((row["step"] for row in kill_compare.rows(folder / "metrics.jsonl")), default=0)
        kill.checkpoint = kill_phases.whole_checkpoint(folder)
        if (folder / "export").exists():  # nothing is left to train
            kill.checkpoint = kill.last_step
    kill.left_folders = [path.name for path in bench.temporary.glob("agentworld-record-*")]
    log, since = bench.out / f"kill-{kill.number}-next.log", time.time()
    process = bench.start(log, verb, recorded, "resume=true")
    try:
        kill.next_exit = process.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        kill.wrong.append(f"the next start hangs: no end after {RUN_SECONDS:.0f} s")
        process_tree.end_all()
        process.wait()
        return
    if kill.next_exit != 0:
        kill.wrong.append(f"the next start exits with {kill.next_exit}: {log.read_text().strip()[-300:]}")
        return
    if phase.stage in kill_phases.TRAINED:
        kill.resumed_after = kill_compare.resumed_after(kill_compare.rows(folder / "metrics.jsonl"), since)
        kill.steps_lost = kill.last_step - kill.resumed_after
        if kill.resumed_after < kill.checkpoint or kill.steps_lost > kill_phases.SAVE_STEPS[phase.stage]:
            kill.wrong.append(f"went on after step {kill.resumed_after}, checkpoint {kill.checkpoint} was whole")
    for path in bench.temporary.glob("agentworld-record-*"):
        shutil.rmtree(path)
    if phase.kind == "recording":
        recorded_anew = json.loads((bench.run / "data" / "report.json").read_text())["recorded"]
        kill.dropped_sessions = sum(recorded_anew["dropped"].values())
        found = [
            *kill_compare.recording_differences(bench.recording, bench.run, kill_phases.SESSIONS),
            *kill_compare.chain_differences(bench.run, kill_phases.STEPS),
        ]
    else:
        found = kill_compare.differences(bench.finished, bench.run, kill_phases.stages_done(verb))
    kill.wrong += islice(found, 5)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
