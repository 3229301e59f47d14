"""E-mail addresses in running text, code and logs (RFC 5322 addresses without quotes and comments).

An "@" between words is more often a decorator, a package version, a matrix product or a shell prompt than an address,
so the domain has to end in a top-level domain that addresses really have, and not in one that is a file suffix.
"""

import re
from collections.abc import Iterator

_LOCAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")
_LONGEST_LOCAL = 64  # RFC 5321 section 4.5.3.1.1
_GENERIC = (
    "com|org|net|edu|gov|mil|int|info|biz|name|pro|dev|app|cloud|tech|online|site|xyz|email|company|group|solutions|"
    "agency|studio|global|digital|network|systems|software|institute|university|academy|science|health|media|world|"
    "today|life|live|shop|store|blog|club|space|team|work|works|foundation|international|ventures|capital|asia|museum"
)
# ISO 3166 codes in use as top-level domains, less those that are suffixes of files or methods (py sh md so).
_COUNTRIES = (
    "ac ad ae af ag ai al am ao ar as at au aw az ba bb bd be bf bg bh bi bj bm bn bo br bs bt bw by bz ca cc cd cf cg "
    "ch ci ck cl cm cn co cr cu cv cw cy cz de dj dk dm do dz ec ee eg er es et eu fi fj fk fm fo fr ga gd ge gf gg gh "
    "gi gl gm gn gp gq gr gt gu gw gy hk hn hr ht hu id ie il im in io iq ir is it je jm jo jp ke kg kh ki km kn kp kr "
    "kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc me mg mh mk ml mm mn mo mp mq mr ms mt mu mv mw mx my mz na nc ne "
    "nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw qa re ro rs ru rw sa sb sc sd se sg si sk sl "
    "sm sn sr st su sv sx sy sz tc td tf tg th tj tk tl tm tn to tr tt tv tw tz ua ug uk us uy uz va vc ve vg vi vn vu "
    "wf ws ye yt za zm zw"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"(?:{_LABEL}\.){{1,8}}(?i:{_GENERIC}|{'|'.join(_COUNTRIES.split())})(?![\w(-]|\.[a-z])")
# Reserved for examples and tests (RFC 2606, RFC 6761), and what people write for "some address".
_RESERVED = re.compile(
    r"(?:.*\.)?(?:example\.(?:com|org|net|edu)|(?:your|my|some)?-?(?:domain|company|email|site|server|host)\.(?:com|org|net)"
    r"|(?:foo|bar|baz|test|acme|xyz|abc)\.(?:com|org|net|bar))",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"[nrtbfv0]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}")
_BEFORE_HOST = re.compile(r"://(?:[^\s/@]*:)?$")
_COLOUR = re.compile(r"\d{1,3}m")


def spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each address, in order; those of examples, and the users of ssh remotes (git@), are left out."""
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        if domain is not None:
            start = _start(text, at)
            if start < at and not (_is_placeholder(text[start:at], domain[0]) or _is_in_url(text, start)):
                yield start, domain.end()
        at = text.find("@", at + 1)


def _start(text: str, at: int) -> int:
    """Where the local part before `at` begins: after an escape (`\\n` in JSON inside text), a colour, a diff's sign."""
    start = at
    while start > 0 and at - start < _LONGEST_LOCAL and text[start - 1] in _LOCAL:
        start -= 1
    if start > 0 and text[start - 1] == "\\" and (escape := _ESCAPE.match(text, start, at)):
        start = escape.end()
    elif text[start - 1 : start] in ("[", ";") and "\x1b" in text[max(0, start - 12) : start]:
        colour = _COLOUR.match(text, start, at)
        start = colour.end() if colour else start
    while start < at and text[start] in ".+-":
        start += 1
    return start


def _is_in_url(text: str, start: int) -> bool:
    """Whether user and host of a URL, `scheme://user@host` or `scheme://user:password@host`, only look like one."""
    return _BEFORE_HOST.search(text[max(0, start - 70) : start]) is not None


def _is_placeholder(local: str, domain: str) -> bool:
    remote = local in ("git", "hg", "svn") or "REDACTED" in local
    return remote or local.lower().startswith("your") or _RESERVED.fullmatch(domain) is not None
