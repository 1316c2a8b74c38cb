"""Prediction: the numbers for one scenario with one strategy and placement, each with low / expected / high."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from crosszone.cost.operator_checks import OperatorError
from crosszone.cost.record import Recorded, is_recording, named
from crosszone.inputs.value import Value
from crosszone.predict.assumptions import Assumption, DescribedAssumption
from crosszone.predict.fits import Verdict

Kind = Literal["tensor", "context", "expert", "pipeline", "gradients", "weights", "local update"]
Bottleneck = Literal["compute", "communication", "pipeline", "host"]


class _Recordable:
    """Lets a recorded number stand where a number is due: predictions of recorded numbers tell how they came about."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = handler(source)
        return core_schema.union_schema(
            [core_schema.is_instance_schema(Recorded), number],
            mode="left_to_right",
            serialization=core_schema.plain_serializer_function_ser_schema(float, return_schema=number),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["choices"][1])


Figure = Annotated[float, _Recordable]


class Triple(Value):
    """A number with its range: eight of ten runs fall between low and high."""

    low: Figure
    """One run in ten is below."""
    expected: Figure
    """The prediction itself."""
    high: Figure
    """One run in ten is above."""

    def times(self, factor: float) -> Triple:
        """The same range on another scale."""
        return Triple(low=self.low * factor, expected=self.expected * factor, high=self.high * factor)

    def plus(self, number: float) -> Triple:
        """The same range moved up."""
        return Triple(low=self.low + number, expected=self.expected + number, high=self.high + number)

    def over(self, number: float) -> Triple:
        """`number` divided by it: the high end gives the low one."""
        return Triple(low=number / self.high, expected=number / self.expected, high=number / self.low)


def name_triple(name: str, triple: Triple) -> Triple:
    """The same range under a name: `name` is the expected one, `name.low` and `name.high` its ends."""
    if not is_recording():
        return triple
    return Triple(
        low=named(f"{name}.low", triple.low),
        expected=named(name, triple.expected),
        high=named(f"{name}.high", triple.high),
    )


class StageMemory(Value):
    """Memory of one GPU of a stage at its peak, GiB."""

    stage: int
    """Stage of the pipeline, from 0."""
    gpu: str
    """GPU kind with the least memory among its replicas."""
    layers: int
    """Layers the stage holds."""
    parts: dict[str, Figure]
    """GiB by part; they add up to `total`."""
    total: Figure
    """All parts at the peak."""
    limit: Figure
    """Memory of the GPU."""
    host: Figure
    """GiB in host memory for this GPU (offload)."""
    host_limit: float | None = None
    """GiB of its node's memory for each GPU, as stated or as the GPU's usual machine has it; null: not known."""
    peak_at: str
    """When the peak falls."""


class Memory(Value):
    """Memory of the fullest GPU, GiB."""

    worst_stage: int
    """Stage, from 0, that comes nearest to its limit."""
    peak: Triple
    """Peak of the stage that comes nearest to its limit."""
    limit: Figure
    """Memory of that stage's GPU."""
    fits: bool
    """The verdict is not `no`."""
    verdict: Verdict
    """yes, no, or tight where neither is likely enough."""
    fits_probability: Figure
    """Probability that the memory needed stays within what a job can use of the limit; 0 where a host's memory does
    not suffice for what is offloaded to it."""
    margin: Figure
    """Limit less expected peak."""
    stages: tuple[StageMemory, ...]
    """Every stage, from 0."""

    @model_validator(mode="before")
    @classmethod
    def _read_without_verdict(cls, value: Any) -> Any:
        # predictions that were stored before there were verdicts know only whether the peak was within the limit
        if not isinstance(value, dict) or "verdict" in value or "fits" not in value:
            return value
        return {**value, "verdict": "yes" if value["fits"] else "no", "fits_probability": float(value["fits"])}


class Traffic(Value):
    """What one kind of communication does on one link in one step."""

    kind: Kind
    """What is exchanged."""
    link: str
    """fast link, PCIe, network, or two zones in the direction of the traffic."""
    bytes_per_step: Figure
    """All bytes that cross the link (for links of a GPU: of all GPUs)."""
    messages: Figure
    """Messages of one GPU."""
    busy_s: Figure
    """Time the link of one GPU (or the path between the zones) is busy."""
    exposed_s: Figure
    """Of the step's time: what does not hide."""


class Goodput(Value):
    """Share of the run that makes progress, with failures and checkpoints."""

    share: Figure
    """Useful time over all time."""
    mtbf_hours: Figure
    """Mean time between failures of the whole job."""
    checkpoint_gb: Figure
    """Size of a checkpoint: weights, master weights and moments."""
    checkpoint_s: Figure
    """Time to write one."""
    interval_s: Figure
    """Best time between checkpoints."""
    lost_per_failure_s: Figure
    """Half an interval and a restart."""


