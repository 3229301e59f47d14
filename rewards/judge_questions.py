"""What a judge can be asked about a prediction: the values of `reward.rubric` that need an LLM.

    judge       five dimensions from 1 to 5, beside the truth (arXiv:2606.24597 section 3.4.1)
    turing      which of two candidates, the truth and the prediction in random order, is the real observation
    reference   whether the prediction or the answer of the policy before RL is closer to the truth

The last two are the paper's alternatives (section 3.4.2, Turing-Test reward and Reference-Reward): pairs, in which the
prediction wins or loses. Which of the two is A is drawn from a hash of the case, so that a judge that likes the first
one pays each prediction half, and a verdict can be found again. With `reward.judge.both_orders` both orders are asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentworld.data import draws
from agentworld.rewards.judge_prompt import Asked, Case, JudgePrompt, judge_prompt
from agentworld.rewards.judge_reply import parse_choice, parse_reply
from agentworld.rewards.preference import DRAW, TIE, A, B, Preference
from agentworld.rewards.rubric import RubricScores
from agentworld.rewards.settings import RewardSettings

Scores = RubricScores | Preference


@dataclass(frozen=True)
class Rubric:
    """Five dimensions, beside the truth."""

    def unasked(self, case: Case) -> None:
        """Every prediction is asked about."""
        return None

    def prompts(self, case: Case, budget: int) -> tuple[JudgePrompt, ...]:
        """The one prompt of a case. Raises TooLongError."""
        sections = (("TRUTH", case.truth), ("PREDICTION", case.prediction))
        asked = Asked("rubric", sections, 1, "Judge the prediction against the truth.", parse_reply)
        return (judge_prompt(case, asked, budget),)

    def scores(self, case: Case, prompts: Sequence[JudgePrompt], replies: Sequence[RubricScores | str]) -> Scores:
        """What the replies to the prompts of a case come to."""
        [scores] = replies
        assert isinstance(scores, RubricScores)
        return scores


@dataclass(frozen=True)
class Pair:
    """The prediction against a rival. `name`: turing or reference, also the file of instructions."""

    name: str
    both_orders: bool

    def rival(self, case: Case) -> str:
        return case.truth if self.name == "turing" else case.initial

    def unasked(self, case: Case) -> Preference | None:
        """What needs no judge. Turing: the truth itself is taken for real, whichever copy is named. Reference: equal
        answers tie, and of unequal ones the truth wins."""
        rival = self.rival(case)
        if self.name == "reference" and case.prediction == rival:
            return Preference(DRAW, rival, "the initial policy's very answer, no judge asked")
        if case.prediction == case.truth:
            return Preference(1.0, rival, "the truth itself, no judge asked")
        return None

    def prompts(self, case: Case, budget: int) -> tuple[JudgePrompt, ...]:
        """The prompt in the order that the case draws, and with `both_orders` the one in the other. Raises
        TooLongError."""
        texts = (case.domain, *(message.text for message in case.messages), case.truth, case.prediction, case.initial)
        hashed = (text.encode("utf-8", "replace").decode() for text in texts)
        letter = (A, B)[draws.choice(2, f"{self.name} order", 0, *hashed)]
        letters = (letter, B if letter == A else A) if self.both_orders else (letter,)
        return tuple(self._prompt(case, budget, letter) for letter in letters)

    def _prompt(self, case: Case, budget: int, letter: str) -> JudgePrompt:
        pair = (case.prediction, self.rival(case)) if letter == A else (self.rival(case), case.prediction)
        if self.name == "turing":
            sections = (("CANDIDATE A", pair[0]), ("CANDIDATE B", pair[1]))
            request = "Which candidate is the real observation?"
        else:
            sections = (("TRUTH", case.truth), ("ANSWER A", pair[0]), ("ANSWER B", pair[1]))
            request = "Which answer is closer to the truth?"
        return judge_prompt(case, Asked(self.name, sections, 2, request, parse_choice, letter), budget)

    def scores(self, case: Case, prompts: Sequence[JudgePrompt], replies: Sequence[RubricScores | str]) -> Scores:
        """The prediction's win; orders that do not agree are a tie."""
        wins = {
            DRAW if choice == TIE else float(choice == prompt.letter)
            for prompt, choice in zip(prompts, replies, strict=True)
        }
        return Preference(wins.pop() if len(wins) == 1 else DRAW, self.rival(case))


Question = Rubric | Pair


def question_of(settings: RewardSettings) -> Question:
    """What the judges of a recipe are asked."""
    if settings.rubric == "judge":
        return Rubric()
    assert settings.rubric in ("turing", "reference"), settings.rubric
    return Pair(settings.rubric, settings.judge.both_orders)
