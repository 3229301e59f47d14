"""As much of a W&B server, on the loopback interface, as a client needs to create, resume and fill runs."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """What was sent: `runs` by id with the fields of their creation, and the lines of their history."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.address = ""

    def graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self._bucket(given), "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "cnVu", "uploadHeaders": [], "files": files}}
        if "ResumeStatus" in query:
            entity = {"id": "ZW50", "name": "me"}
            return {"model": {"id": "cHJv", "name": "p", "entity": entity, "bucket": self._status(given["name"])}}
        return {"viewer": {"id": "dmll", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def _bucket(self, given: dict[str, Any]) -> dict[str, Any]:
        known = self.runs.setdefault(given["name"], {})
        known.update({key: value for key, value in given.items() if value is not None})
        project = {"id": "cHJv", "name": given["project"], "entity": {"id": "ZW50", "name": "me"}}
        lines = len(self.history.get(given["name"], []))
        return {"id": "cnVu", "name": given["name"], "displayName": known.get("displayName"), "description": None,
                "config": "{}", "sweepName": None, "project": project, "historyLineCount": lines}  # fmt: skip

    def _status(self, name: str) -> dict[str, Any] | None:
        lines = [json.dumps(line) for line in self.history.get(name, [])]
        if not lines:
            return None
        return {"id": "cnVu", "name": name, "displayName": name, "config": "{}", "summaryMetrics": lines[-1],
                "historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0,
                "historyTail": json.dumps(lines[-1:]), "eventsTail": "[]", "tags": [],
                "wandbConfig": json.dumps({"t": 1}), "createdAt": "2026-01-01T00:00:00"}  # fmt: skip

    def stream(self, path: str, body: dict[str, Any]) -> None:
        part = body.get("files", {}).get("wandb-history.jsonl")
        if part is not None:  # lines from an offset on replace what stood there, as on the real server
            name = re.search(r"/([^/]+)/file_stream$", path).group(1)
            lines = self.history.setdefault(name, [])
            lines[part["offset"] :] = [json.loads(line) for line in part["content"]]


@contextmanager
def wandb_server() -> Iterator[Server]:
    """Serve until the block ends."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            out: dict[str, Any] = {}
            if self.path.endswith("/graphql"):
                request = json.loads(body)
                out = {"data": state.graphql(request["query"], request.get("variables") or {})}
            elif self.path.endswith("/file_stream"):
                state.stream(self.path, json.loads(body))
            text = json.dumps(out).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = answer

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
