"""One CPU configuration for every test process, set before torch or deepspeed is imported anywhere, and the one small
run that several test files look at."""

import os
import signal
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import pytest
from small_run import start, wait_for_step

from agentworld.rewards import sandbox
from agentworld.train import checkpoint

# Files that start ranks again and again: with `pytest -n 2` they come first, so that none is left for the end.
CHAIN = ("test_chain", "test_judged_rl", "test_pilot_ranks", "test_resume")  # they look at the one small run
LONG = (*CHAIN, "test_engine_matrix", "test_elastic_resume", "test_split", "test_release", "test_export")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares a fixture goes to one process: the tests of a file, and those of CHAIN. `--dist loadgroup` would do
    it by marks, but xdist 3.8 writes them where pytest 9.2 does not read them (`Item._nodeid`)."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharedFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0]).stem
            return "chain" if file in CHAIN else file

    return BySharedFixture(config, log)


@pytest.fixture(scope="session")
def sandboxed() -> None:
    """Skips where the sandbox of verifiers is not permitted, and says why."""
    try:
        sandbox.require()
    except sandbox.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def chain(tmp_path_factory) -> dict:
    """One run: stopped by SIGTERM in CPT, its newest checkpoint cut, then resumed to the end."""
    root = tmp_path_factory.mktemp("chain")
    run = root / "chain"
    process = start(root)
    wait_for_step(run / "cpt", 7, process)
    process.send_signal(signal.SIGTERM)
    stopped = process.communicate(timeout=120)[0]
    whole = checkpoint.newest_checkpoint(run / "cpt" / "checkpoints", warn=pytest.fail)
    found = {"root": root, "run": run, "stopped": (process.returncode, stopped), "whole": whole}
    shard = max(whole.rglob("*.pt"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size - 1)
    process = start(root, "resume=true")
    found["resumed"] = (process.wait(timeout=400) or 0, process.stdout.read())
    assert process.returncode == 0, found["resumed"][1][-4000:]
    return found
