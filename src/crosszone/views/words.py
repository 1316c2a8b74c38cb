"""The figures of a prediction in words, in one language: what the terminal and a report both say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crosszone.text import label
from crosszone.text.figures import format_amount, format_digits, format_percent

if TYPE_CHECKING:
    from crosszone.cost.operator_checks import OperatorError
    from crosszone.predict.prediction import Memory, Prediction, Run, Triple
    from crosszone.predict.predictor import Predictor

SMALL = 0.001  # Share of a step below which a part is not told by name
IDLE = {"cp": 1, "ep": 1, "interleave": 1, "zero": 0, "recompute": "none"}  # Degrees that do nothing
DEGREES = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero", "recompute")


@dataclass(frozen=True)
class Words:
    """Sentences about a prediction in one language."""

    language: str

    def said(self, key: str, **params: Any) -> str:
        """A label in this language."""
        return label(key, self.language, **params)

    def listed(self, words: Iterable[str]) -> str:
        """Words with commas between them."""
        return self.said("comma").join(words)

    def with_range(self, triple: Triple, unit: str, factor: float = 1.0) -> str:
        """Expected value with its unit, and the range."""
        numbers = ((triple.expected, 4), (triple.low, 3), (triple.high, 3))
        value, low, high = (format_digits(number * factor, most) for number, most in numbers)
        return self.said("value_range", value=self.said(f"unit_{unit}", value=value), low=low, high=high)

    def split(self, found: Prediction) -> str:
        """GPUs and degrees, without those that do nothing."""
        words = [f"{key} {found.strategy[key]}" for key in DEGREES if found.strategy[key] not in (None, IDLE.get(key))]
        counts = {"gpus": format_amount(found.gpus), "m": format_amount(found.micro_batches)}
        return self.said("predict_split", degrees=self.listed(words), **counts)

    def speed(self, found: Prediction) -> str:
        """Tokens a second of all and of one GPU, and how much of the peak that is."""
        per_gpu = self.said(
            "speed_per_gpu",
            tokens=format_digits(found.tokens_per_s_per_gpu.expected),
            tflops=format_digits(found.tflops_per_gpu.expected),
        )
        share = self.said("speed_mfu", mfu=format_percent(found.mfu.expected))
        words = [self.with_range(found.tokens_per_s, "tokens_s"), per_gpu, share]
        if found.hfu.expected > found.mfu.expected * (1 + SMALL):
            words.append(self.said("speed_hfu", hfu=format_percent(found.hfu.expected)))
        return self.listed(words)

    def memory(self, memory: Memory) -> str:
        """Whether it fits, and how much is left or missing."""
        return self.said(
            "memory_fits" if memory.fits else "memory_over",
            peak=self.with_range(memory.peak, "gib"),
            limit=format_digits(memory.limit),
            stage=memory.worst_stage,
            margin=format_digits(abs(memory.margin), 3),
        )

    def run(self, run: Run) -> str:
        """Length of the whole run."""
        if run.steps is None or run.days is None or run.gpu_hours is None:
            return self.said("run_unknown")
        short = run.days.expected < 1
        length = self.with_range(run.days, "hours", 24) if short else self.with_range(run.days, "days")
        counts = self.said(
            "run_counts",
            steps=format_amount(run.steps),
            gpu_hours=format_digits(run.gpu_hours.expected),
            goodput=format_percent(run.goodput.share),
        )
        return length + self.said("semicolon") + counts

    def cost(self, run: Run) -> str:
        """Price of the run, or of an hour where its length is not known."""
        hour = [] if run.usd_per_hour is None else [self.said("cost_hour", usd=format_digits(run.usd_per_hour))]
        if run.usd is None:
            out = [self.said("cost_egress_alone", usd=format_digits(run.usd_egress))] if run.usd_egress else []
            return self.said("semicolon").join([*(hour or [self.said("cost_unknown")]), *out])
        out = [self.said("cost_egress", usd=format_digits(run.usd_egress))] if run.usd_egress else []
        out = [self.said("cost_egress_unknown")] if run.usd_egress is None else out
        return self.listed([self.with_range(run.usd, "usd"), *out, *hour])

    def energy(self, run: Run) -> str:
        """Energy and carbon of the run, and its power."""
        if run.kw is None:
            return self.said("energy_unknown")
        words = [self.with_range(run.kwh, "kwh")] if run.kwh else []
        words += [self.said("energy_co2", co2=format_digits(run.co2_kg.expected / 1000, 3))] if run.co2_kg else []
        return self.listed([*words, self.said("energy_kw", kw=format_digits(run.kw))])

    def bottleneck(self, found: Prediction) -> str:
        """The class that takes most of the step, then the others."""

        def told(key: str, name: str) -> str:
            return self.said(key, name=self.said(f"class_{name}"), share=format_percent(found.shares[name]))

        rest = sorted((name for name in found.shares if name != found.bottleneck), key=lambda name: -found.shares[name])
        others = self.listed(told("class_share", name) for name in rest if found.shares[name] >= SMALL)
        return self.said("semicolon").join(filter(None, [told("bottleneck_line", found.bottleneck), others]))

    def _operators(self, gpu: str, errors: Mapping[str, OperatorError]) -> str:
        """Mean errors of the step's formulas by family of operators."""
        names = {name: self.said(f"operator_{name.replace(' ', '_')}") for name in errors}
        told = self.listed(f"{names[name]} {format_digits(one.error_pct, 2)} %" for name, one in errors.items())
        return self.said("basis_operators", gpu=gpu, errors=told)

    def basis(self, found: Prediction, predictor: Predictor) -> list[str]:
        """Framework, stack and where each GPU's coefficients come from; and what the range says."""
        groups = predictor.site.groups
        measured = {groups[number].gpu.name: profile.gpu_measured for number, profile in predictor.profile.items()}
        gpus = self.listed(
            self.said("basis_measured" if measured[gpu] else "basis_derived", gpu=gpu, family=family)
            for gpu, family in found.basis.gpu_profiles.items()
        )
        low, high = (format_digits(100 * (factor - 1), 2) for factor in (found.basis.low, found.basis.high))
        own = found.basis.own_profile
        return [
            self.said("basis_line", framework=predictor.framework.title, stack=found.basis.stack, gpus=gpus),
            *([self.said("basis_own", name=own)] if own else []),
            *(self._operators(gpu, errors) for gpu, errors in found.basis.operators.items()),
            self.said("basis_band", low=low, high=high),
        ]
