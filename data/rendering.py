"""Rendering the pools by all cores, in batches of lines; the result does not depend on the number of processes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np

from agentworld.data.ordered_map import ordered_map_with
from agentworld.data.render import Rendered, Renderer
from agentworld.data.rows import MaskShares, Prompt, cpt_document, rl_prompt, sft_document, turn_losses
from agentworld.data.schema import parse_line
from agentworld.data.settings import DataSettings
from agentworld.data.sft_samples import SftSample
from agentworld.data.simulation import InstructionCount

BATCH_CHARACTERS = 1 << 20  # of trajectories that a process renders at once
BATCHES_AHEAD = 4  # a process, beyond the batch that is waited for

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class CptCount:
    """What was rendered for CPT."""

    mask: MaskShares = field(default_factory=MaskShares)
    instructions: InstructionCount = field(default_factory=InstructionCount)


@dataclass(frozen=True)
class Rendering:
    """Renders with one tokenizer, settings and seed."""

    renderer: Renderer
    settings: DataSettings
    seed: int

    def cpt(self, lines: Iterable[bytes], share: float, count: CptCount) -> Iterator[Rendered]:
        """The document of each trajectory; see `rows.cpt_document`. `count` is complete at the end."""
        for batch, kinds, mask in self._map(_cpt_batch, lines, len, share):
            count.mask.merge(mask)
            for kind in kinds:
                count.instructions.add(kind)
            yield from batch

    def sft(self, samples: Iterable[SftSample], share: float) -> Iterator[Rendered]:
        """The document of each sample; see `rows.sft_document`."""
        return chain.from_iterable(self._map(_sft_batch, samples, _characters, share))

    def prompts(self, lines: Iterable[bytes]) -> Iterator[Prompt]:
        """The RL prompt of each trajectory; see `rows.rl_prompt`."""
        return chain.from_iterable(self._map(_rl_batch, lines, len, None))

    def _map(
        self,
        function: Callable[[Any, list[Item]], Result],
        items: Iterable[Item],
        size: Callable[[Item], int],
        share: Any,
    ) -> Iterator[Result]:
        batches = _batches(items, size)
        workers = workers_of(self.settings)
        first = list(islice(batches, 2))
        if workers == 1 or len(first) < 2:  # starting processes takes longer than one batch
            return (function((self, share), batch) for batch in chain(first, batches))
        return ordered_map_with((self, share), function, chain(first, batches), workers, workers * BATCHES_AHEAD)


def workers_of(settings: DataSettings) -> int:
    """The processes that a preparation uses: `data.workers`, or one a core."""
    return settings.workers or len(os.sched_getaffinity(0))


def _batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    batch, total = [], 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= BATCH_CHARACTERS:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _characters(sample: SftSample) -> int:
    return sum(len(turn.action) + len(turn.observation) for turn in sample.example.trajectory.turns)


def _cpt_batch(shared: tuple[Rendering, float], lines: Sequence[bytes]) -> tuple[list[Rendered], list[str], MaskShares]:
    given, share = shared
    documents, kinds, mask = [], [], MaskShares()
    for trajectory in map(parse_line, lines):
        losses = turn_losses(trajectory, given.settings.mask, given.seed)
        mask.add(trajectory, losses)
        document, kind = cpt_document(trajectory, losses, given.renderer, given.settings, given.seed, share)
        documents.append(_compact(document))
        kinds.append(kind)
    return documents, kinds, mask


def _sft_batch(shared: tuple[Rendering, float], samples: Sequence[SftSample]) -> list[Rendered]:
    given, share = shared
    return [_compact(sft_document(s, given.renderer, given.settings, given.seed, share)) for s in samples]


def _rl_batch(shared: tuple[Rendering, None], lines: Sequence[bytes]) -> list[Prompt]:
    given = shared[0]
    prompts = (rl_prompt(t, given.renderer, given.settings, given.seed) for t in map(parse_line, lines))
    return [replace(prompt, ids=np.asarray(prompt.ids, np.int32)) for prompt in prompts]


def _compact(document: Rendered) -> Rendered:
    """As arrays, which go from process to process several times faster than lists."""
    return Rendered(np.asarray(document.input_ids, np.int32), np.asarray(document.trained, np.bool_))
