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
    logs = [tmp_path / f"output-{count}-{rank}.txt" for rank in range(count)]  # files: a full pipe would stop a rank
    processes = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        place |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        with open(logs[rank], "w") as log:
            command = [sys.executable, str(source), str(outputs[rank])]
            processes.append(subprocess.Popen(command, env=os.environ | place, stdout=log, stderr=subprocess.STDOUT))
    try:
        for process in processes:
            process.wait(timeout)
    finally:
        for process in processes:
            process.kill()
    texts = [log.read_text(errors="replace") for log in logs]
    assert all(process.returncode == 0 for process in processes), "\n".join(texts)[-6000:]
    return [json.loads(path.read_text()) for path in outputs]
