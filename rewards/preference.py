"""What a judge says of a pair: which of two candidates, or neither."""

from dataclasses import dataclass, field

A, B, TIE = "A", "B", "tie"
CHOICES = (A, B, TIE)  # what a reply may come to
DRAW = 0.5  # the win of a tie


@dataclass(frozen=True)
class Preference:
    """How a prediction did against its `rival`: the truth in the Turing test, else the answer of the policy before RL.

    `win` is 1 where the judge took the prediction, 0 where it took the rival, 0.5 for a tie; of several judges the
    mean. `note` says why, where no judge was asked.
    """

    win: float
    rival: str = field(repr=False)
    note: str = ""
