"""Executable verifiers for single turns, written by a model and kept where they prove themselves.

The procedure of arXiv:2606.24597 appendix C: sum up initial state and constraints of a trajectory, choose turns whose
observation is determined and tests an axis, let the model propose a program for each, and keep it where the truth
passes, damaged truths fail, and the rubric agrees on rollouts (rewards/synthesis_checks.py). The paper's last filter, a
judge for outputs that fool a verifier, belongs to its evaluation and is not here.

What was answered stays in the cache: a second run asks nothing again.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.data.examples import Example, example, one_turn
from agentworld.data.schema import Trajectory
from agentworld.rewards.judge_cache import JudgeCache, Judged, key_of
from agentworld.rewards.judge_client import JudgeClient, JudgementError
from agentworld.rewards.synthesis_checks import Checked, Proposal, Rollouts, check
from agentworld.rewards.synthesis_prompt import Question, TooLongError, code_question, prompt_version, turns_question
from agentworld.rewards.turn_verifiers import truth_hash

SHOWN = 5  # examples of a reason in the report
AT_ONCE = 64  # trajectories in hand at a time: memory does not grow with the file


@dataclass(frozen=True)
class SynthesisSettings:
    """`prompt_tokens` of a question's material, estimated at 4 characters each; `agreement`: the least share of
    rollouts on which rubric and verifier agree; `seed`: only the turn that RL of a run with this seed asks, None: every
    turn."""

    prompt_tokens: int = 32768
    agreement: float = 0.8
    seed: int | None = None


@dataclass
class SynthesisCount:
    """What became of everything. `dropped`: trajectories, turns and programs by reason; `examples`: of programs, the
    first few of each reason, turn and detail; `failures`: why requests failed, the first few."""

    trajectories: int = 0
    chosen: Counter[str] = field(default_factory=Counter)
    proposed: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    kept_by_domain: Counter[str] = field(default_factory=Counter)
    kept_with_rollouts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def failed(self, reason: str) -> None:
        self.dropped["request failed"] += 1
        if len(self.failures) < SHOWN:
            self.failures.append(reason)

    def refused(self, key: str, outcome: Checked) -> None:
        self.dropped[outcome.reason] += 1
        shown = self.examples.setdefault(outcome.reason, [])
        if len(shown) < SHOWN:
            shown.append(f"{key}: {outcome.detail}" if outcome.detail else key)


class Author:
    """The model that writes verifiers, behind the cache of its answers."""

    def __init__(self, client: JudgeClient, cache: JudgeCache) -> None:
        self.client, self._cache = client, cache

    def answers(self, questions: Sequence[Question]) -> list[dict[str, Any] | str]:
        """The answer to each question, or why there is none."""
        keys = [key_of(self.client.model, question.messages, self.client.sampling) for question in questions]
        known: dict[str, Judged | str] = dict(self._cache.get(list(dict.fromkeys(keys))))
        self.client.counts.cached += len(known)
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in known}
        if missing:
            known |= asyncio.run(self._ask(missing))
        self._cache.close()
        found = [known[key] for key in keys]
        return [one if isinstance(one, str) else json.loads(one.scores) for one in found]

    async def _ask(self, missing: dict[str, Question]) -> dict[str, Judged | str]:
        async with self.client.opened():
            answers = await asyncio.gather(*(self._ask_one(key, question) for key, question in missing.items()))
        return dict(zip(missing, answers, strict=True))

    async def _ask_one(self, key: str, question: Question) -> Judged | str:
        try:
            judged = await self.client.ask(question)
        except JudgementError as error:
            self.client.counts.failed += 1
            return str(error)
        self._cache.put(key, self.client.model, judged)
        return judged


def synthesise(
    trajectories: Iterable[Trajectory],
    author: Author,
    rollouts: Rollouts,
    settings: SynthesisSettings,
    count: SynthesisCount,
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """The verifiers that are kept, as the rows that `turn_verifiers.load` reads, in the order of the trajectories.

    Args:
        say: gets a line of progress after every AT_ONCE trajectories.

    Raises:
        ContentError: not one request of the first trajectories was answered; the text says why.
        UnavailableError: the sandbox is not permitted here.
    """
    source = iter(trajectories)
    while part := list(islice(source, AT_ONCE)):
        count.trajectories += len(part)
        proposals = _proposals(_chosen(part, author, settings, count), author, settings, count)
        if author.client.counts.failed and not author.client.counts.judged + author.client.counts.cached:
            raise ContentError(
                f"none of the first {author.client.counts.failed} requests succeeded: {count.failures[0]}"
            )
        for proposal, outcome in zip(proposals, check(proposals, rollouts, settings.agreement), strict=True):
            if outcome.reason:
                count.refused(proposal.example.key, outcome)
                continue
            count.kept[proposal.axis] += 1
            count.kept_by_domain[proposal.example.domain] += 1
            count.kept_with_rollouts += outcome.rollouts > 0
            yield _row(proposal, outcome, author.client.model)
        failed = f", {count.dropped['request failed']} requests failed" if count.failures else ""
        say(f"{count.trajectories} trajectories, {count.proposed} programs, {count.kept.total()} kept{failed}")


def report(count: SynthesisCount, author: Author, rollouts: Rollouts) -> dict[str, Any]:
    """The counts as JSON, with what the requests took."""
    given = {"rows": rollouts.rows, "unusable": rollouts.unusable, "turns": len(rollouts.by_turn)}
    return {**vars(count), "rollouts": given, "requests": asdict(author.client.counts), "prompt": prompt_version()}


def _chosen(
    part: Sequence[Trajectory], author: Author, settings: SynthesisSettings, count: SynthesisCount
) -> list[tuple[Example, dict[str, Any], dict[str, Any]]]:
    """The first question: turn, its entry and the summary, for each turn that the model chose."""
    asked: list[tuple[Trajectory, list[int], Question]] = []
    for trajectory in part:
        eligible = _eligible(trajectory, settings.seed)
        if not eligible:
            count.dropped["trajectory without an eligible turn"] += 1
            continue
        try:
            asked.append((trajectory, eligible, turns_question(trajectory, eligible, settings.prompt_tokens)))
        except TooLongError:
            count.dropped["trajectory too long"] += 1
    found = []
    for (trajectory, eligible, _), answer in zip(asked, author.answers([q for *_, q in asked]), strict=True):
        if isinstance(answer, str):
            count.failed(answer)
            continue
        if not answer["turns"]:
            count.dropped["trajectory of which no turn was chosen"] += 1
        for choice in {(turn["turn"], turn["axis"]): turn for turn in answer["turns"]}.values():
            count.chosen[choice["axis"]] += 1
            if choice["turn"] in eligible:
                found.append((example(trajectory, choice["turn"]), choice, answer))
            else:
                count.dropped["a turn that was not eligible"] += 1
    return found


def _proposals(
    chosen: Sequence[tuple[Example, dict[str, Any], dict[str, Any]]],
    author: Author,
    settings: SynthesisSettings,
    count: SynthesisCount,
) -> list[Proposal]:
    """The second question: facts and program for each chosen turn."""
    asked: list[tuple[Example, str, Question]] = []
    for one, choice, summary in chosen:
        try:
            asked.append((one, choice["axis"], code_question(one, choice, summary, settings.prompt_tokens)))
        except TooLongError:
            count.dropped["turn too long"] += 1
    proposals = []
    for (one, axis, _), answer in zip(asked, author.answers([q for *_, q in asked]), strict=True):
        if isinstance(answer, str):
            count.failed(answer)
            continue
        count.proposed += bool(answer["code"])
        proposals.append(Proposal(one, axis, tuple(answer["facts"]), answer["code"]))
    return proposals


def _eligible(trajectory: Trajectory, seed: int | None) -> list[int]:
    """Turns that may be targets and are not known to depend on chance; with a seed the one that RL asks."""
    found = [
        number
        for number, turn in enumerate(trajectory.turns)
        if turn.is_target and turn.observation and turn.meta.get("deterministic") is not False
    ]
    if seed is None or not found:
        return found
    return [number for number in found if number == one_turn(trajectory, seed)]


def _row(proposal: Proposal, outcome: Checked, model: str) -> dict[str, Any]:
    one = proposal.example
    return {
        "id": one.trajectory.id,
        "turn": one.index,
        "domain": one.domain,
        "axis": proposal.axis,
        "facts": list(proposal.facts),
        "code": proposal.code,
        "truth_sha256": truth_hash(one.observation),
        "model": model,
        "prompt": prompt_version(),
        "rollouts": outcome.rollouts,
        "agreed": outcome.agreed,
    }
