"""The inside of the sandbox: started by `sandbox.py` as a file of its own, on the standard library alone.

    outer process   new user (unless root may do without), mount, network, process, IPC and host-name namespaces
    keeper          process 1 of them: an empty read-only file system, no privileges; reads one call at a time, forks
                    for it, waits for its answer within the limits, and never runs a line of a verifier itself
    call            one verifier on one prediction: no descriptor but the pipe of its answer, resource limits, and a
                    list of system calls without any that opens a file or a socket, starts a process or sends a signal

In, each as a `message`: the limits, then of each task its source and the number of its predictions, and each of those.
A call can look at all that its interpreter holds, so the keeper holds no prediction and no verifier but the call's own.
Out: one line of JSON a task, in order: [true, false, "why there is no verdict", ...]; or {"failed": why} where the
system does not permit the isolation.
"""

import ctypes
import errno
import gc
import importlib
import json
import math
import os
import platform
import random
import resource
import select
import signal
import struct
import sys
import time

# What a verifier may import: loaded before the file system is gone, as is what these load late.
MODULES = (
    "ast", "base64", "binascii", "bisect", "collections", "collections.abc", "csv", "dataclasses", "datetime",
    "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html", "html.parser", "io",
    "ipaddress", "itertools", "json", "math", "operator", "posixpath", "re", "shlex", "statistics", "string",
    "textwrap", "time", "typing", "unicodedata", "urllib.parse", "uuid", "xml.etree.ElementTree",
)  # fmt: skip
_LOADED_LATE = ("_strptime", "encodings.ascii", "encodings.latin_1", "encodings.idna", "encodings.utf_16")

NOBODY = 61000  # what root becomes: an id that no distribution hands out (data/record/isolation.py has it, too)
_NAMESPACE_ID = 1000  # what the one mapped id is called inside a user namespace
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CAPABILITY_VERSION = 0x20080522  # linux/capability.h, version 3

# System calls of a Python that computes, by (x86-64, AArch64) number; all others answer EPERM. -1: not there.
_AUDIT_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_SYSTEM_CALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "times": (100, 153), "getppid": (110, 173), "sigaltstack": (131, 132), "gettid": (186, 178), "time": (201, -1),
    "futex": (202, 98), "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "exit_group": (231, 94), "getrandom": (318, 278), "rseq": (334, 293),
}  # fmt: skip
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000

_LENGTH = struct.Struct("!Q")
_LIBC = ctypes.CDLL(None, use_errno=True)

TOKEN_BYTES = 16
REASON_CHARACTERS = 200  # of the reason why there is no verdict
_MESSAGE_BYTES = TOKEN_BYTES + 1 + 4 * REASON_CHARACTERS


def main() -> int:
    """Build the isolation, then become the keeper's parent; returns its exit status."""
    os.environ.clear()
    null = os.open("/dev/null", os.O_RDWR)
    for name in (*MODULES, *_LOADED_LATE):
        importlib.import_module(name)
    random.seed(0)
    try:
        program = system_call_filter(platform.machine())
        drop = leave_the_host()
    except OSError as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        return 0
    keeper = os.fork()
    if keeper != 0:
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    try:
        empty_the_file_system()
        give_up_privileges(drop)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of ids, which clears it
    except OSError as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        return 0
    limits = received()
    gc.collect()
    gc.freeze()
    while (task := received()) is not None:
        print(json.dumps(answers(*task, limits, null, program)), flush=True)
    return 0


def message(value: object) -> bytes:
    """A value as JSON behind its length, so that a reader takes no byte of the next."""
    text = json.dumps(value).encode()
    return _LENGTH.pack(len(text)) + text


def received() -> object:
    """The next `message` of the standard input, read without a buffer; None at its end."""
    size = _exactly(_LENGTH.size)
    return json.loads(_exactly(*_LENGTH.unpack(size))) if size else None


def _exactly(count: int) -> bytearray:
    found = bytearray()
    while len(found) < count and (part := os.read(0, min(count - len(found), 1 << 20))):
        found += part
    return found


def answers(source: str, count: int, limits: dict, null: int, program: ctypes.Array) -> list:
    """The answer of one verifier to each of its `count` predictions: true, false, or why there is none."""
    end = time.monotonic() + limits["batch_seconds"]
    found: list = []
    for _ in range(count):
        prediction = received()
        left = end - time.monotonic()
        if limits["stop"] and found and isinstance(found[-1], str):
            found.append("not asked: a call before ended without a verdict")
        elif left <= 0:
            found.append(f"not asked: the {limits['batch_seconds']:g} s of its batch were over")
        else:
            seconds = min(limits["seconds"], left)
            found.append(answer(source, prediction, seconds, limits["memory_bytes"], null, program))
    return found


