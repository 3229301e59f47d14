"""The rubric of an LLM judge: the verdicts of one or more judges on a batch of predictions, and the rewards from them.

    Panel.judge      cases -> verdicts, in order: cache first, then all judges at once, each within its limits
    Panel.rewards    completions -> rewards: broken forms score 0 unasked, a failed judgement gives no reward at all

Several judges give the mean of each dimension; a completion has a verdict only if all of them gave one, since the mean
over whoever answered would compare completions by different judges. Watchers judge, too, and change nothing.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from agentworld.data.render import Message, Prediction
from agentworld.rewards import hybrid
from agentworld.rewards.judge_cache import JudgeCache, Judged, key_of
from agentworld.rewards.judge_client import JudgeClient, JudgementError
from agentworld.rewards.judge_prompt import Case, JudgePrompt, TooLongError, judge_prompt
from agentworld.rewards.rubric import RubricScores
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.verdicts import NO_RULING, Ruling, context_of_messages

CACHE_FILE = "judge_cache.sqlite"  # of a run directory

Answer = Judged | str  # a reply, or why there is none


@dataclass(frozen=True)
class Verdict:
    """`scores` is None where a judgement failed, and `failure` says why. `by_judge` and `watched`: each judge's own
    scores and reply, by model. `dropped_turns`: of the history, for lack of room."""

    scores: RubricScores | None
    failure: str
    by_judge: dict[str, Judged] = field(default_factory=dict)
    watched: dict[str, Judged] = field(default_factory=dict)
    dropped_turns: int = 0


@dataclass(frozen=True)
class Completion:
    """What is needed to reward one completion. `messages`: what the model read, for judge, verifiers and guards.
    `ruling`: of the synthesised verifiers, where there are some."""

    prediction: Prediction
    truth: str
    action: str
    deterministic: bool | None
    domain: str
    messages: tuple[Message, ...]
    ruling: Ruling = NO_RULING

    def reward(self, settings: RewardSettings, scores: RubricScores | None) -> hybrid.Reward:
        """`hybrid.reward`, with the scores of a judge or, None, of the reference scorer."""
        context = context_of_messages(self.domain, self.messages)
        exact = self.deterministic
        return hybrid.reward(self.prediction, self.truth, self.action, exact, settings, scores, context, self.ruling)


@dataclass(frozen=True)
class Outcome:
    """`reward` is None where the judge failed and the completion is to leave its group; `verdict` is None where no
    judge was asked."""

    reward: hybrid.Reward | None
    verdict: Verdict | None = None

    @property
    def total(self) -> float | None:
        return None if self.reward is None else self.reward.total

    def row(self) -> dict[str, Any]:
        """The reward and how it came about, JSON-able: with every judge's scores and words where one was asked."""
        if self.reward is not None:
            found = hybrid.to_row(self.reward)
        else:
            assert self.verdict is not None
            found = hybrid.to_row(hybrid.nothing(f"no reward: the judge failed: {self.verdict.failure}"))
            found |= {"reward": None, "rubric": None}
        if self.verdict is not None:
            for name, judges in (("judges", self.verdict.by_judge), ("watchers", self.verdict.watched)):
                found[name] = {
                    m: {"scores": vars(judged.scores), "reply": judged.reply} for m, judged in judges.items()
                }
        return found


def reward_all(completions: Sequence[Completion], settings: RewardSettings, panel: "Panel | None") -> list[Outcome]:
    """The reward of each completion, in order: by the panel, or without one by the reference scorer."""
    if panel is not None:
        return panel.rewards(completions)
    return [Outcome(item.reward(settings, None)) for item in completions]


