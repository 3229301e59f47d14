"""ZeRO-3 and expert parallelism on two GPUs beside one: losses, tokens/s, memory, exposed communication, router load.

A slice of 4 layers of the 35B architecture at its true widths, random weights, CPT steps through the stage's own
trainer and DeepSpeed configuration. Every case trains on the same global rows: two packed rows a step, of different
numbers of labels; four steps, then the same rows again in another order. The router's auxiliary loss is off: it is
taken for each micro-batch of a rank, so it differs between one and two ranks by design.

    python -m bench.expert_parallel --out two.jsonl                    # two GPUs: true widths, bf16
    python -m bench.expert_parallel --widths narrow --out two.jsonl    # fp32, widths of a sixteenth
    python -m bench.expert_parallel --widths tiny --cases one zero3-ep2    # CPU, gloo: does the program run?
    python -m bench.expert_parallel --compare two.jsonl                # only the comparison

One JSON line a case, then a line for each that is compared with case "one" of the same widths. Exit code 1 where a case
failed or a loss or gradient norm differs by more than the tolerance.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import rank_processes

PROGRAM = "bench.expert_parallel"
CASES = {  # ranks, ZeRO stage, expert parallelism
    "one": (1, 3, 1),
    "zero3": (2, 3, 1),
    "zero3-ep2": (2, 3, 2),
    "zero1-ep2": (2, 1, 2),
}
NARROW = {
    "hidden_size": 512,
    "num_attention_heads": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
ROW_TOKENS = {"real": 8192, "narrow": 2048, "tiny": 128}
VOCABULARY = {"real": 248320, "narrow": 4096, "tiny": 512}
TOLERANCE = {"real": 5e-3, "narrow": 1e-4, "tiny": 1e-4}  # of losses and, ten times as wide, of norms; relative
WORDS = 512  # different tokens in the data: few, so that the loss falls within eight steps
STEPS, EPOCH_STEPS, WARM_STEPS = 8, 4, 2
ROWS_A_STEP = 2
DOCUMENTS = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)  # parts of a packed row


def main() -> int:
    options = _options()
    if options.one:
        _measure(json.loads(options.one), Path(options.result))
        return 0
    if options.compare:
        lines = [json.loads(line) for line in options.compare.read_text().splitlines()]
        return 1 if _compare(lines) else 0
    failed = False
    for name in options.cases:
        line = run_case(name, options)
        failed |= "error" in line
        rank_processes.say(line, options.out)
        options.done.append(line)
    return 1 if _compare(options.done) or failed else 0


def _options() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=layout)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["one", "zero3", "zero3-ep2"])
    parser.add_argument("--widths", choices=list(ROW_TOKENS), default="real")
    parser.add_argument("--experts", type=int, default=256, help="of a layer at the true widths")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a case may take")
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--logs", type=Path, help="directory for the output of the ranks")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare the lines of FILE, run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.done = []
    return options


def run_case(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case in processes of its own, one a rank; its line, with "error" where a rank failed or time ran out."""
    ranks, zero, degree = CASES[name]
    case = {"case": name, "widths": options.widths, "ranks": ranks, "zero": zero, "expert_parallel": degree}
    case |= {"experts": options.experts, "learning_rate": options.learning_rate}
    with tempfile.TemporaryDirectory() as temporary:
        logs = options.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        results = [Path(temporary) / f"{rank}.json" for rank in range(ranks)]
        files = [logs / f"{options.widths}-{name}-{rank}.log" for rank in range(ranks)]
        commands = [["-m", PROGRAM, "--one", json.dumps(case), "--result", str(result)] for result in results]
        try:
            rank_processes.run(commands, files, options.limit, {})
        except rank_processes.RankError as error:
            return {**case, "error": str(error)}
        return {**case, **_line([json.loads(result.read_text()) for result in results])}


