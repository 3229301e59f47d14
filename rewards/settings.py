"""Settings of the RL reward, composed into the recipe schema by `agentworld.train.config`."""

from dataclasses import dataclass, field, replace

from agentworld.data.errors import RequestError
from agentworld.data.schema import DOMAINS

PAIRS = ("turing", "reference")  # the values of `rubric` for which a judge compares two candidates
JUDGED = ("judge", *PAIRS)  # those for which an LLM is asked at all (rewards/judge_questions.py)
RUBRICS = ("reference_scorer", *JUDGED)  # what `rubric` may be
RULES = ("verifiers", "exact_match")  # what `rule` may be
GUARD_POLICIES = ("lowest", "zero", "report")  # what `guards` may be


@dataclass
class JudgeEndpoint:
    """One judge: a model behind an OpenAI-compatible endpoint. Its limits are those of the run, over all ranks."""

    base_url: str = ""  # for example https://host/v1, without credentials
    model: str = ""
    key_variable: str = ""  # name of the environment variable that holds the key; empty = the endpoint wants none
    temperature: float = 0.6  # of the released evaluation of arXiv:2606.24597; below 0 = not sent
    max_tokens: int = 32768  # of one reply, reasoning included; the released evaluation's
    max_tokens_field: str = "max_completion_tokens"  # or max_tokens, for servers that know the older name only
    concurrency: int = 64  # requests under way at once
    requests_per_minute: float = 0.0  # 0 = no limit
    tokens_per_minute: float = 0.0  # prompt and reply; 0 = no limit
    price_prompt: float = 0.0  # per million tokens, in any currency
    price_completion: float = 0.0


@dataclass
class JudgeSettings(JudgeEndpoint):
    """The judge and how it is asked. With `more` judges the rubric is the mean of all; `watchers` judge every
    completion, too, and are logged, never trained on: where the judge's score rises and theirs does not, the policy has
    learnt the judge."""

    more: list[JudgeEndpoint] = field(default_factory=list)
    watchers: list[JudgeEndpoint] = field(default_factory=list)
    prompt_tokens: int = 32768  # world, history, action, truth and prediction, in tokens of the trained model
    timeout: float = 180.0  # seconds of one request
    deadline: float = 480.0  # seconds of a whole rollout; what is not judged then has failed, so that no rank waits
    attempts: int = 6  # requests for one judgement
    backoff: float = 1.0  # seconds before the second request, doubled before each further one
    backoff_limit: float = 60.0  # seconds
    both_orders: bool = False  # turing, reference: ask for A, B and for B, A; where the answers differ it is a tie
    on_failure: str = "leave_out"  # leave_out of group and loss | zero, the paper's
    failed_limit: float = 0.2  # above this share of failed judgements in a rollout the run stops
    cache: str = ""  # SQLite file of verdicts; empty = judge_cache.sqlite in the run directory


@dataclass
class RewardSettings:
    """reward = rubric_weight * rubric + rule_weight * rule for items with a verifier, the rubric alone otherwise.

    The weights are the 9:1 of arXiv:2606.24597 section 3.4.1; `turing` and `reference` are the alternatives that its
    section 3.4.2 tried and left.
    """

    # reference_scorer: the deterministic scorer of rewards/rubric.py. The others ask the LLM of `judge`: judge for five
    # dimensions, turing which of prediction and truth is real, reference whether the prediction or the answer of the
    # policy before RL is closer to the truth.
    rubric: str = "reference_scorer"
    rubric_weight: float = 0.9
    rule_weight: float = 0.1
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    # The rule's share in single domains, {terminal: 0.3}; the rubric has the rest. A factor on the whole reward of a
    # domain would do nothing: GSPO compares the samples of one prompt and divides by their spread.
    domain_rule_weights: dict[str, float] = field(default_factory=dict)
    rule: str = "verifiers"  # verifiers: those of the domain that apply | exact_match: on deterministic turns only
    # Files of `agentworld verifiers`: a completion whose turn and truth have one gets its verdict, too; it runs in a
    # sandbox (rewards/sandbox.py), without which the run is refused. Empty = none.
    verifiers: list[str] = field(default_factory=list)
    # What a hit of a content guard does (rewards/guard.py): lowest = the bottom of the scale, all dimensions 1 and the
    # rule a no, as for an honest answer of which nothing is right; zero = 0, as for a broken form; report = nothing.
    guards: str = "lowest"


def reward_outside_rl(settings: RewardSettings) -> RewardSettings:
    """The reward of an evaluation and of the pilot: the recipe's, with the reference scorer in place of
    Reference-Reward. That one compares with answers of the policy before RL: held-out prompts have none, and the pilot
    is what makes them. `evaluation.json` names the rubric."""
    return replace(settings, rubric="reference_scorer") if settings.rubric == "reference" else settings


def check_weights(settings: RewardSettings) -> None:
    """Refuse weights that are no shares of one reward, whose scale then is 0 to 25, and `reward.domain_rule_weights` of
    no domain.

    Raises:
        RequestError: naming the key.
    """
    total = settings.rubric_weight + settings.rule_weight
    if abs(total - 1) > 1e-6:
        raise RequestError(
            f"reward.rubric_weight + reward.rule_weight must be 1, found {total:g}; set both, the paper's are 0.9, 0.1"
        )
    for domain, share in settings.domain_rule_weights.items():
        if domain not in DOMAINS:
            raise RequestError(f"reward.domain_rule_weights.{domain} is not one of {', '.join(DOMAINS)}")
        if not 0 <= share <= 1:
            raise RequestError(f"reward.domain_rule_weights.{domain}={share} must lie between 0 and 1")
