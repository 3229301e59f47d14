"""Command families around files and folders. Each takes the world, changes it, and returns the keystrokes without the
last newline, or None when it does not apply now."""

from agentworld.data.record.world import DIRS, FILES, MISSING, OUTSIDE, UNKNOWN_COMMANDS, World


def echo(world: World) -> str:
    kind = world.number(9)
    if kind == 0:
        return f"echo {world.number()}"
    if kind == 1:
        return f'echo "{world.words(1, 2)}  {world.word()}"'
    if kind == 2:
        return f"echo {world.word()} {world.number()}"
    return f"echo {world.words()}"


def write(world: World) -> str | None:
    path = world.target_file()
    if path is None:
        return None
    kind = world.number(9)
    if kind < 2:
        lines = [world.word() for _ in range(world.rng.randint(2, 3))]
        world.set_file(path, lines)
        return f"printf '{''.join(line + chr(92) + 'n' for line in lines)}' > {world.text(path)}"
    line = str(world.number()) if kind == 2 else world.words()
    world.set_file(path, [line])
    return f"echo {line} > {world.text(path)}"


def append(world: World) -> str | None:
    path = world.some_file() if world.chance(0.85) else world.target_file()
    if path is None or path in world.scripts:
        return None
    line = world.words(1, 2)
    world.set_file(path, [*world.files.get(path, []), line])
    return f"echo {line} >> {world.text(path)}"


def cat(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    option = "-n " if world.chance(0.06) else ""
    second = world.some_file() if world.chance(0.12) else None
    more = f" {world.text(second)}" if second is not None and second != path else ""
    return f"cat {option}{world.text(path)}{more}"


def pwd(world: World) -> str:
    return "pwd"


def ls(world: World) -> str | None:
    if world.here is None:
        return None
    folder = world.some_folder()
    if folder is not None and world.chance(0.3):
        return f"ls {world.text(folder)}"
    return world.rng.choice(("ls", "ls", "ls", "ls -1", "ls -a", "ls -p"))


def mkdir(world: World) -> str | None:
    if world.here is None:
        return None
    folder = (*world.here, world.rng.choice(DIRS))
    if folder in world.folders:
        return world.fail(f"mkdir {world.text(folder)}")
    world.folders.add(folder)
    if world.chance(0.2):
        inner = (*folder, world.rng.choice(DIRS))
        world.folders.add(inner)
        return f"mkdir -p {world.text(inner)}"
    return f"mkdir {world.text(folder)}"


def cd(world: World) -> str | None:
    old = world.here
    options: list[tuple[str, tuple[str, ...] | None]] = []
    if old is None:
        options += [("cd", ()), ("cd ~", ())]
    else:
        options += 4 * [(f"cd {world.text(folder)}", folder) for folder in world.local_folders()]
        if old:
            options += 3 * [("cd ..", old[:-1])] + [("cd", ())]
        elif world.chance(0.15):
            options.append((f"cd {world.rng.choice(OUTSIDE)}", None))
        away = [folder for folder in sorted(world.folders) if folder != old and folder[:-1] != old and folder]
        options += [(f"cd ~/{'/'.join(folder)}", folder) for folder in away]
    if world.previous is not None and world.previous in world.folders and world.previous != old:
        options.append(("cd -", world.previous))
    if not options:
        return None
    command, world.here = world.rng.choice(options)
    world.previous = old
    return command


def rm(world: World) -> str | None:
    folder = world.some_folder()
    if folder is not None and world.chance(0.3) and not world.holds_present(folder):
        if world.chance(0.25):
            return world.fail(f"rm {world.text(folder)}")
        world.remove_folder(folder)
        return f"rm -r {world.text(folder)}"
    path = world.some_file()
    if path is None:
        return None
    name = world.text(path)
    del world.files[path]
    world.scripts.pop(path, None)
    return f"rm {'-v ' if world.chance(0.1) else ''}{name}"


def _destination(world: World) -> tuple[tuple[str, ...], str] | None:
    """Where a file goes, and how that is written: a new name, or a folder."""
    if world.here is None:
        return None
    folder = world.some_folder()
    if folder is not None and world.chance(0.5):
        return folder, world.text(folder) + "/"
    path = (*world.here, world.rng.choice(FILES))
    return path, world.text(path)


def mv(world: World) -> str | None:
    return _transfer(world, "mv")


def cp(world: World) -> str | None:
    return _transfer(world, "cp")


def _transfer(world: World, command: str) -> str | None:
    source, destination = world.some_file(), _destination(world)
    if source is None or destination is None:
        return None
    target, shown = destination
    target = (*target, source[-1]) if target in world.folders else target
    if target == source:
        return None
    text = f"{command} {world.text(source)} {shown}"
    lines = world.files[source]
    if command == "mv":
        del world.files[source]
        if source in world.scripts:
            world.scripts[target] = world.scripts.pop(source)
    world.set_file(target, list(lines))
    return text


def link(world: World) -> str | None:
    path = world.some_file()
    if path is None or path not in world.local_files():
        return None
    target = (*world.here, world.rng.choice(FILES))
    if target in world.files:
        return world.fail(f"ln -s {world.text(path)} {world.text(target)}")
    world.set_file(target, world.files[path])
    return f"ln -s {world.text(path)} {world.text(target)}"


def chmod(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    name = world.text(path)
    return world.rng.choice((f"chmod 600 {name} && stat -c %A {name}", f"chmod -v 644 {name}", f"chmod 755 {name}"))


def status(world: World) -> str:
    kind = world.number(9)
    if kind == 0:
        return f"(exit {world.rng.randint(1, 9)}); echo $?"
    if kind == 1:
        return "false; echo $?"
    return "echo $?"


def error(world: World) -> str:
    missing = world.rng.choice(MISSING)
    folder = world.rng.choice(DIRS)
    options = [
        f"cat {missing}",
        f"ls {missing}",
        f"rm {missing}",
        f"cp {missing} {world.rng.choice(FILES)}",
        f"{world.rng.choice(UNKNOWN_COMMANDS)} {world.word()}",
        world.rng.choice(UNKNOWN_COMMANDS),
    ]
    if world.here is not None:
        if (*world.here, folder) not in world.folders:
            options += [f"cd {folder}", f"mkdir {folder}/{world.rng.choice(DIRS)}", f"ls {folder}"]
        inside = world.some_folder()
        if inside is not None:
            options += [f"cat {world.text(inside)}", f"rmdir {world.rng.choice(MISSING)}"]
    return world.fail(world.rng.choice(options))


def test(world: World) -> str:
    path = world.some_file()
    name = world.text(path) if path is not None and world.chance(0.6) else world.rng.choice((*FILES, *DIRS))
    kind = world.number(3)
    if kind == 0:
        return f"[ -d {name} ] && echo yes || echo no"
    if kind == 1:
        first, second = world.number(20), world.number(20)
        return f"[ {first} -{world.rng.choice(('lt', 'gt', 'eq'))} {second} ] && echo yes || echo no"
    return f"[ -f {name} ] && echo yes || echo no"


def find(world: World) -> str | None:
    if world.here is None:
        return None
    return world.rng.choice(("find . -name '*.txt' | sort", "find . -type d | sort", "find . -type f", "ls -U"))
