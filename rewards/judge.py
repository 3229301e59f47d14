"""The rubric of an LLM judge: the verdicts of one or more judges on a batch of predictions, and the rewards from them.
What a judge is asked about a prediction, and what its replies come to, stands in rewards/judge_questions.py.

    Panel.judge      cases -> verdicts, in order: cache first, then all judges at once, each within its limits
    Panel.rewards    completions -> rewards: broken forms score 0 unasked, a failed judgement gives no reward at all
    Panel.submit     completions whose rewards will be wanted: they are judged beside the caller's work

Several judges give the mean of each dimension, or of the wins; a completion has a verdict only if all of them gave one,
since the mean over whoever answered would compare completions by different judges. Watchers judge, too, and change
nothing.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass, replace
from itertools import count
from pathlib import Path

from agentworld.data.errors import ContentError
from agentworld.rewards import hybrid
from agentworld.rewards.judge_background import Background
from agentworld.rewards.judge_cache import JudgeCache, Judged, key_of
from agentworld.rewards.judge_checks import NO_REFERENCE_ANSWER
from agentworld.rewards.judge_client import JudgeClient, JudgementError
from agentworld.rewards.judge_prompt import Case, JudgePrompt, TooLongError
from agentworld.rewards.judge_questions import Scores, question_of
from agentworld.rewards.outcomes import Completion, Opinion, Outcome, Verdict
from agentworld.rewards.preference import Preference
from agentworld.rewards.rubric import RubricScores
from agentworld.rewards.settings import RewardSettings

CACHE_FILE = "judge_cache.sqlite"  # of a run directory

Answer = Judged | str  # a reply, or why there is none


@dataclass(frozen=True)
class Needed:
    """`judgements` to be asked for, `cached` ones, and what the prompts of the former come to: an estimate of their
    tokens and, in the currency of the prices, of their cost. Replies and repetitions come on top."""

    judgements: int
    cached: int
    prompt_tokens: int
    prompt_cost: float


def reward_all(completions: Sequence[Completion], settings: RewardSettings, panel: "Panel | None") -> list[Outcome]:
    """The reward of each completion, in order: by the panel, or without one by the reference scorer."""
    if panel is not None:
        return panel.rewards(completions)
    return [Outcome(item.reward(settings, None)) for item in completions]


class Panel:
    """The judges of a recipe on one rank."""

    def __init__(
        self,
        settings: RewardSettings,
        cache: Path,
        count_tokens: Callable[[str], int],
        ranks: int = 1,
        progress: Callable[[int, int], None] = lambda answered, asked: None,
    ) -> None:
        """
        Args:
            cache: the SQLite file of verdicts, unless `reward.judge.cache` names another.
            count_tokens: of a text, as the trained model reads it.
            ranks: of the run; each takes its share of the limits.
            progress: called after each judgement with the number of those that are over, and of all.

        Raises:
            ContentError: the cache cannot be used.
        """
        judge = settings.judge
        self._settings, self._count, self._progress = settings, count_tokens, progress
        self.question = question_of(settings)
        self.judges = [JudgeClient(endpoint, judge, ranks) for endpoint in (judge, *judge.more)]
        self.watchers = [JudgeClient(endpoint, judge, ranks) for endpoint in judge.watchers]
        self._cache = JudgeCache(Path(judge.cache) if judge.cache else cache)
        self._background: Background | None = None

    def submit(self, completions: Sequence[Completion]) -> None:
        """Begin to judge, in a thread; `rewards` or `judge` of the same completions, and of others, takes it up."""
        _, missing = self._wanted_and_missing(completions)
        if missing and self._background is None:
            self._background = Background([*self.judges, *self.watchers], self._cache, self._ask_one)
        if missing:
            self._background.add(missing)

    def abandon(self) -> None:
        """Give up what was submitted; what was answered is in the cache."""
        if self._background is not None:
            self._background.abandon()
            self._background = None

    def rewards(self, completions: Sequence[Completion]) -> list[Outcome]:
        """The reward of each completion, in order; see the module's docstring.

        Raises:
            ContentError: a completion lacks the answer that the question compares with.
        """
        settled = [self._settled(item) for item in completions]
        verdicts = iter(self.judge([entry for entry in settled if isinstance(entry, Case)]))
        return [
            self._outcome(item, next(verdicts)) if isinstance(entry, Case) else Outcome(entry)
            for item, entry in zip(completions, settled, strict=True)
        ]

    def _settled(self, item: Completion) -> hybrid.Reward | Case:
        """The reward of a completion that no judge has to see; of every other its case."""
        broken = hybrid.without_rubric(item.prediction)
        if broken is not None:
            return broken
        case = self._case(item)
        preference = self.question.unasked(case)
        return case if preference is None else item.reward(self._settings, preference)

    def _outcome(self, item: Completion, verdict: Verdict) -> Outcome:
        if verdict.scores is not None:
            return Outcome(item.reward(self._settings, verdict.scores), verdict)
        if self._settings.judge.on_failure == "zero":
            return Outcome(hybrid.nothing(f"0: the judge failed: {verdict.failure}"), verdict)
        return Outcome(None, verdict)

    def _case(self, item: Completion) -> Case:
        tokens = self._count(item.truth) + self._count(item.prediction.text)
        case = Case(item.domain, item.messages, item.truth, item.prediction.text, tokens)
        if self._settings.rubric != "reference":
            return case
        if item.reference_answer is None:
            raise ContentError(NO_REFERENCE_ANSWER)
        return replace(case, initial=item.reference_answer, tokens=tokens + self._count(item.reference_answer))

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict for each case, in order, within `reward.judge.deadline` seconds. What is the same in two cases is
        asked once. Failures are told on stderr, one line for all."""
        prompts = [self._prompts(case) for case in cases]
        wanted = self._wanted(prompts)
        answers: dict[tuple[JudgeClient, str], Answer] = {}
        begun, self._background = self._background, None
        new = {name: prompt for name, prompt in wanted.items() if begun is None or name not in begun}
        known = self._cache.get([key for _, key in new])
        for client, key in new:
            if key in known:
                client.counts.cached += 1
                answers[client, key] = known[key]
        missing = {name: prompt for name, prompt in new.items() if name not in answers}
        if begun is not None:
            answers |= self._in_time(begun.finish(missing, self._settings.judge.deadline))
        elif missing:
            answers |= asyncio.run(self._ask(missing))
        self._cache.close()
        verdicts = [self._verdict(case, found, answers) for case, found in zip(cases, prompts, strict=True)]
        failures = [verdict.failure for verdict in verdicts if verdict.failure]
        if failures:
            print(f"agentworld: WARNING: {len(failures)} of {len(verdicts)} judgements failed; the first: "
                  f"{failures[0]}", file=sys.stderr, flush=True)  # fmt: skip
        return verdicts

    def needed(self, completions: Sequence[Completion]) -> Needed:
        """What judging the completions would take, before anything is asked. Raises ContentError, as `rewards`."""
        wanted, missing = self._wanted_and_missing(completions)
        return Needed(
            len(missing),
            len(wanted) - len(missing),
            sum(prompt.tokens for prompt in missing.values()),
            sum(client.price(prompt.tokens, 0) for (client, _), prompt in missing.items()),
        )

    def _wanted_and_missing(
        self, completions: Sequence[Completion]
    ) -> tuple[dict[tuple[JudgeClient, str], JudgePrompt], dict[tuple[JudgeClient, str], JudgePrompt]]:
        """The judgements that the completions need, and those of them that are not in the cache."""
        settled = [self._settled(item) for item in completions]
        wanted = self._wanted([self._prompts(case) for case in settled if isinstance(case, Case)])
        known = self._cache.get([key for _, key in wanted])
        self._cache.close()
        return wanted, {name: prompt for name, prompt in wanted.items() if name[1] not in known}

    def _prompts(self, case: Case) -> tuple[JudgePrompt, ...] | str:
        try:
            return self.question.prompts(case, self._settings.judge.prompt_tokens)
        except TooLongError as error:
            return str(error)

    def _wanted(self, prompts: Sequence[tuple[JudgePrompt, ...] | str]) -> dict[tuple[JudgeClient, str], JudgePrompt]:
        """Each judgement that is needed once, by judge and key."""
        return {
            (client, key_of(client.model, prompt.messages, client.sampling)): prompt
            for client in (*self.judges, *self.watchers)
            for found in prompts
            if not isinstance(found, str)
            for prompt in found
        }

    async def _ask(self, missing: dict[tuple[JudgeClient, str], JudgePrompt]) -> dict[tuple[JudgeClient, str], Answer]:
        """All requests at once; when the deadline is over, those without an answer have failed."""
        deadline, over = self._settings.judge.deadline, count(1)
        async with AsyncExitStack() as stack:
            for client in {client: None for client, _ in missing}:
                await stack.enter_async_context(client.opened())
            tasks = {
                name: asyncio.create_task(self._ask_one(self._cache, *name, prompt)) for name, prompt in missing.items()
            }
            for task in tasks.values():
                task.add_done_callback(lambda _: self._progress(next(over), len(tasks)))
            try:
                await asyncio.wait(tasks.values(), timeout=deadline)
            finally:  # those that are late; all, when an interrupt ends the wait, before their connections are closed
                late = [task for task in tasks.values() if not task.done()]
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
        return self._in_time({name: None if task.cancelled() else task.result() for name, task in tasks.items()})

    def _in_time(self, answers: dict[tuple[JudgeClient, str], Answer | None]) -> dict[tuple[JudgeClient, str], Answer]:
        """Those that are late have failed, and failures are counted."""
        late = f"no judgement within reward.judge.deadline={self._settings.judge.deadline:g} s"
        settled = {name: f"{name[0].model}: {late}" if a is None else a for name, a in answers.items()}
        for (client, _), answer in settled.items():
            client.counts.failed += isinstance(answer, str)
        return settled

    async def _ask_one(self, cache: JudgeCache, client: JudgeClient, key: str, prompt: JudgePrompt) -> Answer:
        try:
            judged = await client.ask(prompt)
        except JudgementError as error:
            return str(error)
        cache.put(key, client.model, judged)
        return judged

    def _verdict(
        self, case: Case, prompts: tuple[JudgePrompt, ...] | str, answers: dict[tuple[JudgeClient, str], Answer]
    ) -> Verdict:
        if isinstance(prompts, str):
            return Verdict(None, prompts)
        found = {client: self._opinion(client, case, prompts, answers) for client in (*self.judges, *self.watchers)}
        by_judge = {c.model: opinion for c in self.judges if isinstance(opinion := found[c], Opinion)}
        watched = {c.model: opinion for c in self.watchers if isinstance(opinion := found[c], Opinion)}
        failure = next((opinion for c in self.judges if isinstance(opinion := found[c], str)), "")
        scores = None if failure else mean_scores([opinion.scores for opinion in by_judge.values()])
        return Verdict(scores, failure, by_judge, watched, prompts[0].dropped_turns)

    def _opinion(
        self,
        client: JudgeClient,
        case: Case,
        prompts: tuple[JudgePrompt, ...],
        answers: dict[tuple[JudgeClient, str], Answer],
    ) -> Opinion | str:
        """What one judge's replies come to, or why one of them is missing."""
        replies = [answers[client, key_of(client.model, prompt.messages, client.sampling)] for prompt in prompts]
        judged = [reply for reply in replies if isinstance(reply, Judged)]
        if len(judged) < len(replies):
            return next(reply for reply in replies if isinstance(reply, str))
        scores = self.question.scores(case, prompts, [reply.scores for reply in judged])
        letters = [prompt.letter for prompt in prompts]
        return Opinion(scores, tuple(zip(letters, judged, strict=True)))


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """The mean of each dimension, or of the wins against the same rival."""
    if isinstance(scores[0], Preference):
        return replace(scores[0], win=sum(one.win for one in scores) / len(scores))
    return RubricScores(*(sum(column) / len(scores) for column in zip(*map(astuple, scores), strict=True)))
