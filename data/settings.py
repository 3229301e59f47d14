"""Settings of recording and preparation: plain dataclasses, composed into the recipe schema by
`agentworld.train.config`.
"""

from dataclasses import dataclass, field

from agentworld.data.documents_settings import DocumentSource


@dataclass
class RecordSettings:
    """`agentworld record terminal`, and what a run records when `data.trajectories` is empty."""

    count: int = 1000  # trajectories
    mix: str = "full"  # full | light (light: no Python, no git; starts no slow process)
    min_turns: int = 4
    max_turns: int = 8
    workers: int = 0  # processes; 0 = two a core (each waits for its shell half of the time)
    command_timeout: float = 5.0  # seconds one command may take before its session is dropped
    max_output_chars: int = 4000  # a turn with a longer observation drops its session


@dataclass
class SplitSettings:
    """Shares of the split groups that go to each pool; they must add up to 1."""

    cpt: float = 0.55
    sft: float = 0.2
    rl: float = 0.2
    eval: float = 0.05


@dataclass
class MaskSettings:
    """The turn-level information-theoretic loss mask of CPT (arXiv:2606.24597 Table 3).

    `keep` is the share of the turns of a category that carry loss; categories that are not named keep everything.
    """

    enabled: bool = True
    keep: dict[str, float] = field(
        default_factory=lambda: {
            "retrieval": 1.0,
            "expansion": 1.0,
            "action": 1.0,
            "transform": 0.5,
            "boilerplate": 0.1,
            "echo": 0.05,
            "other": 1.0,
        }
    )


@dataclass
class DuplicateSettings:
    """What is dropped as said already; exact copies and beginnings of longer trajectories always are."""

    near: bool = True  # whether near duplicates are sought at all
    threshold: float = 0.8  # Jaccard similarity of word shingles from which on two trajectories are near duplicates
    shingle_words: int = 5  # words a shingle


@dataclass
class DataSettings:
    trajectories: list[str] = field(default_factory=list)  # JSON Lines or Parquet files; empty = record
    on_bad: str = "fail"  # fail | skip: a damaged line stops the run, or is counted and skipped
    duplicates: DuplicateSettings = field(default_factory=DuplicateSettings)
    held_out: list[str] = field(
        default_factory=list
    )  # files that name split groups never to train on: data/held_out.py
    domain_weights: dict[str, float] = field(default_factory=dict)  # part of each domain that is used; absent = all
    source_shares: dict[str, float] = field(default_factory=dict)  # of the characters used, at most: data/selection.py
    min_turns: int = 2  # shorter trajectories are dropped (arXiv:2606.24597 section 3.1.2)
    # Share of the training trajectories with an instruction on the outcome of a turn, read off the truth; held-out rows
    # and evaluation have none.
    simulation_share: float = 0.0
    documents: list[DocumentSource] = field(default_factory=list)  # knowledge and replay in CPT, by token shares
    prompt_set: str = "brief"  # folder under data/prompts: a template a version, or <domain>/<version>.txt
    record: RecordSettings = field(default_factory=RecordSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    mask: MaskSettings = field(default_factory=MaskSettings)
    tokenizer_vocab_size: int = 1024  # of the byte-level BPE trained when the model brings no tokenizer
    tokenizer_units: list[str] = field(default_factory=list)  # constant strings that its splitting leaves whole
    cpt_row_tokens: int = 1024  # packed row of CPT; longer documents are split
    sft_row_tokens: int = 1024  # packed row of SFT; longer samples are dropped and counted
    rl_prompt_tokens: int = 1024  # longer RL prompts are dropped and counted
    workers: int = 0  # processes that prepare; 0 = one a core. The result is the same
