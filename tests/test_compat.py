"""Each fix is needed, is applied once, and does what it says; one that upstream no longer needs fails here."""

import json
import subprocess
import sys

PROGRAM = """
import json
from transformers.utils import output_capturing
from agentworld.train import compat

registry = output_capturing._CAN_RECORD_REGISTRY
try:
    registry.get("a name", None)
    needed = False
except TypeError:
    needed = True
first, second = compat.apply(), compat.apply()
registry["a name"] = 5
print(json.dumps({
    "registry_needed": needed, "first": first, "second": second,
    "by_name": registry.get("a name", None), "default": registry.get("another", "default"),
}))
"""


def test_every_fix_is_needed_and_applied_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["registry_needed"], "transformers' registry takes names again: drop string_keys_in_output_registry"
    assert found["first"] == ["no_shared_memory_op", "string_keys_in_output_registry", "raw_router_logits"]
    assert found["second"] == []
    assert found["by_name"] == 5 and found["default"] == "default"
