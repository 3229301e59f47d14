"""One Weights & Biases run a stage, through the `wandb` package; nothing that happens there stops a training run.

The stages of a run share a group, and a stage that is resumed continues its W&B run: its id stands in
<stage>/wandb.json. Without a key or a network the run is written offline under <run>/wandb and can be sent later with
`wandb sync`: a stage that was resumed has several parts there, which become one run.
"""

import json
import netrc
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentworld.train.config import WandbSettings
from agentworld.train.run_directory import write_json

CONNECT_SECONDS = 5.0
INIT_SECONDS = 30.0
FINISH_SECONDS = 60.0  # for what is still to be uploaded at the end of a stage


class TrackedStage:
    """The W&B run of one stage, or nothing once W&B has failed: then one warning is printed and training goes on."""

    def __init__(
        self, settings: WandbSettings, stage: str, stage_dir: Path, group: str, config: Mapping[str, Any]
    ) -> None:
        """Start the run, or continue the one that <stage>/wandb.json names.

        Args:
            group: joins the stages of one run; config: the resolved recipe and the lineage, shown with the run.
        """
        self._run: Any = None
        self._failed = False
        if settings.mode == "disabled":
            return
        mode = settings.mode
        if mode == "online" and (obstacle := offline_reason()) is not None:
            self._warn(f"{obstacle}; writing offline")
            mode = "offline"
        try:
            self._run = _start(settings.project, mode, stage, stage_dir, group, config)
        except Exception as error:  # of any kind: wandb raises its own, of its server's and of its service's
            if mode == "offline":
                self._give_up(error)
                return
            self._warn(f"{_short(error)}; writing offline")
            try:
                self._run = _start(settings.project, "offline", stage, stage_dir, group, config)
            except Exception as second:
                self._give_up(second)

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of one line of metrics.jsonl on the axis of its `step`."""
        if self._run is None:
            return
        try:
            self._run.log({key: value for key, value in row.items() if isinstance(value, (int, float))})
        except Exception as error:  # as above
            self._give_up(error)

    def finish(self) -> None:
        """End the run, waiting `FINISH_SECONDS` at most for uploads."""
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:  # as above
            self._give_up(error)
        self._run = None

    def _give_up(self, error: Exception) -> None:
        self._run = None
        self._warn(f"{_short(error)}; going on without it")

    def _warn(self, text: str) -> None:
        if not self._failed:
            print(f"agentworld: WARNING: W&B: {text}", file=sys.stderr, flush=True)
        self._failed = True


def offline_reason() -> str | None:
    """Why an online run cannot start, found without a prompt and within seconds; None when nothing is in the way."""
    base_url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    address = urlsplit(base_url)
    in_environment = any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    if not in_environment and not _in_netrc(address.netloc):
        return "no key (set WANDB_API_KEY or run `wandb login`)"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")):
        return None  # the way to the server leads through the proxy: wandb finds out
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return f"{base_url} cannot be reached ({error})"
    return None


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _start(project: str, mode: str, stage: str, stage_dir: Path, group: str, config: Mapping[str, Any]) -> Any:
    # Where openai is loaded (an LLM judge), wandb advertises weave on the screen (integration/weave/weave.py:123).
    os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
    import wandb  # slow to import, and absent from a run with wandb.mode=disabled

    stored = stage_dir / "wandb.json"
    identity = json.loads(stored.read_text())["id"] if stored.is_file() else f"{stage}-{secrets.token_hex(6)}"
    run = wandb.init(
        project=project,
        id=identity,
        name=f"{group}-{stage}",
        group=group,
        job_type=stage,
        dir=str(stage_dir.parent),  # wandb makes its folder `wandb` in there
        config=dict(config),
        mode=mode,
        resume="allow",  # offline too: `wandb sync` then puts the parts of a resumed stage one after the other
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    write_json(stored, {"id": identity, "group": group, "project": project, "mode": mode})
    return run


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