def _line(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks found, as one line: steps of the first (they are global), time and memory of each."""
    import statistics

    first = ranks[0]
    seconds = [max(of_step) for of_step in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    timed = [first["tokens_a_step"] / second for second in seconds[WARM_STEPS:]]
    speed = {"median": statistics.median(timed), "range": [min(timed), max(timed)]}
    each = ("peak_gib", "reserved_gib", "communication", "parameters")
    return {
        "losses": first["losses"],
        "norms": first["norms"],
        "load_max_over_mean": first["load_max_over_mean"],
        "tokens_a_step": first["tokens_a_step"],
        "tokens_per_s": speed,
        "seconds": seconds,
        **{f"{key}_of_each_rank": [rank[key] for rank in ranks] for key in each},
        "kernels": first["kernels"],
        **first["machine"],
    }


def _compare(lines: list[dict[str, Any]]) -> bool:
    """Print each case beside "one"; True where one differs by more than the tolerance."""
    found = {(line["widths"], line["case"]): line for line in lines if "error" not in line}
    differs = False
    for (widths, name), line in found.items():
        reference = found.get((widths, "one"))
        if reference is None or line is reference:
            continue
        losses, norms = (_largest(line[key], reference[key]) for key in ("losses", "norms"))
        equal = losses <= TOLERANCE[widths] and norms <= 10 * TOLERANCE[widths]
        differs |= not equal
        verdict = {"compared": name, "with": "one", "widths": widths, "tolerance": TOLERANCE[widths], "equal": equal}
        print(json.dumps({**verdict, "largest_relative_difference": {"loss": losses, "norm": norms}}), flush=True)
    return differs


def _largest(values: list[float], reference: list[float]) -> float:
    return max(abs(value - other) / abs(other) for value, other in zip(values, reference, strict=True))


def _overrides(case: dict[str, Any]) -> list[str]:
    keys = [
        "stage=cpt",
        f"engine=zero{case['zero']}",
        f"engine.expert_parallel={case['expert_parallel']}",
        f"nproc={case['ranks']}",
        f"data.cpt_row_tokens={ROW_TOKENS[case['widths']]}",
        f"data.tokenizer_vocab_size={VOCABULARY[case['widths']]}",
        "model.path=''",
        "model.recompute=none",
        "model.architecture.num_hidden_layers=4",
        f"cpt.max_steps={STEPS}",
        f"cpt.learning_rate={case['learning_rate']}",
        "cpt.lr_scheduler=constant",
        "cpt.warmup_steps=0",
        "cpt.router_aux_loss_coef=0",
        "cpt.rows_per_device=1",
        f"cpt.gradient_accumulation_steps={ROWS_A_STEP // case['ranks']}",
    ]
    if case["widths"] == "tiny":
        return ["recipe=smoke", "engine.device=cpu", *keys]
    keys += ["cluster.nodes=1", f"model.architecture.num_experts={case['experts']}"]
    if case["widths"] == "narrow":
        keys += ["model.dtype=float32", *(f"model.architecture.{key}={value}" for key, value in NARROW.items())]
    return ["recipe=agentworld-35b-a3b", *keys]


def _rows(widths: str) -> list[dict[str, Any]]:
    """Packed rows of all steps of an epoch; every second one has labels in half of its tokens only, so a mean over the
    ranks' means is not the mean over labels."""
    import torch

    from bench.layer_speed import document_lengths

    tokens = ROW_TOKENS[widths]
    lengths = document_lengths(tokens, DOCUMENTS)
    draw = torch.Generator().manual_seed(1)
    words = torch.randperm(VOCABULARY[widths], generator=draw)[:WORDS]
    rows = []
    for number in range(ROWS_A_STEP * EPOCH_STEPS):
        ids = words[torch.randint(0, len(words), (tokens,), generator=draw)].tolist()
        labels = [-100] * lengths[0] + ids[lengths[0] :] if number % 2 else ids
        rows.append({"input_ids": ids, "labels": labels, "seq_lengths": lengths})
    return rows


def _measure(case: dict[str, Any], result: Path) -> None:
    """One rank: train, and write what was found."""
    from agentworld.train import compat, engine, kernels
    from agentworld.train.architecture import text_config
    from agentworld.train.compose import compose

    config = compose(_overrides(case))
    engine.start_rank(config.engine)
    compat.apply()
    active = kernels.install()

    from agentworld.train.router_load import RouterLoadCallback
    from bench import cpt_slice
    from bench.layer_speed import machine
    from bench.step_recorder import StepRecorder

    gpu = not engine.uses_cpu(config.engine)
    architecture, _ = text_config(config)
    model = cpt_slice.random_model(architecture, config.model.dtype, "cuda" if gpu else "cpu")
    parameters = sum(p.numel() for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        trainer = cpt_slice.packed_trainer(config, Path(folder), model, _rows(case["widths"]))
        recorder = StepRecorder(gpu, profiled_step=STEPS)
        trainer.add_callback(RouterLoadCallback(Path(folder), case["expert_parallel"]))  # before the next, which reads
        trainer.add_callback(recorder)
        trainer.train()
        engine.leave()
    found = {"tokens_a_step": ROWS_A_STEP * ROW_TOKENS[case["widths"]], "parameters": parameters}
    found |= {"kernels": active, "machine": machine(gpu), **recorder.found()}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
