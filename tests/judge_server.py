"""An OpenAI-compatible judge on the loopback interface for tests and demonstrations; never packaged.

It scores like the offline scorer (rewards/rubric.py), takes the answer of a pair that the scorer puts higher, takes the
longer of two candidates for real, and can be told to misbehave:

    python tests/judge_server.py --port 8000 --faults 0.3
"""

import argparse
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentworld.rewards.rubric import RubricScores, reference_scores

TRANSIENT = (
    "late",
    "429",
    "429-date",
    "500",
    "garbage",
    "html",
    "half-json",
    "cut",
    "out-of-range",
    "partial",
    "empty",
)
KEY = "sk-test-0123456789"


@dataclass
class Request:
    """One request as the server saw it: `time` on the monotonic clock, `fault` or "" for a good answer."""

    time: float
    model: str
    user: str
    fault: str
    body: dict[str, Any]
    authorization: str


def closer(first: str, second: str, truth: str, action: str) -> str:
    """The answer that the offline scorer puts higher; of two candidates, where there is no truth, the longer."""
    if not truth:
        return "A" if (len(first), first) > (len(second), second) else "B"
    levels = [reference_scores(text, truth, action).mean for text in (first, second)]
    return "tie" if levels[0] == levels[1] else "A" if levels[0] > levels[1] else "B"


@dataclass
class JudgeServer:
    """What the server does, and what it was asked. `fault(request)` names the fault of an answer, "" for none."""

    fault: Callable[[Request], str] = lambda request: ""
    score: Callable[[str, str, str], RubricScores] = reference_scores
    choose: Callable[[str, str, str, str], str] = closer  # of first, second, truth ("" in the Turing test), action
    answer: Callable[[str], str] | None = None  # to the user's message, in place of an evaluation
    late_seconds: float = 0.6
    retry_after: float = 0.0
    address: str = ""
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: dict[str, Any], authorization: str) -> Request:
        user = body["messages"][-1]["content"]
        with self.lock:
            request = Request(time.monotonic(), body["model"], user, "", body, authorization)
            request.fault = self.fault(request)
            self.requests.append(request)
        return request

    def reply(self, user: str) -> str:
        """What a judge would say: thoughts, then the evaluation of the sections of the prompt."""
        action = section(user, "ACTION TO ANSWER")
        for kind in ("CANDIDATE", "ANSWER"):
            if f"\n[{kind} A " in user:
                first, second = (section(user, f"{kind} {letter}") for letter in "AB")
                truth = section(user, "TRUTH") if kind == "ANSWER" else ""
                winner = {"winner": self.choose(first, second, truth, action)}
                return f"So: <final_evaluation>{json.dumps(winner)}</final_evaluation>"
        scores = asdict(self.score(section(user, "PREDICTION"), section(user, "TRUTH"), action))
        return f"<think>Is it <final_evaluation>?</think>\n<final_evaluation>{json.dumps(scores)}</final_evaluation>"


def section(user: str, name: str) -> str:
    """The text of a section of a judge's prompt, found as a judge would: by the mark that its first line names."""
    mark = re.match(r"The mark of this case is (\w+)\.", user).group(1)
    return user.split(f"[{name} {mark}]\n", 1)[1].split(f"\n[/{name} {mark}]", 1)[0]


def share_of(share: float, kinds: tuple[str, ...] = TRANSIENT, seed: int = 0) -> Callable[[Request], str]:
    """Faults for a share of the requests, drawn by a seeded generator."""
    draw = random.Random(seed)
    return lambda request: draw.choice(kinds) if draw.random() < share else ""


@contextmanager
def judge_server(port: int = 0, **options: Any) -> Iterator[JudgeServer]:
    """Serve until the block ends."""
    state = JudgeServer(**options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer

        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if len(data) < int(self.headers["content-length"]):  # who gave up while sending
                return
            body = json.loads(data)
            request = state.take(body, self.headers.get("authorization", ""))
            if request.fault == "late":
                time.sleep(state.late_seconds)
            try:
                self._answer(request)
            except (BrokenPipeError, ConnectionResetError):  # who gave up on a late answer
                self.close_connection = True

        def _answer(self, request: Request) -> None:
            fault = request.fault
            if fault in ERRORS or fault.startswith("429"):
                headers = {"429": {"retry-after": f"{state.retry_after:g}"}}.get(fault, {})
                if fault == "429-date":
                    moment = time.gmtime(time.time() + state.retry_after)
                    headers = {"retry-after": time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment)}
                text = json.dumps({"error": {"message": f"refused {request.authorization}", "code": fault}})
                return self._send(int(fault[:3]), text, headers=headers)
            if fault == "html":
                return self._send(200, "<html><body>Bad gateway</body></html>", "text/html")
            completion = {
                "id": "c", "object": "chat.completion", "created": 1, "model": request.model,
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": self._text(request)}}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }  # fmt: skip
            text = json.dumps(completion)
            if fault == "half-json":
                text = text[: len(text) // 2]
            self._send(200, text, cut=fault == "cut")

        def _text(self, request: Request) -> str | None:
            if request.fault == "garbage":
                return "I would say it is rather good: 4 of 5."
            if request.fault == "empty":
                return None
            reply = (state.answer or state.reply)(request.user)
            if request.fault == "out-of-range":
                reply = re.sub(r'"realism": [\d.]+', '"realism": 7', reply)
            if request.fault == "partial":
                reply = re.sub(r'"quality": [\d.]+', '"remark": 1', reply)
            return reply

        def _send(
            self, status: int, text: str, kind: str = "application/json", headers=None, cut: bool = False
        ) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in {"content-type": kind, "content-length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.wfile.flush()
            self.close_connection = self.close_connection or cut

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    httpd = Server(("127.0.0.1", port), Handler)
    state.address = f"http://127.0.0.1:{httpd.server_port}/v1"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


ERRORS = ("400", "401", "404", "500", "503")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests that are answered badly")
    arguments = parser.parse_args()
    with judge_server(arguments.port, fault=share_of(arguments.faults)) as server:
        print(f"reward=judge reward.judge.base_url={server.address} reward.judge.model=test", flush=True)
        try:
            while True:
                time.sleep(60)
        except KeyboardInterrupt:
            print(Counter(request.fault or "good" for request in server.requests))


if __name__ == "__main__":
    main()
