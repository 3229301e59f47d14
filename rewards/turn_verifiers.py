"""Synthesised verifiers in the reward: those of `reward.verifiers`, each for one turn and one text of its truth.

`agentworld verifiers` writes the files, one JSON object a line:

    id, turn, truth_sha256    of the turn: a verifier judges only where all three are the same, so that a stale file
                              never judges another text
    axis, code                controllability | error_handling | long_context; the source of `verify(prediction)`
    domain, facts, model, prompt, rollouts    where it came from; not read here

A verdict stands beside those of the domain's own verifiers (rewards/verifiers.py). A verifier that ends without one
is a reason and a metric, never a yes or a no.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentworld.data.errors import ContentError
from agentworld.rewards import sandbox
from agentworld.rewards.hybrid import without_rubric
from agentworld.rewards.outcomes import Completion
from agentworld.rewards.sandbox import Limits, Task
from agentworld.rewards.verdicts import NO_RULING, Ruling, Verdict

AXES = ("controllability", "error_handling", "long_context")
LIMITS = Limits(seconds=2.0, batch_seconds=8.0)  # of a verifier here and when it was validated


@dataclass(frozen=True)
class TurnVerifier:
    """One verifier. `key`: "<trajectory id>#<turn>", as `data.examples.Example.key`."""

    key: str
    truth_sha256: str
    axis: str
    code: str


@dataclass(frozen=True)
class Asked:
    """One prediction to be ruled on; `text` None: of broken form, so that nothing is asked."""

    key: str
    truth: str
    text: str | None


def truth_hash(truth: str) -> str:
    """SHA-256 of the real observation, half of a surrogate pair included."""
    return hashlib.sha256(truth.encode("utf-8", "surrogatepass")).hexdigest()


class TurnVerifiers:
    """The verifiers of one or more files, by turn."""

    def __init__(self, verifiers: Iterable[TurnVerifier]) -> None:
        self._by_key: dict[str, list[TurnVerifier]] = {}
        for verifier in verifiers:
            known = self._by_key.setdefault(verifier.key, [])
            if verifier not in known:
                known.append(verifier)

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def of(self, key: str, truth: str) -> list[TurnVerifier]:
        """Those that may judge a prediction of this turn with this truth."""
        known = self._by_key.get(key)
        return [one for one in known if one.truth_sha256 == truth_hash(truth)] if known else []

    def coverage(self, turns: Iterable[tuple[str, str]]) -> str:
        """In words, how many of the (key, truth) have a verifier.

        Raises:
            ContentError: none has one: the files belong to other trajectories.
        """
        total = matched = stale = 0
        for key, truth in turns:
            found = bool(self.of(key, truth))
            total, matched, stale = total + 1, matched + found, stale + (key in self._by_key and not found)
        if not matched:
            raise ContentError(
                f"reward.verifiers: none of the {len(self)} synthesised verifiers belongs to one of the {total} turns "
                f"({stale} have one for another text of the truth); synthesise them from the trajectories of this run"
            )
        return f"{matched} of {total} turns have a synthesised verifier, {stale} one for another text of the truth"

    def rulings(self, asked: Sequence[Asked]) -> list[Ruling]:
        """What the verifiers say of each prediction, in order. Each verifier is asked once about each different text,
        in one batch.

        Raises:
            UnavailableError: the sandbox is not permitted here.
        """
        wanted: dict[TurnVerifier, dict[str, None]] = {}
        found = [self.of(one.key, one.truth) if one.text is not None else [] for one in asked]
        for one, verifiers in zip(asked, found, strict=True):
            for verifier in verifiers:
                wanted.setdefault(verifier, {})[one.text] = None
        tasks = [Task(verifier.code, tuple(texts)) for verifier, texts in wanted.items()]
        answers = {
            verifier: dict(zip(texts, answer, strict=True))
            for (verifier, texts), answer in zip(wanted.items(), sandbox.run(tasks, LIMITS), strict=True)
        }
        rulings = []
        for one, verifiers in zip(asked, found, strict=True):
            said = [(verifier.axis, answers[verifier][one.text]) for verifier in verifiers]
            rulings.append(_ruling(said, stale=one.key in self._by_key and not self.of(one.key, one.truth)))
        return rulings

    def ruled(self, keys: Sequence[str], completions: Sequence[Completion]) -> list[Completion]:
        """The completions with their rulings."""
        asked = [
            Asked(key, item.truth, None if without_rubric(item.prediction) else item.prediction.text)
            for key, item in zip(keys, completions, strict=True)
        ]
        return [replace(item, ruling=ruling) for item, ruling in zip(completions, self.rulings(asked), strict=True)]


def _ruling(said: Sequence[tuple[str, sandbox.Answer]], stale: bool) -> Ruling:
    if not said and not stale:
        return NO_RULING
    verdicts = tuple(
        Verdict(f"synthesised {axis}", answer, f"says {'yes' if answer else 'no'}")
        for axis, answer in said
        if isinstance(answer, bool)
    )
    silent = tuple(f"synthesised {axis}: {answer}" for axis, answer in said if not isinstance(answer, bool))
    return Ruling(verdicts, silent, stale)


def load(paths: Sequence[str]) -> TurnVerifiers:
    """The verifiers of the files of `reward.verifiers`; where there are some, the sandbox is tried, too.

    Raises:
        OSError: a file cannot be read.
        ContentError: a line is no verifier; names file and line.
        UnavailableError: the sandbox is not permitted here.
    """
    verifiers = read(paths)
    if paths:
        sandbox.require()
    return verifiers


def read(paths: Sequence[str]) -> TurnVerifiers:
    """As `load`, without the sandbox: for whoever only looks, perhaps on a machine that runs none."""
    return TurnVerifiers(verifier for path in paths for verifier in _read(Path(path)))


def shares(rulings: Sequence[Ruling]) -> dict[str, float]:
    """For a step's metrics, shares of all completions: those with a verdict, those where all verdicts are yes, those
    where a verifier ended without one, and those whose verifier is of another truth."""
    count = len(rulings)
    return {
        "synthesised/judged": sum(bool(one.verdicts) for one in rulings) / count,
        "synthesised/yes": sum(bool(one.verdicts) and all(v.passed for v in one.verdicts) for one in rulings) / count,
        "synthesised/no_verdict": sum(bool(one.silent) for one in rulings) / count,
        "synthesised/stale": sum(one.stale for one in rulings) / count,
    }


def _read(path: Path) -> Iterable[TurnVerifier]:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            yield _parsed(f"{path}:{number}", line)


def _parsed(where: str, line: bytes) -> TurnVerifier:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContentError(f"{where}: not JSON: {error} (a truncated line?)") from None
    texts = ("id", "truth_sha256", "axis", "code")
    right = isinstance(row, dict) and all(isinstance(row.get(name), str) for name in texts)
    if not right or type(row.get("turn")) is not int or row["axis"] not in AXES:
        raise ContentError(
            f"{where}: no synthesised verifier: it needs id, turn (an integer), truth_sha256, code, and axis, one of "
            f"{', '.join(AXES)}; `agentworld verifiers` writes such files"
        )
    return TurnVerifier(f"{row['id']}#{row['turn']}", row["truth_sha256"], row["axis"], row["code"])
