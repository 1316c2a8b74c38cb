"""Answers in words, in one language: labels, tables of them, notices, and the figures of a prediction.

AnswerText("en").describe_memory(prediction.memory_gib)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crosszone.errors import format_place
from crosszone.text import label
from crosszone.text.figures import format_amount, format_digits, format_percent
from crosszone.views.document import Align, Cell, Fact, Mark, Paragraph, Remark, Remarks, Table

if TYPE_CHECKING:
    from crosszone.cost.operator_checks import OperatorError
    from crosszone.predict.prediction import Memory, Prediction, Run, Triple
    from crosszone.predict.predictor import Predictor

SMALL = 0.001  # Share of a step below which a part has no row of its own
IDLE = {"cp": 1, "ep": 1, "interleave": 1, "zero": 0, "recompute": "none"}  # Degrees that do nothing
DEGREES = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero", "recompute")


@dataclass(frozen=True)
class AnswerText:
    """What answers say, in one language."""

    language: str

    def label(self, key: str, **params: Any) -> str:
        """A label in this language."""
        return label(key, self.language, **params)

    def join(self, words: Iterable[str]) -> str:
        """Words with commas between them."""
        return self.label("comma").join(words)

    def build_fact(self, key: str, line: str, *, mark: Mark = "") -> Fact:
        """A line of text under the heading of a label."""
        return Fact(heading=self.label(key), text=line, mark=mark)

    def build_line(
        self, key: str, *, mark: Mark = "", indent: int = 0, wraps: bool = False, **params: Any
    ) -> Paragraph:
        """A label as a line of its own."""
        return Paragraph(text=self.label(key, **params), mark=mark, indent=indent, wraps=wraps)

    def build_headings(self, columns: str) -> tuple[tuple[str, Align], ...]:
        """Headings with their alignment; `columns` are label keys with blanks between, `>` before one aligned right."""
        return tuple(
            (self.label(key[1:]), "right") if key.startswith(">") else (self.label(key), "left")
            for key in columns.split()
        )

    def build_table(
        self,
        columns: str,
        rows: Iterable[Sequence[Cell]],
        *,
        title: str = "",
        caption: str = "",
        total: Iterable[Sequence[Cell]] = (),
        bad_rows: Iterable[int] = (),
        strong_rows: Iterable[int] = (),
        uncut: Iterable[int] = (),
        terminal_rows: int | None = None,
    ) -> Table:
        """A table whose headings are those of `build_headings`."""
        cells = tuple(tuple(row) for row in rows)
        return Table(
            headings=self.build_headings(columns),
            rows=cells,
            total=tuple(tuple(row) for row in total),
            title=title,
            caption=caption,
            bad_rows=frozenset(bad_rows),
            strong_rows=frozenset(strong_rows),
            uncut=frozenset(uncut),
            terminal_rows=terminal_rows,
            more=self.count_more(len(cells), terminal_rows),
        )

    def build_titled_table(self, columns: str, rows: Iterable[Sequence[Cell]], title: str, **options: Any) -> Table:
        """A table whose title keeps to its width; `options` are those of `build_table`."""
        return replace(self.build_table(columns, rows, title=title, **options), title_fits=True)

    def count_more(self, count: int, terminal_rows: int | None) -> str:
        """How many rows a terminal leaves out, in words; nothing where it shows all."""
        hidden = 0 if terminal_rows is None else count - terminal_rows
        return self.label("rows_more", count=format_amount(hidden)) if hidden > 0 else ""

    def list_remarks(self, notices: Iterable[Mapping[str, Any]]) -> Remarks:
        """Notices (as `Notice.as_dict` gives them) with place, level and remedy."""
        remarks = tuple(
            Remark(
                text=notice["message"],
                hint=notice["hint"],
                level=notice["level"],
                level_word=self.label(f"level_{notice['level']}"),
                place=format_place(notice["file"], notice["line"]),
            )
            for notice in notices
        )
        return Remarks(remarks=remarks, bullet="")

    def name_link(self, link: str) -> str:
        """A tier in words; a direction between zones is named by them."""
        return link if " > " in link else self.label(f"link_{link}")

    def format_range(self, triple: Triple, unit: str, factor: float = 1.0) -> str:
        """Expected value with its unit, and the range."""
        numbers = ((triple.expected, 4), (triple.low, 3), (triple.high, 3))
        value, low, high = (format_digits(number * factor, digits) for number, digits in numbers)
        return self.label("value_range", value=self.label(f"unit_{unit}", value=value), low=low, high=high)

    def describe_split(self, prediction: Prediction) -> str:
        """GPUs and degrees, without those that do nothing."""
        words = [
            f"{key} {prediction.strategy[key]}"
            for key in DEGREES
            if prediction.strategy[key] not in (None, IDLE.get(key))
        ]
        counts = {"gpus": format_amount(prediction.gpus), "m": format_amount(prediction.micro_batches)}
        return self.label("predict_split", degrees=self.join(words), **counts)

    def describe_speed(self, prediction: Prediction) -> str:
        """Tokens a second of all and of one GPU, and how much of the peak that is."""
        per_gpu = self.label(
            "speed_per_gpu",
            tokens=format_digits(prediction.tokens_per_s_per_gpu.expected),
            tflops=format_digits(prediction.tflops_per_gpu.expected),
        )
        share = self.label("speed_mfu", mfu=format_percent(prediction.mfu.expected))
        words = [self.format_range(prediction.tokens_per_s, "tokens_s"), per_gpu, share]
        # without recomputation both are the same number
        if prediction.hfu.expected > prediction.mfu.expected * (1 + SMALL):
            words.append(self.label("speed_hfu", hfu=format_percent(prediction.hfu.expected)))
        return self.join(words)

    def describe_memory(self, memory: Memory) -> str:
        """Whether it fits, how likely that is, and how much is left or missing."""
        more = "_over" if memory.margin < 0 and memory.verdict != "yes" else ""
        return self.label(
            f"memory_{memory.verdict}{more}",
            probability=f"{100 * memory.fits_probability:.0f} %",
            peak=self.format_range(memory.peak, "gib"),
            limit=format_digits(memory.limit),
            stage=memory.worst_stage,
            margin=format_digits(abs(memory.margin), 3),
        )

    def describe_run(self, run: Run) -> str:
        """Length of the whole run."""
        if run.steps is None or run.days is None or run.gpu_hours is None:
            return self.label("run_unknown")
        # 0.4 days says less than 10 hours
        short = run.days.expected < 1
        length = self.format_range(run.days, "hours", 24) if short else self.format_range(run.days, "days")
        counts = self.label(
            "run_counts",
            steps=format_amount(run.steps),
            gpu_hours=format_digits(run.gpu_hours.expected),
            goodput=format_percent(run.goodput.share),
        )
        return length + self.label("semicolon") + counts

    def describe_cost(self, run: Run) -> str:
        """Price of the run, or of an hour where its length is not known."""
        hour = [] if run.usd_per_hour is None else [self.label("cost_hour", usd=format_digits(run.usd_per_hour))]
        if run.usd is None:
            out = [self.label("cost_egress_alone", usd=format_digits(run.usd_egress))] if run.usd_egress else []
            return self.label("semicolon").join([*(hour or [self.label("cost_unknown")]), *out])
        out = [self.label("cost_egress", usd=format_digits(run.usd_egress))] if run.usd_egress else []
        out = [self.label("cost_egress_unknown")] if run.usd_egress is None else out
        return self.join([self.format_range(run.usd, "usd"), *out, *hour])

    def describe_energy(self, run: Run) -> str:
        """Energy and carbon of the run, and its power."""
        if run.kw is None:
            return self.label("energy_unknown")
        words = [self.format_range(run.kwh, "kwh")] if run.kwh else []
        words += [self.label("energy_co2", co2=format_digits(run.co2_kg.expected / 1000, 3))] if run.co2_kg else []
        return self.join([*words, self.label("energy_kw", kw=format_digits(run.kw))])

    def describe_bottleneck(self, prediction: Prediction) -> str:
        """The class that takes most of the step, then the others."""

        def name_class(key: str, name: str) -> str:
            return self.label(key, name=self.label(f"class_{name}"), share=format_percent(prediction.shares[name]))

        others_by_share = sorted(
            (name for name in prediction.shares if name != prediction.bottleneck),
            key=lambda name: -prediction.shares[name],
        )
        other_shares = self.join(
            name_class("class_share", name) for name in others_by_share if prediction.shares[name] >= SMALL
        )
        return self.label("semicolon").join(
            filter(None, [name_class("bottleneck_line", prediction.bottleneck), other_shares])
        )

    def _describe_operators(self, gpu: str, errors: Mapping[str, OperatorError]) -> str:
        """Mean errors of the step's formulas by family of operators."""
        names = {name: self.label(f"operator_{name.replace(' ', '_')}") for name in errors}
        errors_text = self.join(
            f"{names[name]} {format_digits(error.error_pct, 2)} %" for name, error in errors.items()
        )
        return self.label("basis_operators", gpu=gpu, errors=errors_text)

    def describe_basis(self, prediction: Prediction, predictor: Predictor) -> list[str]:
        """Framework, stack and where each GPU's coefficients come from; and what the range says."""
        groups = predictor.placed.groups
        measured = {groups[number].gpu.name: profile.gpu_measured for number, profile in predictor.profile.items()}
        gpus = self.join(
            self.label("basis_measured" if measured[gpu] else "basis_derived", gpu=gpu, family=family)
            for gpu, family in prediction.basis.gpu_profiles.items()
        )
        low, high = (format_digits(100 * (factor - 1), 2) for factor in (prediction.basis.low, prediction.basis.high))
        own_profile = prediction.basis.own_profile
        return [
            self.label("basis_line", framework=predictor.framework.title, stack=prediction.basis.stack, gpus=gpus),
            *([self.label("basis_own", name=own_profile)] if own_profile else []),
            *(self._describe_operators(gpu, errors) for gpu, errors in prediction.basis.operators.items()),
            self.label("basis_band", low=low, high=high),
        ]
