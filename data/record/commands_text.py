"""Command families that read text: filters, pipes and here-documents."""

from agentworld.data.record.world import World


def wc(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    name = world.text(path)
    return world.rng.choice((f"wc -l {name}", f"wc -w {name}", f"wc -l < {name}", f"wc -c {name}"))


def grep(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    option = world.rng.choice(("", "", "", "-c ", "-n ", "-v "))
    word = world.line_word(path)
    found = any((word in line) != (option == "-v ") for line in world.files[path])
    command = f"grep {option}{word} {world.text(path)}"
    return command if found else world.fail(command)


def sed(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    name, old, new = world.text(path), world.line_word(path), world.word()
    if world.chance(0.3) and path not in world.scripts:
        world.set_file(path, [line.replace(old, new, 1) for line in world.files[path]])
        return f"sed -i 's/{old}/{new}/' {name}"
    return world.rng.choice((f"sed 's/{old}/{new}/' {name}", f"sed -n 1p {name}", f"sed '/{old}/d' {name}"))


def awk(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    program = world.rng.choice(("{print $1}", "{print $2, $1}", "{print NR, $0}", "END {print NR}", "{print NF}"))
    return f"awk '{program}' {world.text(path)}"


def sort(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return None
    if world.chance(0.2):
        numbers = [str(world.number()) for _ in range(3)]
        return f"printf '%s\\n' {' '.join(numbers)} | sort -n"
    return f"sort {world.rng.choice(('', '-r ', '-u '))}{world.text(path)}"


def cut(world: World) -> str | None:
    path = world.some_file()
    if path is None or world.chance(0.3):
        return f"echo {world.word()}:{world.word()} | cut -d: -f{world.rng.randint(1, 2)}"
    return f"cut -d' ' -f{world.rng.randint(1, 2)} {world.text(path)}"


def pipe(world: World) -> str | None:
    path = world.some_file()
    if path is None or world.chance(0.25):
        return f"echo {world.words(2, 3)} | {world.rng.choice(('wc -w', 'tr a-z A-Z', 'tr -d o'))}"
    name = world.text(path)
    tail = world.rng.choice(("sort | head -n 1", "sort | uniq -c", f"grep -c {world.line_word(path)}", "tail -n 1"))
    return f"cat {name} | {tail}"


def head(world: World) -> str | None:
    path = world.some_file()
    return (
        None
        if path is None
        else f"{world.rng.choice(('head', 'tail'))} -n {world.rng.randint(1, 2)} {world.text(path)}"
    )


def tr(world: World) -> str | None:
    path = world.some_file()
    if path is None:
        return f"echo {world.words()} | tr a-z A-Z"
    return f"tr {world.rng.choice(('a-z A-Z', 'o 0', '-d e'))} < {world.text(path)}"


def tee(world: World) -> str | None:
    path = world.target_file()
    if path is None:
        return None
    line = world.words()
    world.set_file(path, [line])
    return f"echo {line} | tee {world.text(path)}"


def seq(world: World) -> str:
    first = world.number(20)
    return world.rng.choice((f"seq {first} {first + 3}", f"seq -s, {first} {first + 4}", f"seq {first} 5 {first + 12}"))


def xargs(world: World) -> str | None:
    path = world.some_file()
    return (
        None
        if path is None
        else f"cat {world.text(path)} | xargs {world.rng.choice(('echo', '-n 1 echo', 'echo all:'))}"
    )


def diff(world: World) -> str | None:
    first, second = world.some_file(), world.some_file()
    if first is None or second is None or first == second:
        return None
    command = f"{world.rng.choice(('diff', 'cmp', 'diff -q'))} {world.text(first)} {world.text(second)}"
    return command if world.files[first] == world.files[second] else world.fail(command)


def heredoc(world: World) -> str | None:
    lines = [world.words(1, 2) for _ in range(world.rng.randint(1, 3))]
    body = "\n".join([*lines, "EOF"])
    path = world.target_file()
    if path is None or world.chance(0.3):
        return f"cat << EOF\n{body}"
    world.set_file(path, lines)
    return f"cat > {world.text(path)} << EOF\n{body}"


def redirect(world: World) -> str | None:
    path = world.target_file()
    if path is None:
        return None
    kind = world.number(3)
    if kind == 0:
        world.set_file(path, ["ls: cannot access 'lost.txt': No such file or directory"])
        return world.fail(f"ls lost.txt 2> {world.text(path)}")
    if kind == 1:
        return world.fail("cat none.txt 2>/dev/null")
    if kind == 2:
        names = [file[-1] for file in world.local_files()]
        world.set_file(path, sorted({*names, path[-1], *(folder[-1] for folder in world.local_folders())}))
        return f"ls > {world.text(path)}"
    word = world.word()
    world.set_file(path, [word])
    return f"{{ echo {word}; ls lost.txt; }} > {world.text(path)} 2>/dev/null; cat {world.text(path)}"
