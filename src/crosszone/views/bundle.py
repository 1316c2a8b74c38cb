"""A bundle, and its run between emulated zones, as sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from crosszone.deploy.deploy import name_framework
from crosszone.text.figures import format_amount, format_digits
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Paragraph, Section

if TYPE_CHECKING:
    from crosszone.deploy.bundle import Bundle
    from crosszone.run.emulate.emulation import EmulationResult

MOST_NODES = 8  # Nodes whose commands are printed; the others stand in the files


def build_bundle_section(bundle: Bundle, output: str | None, text: AnswerText) -> Section:
    """The commands of the first nodes, and where the files are."""
    title = text.label(
        "deploy_head", framework=name_framework(bundle.framework), launcher=bundle.launcher, ranks=bundle.world_size
    )
    rows = []
    for node in bundle.nodes[:MOST_NODES]:
        cells = (node.script, node.zone, node.address or "-", ", ".join(node.ranks), "\n".join(node.commands))
        rows.append(tuple(map(escape, cells)))
    columns = "deploy_node deploy_zone deploy_address deploy_ranks deploy_command"
    blocks: list[Block] = [text.build_titled_table(columns, rows, title)]
    if len(bundle.nodes) > MOST_NODES:
        blocks.append(text.build_line("deploy_more", more=len(bundle.nodes) - MOST_NODES, wraps=True))
    blocks += [Paragraph(text=line, indent=2) for line in bundle.how]
    if output is not None:
        end = text.label("deploy_written", output=output, files=len(bundle.files))
    else:
        end = text.label("deploy_dry", files=len(bundle.files))
    return Section(blocks=(*blocks, Paragraph(text=end)))


def build_emulation_section(run: EmulationResult, text: AnswerText) -> Section:
    """The parts of a step, the links, what came out, and everything that is not as in the scenario."""
    rows: list[tuple[str, ...]] = [
        (
            text.label(f"twin_part_{part.name}"),
            _format_ms(part.predicted_s),
            f"{_format_ms(part.low_s)} - {_format_ms(part.high_s)}",
            "-" if part.measured_s is None else _format_ms(part.measured_s),
            "-" if part.ratio is None else f"{part.ratio:.2f}",
        )
        for part in (*run.parts, run.step)
    ]
    title = text.label("emulate_head", framework=run.framework, nodes=len(run.nodes), steps=run.counted)
    columns = "emulate_part >emulate_predicted >emulate_range >emulate_measured >emulate_ratio"
    blocks: list[Block] = [text.build_titled_table(columns, rows, title)]
    if run.links:
        rows = [
            (
                f"{link.sender} > {link.receiver}",
                format_digits(link.gbps * 1e3),
                format_digits(link.rtt_ms),
                _format_mb(link.predicted_bytes_per_step),
                "-" if link.bytes_per_step is None else _format_mb(link.bytes_per_step),
            )
            for link in run.links
        ]
        columns = "emulate_link >emulate_rate >emulate_rtt >emulate_sent_predicted >emulate_sent"
        blocks.append(text.build_titled_table(columns, rows, text.label("emulate_links")))
    if run.tokens_per_s is not None:
        rate = text.label("emulate_rate_line", tokens=format_amount(run.tokens_per_s))
        blocks.append(Paragraph(text=rate, wraps=True))
    if run.first_loss is not None and run.last_loss is not None:
        loss = text.label("emulate_loss_line", first=f"{run.first_loss:.3f}", last=f"{run.last_loss:.3f}")
        blocks.append(Paragraph(text=loss, wraps=True))
    if run.kept is not None:
        blocks.append(text.build_line("emulate_kept", folder=run.kept))
    return Section(blocks=(*blocks, text.list_remarks(run.notices)))


def _format_ms(seconds: float) -> str:
    return format_digits(seconds * 1e3)


def _format_mb(size: float) -> str:
    return format_digits(size / 1e6)
