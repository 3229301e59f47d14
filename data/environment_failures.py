"""Failures of the environment of a GUI agent: a missing state, a CAPTCHA, an HTTP or network error page.

A page counts where the failure is its title, a heading or the whole name of an element, never inside other text: an
article or a search result that speaks of "404 Not Found" is no failure. The names are those that browsers (Chrome,
Firefox), web servers (nginx, Apache) and the makers of CAPTCHAs (Google, Cloudflare) show.
"""

import re

from agentworld.data.schema import Trajectory

GUI_DOMAINS = ("web", "android", "os")

# Accessibility trees of browsers, tables of AT-SPI ("tag<TAB>name"), HTML; and Android elements (text="..").
_PAGE = r"(?:\b(?:RootWebArea|heading) ['\"]|^(?:document-web|heading)\t|<(?:title|h1)>)"
_ANDROID = r"\b(?:text|desc)=\""
_ELEMENT = rf"(?:{_PAGE}|{_ANDROID}|\b(?:StaticText|checkbox|Iframe) ['\"]|^[a-z-]{{1,30}}\t)"
_END = r"\.?(?:['\"\t]|</)"
_STATUS = (
    r"(?:Bad Request|Unauthorized|Forbidden|(?:Page )?Not Found|Method Not Allowed|Request Time-?out|Gone"
    r"|Too Many Requests|Internal Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out)"
)
_HTTP = re.compile(
    rf"(?:{_PAGE}|{_ANDROID})(?:HTTP )?(?:(?:Status |Error )?[45]\d\d(?: Error)?[ :\u2013-]{{1,3}}{_STATUS}"
    rf"(?: [|\u2013-] [^'\"\t<]{{1,80}})?|Error [45]\d\d){_END}",
    re.MULTILINE | re.IGNORECASE,
)
_CHROME_CODES = "CONNECTION|NAME_NOT|INTERNET|TIMED_OUT|ADDRESS|EMPTY|SSL|TUNNEL|PROXY|CERT|NETWORK|HTTP|TOO_MANY"
_NETWORK = re.compile(
    rf"{_ELEMENT}(?:This (?:site|page) can.t be reached|This page isn.t working|Webpage not available|Aw, Snap!"
    rf"|(?:net::)?ERR_(?:{_CHROME_CODES})[A-Z_0-9]*){_END}"
    rf"|{_PAGE}(?:Unable to connect|Server Not Found|The connection has timed out|Problem loading page){_END}",
    re.MULTILINE,
)
_CAPTCHA = re.compile(
    rf"{_ELEMENT}(?:I.m not a robot|Verify(?:ing)? (?:that )?you are (?:a )?human|Are you a robot\?|Robot or human\?"
    rf"|Please verify (?:that )?you are (?:a human|not a robot)|Attention Required! \| Cloudflare"
    rf"|Our systems have detected unusual traffic from your computer network[^'\"\t<]{{0,300}}"
    rf"|Checking your browser before accessing[^'\"\t<]{{0,200}}){_END}|{_PAGE}Just a moment\.\.{_END}",
    re.MULTILINE,
)
# (what it is, pattern, texts of which one is in whatever the pattern matches: looking for those is fast)
_PAGES = (
    ("an HTTP error page", _HTTP, ("rror", "ERROR", " Request", " REQUEST", "nauthorized", "NAUTHORIZED", "orbidden",
     "ORBIDDEN", "ot Found", "OT FOUND", "ot found", " Allowed", " ALLOWED", " Gone", " GONE", "ad Gateway",
     "AD GATEWAY", "navailable", "NAVAILABLE", "ime-out", "IME-OUT", "imeout", "IMEOUT")),
    ("a network error page", _NETWORK, ("be reached", "t working", "not available", "Aw, Snap", "ERR_",
     "Unable to connect", "Server Not Found", "has timed out", "Problem loading")),
    ("a CAPTCHA", _CAPTCHA, ("robot", "Robot", "human", "Cloudflare", "unusual traffic", "Checking your browser",
     "Just a moment")),
)  # fmt: skip


def environment_failure(trajectory: Trajectory) -> str | None:
    """The first failure that a GUI trajectory shows, and after which turn; None without one and in other domains."""
    if trajectory.domain not in GUI_DOMAINS:
        return None
    states = [trajectory.system.initial_state, *(turn.observation for turn in trajectory.turns)]
    for number, state in enumerate(states):
        if state is None:
            continue  # the schema leaves the initial state open
        failure = "no state" if not state.strip() else failed_page(state)
        if failure is not None:
            return f"environment failure: {failure} {f'after turn {number}' if number else 'at the start'}"
    return None


def failed_page(state: str) -> str | None:
    """What kind of failure a page is: "an HTTP error page", "a network error page", "a CAPTCHA"; None for a page."""
    for failure, pattern, hints in _PAGES:
        if any(hint in state for hint in hints) and pattern.search(state):
            return failure
    return None
