"""What a recipe must not say about its judge, and the environment it needs. Refused before a run begins.

No text here repeats a value that might be a key put in the wrong place.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from agentworld.data.errors import RequestError
from agentworld.rewards.settings import JUDGED, JudgeEndpoint, JudgeSettings, RewardSettings

ANSWER_SECONDS = 10.0  # that a judge has at the start of a run to answer anything
LONGEST_DEADLINE = 1800.0  # seconds: ranks that have finished wait for the others, an hour before they give up
NO_REFERENCE_ANSWER = (
    "reward.rubric=reference compares with the answer of the policy before RL, and there is none: set "
    "rl.pilot_completions to at least 2, so that it is sampled (in a row to score: the text reference_answer)"
)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


def check_judge(settings: RewardSettings) -> None:
    """Refuse settings that no judge can be asked with. Whether there is an endpoint: `require_judge`.

    Raises:
        RequestError: naming the key and the way out.
    """
    judge = settings.judge
    for name, endpoint in _endpoints(settings):
        _check_secrets(name, endpoint)  # of every recipe: it is written into the run directory
    if settings.rubric not in JUDGED:
        _refuse_unread(settings)
        return
    if settings.rubric == "judge" and judge.both_orders:
        raise RequestError("reward.judge.both_orders is for pairs, reward.rubric=turing or reference; here is no order")
    for name, endpoint in _endpoints(settings):
        _check_limits(name, endpoint)
    for key in ("prompt_tokens", "timeout", "deadline", "attempts", "backoff", "backoff_limit"):
        if getattr(judge, key) <= 0:
            raise RequestError(f"reward.judge.{key} must be greater than 0, found {getattr(judge, key)}")
    if judge.deadline > LONGEST_DEADLINE:
        raise RequestError(
            f"reward.judge.deadline={judge.deadline:g} must be at most {LONGEST_DEADLINE:g}: ranks wait for each other"
        )
    if not 0 <= judge.failed_limit <= 1:
        raise RequestError(f"reward.judge.failed_limit is a share in [0, 1], found {judge.failed_limit}")
    if judge.on_failure not in ("leave_out", "zero"):
        raise RequestError(f"reward.judge.on_failure={judge.on_failure} is not one of leave_out, zero")


def check_load(settings: RewardSettings, ranks: int, completions: int, completion_tokens: int) -> None:
    """Refuse limits that ranks cannot share, and those with which no rollout can be judged within the deadline.

    Args:
        completions: of one rollout, over all ranks; completion_tokens: the most that one may have.
    """
    if settings.rubric not in JUDGED:
        return
    judge = settings.judge
    answers = 2 if settings.rubric == "reference" else 1
    if judge.prompt_tokens <= answers * completion_tokens:
        raise RequestError(
            f"reward.judge.prompt_tokens={judge.prompt_tokens} must be more than {answers} x rl.max_completion_tokens="
            f"{completion_tokens}: answers of that length have to fit, with action and truth"
        )
    requests = completions * (2 if judge.both_orders else 1)
    for name, endpoint in _endpoints(settings):
        if endpoint.concurrency < ranks:
            raise RequestError(
                f"{name}.concurrency={endpoint.concurrency} is less than the {ranks} processes that share it; raise it"
            )
        seconds = 60 * requests / endpoint.requests_per_minute if endpoint.requests_per_minute else 0.0
        if seconds > judge.deadline:
            raise RequestError(
                f"{name}.requests_per_minute={endpoint.requests_per_minute:g} takes {seconds:.0f} s for the "
                f"{requests} judgements of the {completions} completions of a rollout, more than reward.judge.deadline="
                f"{judge.deadline:g}; raise one of them, or lower rl.prompts_per_rollout or rl.num_generations"
            )


def check_stop(settings: RewardSettings, signal_seconds: int) -> None:
    """Refuse a job that is told to stop later than it can: a stop waits for the rollout that is being judged.

    Args:
        signal_seconds: between the request to stop and the end of the job; 0 = no request.
    """
    deadline = settings.judge.deadline
    if settings.rubric in JUDGED and 0 < signal_seconds <= deadline:
        raise RequestError(
            f"cluster.signal_seconds={signal_seconds} must be more than reward.judge.deadline={deadline:g}, which a "
            "stop may have to wait for; raise the one or lower the other"
        )


def require_judge(settings: RewardSettings) -> None:
    """Refuse a run that is to be judged without an endpoint, a model, or a key in the environment."""
    if settings.rubric not in JUDGED:
        return
    models = [endpoint.model for _, endpoint in _endpoints(settings)]
    for name, endpoint in _endpoints(settings):
        parts = _address(name, endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(_no_address(name))
        if not endpoint.model:
            raise RequestError(f"{name}.model is empty; name the model that the endpoint serves")
        if models.count(endpoint.model) > 1:
            raise RequestError(
                f"{name}.model={endpoint.model}: another judge has this name, by which verdicts are kept"
            )
        if endpoint.key_variable and not os.environ.get(endpoint.key_variable, "").strip():
            raise RequestError(
                f"{name}.key_variable: the environment variable {endpoint.key_variable} is not set or empty; export "
                "it, or leave key_variable empty for an endpoint without a key"
            )
    cache = Path(settings.judge.cache)
    if settings.judge.cache and (cache.is_dir() or not cache.parent.is_dir()):
        raise RequestError(
            f"reward.judge.cache={cache} must be a file in a folder that exists; make the folder, or leave it empty"
        )


def silent_judges(settings: RewardSettings) -> list[str]:
    """A line for each judge from whose address nothing answers now. Any HTTP answer is one; no key is sent. No reason
    to refuse a run: the judge is asked after CPT and SFT only, and may be started meanwhile."""
    if settings.rubric not in JUDGED:
        return []
    import httpx  # what the judge's client sends its requests with: the same proxies and certificates

    lines = []
    for name, endpoint in _endpoints(settings):
        try:
            httpx.get(f"{endpoint.base_url.rstrip('/')}/models", timeout=ANSWER_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            lines.append(
                f"WARNING: {name}.base_url={endpoint.base_url} does not answer ({error}); start the judge before it is "
                "asked, in the evaluation of SFT and in RL, or stop now and mend the address"
            )
    return lines


def _endpoints(settings: RewardSettings) -> Iterator[tuple[str, JudgeEndpoint]]:
    judge = settings.judge
    yield "reward.judge", judge
    yield from ((f"reward.judge.more[{number}]", endpoint) for number, endpoint in enumerate(judge.more))
    yield from ((f"reward.judge.watchers[{number}]", endpoint) for number, endpoint in enumerate(judge.watchers))


def _refuse_unread(settings: RewardSettings) -> None:
    """Whoever names a judge means to be judged by it: without `reward=judge` nobody would ask."""
    for key in ("base_url", "model", "key_variable", "more", "watchers", "cache"):
        if getattr(settings.judge, key) != getattr(JudgeSettings(), key):
            raise RequestError(
                f"reward.judge.{key} has no effect with reward.rubric={settings.rubric}, which asks no judge; add "
                "reward=judge, turing or reference (score: --reward judge), or leave the key out"
            )


def _no_address(name: str) -> str:
    return f"{name}.base_url must be the address of an endpoint, such as https://HOST/v1"


def _address(name: str, endpoint: JudgeEndpoint) -> SplitResult:
    """The parts of the address; one without scheme and host stays for `require_judge` to refuse."""
    parts = address_parts(endpoint.base_url)
    if parts is None:
        raise RequestError(_no_address(name))
    return parts


def address_parts(url: str) -> SplitResult | None:
    """Scheme, host and the rest; None where no client could read them: a port that is none, a bracket, a blank."""
    try:
        parts = urlsplit(url)
        readable = parts.port is None or parts.port > 0
    except ValueError:
        return None
    return parts if readable and not re.search(r"\s", url) else None


def _check_secrets(name: str, endpoint: JudgeEndpoint) -> None:
    if endpoint.key_variable and not _VARIABLE.fullmatch(endpoint.key_variable):
        raise RequestError(
            f"{name}.key_variable must be the name of an environment variable in capitals, such as JUDGE_API_KEY, "
            "never the key itself"
        )
    parts = _address(name, endpoint)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise RequestError(f"{name}.base_url must hold no user, password or query: the recipe is written to the run")


def _check_limits(name: str, endpoint: JudgeEndpoint) -> None:
    for key in ("concurrency", "max_tokens"):
        if getattr(endpoint, key) <= 0:
            raise RequestError(f"{name}.{key} must be greater than 0, found {getattr(endpoint, key)}")
    for key in ("requests_per_minute", "tokens_per_minute", "price_prompt", "price_completion"):
        if getattr(endpoint, key) < 0:
            raise RequestError(f"{name}.{key} must not be negative, found {getattr(endpoint, key)}")
    if endpoint.max_tokens_field not in ("max_completion_tokens", "max_tokens"):
        raise RequestError(f"{name}.max_tokens_field is max_completion_tokens or max_tokens")
