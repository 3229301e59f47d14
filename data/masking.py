"""The turn-level information-theoretic loss mask of CPT (arXiv:2606.24597 section 3.2, Table 3).

An observation that only repeats its action teaches little, so such turns carry loss with a small probability; their
tokens stay in the context. The paper leaves the order of overlapping rules, the meaning of "short", the words and the
draw open; here they are: the order of `category`, 80 characters, `\\w+`, and one Bernoulli draw a turn.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentworld.data import draws

CATEGORIES = ("echo", "boilerplate", "transform", "retrieval", "expansion", "action", "other")
SHORT_OBSERVATION = 80  # characters

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Statistics:
    """Of the lowercased, deduplicated word sets A (action) and O (observation):

    overlap |A & O| / |A|, novelty |O - A| / |O|, jaccard |A & O| / |A | O|; all 0 where A or O is empty.
    ratio: characters of the observation / characters of the action; infinite for an empty action.
    """

    overlap: float
    novelty: float
    jaccard: float
    ratio: float


def statistics(action: str, observation: str) -> Statistics:
    """The four statistics of a turn, of the action as rendered and the observation as trained."""
    ratio = len(observation) / len(action) if action else math.inf
    acted, observed = set(_WORD.findall(action.lower())), set(_WORD.findall(observation.lower()))
    if not acted or not observed:
        return Statistics(0.0, 0.0, 0.0, ratio)
    shared = len(acted & observed)
    return Statistics(
        overlap=shared / len(acted),
        novelty=len(observed - acted) / len(observed),
        jaccard=shared / len(acted | observed),
        ratio=ratio,
    )


def category(action: str, observation: str) -> str:
    """The first rule of Table 3 that holds, from the most redundant to the most informative; see CATEGORIES."""
    if not action or not observation:
        return "other"
    s = statistics(action, observation)
    if s.overlap >= 0.7 and s.novelty < 0.3:
        return "echo"
    if s.overlap >= 0.5 and s.novelty < 0.5:
        return "boilerplate"
    if s.novelty < 0.5 and s.ratio < 1:
        return "transform"
    if s.novelty >= 0.6 and s.ratio > 1:
        return "retrieval"
    if s.overlap >= 0.5 and s.novelty >= 0.5 and s.ratio > 1.5:
        return "expansion"
    if s.novelty >= 0.5 and (s.ratio <= 1 or len(observation) < SHORT_OBSERVATION):
        return "action"
    return "other"


def keeps_loss(category: str, keep: Mapping[str, float], seed: int, trajectory_id: str, turn_index: int) -> bool:
    """Whether a turn carries loss: true with the keep ratio of its category (1 where it is not named).

    The draw depends on (seed, trajectory id, turn index) alone, so a rerun, another order or another number of workers
    keeps the same turns, and a higher ratio keeps a superset.
    """
    return draws.uniform("mask", seed, trajectory_id, turn_index) < keep.get(category, 1.0)