def answer(source: str, prediction: str, seconds: float, memory: int, null: int, program: ctypes.Array) -> object:
    """Fork, run the call, and read its answer until it ends or `seconds` are over. Only a message that begins with the
    call's token counts, so nothing that a verifier prints, or writes to a descriptor that it finds, is a verdict."""
    token, (read_end, write_end) = os.urandom(TOKEN_BYTES), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _call(source, prediction, token, write_end, null, math.ceil(seconds) + 1, memory, program)
        finally:
            os._exit(1)
    os.close(write_end)
    message, status, end = b"", None, time.monotonic() + seconds
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    while len(message) <= _MESSAGE_BYTES and poll.poll(max(0.0, end - time.monotonic()) * 1000):
        part = os.read(read_end, _MESSAGE_BYTES + 1 - len(message))
        if not part:
            status = _ended(child, end)
            break
        message += part
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(read_end)
    if message[:TOKEN_BYTES] == token and status == 0:
        kind, text = message[TOKEN_BYTES : TOKEN_BYTES + 1], message[TOKEN_BYTES + 1 :]
        return {b"1": True, b"0": False}.get(kind, "no answer") if not text else text.decode("utf-8", "replace")
    return _why_none(message, status, seconds)


def _why_none(message: bytes, status: int | None, seconds: float) -> str:
    if len(message) > _MESSAGE_BYTES or (message and status is not None):
        return "wrote to the pipe of its answer"
    if status is None:
        return f"no answer within {seconds:.3g} s"
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended without an answer (exit status {status})"


def _ended(child: int, end: float) -> int | None:
    """The exit status of a child that closed its pipe; None if it is still there at `end`."""
    while True:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.0002)


def _call(
    source: str, prediction: str, token: bytes, write_end: int, null: int, cpu: int, memory: int, program: ctypes.Array
) -> None:
    """In the fork: close every door, run the verifier, send its answer."""
    write, leave = os.write, os._exit  # a verifier may replace those of the module
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, 256)
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu)):
        resource.setrlimit(limit, (value, value))
    for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(program))
    write(write_end, token + _decided(source, prediction))
    leave(0)


def _decided(source: str, prediction: str) -> bytes:
    """`1`, `0`, or `e` and the reason why there is no verdict."""
    try:
        names: dict = {"__name__": "verifier"}
        exec(compile(source, "verifier", "exec"), names)
        verify = names.get("verify")
        if not callable(verify):
            return b"eno function verify"
        found = verify(prediction)
        if type(found) is not bool:
            return f"eanswered {type(found).__name__}, not True or False".encode()
        return b"1" if found else b"0"
    except MemoryError:
        return b"eMemoryError"
    except BaseException as error:  # SystemExit and KeyboardInterrupt are no verdict either
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return b"e" + words[:REASON_CHARACTERS].encode("utf-8", "replace")


def system_call_filter(machine: str) -> ctypes.Array:
    """The sock_fprog of the seccomp filter (linux/filter.h), with its program behind it in one buffer.

    Raises:
        OSError: a processor whose numbers of system calls are not known here.
    """
    if sys.platform != "linux" or machine not in _AUDIT_ARCH:
        raise OSError(f"the system calls of {sys.platform} on {machine} are not known to the sandbox")
    column, arch = _AUDIT_ARCH[machine]
    numbers = [pair[column] for pair in _SYSTEM_CALLS.values() if pair[column] >= 0]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(16 + len(code))
    buffer.raw = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer) + 16) + code
    return buffer


def leave_the_host() -> int | None:
    """Enter new namespaces; returns the id to drop to, None inside a user namespace of our own."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    flags, uid, gid = _NEWNS | _NEWNET | _NEWPID | _NEWIPC | _NEWUTS, os.geteuid(), os.getegid()
    if uid == 0 and _is_mapped(NOBODY) and _LIBC.unshare(flags) == 0:
        return NOBODY
    _check(_LIBC.unshare(flags | _NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_NAMESPACE_ID} {uid} 1"),
                       ("gid_map", f"{_NAMESPACE_ID} {gid} 1")):  # fmt: skip
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return None


def empty_the_file_system() -> None:
    """An empty tmpfs that nobody can write, over a folder that every Linux has, becomes the root."""
    _check(_LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount /")
    flags = ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _check(_LIBC.mount(b"tmpfs", b"/proc", b"tmpfs", flags, b"size=4096,mode=0555"), "mount tmpfs")
    os.chroot("/proc")
    os.chdir("/")


def give_up_privileges(drop: int | None) -> None:
    """Become `drop`, or, None, let go of all capabilities that the user namespace gave."""
    if drop is not None:
        os.setgroups([])
        os.setgid(drop)
        os.setuid(drop)
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_LIBC.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def _is_mapped(number: int) -> bool:
    """Whether the id exists in this user namespace (a root that stands alone in one cannot change to another)."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= number < first + length for first, _, length in ranges)


def _prctl(option: int, value: int, third: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    code = _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(third), zero, zero)
    _check(code, f"prctl {option}")


def _check(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
