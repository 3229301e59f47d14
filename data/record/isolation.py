"""Where recorded sessions live: a private root with a fixed HOME on Linux, or a plain temporary directory.

A private root is a mount, network and host-name namespace (as root, or through a user namespace) around a small tmpfs
tree: the system's programs mounted read-only, `/home/user`, `/tmp`, a few devices, and a network with nothing but a
loopback that is down. It is built once a worker process; each session enters it with `chroot` and without privileges.
"""

import ctypes
import os
import resource
import shutil
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

USER, HOST, HOME = "user", "box", "/home/user"
# Root drops to an id that no distribution hands out, so that a session shares its id with nobody on the host.
SESSION_ID = 61000
NAMESPACE_ID = 1000  # what the one mapped id is called inside a user namespace

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1  # linux/mount.h, kernel 5.12
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Who commits; no pager, no hints, no process in the background.
GIT_CONFIG = """[user]
	name = User
	email = user@box
[init]
	defaultBranch = main
[core]
	pager = cat
[advice]
	statusHints = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""
_FILE_BYTES, _CPU_SECONDS, _TMPFS_BYTES = 16 << 20, 60, 64 << 20


@dataclass(frozen=True)
class Place:
    """One worker's place for sessions: `root` is entered with chroot (None: no chroot), `home` and `path` are what the
    session sees, `outer_home` and `outer_tmp` are the same folders as the worker sees them."""

    mode: str
    root: str | None
    home: str
    path: str
    git_config: str | None  # value of GIT_CONFIG_SYSTEM where /etc/gitconfig is not ours
    outer_home: Path
    outer_tmp: Path | None
    drop_to: int | None  # user and group id of the session when the worker is root
    read_only: bool  # whether the system folders are mounted read-only

    def enter(self) -> None:
        """In the child of a fork, before exec: go into the place and give up every privilege."""
        if self.drop_to is not None:
            os.fchown(0, self.drop_to, self.drop_to)  # the terminal, so that /dev/stdout can be opened
        if self.root is not None:
            os.chroot(self.root)
        if self.drop_to is not None:
            os.setgroups([])
            os.setgid(self.drop_to)
            os.setuid(self.drop_to)
        os.chdir(self.home)
        os.umask(0o022)
        for limit, value in (
            (resource.RLIMIT_FSIZE, _FILE_BYTES),
            (resource.RLIMIT_CPU, _CPU_SECONDS),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (value, value))
        # Python ignores SIGPIPE and a background start ignores SIGINT; a shell would pass both on to its commands.
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if sys.platform == "linux":
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed worker takes its shell with it

    def give(self, path: Path) -> None:
        """Make a file that the worker created the session's own."""
        if self.drop_to is not None:
            os.chown(path, self.drop_to, self.drop_to)

    def wipe(self) -> None:
        """Empty HOME and /tmp; raises OSError when something cannot be removed."""
        for folder in (self.outer_home, self.outer_tmp):
            if folder is not None:
                for entry in list(os.scandir(folder)):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        os.unlink(entry.path)


