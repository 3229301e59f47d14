"""Command families of the shell language: variables, arithmetic, loops, functions; and those of time and chance."""

from agentworld.data.record.world import FUNCTIONS, VARIABLES, World


def variable(world: World) -> str:
    known = sorted(world.variables)
    if not known or world.chance(0.35):
        name = world.rng.choice(VARIABLES)
        if name == "n":
            value = str(world.number(20))
            world.variables[name] = value
            return f"{name}={value}"
        value = world.words(1, 2)
        world.variables[name] = value
        return f'{name}="{value}"' if " " in value else f"{name}={value}"
    name = world.rng.choice(known)
    if world.chance(0.06):
        del world.variables[name]
        return f"unset {name}"
    return world.rng.choice(
        (f"echo ${name}", f"echo ${name}", f"echo ${name} {world.word()}", f'echo "{name} is ${name}"')
    )


def arith(world: World) -> str:
    first, second = world.number(20), world.rng.randint(1, 9)
    count = world.variables.get("n")
    if count is not None and world.chance(0.5):
        if world.chance(0.5):
            world.variables["n"] = str(int(count) + second)
            return f"n=$((n + {second}))"
        return f"echo $((n {world.rng.choice('+-*')} {second}))"
    return f"echo $(({first} {world.rng.choice('+-*%/')} {second}))"


def loop(world: World) -> str:
    kind = world.number(3)
    words = [world.word() for _ in range(world.rng.randint(2, 3))]
    if kind == 0:
        return f"for i in {' '.join(words)}; do echo $i; done"
    if kind == 1:
        return f"for i in {' '.join(words)}\ndo\necho $i {world.word()}\ndone"
    if kind == 2:
        return f"i=0; while [ $i -lt {world.rng.randint(2, 4)} ]; do echo $i; i=$((i+1)); done"
    path = world.some_file()
    if path is None:
        return f"for i in 1 2 3; do echo {world.word()} $i; done"
    return f"while read l; do echo {world.word()}: $l; done < {world.text(path)}"


def function(world: World) -> str:
    known = sorted(world.functions)
    if known and world.chance(0.65):
        return f"{world.rng.choice(known)} {world.words(1, 2)}"
    name = world.rng.choice(FUNCTIONS)
    world.functions.add(name)
    body = world.rng.choice(
        (f"echo {world.word()} $1", "echo $1 $1", "echo $# $2", f"echo $1; return {world.rng.randint(1, 9)}")
    )
    return f"{name}() {{ {body}; }}" if world.chance(0.7) else f"{name}() {{\n{body}\n}}"


def case(world: World) -> str:
    word = world.word()
    known = sorted(world.variables)
    subject = f"${world.rng.choice(known)}" if known else word
    return f"case {subject} in {word}) echo {world.word()};; *) echo other;; esac"


def branch(world: World) -> str:
    path = world.some_file()
    if path is None or world.chance(0.4):
        first, second = world.number(20), world.number(20)
        return f"if [ {first} -lt {second} ]; then echo {world.word()}; else echo {world.word()}; fi"
    return f"if grep -q {world.line_word(path)} {world.text(path)}; then echo found; else echo missing; fi"


def subst(world: World) -> str:
    path = world.some_file()
    if path is not None and world.chance(0.7):
        name = world.rng.choice(VARIABLES[:2])
        if world.chance(0.5):
            world.variables[name] = " ".join(world.files[path])
            return f"{name}=$(cat {world.text(path)})"
        return f'echo "$(wc -l < {world.text(path)}) lines"'
    return f"echo $(echo {world.words(1, 2)}) {world.word()}"


def brace(world: World) -> str:
    word, first = world.word(), world.number(20)
    return world.rng.choice(
        (f"echo {word}{{1,2,3}}", f"echo {{{first}..{first + 3}}}", f"echo {{{word},{world.word()}}}.txt")
    )


def glob(world: World) -> str | None:
    if world.here is None:
        return None
    return world.rng.choice(("echo *.txt", "ls *.txt", "echo *", "ls -d */", f"echo {world.word()[0]}*"))


def array(world: World) -> str:
    if world.arrays and world.chance(0.7):
        return world.rng.choice(("echo ${list[0]}", "echo ${list[1]}", "echo ${#list[@]}", "echo ${list[@]}"))
    world.arrays.add("list")
    return f"list=({world.words(2, 4)})"


def string(world: World) -> str:
    known = sorted(world.variables)
    if not known:
        world.variables["name"] = word = world.word()
        return f"name={word}; echo ${{#name}}"
    name = world.rng.choice(known)
    form = world.rng.choice(("${#%s}", "${%s^^}", "${%s:0:2}", "${%s%%e*}", "${%s:-none}", "${%s/o/0}"))
    return f"echo {form.replace('%s', name).replace('%%', '%')}"


def quote(world: World) -> str:
    name = world.rng.choice(VARIABLES)
    word = world.word()
    return world.rng.choice(
        (
            f"echo '${name} {word}'",
            f'echo "a \\"{word}\\" b"',
            f"echo {word}\\ \\ {world.word()}",
            f"echo -e '{word}\\n{world.word()}'",
        )
    )


def chain(world: World) -> str:
    word, other = world.words(1, 2), world.word()
    return world.rng.choice(
        (
            f"true && echo {word}",
            f"false || echo {word}",
            f"echo {word}; echo {other}",
            f"false && echo {word} || echo {other}",
        )
    )


def job(world: World) -> str:
    if world.jobs and world.chance(0.6):
        return "jobs"
    world.jobs += 1
    return "sleep 20 &"


def date(world: World) -> str:
    return world.rng.choice(("date", "date +%T", "date +%s", "date +%H:%M"))


def pid(world: World) -> str:
    kind = world.number(4)
    if kind == 0:
        world.variables["x"] = None
        return "x=$RANDOM"
    if kind == 1:
        world.variables["y"] = None
        return "y=$$"
    return world.rng.choice(("echo $$", "echo $RANDOM", f"echo {world.word()} $$"))
