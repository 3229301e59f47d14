"""What a recipe must not say about RL, beside the keys of single values. Imports no torch."""

from agentworld.data.errors import RequestError
from agentworld.rewards.judge_checks import NO_REFERENCE_ANSWER
from agentworld.train import prompt_stream
from agentworld.train.config import Config


def check_rl(config: Config) -> None:
    """Refuse groups, mini-batches, clip, weights and a pilot that contradict each other.

    Raises:
        RequestError: the first fault found; the text names the keys and the way out.
    """
    rl = config.rl
    if rl.num_generations < 2:
        raise RequestError(
            f"rl.num_generations={rl.num_generations} must be at least 2: an advantage is relative to its group"
        )
    completions = rl.prompts_per_rollout * rl.num_generations
    if completions % rl.mini_batches:
        raise RequestError(
            f"rl.prompts_per_rollout x rl.num_generations = {completions} completions do not divide into "
            f"rl.mini_batches={rl.mini_batches}; change one of the three"
        )
    if rl.epsilon > rl.epsilon_high:
        raise RequestError(
            f"rl.epsilon={rl.epsilon} is more than rl.epsilon_high={rl.epsilon_high}; the upper clip is the wider one "
            "(3e-4 and 4e-4 in the GSPO paper)"
        )
    prompt_stream.check(rl)
    _check_pilot(config)


def _check_pilot(config: Config) -> None:
    """Raise RequestError for a pilot without groups, and for a reward that needs the pilot where there is none."""
    count = config.rl.pilot_completions
    if count < 0 or count == 1:
        raise RequestError(f"rl.pilot_completions={count} makes no group: it must be at least 2, or 0 for no pilot")
    if config.stage in ("all", "rl") and config.reward.rubric == "reference" and not count:
        raise RequestError(f"{NO_REFERENCE_ANSWER}; with rl.drop_solved=false rl.drop_hopeless=false it drops nothing")
