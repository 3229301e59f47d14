"""A completion to be rewarded, what judges made of it, and what became of it."""

from dataclasses import dataclass, field
from typing import Any

from agentworld.data.render import Message, Prediction
from agentworld.rewards import hybrid
from agentworld.rewards.judge_cache import Judged
from agentworld.rewards.judge_questions import Scores
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.verdicts import NO_RULING, Context, Ruling, context_of_messages


@dataclass(frozen=True)
class Opinion:
    """What one judge thinks of a prediction. `replies`: one, or two where a pair was asked about in both orders; of a
    pair, the letter of the prediction and what the judge chose stand beside the words."""

    scores: Scores
    replies: tuple[tuple[str, Judged], ...]

    def row(self) -> dict[str, Any]:
        """JSON-able; the words of several replies one after the other."""
        words = [
            f"[the prediction was {letter}, the judge took {judged.scores}]\n{judged.reply}" if letter else judged.reply
            for letter, judged in self.replies
        ]
        return {"scores": hybrid.numbers(self.scores), "reply": "\n\n".join(words)}


@dataclass(frozen=True)
class Verdict:
    """`scores` is None where a judgement failed, and `failure` says why. `by_judge` and `watched`: each judge's own
    opinion, by model. `dropped_turns`: of the history, for lack of room."""

    scores: Scores | None
    failure: str
    by_judge: dict[str, Opinion] = field(default_factory=dict)
    watched: dict[str, Opinion] = field(default_factory=dict)
    dropped_turns: int = 0


@dataclass(frozen=True)
class Completion:
    """What is needed to reward one completion. `messages`: what the model read, for judge, verifiers and guards.
    `reference_answer`: the observation that the policy before RL predicted, the text inside its tag, for the rubric
    `reference`. `context`: for verifiers and guards, where it is known better than from the messages. `ruling`: of the
    synthesised verifiers of the turn (rewards/turn_verifiers.py)."""

    prediction: Prediction
    truth: str
    action: str
    deterministic: bool | None
    domain: str
    messages: tuple[Message, ...]
    reference_answer: str | None = None
    context: Context | None = None
    ruling: Ruling = NO_RULING

    def reward(self, settings: RewardSettings, scores: Scores | None) -> hybrid.Reward:
        """`hybrid.reward`, with the scores of a judge or, None, of the reference scorer."""
        context = self.context or context_of_messages(self.domain, self.messages)
        exact = self.deterministic
        return hybrid.reward(self.prediction, self.truth, self.action, exact, settings, scores, context, self.ruling)


@dataclass(frozen=True)
class Outcome:
    """`reward` is None where the judge failed and the completion is to leave its group; `verdict` is None where no
    judge was asked: the form is broken, or a pair was settled without."""

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
                found[name] = {model: opinion.row() for model, opinion in judges.items()}
        return found
