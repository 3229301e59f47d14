"""Version-specific fixes of the pinned libraries, applied once before DeepSpeed is initialised.

Each function says what is wrong, where, and does nothing where the version at hand is already right;
tests/test_compat.py fails when upstream no longer needs one.
"""

from dataclasses import replace


def apply() -> list[str]:
    """Apply every fix that the installed versions need and return the names of those that were applied."""
    fixes = (no_shared_memory_op, string_keys_in_output_registry, raw_router_logits)  # looked up at call time
    return [fix.__name__ for fix in fixes if fix()]


def no_shared_memory_op() -> bool:
    """DeepSpeed on a CPU compiles a shared-memory collective at first use (deepspeed/comm/torch.py:47): a minute, and a
    crash where there is no compiler. gloo does the same work, so the op is declared incompatible."""
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() != "cpu" or not deepspeed.ops.__compatible_ops__.get("deepspeed_shm_comm"):
        return False
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return True


def string_keys_in_output_registry() -> bool:
    """AutoEP (deepspeed/module_inject/auto_ep_presets/base.py:326) looks layers up by name in a registry that
    transformers 5.23 keyed by model and gave a `get` without default (transformers/utils/output_capturing.py:39):
    TypeError at every start. Names go to the plain dictionary, models to the registry as before."""
    from transformers.utils import output_capturing

    registry = output_capturing._CAN_RECORD_REGISTRY
    base = getattr(output_capturing, "_CanRecordRegistry", None)
    if base is None or type(registry) is not base:
        return False

    class StringKeyedRegistry(base):
        def get(self, key, default=None):
            return dict.get(self, key, default) if isinstance(key, str) else super().get(key)

        def __setitem__(self, key, value):
            if isinstance(key, str):
                dict.__setitem__(self, key, value)
            else:
                super().__setitem__(key, value)

    registry.__class__ = StringKeyedRegistry
    return True


def raw_router_logits() -> bool:
    """AutoEP's Qwen3.5 preset hands softmax probabilities to transformers' load-balancing loss, which applies softmax
    again (deepspeed/module_inject/auto_ep_presets/qwen3_5_moe.py:56): a damped loss, no error. Hand over raw logits."""
    from deepspeed.module_inject.auto_ep_presets import qwen3_5_moe

    adapter = qwen3_5_moe.Qwen35MoePresetAdapter
    original = adapter.adjust_forward_contract
    if getattr(original, "raw_router_logits", False):
        return False

    def adjust_forward_contract(self, contract):
        return replace(original(self, contract), router_logits_capture_mode="raw")

    adjust_forward_contract.raw_router_logits = True
    adapter.adjust_forward_contract = adjust_forward_contract
    return True
