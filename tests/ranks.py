"""Run a function of a test file on several gloo ranks and collect what each returns."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def on_ranks(count: int, program: str, tmp_path: Path, timeout: float = 240) -> list[Any]:
    """Run `program` (Python source that sets `result`, JSON-able) on `count` ranks and return each rank's result."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    source = tmp_path / f"program-{count}.py"
    source.write_text(program + "\nimport json, os, sys\njson.dump(result, open(sys.argv[1], 'w'))\n")
    outputs = [tmp_path / f"result-{count}-{rank}.json" for rank in range(count)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(source), str(outputs[rank])],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
            | {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        texts = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(texts)[-6000:]
    return [json.loads(path.read_text()) for path in outputs]
