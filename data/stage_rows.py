"""From pools to what the stages read: packed rows of CPT and SFT, prompts of RL."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentworld.data.mixing import mix
from agentworld.data.packing import Packer
from agentworld.data.pools import lines_of, samples
from agentworld.data.rendering import CptCount, Rendering
from agentworld.data.rows import Prompt, PromptCount, packing_report, require_rows, write_prompts, write_rows
from agentworld.data.sft_samples import TeacherCount
from agentworld.data.simulation import InstructionCount


def write_stage_rows(
    rendering: Rendering,
    counts: dict[str, TeacherCount],
    directory: Path,
    scratch: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Render, pack and write rows and prompts; returns their part of the report."""
    (directory / "rows").mkdir()
    (directory / "prompts").mkdir()
    settings, share, packed = rendering.settings, rendering.settings.simulation_share, {}

    def write(name: str, packer: Packer) -> None:
        if not name.endswith("_heldout"):
            require_rows(name, packer.count)
        write_rows(directory / "rows" / f"{name}.parquet", packer.rows())
        packed[name] = packing_report(packer.count)

    cpt, count = Packer(settings.cpt_row_tokens, True, scratch), CptCount()
    cpt.add_all(rendering.cpt(lines_of(directory, "cpt"), share, count))
    tokens, trained = cpt.count.given_tokens, cpt.count.given_trained_tokens
    renderer, seed = rendering.renderer, rendering.seed
    mixture = mix(settings.documents, tokens, trained, renderer, seed, settings.on_bad, scratch, say)
    cpt.add_all(mixture.documents())
    write("cpt", cpt)
    heldout = Packer(settings.cpt_row_tokens, True, scratch)
    heldout.add_all(rendering.cpt(lines_of(directory, "eval"), 0.0, CptCount()))
    write("cpt_heldout", heldout)
    for name, pool, instructed_share in (("sft", "sft", share), ("sft_heldout", "eval", 0.0)):
        packer = Packer(settings.sft_row_tokens, False, scratch)
        packer.add_all(rendering.sft(samples(directory, counts, pool), instructed_share))
        write(name, packer)
    prompts, instructions = PromptCount(), InstructionCount()
    write_prompts(directory / "prompts" / "rl.parquet", _admitted(rendering, directory, prompts, instructions))
    told = {"share": share, "cpt": count.instructions.to_dict(), "rl": instructions.to_dict()}
    mask = {"enabled": settings.mask.enabled, **asdict(count.mask)}
    return {"mask": mask, "rows": packed, "rl": asdict(prompts), "instructions": told, "documents": mixture.report}


def _admitted(
    rendering: Rendering, directory: Path, count: PromptCount, instructions: InstructionCount
) -> Iterator[Prompt]:
    for prompt in rendering.prompts(lines_of(directory, "rl")):
        if count.admits(prompt, rendering.settings.rl_prompt_tokens):
            instructions.add(prompt.instruction)
            yield prompt
