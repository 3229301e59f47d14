"""A plan as tables of at most 100 columns."""

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from agentworld.train import compute, memory
from agentworld.train.plan import SIZES, Plan

WIDTH = 100  # columns


def render(plan: Plan) -> Group:
    """Everything that the plan says, in the order in which one asks for it."""
    return Group(
        *_heading(plan),
        _parameters(plan),
        _memory(plan),
        Text("Each part at its largest; the peak is the largest moment, not the sum of the parts. The CUDA context,"),
        Text("NCCL and what fragmentation costs come on top.\n"),
        _fits(plan),
        _work(plan),
        *_disk(plan),
        _checks(plan),
    )


def _heading(plan: Plan) -> list[Text]:
    config, engine = plan.config, memory.Engine.of(plan.config.engine)
    offload = " + optimizer on the CPU" if engine.offload_optimizer else ""
    return [
        Text(f"plan of {config.recipe}, stage={config.stage}: an estimate, nothing was run", style="bold"),
        Text(
            f"{plan.ranks} ranks, ZeRO-{engine.zero_stage}{offload}, experts over {engine.expert_parallel}, "
            f"{config.model.dtype}, recomputed: {config.model.recompute}"
        ),
        Text(
            f"architecture: {plan.source}\n" + ", ".join(f"{key} {getattr(plan.architecture, key):,}" for key in SIZES)
        ),
        Text(),
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, width=WIDTH, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _parameters(plan: Plan) -> Table:
    counted = plan.parameters
    table = _table("parameters (counted on the meta device)", "", "number", "share")
    for part, value in counted.parts.items():
        table.add_row(part.replace("_", " "), f"{value:,}", f"{value / counted.total:.1%}")
    table.add_section()
    table.add_row("total", f"{counted.total:,}", "", style="bold")
    active = f"active ({counted.experts_per_token} of {counted.experts} experts; with embedding and head)"
    table.add_row(active, f"{counted.active:,}", f"{counted.active / counted.total:.1%}")
    return table


def _memory(plan: Plan) -> Table:
    every = {**plan.stages, "evaluation": plan.evaluation}
    table = _table("memory of one GPU, GiB (estimate)", "", *every)
    parts = dict.fromkeys(part for used in every.values() for part in used.parts)
    for part in parts:
        table.add_row(part, *(_gib(used.parts.get(part, 0)) for used in every.values()))
    table.add_section()
    for moment in dict.fromkeys(moment for used in every.values() for moment in used.moments):
        table.add_row(f"at {moment}", *(_gib(used.moments.get(moment, 0)) for used in every.values()))
    table.add_section()
    table.add_row("peak", *(_gib(used.peak) for used in every.values()), style="bold")
    return table


def _fits(plan: Plan) -> Table:
    share = f"{memory.HEADROOM:.0%}"
    table = _table(f"fewest GPUs that fit all stages, {share} of the card left free", "engine", *memory.CARDS)
    for engine, cards in plan.fits.items():
        cells = []
        for fit in cards.values():
            if fit is None:
                cells.append("none")
                continue
            cells.append(f"{fit.gpus} (experts over {fit.expert_parallel}; {fit.stage} {fit.peak / 2**30:.0f} GiB)")
        table.add_row(engine, *cells)
    return table


def _work(plan: Plan) -> Table:
    table = _table("work, at most (rows full, prompts and completions at their limits)", "", *plan.work)
    rows = list(plan.work.values())
    table.add_row("optimizer steps", *(f"{work.steps:,}" for work in rows))
    table.add_row("tokens a step", *(_number(work.tokens_per_step) for work in rows))
    table.add_row("tokens in all", *(_number(work.steps * work.tokens_per_step) for work in rows))
    table.add_row(
        "of them sampled", *(_number(work.generated_tokens) if work.generated_tokens else "-" for work in rows)
    )
    table.add_row("operations", *(f"{work.flops:.2g}" for work in rows))
    table.add_row(f"hours at MFU {plan.mfu:g}", *(f"{work.hours:,.1f}" for work in rows))
    table.add_row(
        "hours of decoding", *(f"{work.decoding_hours:,.1f}" if work.decoding_hours else "-" for work in rows)
    )
    table.caption = (
        "operations: 6 x active parameters without the embedding, attention over half a row, the delta rule; and "
        f"what is recomputed. MFU: of {compute.PEAK_FLOPS / 1e12:.0f} TFLOP/s; two H200 with divided experts "
        "reached 0.15 with 8,192 tokens a GPU and 0.32 with 98,304. Decoding: "
        f"{compute.decoding_seconds(plan.architecture, plan.config.engine.expert_parallel):.2g} s a token, by the "
        "number of layers, from two measurements. Evaluation decodes for "
        f"{plan.evaluation_hours:,.1f} hours beside, if each answer is as long as allowed."
    )
    table.caption_justify = "left"
    return table


def _disk(plan: Plan) -> list[Text]:
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in plan.disk.items())
    lines = [
        Text(f"disk, GiB: {parts}; in all {_gib(sum(plan.disk.values()))}"),
        Text(f"CPU memory of a node while the model loads, GiB: {_gib(plan.host)}"),
    ]
    for file in plan.files:
        size = "not there" if file["bytes"] is None else f"{int(file['bytes']):,} bytes"
        lines.append(Text(f"reads {file['key']}: {file['path']}, {size}"))
    return [*lines, Text()]


def _checks(plan: Plan) -> Table:
    table = Table(title="checks", title_justify="left", box=None, width=WIDTH, pad_edge=False, show_header=False)
    for check in plan.checks:
        mark = Text("ok") if check.passed else Text("FAILS", style="bold red")
        table.add_row(mark, check.name, Text(check.detail))
    return table


def _number(value: int) -> str:
    for limit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if value >= limit:
            return f"{value / limit:.2f} {suffix}"
    return str(value)


def _gib(size: int) -> str:
    gib = size / 2**30
    if size == 0:
        return "-"
    return f"{gib:.3f}" if gib < 0.1 else f"{gib:,.1f}"