class Run(Value):
    """The whole run; null where the job does not say how long it is, or a price or power is not known."""

    steps: int | None
    """Optimizer steps."""
    days: Triple | None
    """With failures and checkpoints."""
    gpu_hours: Triple | None = None
    """GPUs in use times hours."""
    usd: Triple | None = None
    """GPUs and egress."""
    usd_egress: Figure | None = None
    """Of it: bytes that leave zones."""
    kwh: Triple | None = None
    """Energy of GPUs, hosts and sites."""
    co2_kg: Triple | None = None
    """Carbon of that energy on the zones' grids."""
    usd_per_hour: Figure | None
    """Of all GPUs in use."""
    kw: Figure | None
    """Power of all GPUs in use with hosts and sites."""
    goodput: Goodput
    """What failures and checkpoints leave."""


class Record(Value):
    """How a number came about: the formula's id in docs/formulas.md, and what went in."""

    formula: str
    """Id of the formula in docs/formulas.md."""
    inputs: dict[str, Any]
    """What went in, by name."""


class Basis(Value):
    """What the numbers rest on."""

    stack: str
    """Software stack whose coefficients are used."""
    gpu_profiles: dict[str, str]
    """Profile of each GPU kind."""
    own_profile: str | None = None
    """The user's own profile that lies over the shipped ones; null: none."""
    measured: bool
    """All of them were measured; else derived from the family, with a wider range."""
    operators: dict[str, dict[str, OperatorError]] = Field(default_factory=dict)
    """Errors of the step's own formulas on kernels timed alone, by GPU kind and family, where there are such."""
    release: float = 0.0
    """Release of the software, years after 2000: 25.75 is September 2025."""
    release_month: str = ""
    """The same as year.month."""
    release_gpu: str | None = None
    """GPU kind whose generation sets the release; null: it is stated."""
    assumptions: tuple[Assumption, ...] = ()
    """Switches of the software and inputs that nobody gave, those first that decide most; where answers are shown."""
    low: Figure
    """Factor on the expected step for the low end, from the profile's own error."""
    high: Figure
    """The same for the high end."""


class NearestRun(Value):
    """A measured run that resembles what is predicted, and our own error on it."""

    id: str
    """Row of the measured runs that come with the program."""
    source: str
    """Where it was published: the id without its number (src/crosszone/measured/README.md lists sources)."""
    model: str
    """Model, as the source names it."""
    gpu: str
    """GPU kind."""
    gpus: int
    """GPUs."""
    strategy: str
    """Degrees and options."""
    step_time_s: float
    """Measured time of a step, s."""
    mfu: float
    """Measured model FLOPs over the peak, counted as `mfu` is."""
    error_pct: float
    """Prediction of this run over its measured time, less one, %."""
    distance: float
    """How far it is from what is predicted: 0 is the same set-up, 1 about another framework or two doublings."""
    differs: tuple[str, ...]
    """In what it differs, most first."""


class BestUtilisation(Value):
    """The highest utilisation that was measured on these GPUs at this width of precision."""

    mfu: float
    """Model FLOPs over the peak, counted as `mfu` is; GPUs of several kinds: the mean of their bests by peak."""
    bits: int
    """Width of the precision of the matmuls."""
    measured_on: Literal["gpu", "architecture"]
    """The same GPU kind, or only another one of its architecture."""
    id: str
    """Row of the measured runs."""
    model: str
    """Its model."""
    gpu: str
    """Its GPU kind."""
    gpus: int
    """Its GPUs."""
    architecture_mfu: float
    """The highest on any GPU of the architecture."""
    architecture_id: str
    """That run."""
    architecture_gpu: str
    """Its GPU kind."""


class Prediction(Value):
    """The numbers for one scenario with one strategy and placement."""

    name: str
    """Name of the scenario."""
    framework: str
    """Training framework."""
    strategy: dict[str, Any]
    """With everything that was filled in."""
    gpus: int
    """GPUs in use."""
    micro_batches: int
    """Micro-batches of one replica a step."""
    step_time_s: Triple
    """Time of one optimizer step, s."""
    tokens_per_s: Triple
    """Tokens of a step over its time."""
    tokens_per_s_per_gpu: Triple
    """The same for one GPU in use."""
    tflops_per_gpu: Triple
    """Model FLOPs of one step (forward and backward, no recomputation, masked half of causal attention left out)."""
    mfu: Triple
    """Model FLOPs over the dense peak of the job's precision."""
    hfu: Triple
    """With recomputed FLOPs."""
    breakdown_s: dict[str, Figure]
    """Parts of the expected step; they add up to it."""
    memory_gib: Memory
    """Peak memory, GiB."""
    communication: tuple[Traffic, ...]
    """Every kind of communication on every link."""
    bottleneck: Bottleneck
    """Class with the largest share of the step."""
    shares: dict[str, Figure]
    """Share of the step in compute, communication, pipeline bubble and host."""
    run: Run
    """The whole run."""
    basis: Basis
    """What the numbers rest on."""
    nearest_runs: tuple[NearestRun, ...] = ()
    """Measured runs that resemble this one most, nearest first."""
    best_utilisation: BestUtilisation | None = None
    """The best that was measured on such GPUs; null: no run of them was."""
    assumptions: tuple[DescribedAssumption, ...] = ()
    """What nobody stated and decides most, in words; where answers are shown."""
    records: dict[str, Record]
    """For each number shown, its formula and inputs."""
    warnings: tuple[dict[str, Any], ...]
    """Notices: code, level, message, hint, field."""
