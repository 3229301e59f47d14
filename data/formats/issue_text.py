"""The task inside an agent's prompt, as a key for splits: agents wrap the same issue in many prompts."""

import hashlib
import re

# How SWE-agent, mini-swe-agent and R2E-Gym mark the task within the prompt of a run.
_MARKS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"<pr_description>\s*(?:Consider the following PR description:)?(.*?)</pr_description>",
        r"<issue_description>(.*?)</issue_description>",
        r"\nISSUE:\n(.*?)\n\s{0,20}INSTRUCTIONS:",
        r"(The CTF challenge is .*?)\n\s{0,20}INSTRUCTIONS:",
        r"Please solve this issue:(.*?)\n\nYou can execute bash commands",
    )
)
_CHALLENGE = re.compile(r'The CTF challenge is .{0,80}? named "([^"\n]+)"')


def issue_key(prompt: str) -> str:
    """A short name and a hash of the task that a prompt gives: equal for equal tasks, whatever prompt is around them.

    A prompt without one of the known marks counts as a whole. Runs of blanks are one blank, so that line ends and
    wrapping do not matter.
    """
    found = next((match[1] for mark in _MARKS if (match := mark.search(prompt))), prompt).strip()
    challenge = _CHALLENGE.match(found)
    title = challenge[1] if challenge else found.split("\n", 1)[0]
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].strip("-")
    digest = hashlib.sha256(" ".join(found.split()).encode("utf-8", "replace")).hexdigest()[:12]
    return f"{name}-{digest}" if name else digest
