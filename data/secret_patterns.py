"""Where a text holds personal data or a secret: patterns by kind, each with the texts without which it cannot match.

Tokens go by the prefixes that their makers publish for secret scanners. A key that looks like any hash is found only
where its name (`api_key = ...`) or an Authorization header gives it away: hashes of commits and lock files stay.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentworld.data import email_addresses

MARK = "REDACTED"  # in each placeholder of a token, a key or a password
KINDS = ("private_key", "token", "url_password", "email", "card", "phone")

_END = r"(?![A-Za-z0-9])"
# (what a token begins with, what follows). The beginning is kept: it says what kind of key it is. Both together are 20
# characters or more: see `Outline`.
_PREFIXED = (
    ("AKIA ASIA ABIA ACCA", r"[A-Z2-7]{16}"),  # Amazon Web Services, id of an access key
    ("ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,255}"),  # GitHub
    ("github_pat_", r"[A-Za-z0-9_]{22,255}"),
    ("glpat- gldt- glrt- glptt-", r"[\w-]{20,64}"),  # GitLab
    ("xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xapp-", r"\d[A-Za-z0-9-]{14,250}"),  # Slack
    ("hooks.slack.com/services/", r"T\w{6,20}/B\w{6,20}/\w{16,40}"),
    ("sk-ant- sk-proj- sk-svcacct- sk-admin- sk-or-v1-", r"[\w-]{20,255}"),  # Anthropic, OpenAI, OpenRouter
    ("sk-", r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{32,64}"),  # OpenAI, older, and those that took its form
    ("AIza", r"[\w-]{35}"),  # Google
    ("ya29. GOCSPX-", r"[\w-]{20,500}"),
    ("sk_live_ rk_live_ sk_test_ rk_test_ whsec_", r"[A-Za-z0-9]{16,255}"),  # Stripe
    ("hf_", r"[A-Za-z0-9]{34,40}"),  # Hugging Face
    ("npm_", r"[A-Za-z0-9]{36}"),
    ("pypi-AgE", r"[\w-]{50,500}"),
    ("SG.", r"[\w-]{22}\.[\w-]{43}"),  # SendGrid
    ("dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),  # DigitalOcean
    ("dapi", r"[0-9a-f]{32}"),  # Databricks
    ("shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),  # Shopify
    ("sq0atp- sq0csp-", r"[\w-]{22,43}"),  # Square
    ("AccountKey=", r"[A-Za-z0-9+/]{86}=="),  # Azure Storage
    ("hvs.", r"[\w-]{24,255}"),  # HashiCorp Vault
    ("glsa_", r"[A-Za-z0-9]{32}_[0-9a-f]{8}"),  # Grafana
    ("gsk_", r"[A-Za-z0-9]{40,64}"),  # Groq
    ("lin_api_ ntn_", r"[A-Za-z0-9]{32,64}"),  # Linear, Notion
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    ("eyJ", r"[\w-]{17,2000}\.eyJ[\w-]{10,8000}\.[\w-]{10,2000}"),  # JSON web tokens (RFC 7519)
)
_TELEGRAM = re.compile(r"\d{8,10}:(AA[\w-]{33})(?![\w-])")
_HEADER = re.compile(r"(?i:bearer|basic|authorization[\"'\\]{0,4}:\s?[\"'\\]{0,4}token) ([\w.~+/-]{20,4000}={0,2})")
_ASSIGNED = re.compile(r"[:=][\"'\\ ]{0,5}([A-Za-z0-9+/~-]{20,128}={0,2})(?![\w.(\[/])")
_SECRET_NAME = re.compile(r"(?i:(?:api|access|auth|client|secret)[_-]?(?:key|token|secret))[\"'\\]{0,4}\s?$")
_CHANGE = re.compile(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")
_URL = re.compile(r"://([^\s/:@?#'\"<>\\]{0,64}):([^\s/:@?#'\"<>\\]{1,128})@(?=[\w\[])")
_COMMON_PASSWORDS = {
    "password", "passwd", "pass", "pwd", "secret", "changeme", "postgres", "mysql", "mongo", "redis", "rabbitmq",
    "root", "admin", "user", "username", "test", "guest", "token", "mypassword", "mysecretpassword", "x-oauth-basic",
    "x-access-token", "1234", "12345", "123456", "hunter2",
}  # fmt: skip
# Between the lines of a key: ends of lines, escaped or not, quotes and line numbers of listings.
_GAP = r"(?:\s|\\+[nrt]|[\"'+,|>]|\d{1,5}[:|])*"
_LINE = r"[A-Za-z0-9+/=]"
_PEM = re.compile(
    rf"-----BEGIN (?:[A-Z0-9]{{1,20}} ){{0,3}}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:{_GAP}[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{1,100}}(?=\n|\\)){{0,6}}"
    rf"{_GAP}({_LINE}{{40,}}(?:{_GAP}{_LINE}{{40,}})*(?:{_GAP}{_LINE}+(?={_GAP}(?:=|-----END)))?)"
)
_CARD = re.compile(
    r"(?<![\w.,/-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6(?:011|5\d\d|4[4-9]\d)|35[2-8]\d)([ -]?)\d{4}\1\d{4}\1\d{4}"
    r"|3[47]\d\d([ -]?)\d{6}\2\d{5})(?![\w*-]|[.,]\d)"
)
_TEST_CARDS = {
    "4111111111111111", "4242424242424242", "5555555555554444", "5105105105105100", "378282246310005",
    "371449635398431", "6011111111111117", "4012888888881881", "4000056655665556",
}  # fmt: skip
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:\+\d{1,3}[ .-]\(?\d{2,4}\)?(?:[ .-]\d{2,4}){2,4}"
    r"|(?:(?:00)?1[ -])?(?:\([2-9]\d\d\) ?|[2-9]\d\d-)[2-9]\d\d-\d{4})(?=x\d|[^\w.-]|\.(?!\d)|$)"
)


_WORD = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_RUN = b"a" * 20
_RUN_TABLE = bytes(ord("a") if byte in _WORD else ord(".") for byte in range(256))
_SHAPES = {**dict.fromkeys(b"0123456789", ord("0")), ord(" "): ord("-"), ord("-"): ord("-"), ord("+"): ord("+")}
_SHAPE_TABLE = bytes(_SHAPES.get(byte, ord(".")) for byte in range(256))


@dataclass(frozen=True)
class Outline:
    """What tells cheaply that a finder has nothing to find: most texts hold no secret, and looking for seventy patterns
    in each costs more than all the rest of an import.

    `data`: the text in UTF-8. `runs`: its stretches of 20 and more letters, digits, "_" and "-", one a line. `shape`:
    `data` with `0` for a digit, `-` for a space or hyphen, `+` for a plus and `.` for all else.
    """

    data: bytes
    runs: str
    shape: bytes


def outline(text: str) -> Outline:
    data = text.encode("utf-8", "surrogatepass")
    inside = data.translate(_RUN_TABLE)
    runs, at = [], inside.find(_RUN)
    while at >= 0:
        start, end = inside.rfind(b".", 0, at) + 1, inside.find(b".", at)
        end = len(data) if end < 0 else end
        runs.append(data[start:end].decode())
        at = inside.find(_RUN, end)
    return Outline(data, "\n".join(runs), data.translate(_SHAPE_TABLE))


@dataclass(frozen=True)
class Finder:
    """`find` yields (start, end) of what is replaced. Where `applies` is false it would yield nothing."""

    kind: str
    applies: Callable[[Outline], bool]
    find: Callable[[str], Iterator[tuple[int, int]]]


def is_placeholder(value: str) -> bool:
    """Whether a value stands for a secret rather than being one: words for it, variables, few different characters."""
    if len(set(value)) <= 4 or any(mark in value for mark in ("$", "{", "%(", "*", "<")):
        return True
    upper = value.upper()
    return any(word in upper for word in (MARK, "EXAMPLE", "PLACEHOLDER", "YOUR", "XXXX", "0123456789", "ABCDEFGH"))


def _matches(pattern: re.Pattern[str], holds: Callable[[re.Match[str]], bool]) -> Callable[[str], Iterator]:
    """The last group of each match for which `holds` is true."""
    group = pattern.groups

    def find(text: str) -> Iterator[tuple[int, int]]:
        for match in pattern.finditer(text):
            if holds(match):
                yield match.span(group)

    return find


def _is_token(match: re.Match[str]) -> bool:
    """After a letter or digit it is part of a word; the n of an escaped newline, in JSON inside text, is none."""
    before = match.string[max(0, match.start() - 2) : match.start()]
    inside = before[-1:].isalnum() or before.endswith(("_", "-"))
    return (not inside or before in ("\\n", "\\r", "\\t")) and not is_placeholder(match[match.re.groups])


def _is_random(match: re.Match[str]) -> bool:
    """Letters and digits in turn, and many different ones: no identifier, no name with a number behind, no path."""
    value = match[1]
    return len(_CHANGE.findall(value)) >= 3 and len(set(value)) >= 10 and not is_placeholder(value)


def _is_assigned(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 30) : match.start()]
    return _SECRET_NAME.search(before) is not None and _is_random(match)


def _is_password(match: re.Match[str]) -> bool:
    user, password = match[1], match[2]
    common = password == user or password.lower() in _COMMON_PASSWORDS or (password.isdigit() and len(password) <= 5)
    return not common and not is_placeholder(password)


def _cards(text: str) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(text):
        digits = [int(char) for char in match[0] if char.isdigit()]
        doubled = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(digits[::-1])]
        if sum(doubled) % 10 == 0 and "".join(map(str, digits)) not in _TEST_CARDS and len(set(digits)) > 3:
            yield match.span()


def _phones(text: str) -> Iterator[tuple[int, int]]:
    """Of 8 to 15 digits (E.164), none of the fictional exchange 555, no placeholder."""
    for match in _PHONE.finditer(text):
        groups = re.findall(r"\d+", match[0])
        count = sum(map(len, groups))
        if 8 <= count <= 15 and "555" not in groups and set("".join(groups[-3:-1])) != {"0"}:
            yield match.span()


def _holds(*hints: str) -> Callable[[Outline], bool]:
    sought = [hint.encode() for hint in hints]
    return lambda outline: any(hint in outline.data for hint in sought)


def _holds_run(*hints: str) -> Callable[[Outline], bool]:
    return lambda outline: any(hint in outline.runs for hint in hints)


def _has_shape(*shapes: bytes) -> Callable[[Outline], bool]:
    return lambda outline: any(shape in outline.shape for shape in shapes)


def _token_finders() -> Iterator[Finder]:
    for prefixes, rest in _PREFIXED:
        hints = tuple(prefixes.split())
        pattern = re.compile(f"(?:{'|'.join(map(re.escape, hints))})({rest}){_END}")
        whole = any(hint.encode()[-1:] not in _WORD for hint in hints)
        yield Finder("token", (_holds if whole else _holds_run)(*hints), _matches(pattern, _is_token))


_LONG_DIGITS = (b"000000000000000", b"0000-0000-0000-0000", b"0000-000000-00000")
FINDERS = (
    Finder("private_key", _holds("PRIVATE KEY"), _matches(_PEM, lambda match: MARK not in match[1])),
    *_token_finders(),
    Finder("token", _holds(":AA"), _matches(_TELEGRAM, _is_token)),
    Finder("token", _holds("earer ", "EARER ", "asic ", "ASIC ", "oken ", "OKEN "), _matches(_HEADER, _is_random)),
    Finder("token", _holds("=", ":"), _matches(_ASSIGNED, _is_assigned)),
    Finder("url_password", _holds("://"), _matches(_URL, _is_password)),
    Finder("email", _holds("@"), email_addresses.spans),
    Finder("card", _has_shape(*_LONG_DIGITS), _cards),
    Finder("phone", _has_shape(b"000-0000", b"+0-", b"+00-", b"+000-", b"+0.", b"+00.", b"+000."), _phones),
)
