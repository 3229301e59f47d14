"""The manifest of a prepared data directory: what belongs to it, byte for byte.

`report.json` is no part of it: it holds timings, and equal data shall have an equal hash.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
REPORT = "report.json"


def write_manifest(directory: Path) -> dict[str, Any]:
    """Write {"files": {relative path: {"bytes", "sha256"}}, "sha256": of the files object} and return it."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in (MANIFEST, REPORT):
            files[name] = {"bytes": path.stat().st_size, "sha256": _sha256_of(path)}
    manifest = {"files": files, "sha256": _sha256_of_files(files)}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def is_prepared(directory: Path) -> bool:
    """Whether the directory has a manifest and every file that it names, unaltered."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if manifest["sha256"] != _sha256_of_files(files) or not (directory / REPORT).is_file():
            return False
        return all(_is_unaltered(directory / name, entry) for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, unreadable, or no manifest at all
        return False


def _is_unaltered(path: Path, entry: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == entry["bytes"] and _sha256_of(path) == entry["sha256"]


def _sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_files(files: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
