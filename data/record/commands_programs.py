"""Command families that start programs: Python, scripts written in the session, and git in a scratch repository."""

from agentworld.data.record.world import FILES, World


def python(world: World) -> str:
    first, second, word = world.number(20), world.number(20), world.word()
    path = world.some_file()
    options = [
        f"print({first} + {second})",
        f"print({first} * {second})",
        f"print('{word}'.upper())",
        f"print(len('{word}'))",
        f"print(sorted({[world.number() for _ in range(3)]}))",
        f"print('{word}'[::-1])",
        f"print({{'{word}': {first}}})",
        "print([i * i for i in range(5)])",
    ]
    if path is not None:
        name = path[-1] if path[:-1] == world.here else None
        if name is not None:
            options += 2 * [f"print(open('{name}').read().split())", f"print(len(open('{name}').read()))"]
    kind = world.number(19)
    if kind == 0:
        return "python3 -c 'import time; print(int(time.time()))'"
    if kind == 1:
        return world.fail(world.rng.choice(("python3 -c 'print(1 / 0)'", f"python3 -c \"int('{word}')\"")))
    if kind == 2:
        return world.fail(f"python3 -c 'import sys; sys.exit({world.rng.randint(1, 9)})'")
    return f'python3 -c "{world.rng.choice(options)}"'


def script(world: World, with_python: bool = True) -> str | None:
    """A script is written, then run with changing arguments, shown or made executable."""
    if world.here is None:
        return None
    known = [path for path in sorted(world.scripts) if path in world.files and path[:-1] == world.here]
    if not known or world.chance(0.3):
        return _write_script(world, with_python)
    path = world.rng.choice(known)
    name, how = world.text(path), world.scripts[path]
    if how == "bash" and world.chance(0.2):
        return world.rng.choice((f"chmod +x {name} && ./{name} {world.word()}", f"bash -x {name} {world.word()}"))
    if world.chance(0.06):
        return world.fail(f"{how} {name[:1]}x{name[1:]}")
    arguments = f"{world.number(20)} {world.number(20)}" if how == "python3" else world.words(1, 2)
    return f"{how} {name} {arguments}"


def _write_script(world: World, with_python: bool) -> str:
    if with_python and world.chance(0.35):
        name, how = world.rng.choice(("calc.py", "run.py")), "python3"
        lines = [
            "import sys",
            "a, b = map(int, sys.argv[1:3])",
            world.rng.choice(("print(a + b)", "print(a * b)", "print(max(a, b))", f"print('{world.word()}', a - b)")),
        ]
    else:
        name, how = world.rng.choice(("run.sh", "job.sh")), "bash"
        lines = [
            f"echo {world.word()} $1",
            world.rng.choice(
                ("echo $#", f"[ -f {world.rng.choice(FILES)} ] && echo yes", f"exit {world.rng.randint(1, 9)}")
            ),
        ]
    path = (*world.here, name)
    world.set_file(path, lines)
    world.scripts[path] = how
    body = "\n".join(lines)
    return f"cat > {name} << 'EOF'\n{body}\nEOF"


def git(world: World) -> str | None:
    """The next sensible step in a repository: make it, stage, commit, look, branch; sometimes a step too early."""
    if world.here is None:
        return None
    if world.repository is None:
        if world.chance(0.06):
            return world.fail("git status")
        world.repository = world.here
        return world.rng.choice(("git init", "git init -q"))
    if world.here[: len(world.repository)] != world.repository:
        return None
    if world.staged:
        if world.chance(0.2):
            return world.rng.choice(("git status -s", "git status"))
        world.staged = False
        world.commits += 1
        text = world.words(1, 2)
        return f'git commit -m "{text}"' if world.chance(0.5) else f'git commit -q -m "{text}"'
    if world.commits == 0 or world.chance(0.35):
        world.staged = True
        if any(path[:-1] == world.here for path in world.files):
            if world.chance(0.35):
                world.staged, world.commits = False, world.commits + 1
                return f'git add . && git commit -m "{world.words(1, 2)}"'
            return "git add ."
        name, word = world.rng.choice(FILES), world.word()
        world.set_file((*world.here, name), [word])
        return f"echo {word} > {name} && git add {name}"
    return _look(world)


def _look(world: World) -> str:
    name = world.rng.choice(("dev", "fix", "test"))
    if world.chance(0.25):
        if name in world.branches:
            return f"git checkout {world.rng.choice(('-q ', ''))}{name}"
        world.branches.append(name)
        return f"git checkout -b {name}"
    forms = (
        "git log --oneline",
        "git status -s",
        "git log --format=%s",
        "git branch",
        "git diff --stat",
        "git ls-files",
    )
    return world.rng.choice((*forms, "git rev-parse HEAD", "git log -1"))
