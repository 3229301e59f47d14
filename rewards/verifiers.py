"""Rule verifiers of the RL reward: a yes or a no that no wording can talk its way around.

arXiv:2606.24597 section 3.4.1 joins executable verifiers with the rubric 9:1; its training rules are not disclosed.
Here are two rules (`reward.rule`):

    exact_match   the prediction is the real observation, character for character, on turns whose observation follows
                  from the session alone (`deterministic`)
    verifiers     the verifiers of the domain, each where it decides something; all that apply must say yes
"""

from collections.abc import Mapping

from agentworld.rewards import verify_gui, verify_search, verify_terminal, verify_tools
from agentworld.rewards.verdicts import Item, Verdict, Verifier

RULE_SCALE = 25.0  # a verdict of true is worth this much before weighting: the scale of the rubric reward

DOMAIN_VERIFIERS: Mapping[str, tuple[Verifier, ...]] = {
    "terminal": verify_terminal.VERIFIERS,
    "mcp": verify_tools.MCP_VERIFIERS,
    "swe": verify_tools.SWE_VERIFIERS,
    "search": verify_search.VERIFIERS,
    "android": verify_gui.VERIFIERS,
    "web": verify_gui.VERIFIERS,
    "os": verify_gui.VERIFIERS,
}


def exact_match(prediction: str, reference: str) -> bool:
    """Whether the prediction is the real observation, character for character: nothing is stripped or folded."""
    return prediction == reference


def exact_verdicts(item: Item) -> list[Verdict]:
    """The rule `exact_match`: one verdict on a deterministic turn, else none."""
    if item.deterministic is not True:
        return []
    equal = exact_match(item.prediction, item.reference)
    return [
        Verdict("exact_match", equal, "equal to the real observation" if equal else "differs from the real observation")
    ]


def domain_verdicts(item: Item) -> list[Verdict]:
    """The rule `verifiers`: a verdict of each verifier of the domain that applies; exact match without a domain."""
    verifiers = DOMAIN_VERIFIERS.get(item.context.domain)
    if verifiers is None:
        return exact_verdicts(item)
    return [verdict for verify in verifiers if (verdict := verify(item)) is not None]


RULES = {"exact_match": exact_verdicts, "verifiers": domain_verdicts}
