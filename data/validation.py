"""Checks of `DataSettings` that cost nothing, so that a wrong request fails before anything is recorded or read."""

from agentworld.data.documents_settings import check_paths, check_sources
from agentworld.data.errors import RequestError
from agentworld.data.masking import CATEGORIES
from agentworld.data.selection import check_selection
from agentworld.data.settings import DataSettings
from agentworld.data.splits import check_shares
from agentworld.data.system_prompts import prompt_sets


def validate(settings: DataSettings) -> None:
    """Raise RequestError naming the key, its value and what it may be."""
    if settings.on_bad not in ("fail", "skip"):
        raise RequestError(f"data.on_bad={settings.on_bad}: expected fail or skip")
    if settings.min_turns < 1:
        raise RequestError(f"data.min_turns={settings.min_turns}: expected at least 1")
    if settings.prompt_set not in prompt_sets():
        known = ", ".join(prompt_sets())
        raise RequestError(f"data.prompt_set={settings.prompt_set}: no such template set; known: {known}")
    for key in ("cpt_row_tokens", "sft_row_tokens", "rl_prompt_tokens"):
        if getattr(settings, key) < 2:
            raise RequestError(f"data.{key}={getattr(settings, key)}: expected at least 2 tokens")
    for category, keep in settings.mask.keep.items():
        if category not in CATEGORIES:
            raise RequestError(f"data.mask.keep.{category}: no such category; known: {', '.join(CATEGORIES)}")
        if not 0 <= keep <= 1:
            raise RequestError(f"data.mask.keep.{category}={keep}: a share is a number from 0 to 1")
    if settings.workers < 0:
        raise RequestError(f"data.workers={settings.workers}: expected a number of processes, or 0 for one a core")
    check_selection(settings.domain_weights, settings.source_shares)
    check_shares(settings.split)
    check_sources(settings.documents)
    check_paths(settings.documents)
    if settings.split.cpt == 0 and any(source.share > 0 for source in settings.documents):
        raise RequestError("data.documents are read by CPT, and data.split.cpt=0; raise it or set data.documents=[]")