class Panel:
    """The judges of a recipe on one rank."""

    def __init__(
        self, settings: RewardSettings, cache: Path, count_tokens: Callable[[str], int], ranks: int = 1
    ) -> None:
        """
        Args:
            cache: the SQLite file of verdicts, unless `reward.judge.cache` names another.
            count_tokens: of a text, as the trained model reads it.
            ranks: of the run; each takes its share of the limits.

        Raises:
            ContentError: the cache cannot be used.
        """
        judge = settings.judge
        self._settings, self._count = settings, count_tokens
        self.judges = [JudgeClient(endpoint, judge, ranks) for endpoint in (judge, *judge.more)]
        self.watchers = [JudgeClient(endpoint, judge, ranks) for endpoint in judge.watchers]
        self._cache = JudgeCache(Path(judge.cache) if judge.cache else cache)

    def rewards(self, completions: Sequence[Completion]) -> list[Outcome]:
        """The reward of each completion, in order; see the module's docstring."""
        settings = self._settings
        outcomes = [Outcome(hybrid.without_rubric(item.prediction)) for item in completions]
        asked = [number for number, outcome in enumerate(outcomes) if outcome.reward is None]
        items = [completions[number] for number in asked]
        verdicts = self.judge([self._case(item) for item in items])
        for number, item, verdict in zip(asked, items, verdicts, strict=True):
            if verdict.scores is not None:
                reward = item.reward(settings, verdict.scores)
            elif settings.judge.on_failure == "zero":
                reward = hybrid.nothing(f"0: the judge failed: {verdict.failure}")
            else:
                reward = None
            outcomes[number] = Outcome(reward, verdict)
        return outcomes

    def _case(self, item: Completion) -> Case:
        tokens = self._count(item.truth) + self._count(item.prediction.text)
        return Case(item.domain, item.messages, item.truth, item.prediction.text, tokens)

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict for each case, in order, within `reward.judge.deadline` seconds. What is the same in two cases is
        asked once. Failures are told on stderr, one line for all."""
        prompts = [self._prompt(case) for case in cases]
        wanted = {
            (client, key_of(client.model, prompt.messages, client.sampling)): prompt
            for client in (*self.judges, *self.watchers)
            for prompt in prompts
            if isinstance(prompt, JudgePrompt)
        }
        answers: dict[tuple[JudgeClient, str], Answer] = {}
        known = self._cache.get([key for _, key in wanted])
        for client, key in wanted:
            if key in known:
                client.counts.cached += 1
                answers[client, key] = known[key]
        missing = {name: prompt for name, prompt in wanted.items() if name not in answers}
        if missing:
            answers |= asyncio.run(self._ask(missing))
        self._cache.close()
        verdicts = [self._verdict(prompt, answers) for prompt in prompts]
        failures = [verdict.failure for verdict in verdicts if verdict.failure]
        if failures:
            print(f"agentworld: WARNING: {len(failures)} of {len(verdicts)} judgements failed; the first: "
                  f"{failures[0]}", file=sys.stderr, flush=True)  # fmt: skip
        return verdicts

    def _prompt(self, case: Case) -> JudgePrompt | str:
        try:
            return judge_prompt(case, self._settings.judge.prompt_tokens)
        except TooLongError as error:
            return str(error)

    async def _ask(self, missing: dict[tuple[JudgeClient, str], JudgePrompt]) -> dict[tuple[JudgeClient, str], Answer]:
        """All requests at once; when the deadline is over, those without an answer have failed."""
        deadline = self._settings.judge.deadline
        async with AsyncExitStack() as stack:
            for client in {client: None for client, _ in missing}:
                await stack.enter_async_context(client.opened())
            tasks = {name: asyncio.create_task(self._ask_one(*name, prompt)) for name, prompt in missing.items()}
            _, late = await asyncio.wait(tasks.values(), timeout=deadline)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        answers: dict[tuple[JudgeClient, str], Answer] = {}
        for (client, key), task in tasks.items():
            if task.cancelled():
                answers[client, key] = f"{client.model}: no judgement within reward.judge.deadline={deadline:g} s"
            else:
                answers[client, key] = task.result()  # a defect, or a cache that fails, is raised here
            client.counts.failed += isinstance(answers[client, key], str)
        return answers

    async def _ask_one(self, client: JudgeClient, key: str, prompt: JudgePrompt) -> Answer:
        try:
            judged = await client.ask(prompt)
        except JudgementError as error:
            return str(error)
        self._cache.put(key, client.model, judged)
        return judged

    def _verdict(self, prompt: JudgePrompt | str, answers: dict[tuple[JudgeClient, str], Answer]) -> Verdict:
        if isinstance(prompt, str):
            return Verdict(None, prompt)
        found: dict[JudgeClient, Answer] = {
            client: answers[client, key_of(client.model, prompt.messages, client.sampling)]
            for client in (*self.judges, *self.watchers)
        }
        by_judge = {c.model: answer for c in self.judges if isinstance(answer := found[c], Judged)}
        watched = {c.model: answer for c in self.watchers if isinstance(answer := found[c], Judged)}
        failure = next((answer for c in self.judges if isinstance(answer := found[c], str)), "")
        scores = None if failure else mean_scores([judged.scores for judged in by_judge.values()])
        return Verdict(scores, failure, by_judge, watched, prompt.dropped_turns)


def mean_scores(scores: Sequence[RubricScores]) -> RubricScores:
    """The mean of each dimension."""
    return RubricScores(*(sum(column) / len(scores) for column in zip(*map(astuple, scores), strict=True)))
