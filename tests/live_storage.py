"""Counts bytes of tensors on the CPU: what autograd saves, and what is alive at most. Oracles for memory formulas."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map


def saved_bytes(run: Callable[[], Any], weights: Sequence[torch.Tensor]) -> int:
    """Bytes of the different storages that autograd saves during `run`, those of `weights` left out."""
    known = {tensor.untyped_storage().data_ptr() for tensor in weights}
    found: dict[int, int] = {}
    kept = []  # so that no storage is freed and its address given away

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept.append(run())
    return sum(found.values())


class LiveStorage(TorchDispatchMode):
    """Bytes of the storages made inside the block that are alive: `now`, and at most, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage(), given)
        return result

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        if id(storage) in given or storage in self._seen:
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.now -= size


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a kernel that makes its outputs and nothing in between: `LiveStorage` sees only these."""

    def run(*args: Any) -> Any:
        with _disable_current_modes():
            made = function(*args)
        return tree_map(torch.clone, made)

    return run