def become_worker() -> None:
    """Make this process end with its parent, adopt the orphans of its sessions and never gain privileges."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def make_place(mode: str, base: Path) -> Place:
    """Build the place under the empty folder `base`.

    Raises:
        OSError: mode is `namespace` and the system does not permit it; this process is then of no further use.
    """
    python = _python()
    drop_to = SESSION_ID if os.geteuid() == 0 and _is_mapped(SESSION_ID) else None
    if mode == "plain":
        return _plain(base, python, drop_to)
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no namespaces")
    _unshare(user=drop_to is None)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    root = str(base)
    _tmpfs(root)
    _mount_system(root, python, NAMESPACE_ID if drop_to is None else drop_to)
    home, tmp = Path(root + HOME), Path(root, "tmp")
    _tmpfs(str(home.parent))
    _tmpfs(str(tmp))
    home.mkdir()
    tmp.chmod(0o1777)
    read_only = _set_read_only(root, True, _AT_RECURSIVE)
    if read_only:
        for folder in (str(home.parent), str(tmp)):
            _set_read_only(folder, False, 0)
    if drop_to is not None:
        os.chown(home, drop_to, drop_to)
    path = "/usr/local/bin:/usr/bin:/bin" if python is None else "/opt/bin:/usr/bin:/bin"
    return Place("namespace", root, HOME, path, None, home, tmp, drop_to, read_only)


def _plain(base: Path, python: Path | None, drop_to: int | None) -> Place:
    home, programs = base / USER, base / "bin"
    home.mkdir()
    programs.mkdir()
    config = base / "gitconfig"
    config.write_text(GIT_CONFIG)
    if python is not None:
        (programs / "python3").symlink_to(python)
    if drop_to is not None:
        closed = [str(folder) for folder in base.parents if not folder.stat().st_mode & stat.S_IXOTH]
        if closed:
            raise OSError(f"{closed[0]} is closed to other users; set TMPDIR to an open folder, such as /tmp")
        base.chmod(0o711)
        os.chown(home, drop_to, drop_to)
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    return Place("plain", None, str(home), path, str(config), home, None, drop_to, False)


def _python() -> Path | None:
    """The interpreter behind this one when the system folders have no python3, else None."""
    if any(os.access(folder + "/python3", os.X_OK) for folder in ("/usr/local/bin", "/usr/bin", "/bin")):
        return None
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def _is_mapped(number: int) -> bool:
    """Whether the id exists in this user namespace (a root that stands alone in one cannot change to another id)."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return True  # not Linux
    ranges = [(int(line.split()[0]), int(line.split()[2])) for line in lines]
    return any(first <= number < first + length for first, length in ranges)


def _unshare(user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWUTS | (_CLONE_NEWUSER if user else 0)
    _check(_libc().unshare(flags), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NAMESPACE_ID} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{NAMESPACE_ID} {gid} 1")
    name = HOST.encode()
    _check(_libc().sethostname(name, len(name)), "sethostname")


def _mount_system(root: str, python: Path | None, number: int) -> None:
    """Programs, libraries, devices and /proc of the host, and our own /etc, in the new root."""
    for name in _SYSTEM_FOLDERS:
        source = Path("/", name)
        if source.is_symlink():
            Path(root, name).symlink_to(os.readlink(source))
        elif source.is_dir():
            _bind(str(source), root)
    for folder in ("dev/pts", "etc", "home", "tmp", "proc", "opt/bin"):
        Path(root, folder).mkdir(parents=True)
    for name in ("/proc", "/dev/pts", *(f"/dev/{device}" for device in _DEVICES)):
        _bind(name, root)
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        if Path(name).exists():
            _bind(name, root)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        Path(root, "dev", name).symlink_to(f"/proc/self/{target}")
    passwd = f"root:x:0:0:root:/root:/bin/bash\n{USER}:x:{number}:{number}::{HOME}:/bin/bash\n"
    Path(root, "etc/passwd").write_text(passwd)
    Path(root, "etc/group").write_text(f"root:x:0:\n{USER}:x:{number}:\n")
    Path(root, "etc/gitconfig").write_text(GIT_CONFIG)
    Path(root, "etc/hostname").write_text(f"{HOST}\n")
    if python is not None:
        _bind(str(python.parent.parent), root)  # <prefix>/bin/python3 needs <prefix>/lib
        Path(root, "opt/bin/python3").symlink_to(python)


def _bind(source: str, root: str) -> None:
    target = Path(root + source)
    if stat.S_ISDIR(os.stat(source).st_mode):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, str(target), None, _MS_BIND | _MS_REC)


def _tmpfs(target: str) -> None:
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={_TMPFS_BYTES},mode=0755")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    code = _libc().mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options))
    _check(code, f"mount {source} on {target}")


def _set_read_only(target: str, on: bool, flags: int) -> bool:
    """mount_setattr(2): True when the kernel has it and did it."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY if on else 0, 0 if on else _ATTR_RDONLY, 0, 0)
    number, where, size = ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), ctypes.c_size_t(32)
    code = _libc().syscall(number, where, target.encode(), ctypes.c_uint(flags), ctypes.byref(attributes), size)
    return code == 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def _check(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
