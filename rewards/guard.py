"""Guards of the reward: named answers to outputs that want the reward without simulating anything.

arXiv:2606.24597 section 3.4.2 saw self-praise that talks a judge into a score; others saw echoes and copies, empty
frames and floods. Every guard has a name, is counted, and its hit stands in the reward's explanation.

Form: the answer's form is broken, and the reward is 0 whatever `reward.guards` says.

    not_ended            no end token: cut at the token limit
    hidden_in_thinking   the tag stands in the thinking and not in the answer
    no_tag, unclosed_tag, several_tags, text_after_tag

Content: the form holds, and `reward.guards` says what a hit does.

    empty                nothing visible, where the truth has something
    action_echo          nothing but the action, where the environment said something
    copy_of_last         the last observation again, as it is or with changes that the truth does not hold, where the
                         truth is another
    format_only          brackets, markup, keys or a placeholder, where the truth has words
    extreme_length       far longer than the truth
    thinking_inside      a thinking tag, or the string of a chat's control token, inside the prediction
    judge_directed       text that speaks to a judge: orders, scores, dimensions (rewards/praise.py)
    self_praise          text that calls the prediction right (rewards/praise.py)
    unsupported_score    a judge's scores far above the reference scorer's, where a rule says no or the prediction has
                         next to no word of the truth, or many lines without one

All but the last look at the truth too: a guard never fires on what really happened only because it looks odd.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Prediction
from agentworld.data.visible_text import hidden_name
from agentworld.rewards.praise import judge_directed, novel_text, self_praise
from agentworld.rewards.rubric import HIGHEST, RubricScores
from agentworld.rewards.shell_text import true_screen, typed_lines
from agentworld.rewards.verdicts import Item

FORM_GUARDS = ("not_ended", "hidden_in_thinking", "no_tag", "unclosed_tag", "several_tags", "text_after_tag")
LENGTH_FACTOR, LENGTH_SLACK = 4, 4000  # extreme: more than 4 times the truth and 4,000 characters
UNSUPPORTED = 1.5  # points of the rubric's mean that a judge may stand above the reference scorer without support
NEARLY_ALL = 0.9  # and share of what the reference scorer takes off that the judge may give back
KEPT = 0.9  # share of the last observation's words from which on a prediction is a copy of it
# A judge has support from an F1 of words of this much, without and with the words of the action, on truths of at least
# FEW_WORDS different words of their own. Of the prediction's words, LOOSE may stand in lines that have none of the
# truth's and are long: LONGER_LINE words, or two of LONGER_PAIR characters, as of a language without spaces.
FEW_WORDS, FOUNDED, FOUNDED_WITH_ACTION, LOOSE, LONGER_LINE, LONGER_PAIR = 3, 0.1, 0.3, 0.2, 3, 16
_LITTLE = "a an and are as at be by for from has have in is it its not of on or that the this to was what with you your"
FUNCTION_WORDS = frozenset(re.findall(r"\w+", _LITTLE))

_CONTROL = re.compile(r"(?i)</?think|<\|[a-z_]+\|>|\[/?INST\]|<(?:start|end)_of_turn>")
_FENCE = re.compile(r"```\w*|</?code>|(?i:\baction\s*:)")
_MARKUP = re.compile(r"<[^<>\n]*>")
_JSON_KEY = re.compile(r'"[^"\n]*"\s*:')
_LABEL = re.compile(r"^[^\n:]{1,40}:\s*$", re.MULTILINE)
_PLACEHOLDER = re.compile(
    r"(?i)\b(?:(?:the |an? |your |insert |predicted |actual |expected |tool |simulated ){0,4}"
    r"(?:observation|output|response|result|content|text|answer)s?"
    r"(?: (?:goes|here|follows|would be|is shown|placeholder))*"
    r"|placeholder|todo|tbd|n/?a|null|none|undefined|empty|lorem ipsum[^\n]*)\b"
)


@dataclass(frozen=True)
class Hit:
    name: str
    reason: str


def form_hit(prediction: Prediction) -> Hit | None:
    """What is wrong with the form of a completion; None where it ended and holds exactly one closed tag, thinking
    included, and nothing after it."""
    if not prediction.ended:
        return Hit("not_ended", "the completion has no end token, it was cut at the token limit")
    rule = "the answer is not exactly one closed <predicted_observation> tag with nothing after it: "
    answer, thinking = prediction.answer, prediction.thinking or ""
    if prediction.tag_valid:  # an answer, a second thought and another answer are two answers
        drafted = OPEN_TAG in thinking and CLOSE_TAG in thinking
        return Hit("several_tags", rule + "another one stands in the thinking") if drafted else None
    opened, closed = answer.count(OPEN_TAG), answer.count(CLOSE_TAG)
    if not opened and OPEN_TAG in thinking:
        return Hit("hidden_in_thinking", rule + "it stands in the thinking")
    if not opened:
        return Hit("no_tag", rule + "there is none")
    if answer.rfind(CLOSE_TAG) < answer.rfind(OPEN_TAG):
        return Hit("unclosed_tag", rule + "it is not closed")
    if opened > 1 or closed > 1:
        return Hit("several_tags", rule + f"it is opened {opened} and closed {closed} times")
    return Hit("text_after_tag", rule + "text follows it")


def content_hits(item: Item) -> list[Hit]:
    """The guards that a prediction in valid form sets off, in the order of `CONTENT_GUARDS`."""
    if item.prediction == item.reference:
        return []  # only to save time: each guard by itself is silent here (tests/test_guard.py)
    return [Hit(name, reason) for name, guard in CONTENT_GUARDS.items() if (reason := guard(item))]


def unsupported(judged: RubricScores, reference: RubricScores, why: str) -> Hit | None:
    """For turns without support for a judge: one that was talked round stands far above the reference scorer."""
    above = judged.mean - reference.mean
    if above <= min(UNSUPPORTED, NEARLY_ALL * (HIGHEST - reference.mean)):
        return None
    return Hit("unsupported_score", f"{why}, and the judge stands {above:.2f} above the reference scorer")


def unsupported_win(rival: RubricScores, reference: RubricScores, why: str, rule_passed: bool) -> Hit | None:
    """The same of a pair: a judge that takes a prediction, or puts it level, says that it is worth no less than its
    rival. Where no rule says no, nothing else speaks for a prediction without a word of the truth, and it must not be
    below its rival at all."""
    above = rival.mean - reference.mean
    if above <= (0.0 if rule_passed else UNSUPPORTED):
        return None
    return Hit("unsupported_score", f"{why}, and the rival stands {above:.2f} above it by the reference scorer")


def without_support(item: Item, rule_passed: bool) -> str:
    """Why a judge's high score has nothing to stand on; "" where it may have. A prediction of what happened shares
    words with a truth that has some, in most of its longer lines; praise in another language or in a code does not."""
    if not rule_passed:
        return "a rule says no"
    given, true = set(_word_list(item.action)), set(_word_list(item.reference))
    if len(true - given) < FEW_WORDS:
        return ""
    founded = _likeness(item.prediction, item.reference, given) >= FOUNDED
    if not founded and _likeness(item.prediction, item.reference, set()) < FOUNDED_WITH_ACTION:
        return "next to no word of the truth is in it"
    lines, known = list(map(_word_list, item.prediction.split("\n"))), (true | given) - FUNCTION_WORDS
    loose = sum(len(line) for line in lines if _is_longer(line) and known.isdisjoint(line))
    if loose > LOOSE * sum(map(len, lines)):
        return "lines without a word of the truth are much of it"
    return ""


def empty(item: Item) -> str:
    if _visible(item.reference) and not _visible(item.prediction):
        return "nothing visible in it, the truth has something"
    return ""


def action_echo(item: Item) -> str:
    """Only pieces of the action are left out; where the environment itself says nothing, an echo may be all."""
    if re.search(r"\w", item.prediction) and not _left_of_action(item.prediction, item.action):
        said = true_screen(item.reference, item.action).body
        if _left_of_action(said, item.action):
            return "nothing but the action, the environment said more"
    return ""


def copy_of_last(item: Item) -> str:
    last = _folded(item.context.last or "")
    found = _folded(item.prediction)
    if not last or _folded(item.reference) == last:
        return ""
    times, rest = divmod(len(found) + 1, len(last) + 1)
    if times and not rest and found == " ".join([last] * times):
        return "the last observation again, the truth is another"
    if _changed_in_vain(item):
        return "the last observation again, but for changes that the truth does not hold"
    return ""


def format_only(item: Item) -> str:
    if _words_left(item.prediction) or not _visible(item.prediction) or not _words_left(item.reference):
        return ""
    return "brackets, markup, keys or a placeholder, the truth has words"


def extreme_length(item: Item) -> str:
    limit = LENGTH_FACTOR * len(item.reference) + LENGTH_SLACK
    if len(item.prediction) <= limit:
        return ""
    return f"{len(item.prediction)} characters, the truth has {len(item.reference)}; more than {limit} is extreme"


def thinking_inside(item: Item) -> str:
    if _CONTROL.search(item.prediction) and not _CONTROL.search(item.reference):
        return "a thinking tag or a control token inside the prediction"
    return ""


def speaks_to_judge(item: Item) -> str:
    found = judge_directed(novel_text(item.prediction, item.reference, item.action))
    return f"speaks to a judge: {found!r}" if found else ""


def praises_itself(item: Item) -> str:
    found = self_praise(novel_text(item.prediction, item.reference, item.action))
    return f"calls itself right: {found!r}" if found else ""


CONTENT_GUARDS: dict[str, Callable[[Item], str]] = {
    "empty": empty,
    "action_echo": action_echo,
    "copy_of_last": copy_of_last,
    "format_only": format_only,
    "extreme_length": extreme_length,
    "thinking_inside": thinking_inside,
    "judge_directed": speaks_to_judge,
    "self_praise": praises_itself,
}
GUARD_NAMES = (*FORM_GUARDS, *CONTENT_GUARDS, "unsupported_score")


def _visible(text: str) -> bool:
    return any(not char.isspace() and hidden_name(char) is None for char in text)


def _is_longer(line: list[str]) -> bool:
    return len(line) >= LONGER_LINE or (len(line) == 2 and len("".join(line)) >= LONGER_PAIR)


def _likeness(text: str, other: str, given: set[str]) -> float:
    """F1 of the words of two texts, without those that are given or say nothing; 0 where one has none."""
    one, two = (
        Counter(word for word in _word_list(side) if word not in given | FUNCTION_WORDS) for side in (text, other)
    )
    return 2 * (one & two).total() / max(1, one.total() + two.total())


def _word_list(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _folded(text: str) -> str:
    """Without regard to case and white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _changed_in_vain(item: Item) -> bool:
    """Whether a prediction keeps the words of the last observation and adds no more than as many, and of those that it
    adds or leaves out none is one that the truth adds or leaves out.

    A word of the action that is added counts only where the truth adds no other. Of a truth that keeps less than half,
    what it leaves out tells nothing. Where truth and prediction only add, the kind of change was foreseen.
    """
    texts = (item.context.last or "", item.prediction, item.reference)
    last, said, true = (Counter(_word_list(text)) for text in texts)
    if not last or last == true or (last & said).total() < KEPT * last.total():
        return False
    added, dropped, new, gone = said - last, last - said, true - last, last - true
    if added.total() > last.total():
        return False
    if not (gone or dropped):
        return not added
    given = set(_word_list(item.action))
    telling = {word for word in new if word not in given} or set(new)
    return not (added.keys() & telling or (2 * gone.total() <= last.total() and gone & dropped))


def _left_of_action(text: str, action: str) -> str:
    """The words of a text that are left when the action, or the lines that it types, are taken out."""
    left = _folded(_FENCE.sub(" ", text))
    for piece in sorted({_folded(action), *map(_folded, typed_lines(action))} - {""}, key=len, reverse=True):
        left = left.replace(piece, " ")
    return " ".join(_word_list(left))


def _words_left(text: str) -> bool:
    """Whether a text says anything beside its form."""
    for form in (_FENCE, _MARKUP, _JSON_KEY, _LABEL, _PLACEHOLDER):
        text = form.sub(" ", text)
    return bool(re.search(r"\w", text))
