"""Software: every switch has a value and an origin; stated comes before the preset, that before what is usual."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.profile import Profiles
from crosszone.errors import InputError
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.job import Job
from crosszone.inputs.rules import Case
from crosszone.inputs.scenario import parse_scenario
from crosszone.inputs.software import (
    COMMUNICATION_DEFAULTS,
    SWITCHES,
    Software,
    find_release,
    load_software_rules,
    parse_release,
    select_defaults,
    settle_software,
)
from effort import examples

ARCHITECTURES = (None, *load_software_rules()["releases"])
RELEASES = (19.5, 21.5, 22.0, 23.0, 23.5, 24.5, 25.5, 25.75, 26.0, 26.5, 27.0)
CHOICES = {
    "attention": ("flash", "flash-2", "triton", "softmax", "plain"),
    "launch": ("eager", "blocking", "partial-graph", "full-graph", "compiled"),
    "dispatcher": ("alltoall", "deepep", "hybridep"),
    "expert_overlap": (True, False),
    "context_exchange": ("ring", "all-to-all", "all-gather"),
    "attention_precision": ("bf16", "fp8"),
}


@pytest.mark.parametrize("framework", load_frameworks())
def test_every_framework_has_a_default_of_every_switch(framework):
    """[J4] Values are those that a scenario may state; options of the strategy are such that the framework has them."""
    supported = load_frameworks()[framework]
    for release, architecture in itertools.product(RELEASES, ARCHITECTURES):
        defaults = select_defaults(framework, release, architecture)
        assert set(CHOICES) <= set(defaults) <= {*SWITCHES, *STRATEGY_OPTIONS, *COMMUNICATION_DEFAULTS}
        assert all(defaults[switch] in values for switch, values in CHOICES.items())
        assert Software(**{switch: defaults[switch] for switch in CHOICES})
        assert defaults.get("recompute", "none") in supported.recompute
        assert defaults.get("zero", supported.default_zero) in supported.zero


@examples(200)
@given(
    st.sampled_from(sorted(load_frameworks())),
    st.sampled_from(ARCHITECTURES),
    st.floats(15.0, 30.0),
    st.floats(0.0, 5.0),
)
def test_a_later_release_never_unlearns_a_switch(framework, architecture, release, years):
    """[J4] Overlap that is on stays on, fused attention stays fused, graphs stay; nothing loses its default."""
    before = select_defaults(framework, release, architecture)
    after = select_defaults(framework, release + years, architecture)
    assert set(before) <= set(after)
    ranks = {
        "attention": ("plain", "softmax", "triton", "flash-2", "flash"),
        "launch": ("blocking", "eager", "compiled", "partial-graph", "full-graph"),
        "dispatcher": ("alltoall", "deepep", "hybridep"),
    }
    for switch, order in ranks.items():
        assert order.index(before[switch]) <= order.index(after[switch])
    for option in ("overlap_gradients", "overlap_parameters", "overlap_tensor", "sequence_parallel", "expert_overlap"):
        assert before[option] <= after[option]


@examples(100)
@given(
    st.fixed_dictionaries({}, optional={switch: st.sampled_from(values) for switch, values in CHOICES.items()}),
    st.fixed_dictionaries({}, optional={switch: st.sampled_from(values) for switch, values in CHOICES.items()}),
    st.sampled_from(sorted(load_frameworks())),
    st.sampled_from([512, 4096]),
)
def test_stated_comes_before_the_preset_and_that_before_what_is_usual(stated, preset, framework, seq_len):
    """[J4]"""
    settled = settle_software(Software(**stated), framework, preset, 24.0, "hopper", seq_len)
    usual = select_defaults(framework, 24.0, "hopper")
    for switch in CHOICES:
        if switch in stated:
            assert (settled[switch], settled.origins[switch]) == (stated[switch], "stated")
        elif switch in preset:
            assert (settled[switch], settled.origins[switch]) == (preset[switch], "preset")
        else:
            assert settled.origins[switch] == "assumed"
            writes_scores = usual[switch] in ("softmax", "plain")
            assert settled[switch] == usual[switch] or (settled[switch] == "flash" and writes_scores)
    assert settled["recompute_modules"] is None


STRATEGY_OPTIONS = ("sequence_parallel", "zero", "recompute")
"""What an era may give besides switches and options of communication."""


def test_a_long_sequence_does_not_make_a_fused_kernel_newer():
    """[J4] FlashAttention 2 writes no scores either, so that it stays what it is usual to be."""
    longest = load_software_rules()["longest_unfused"]
    for seq_len in (longest, longest + 1):
        assert settle_software(None, "fsdp", {}, 25.75, "hopper", seq_len)["attention"] == "flash-2"


def test_long_sequences_are_flash_unless_somebody_says_otherwise():
    """[J4] Megatron-LM of 2022 wrote scores out, up to 2048 tokens."""
    longest = load_software_rules()["longest_unfused"]

    def attention(seq_len, software=None, preset=None):
        return settle_software(software, "megatron", preset or {}, 22.0, "ampere", seq_len)["attention"]

    assert (attention(longest), attention(longest + 1)) == ("softmax", "flash")
    assert attention(2 * longest, software=Software(attention="softmax")) == "softmax"
    assert attention(2 * longest, preset={"attention": "plain"}) == "plain"


def test_the_release_is_that_of_the_scenario_of_the_stack_or_of_the_newest_gpu():
    """[J4] 25.09 is 25.75 years after 2000; A100 and H100 together have H100's."""
    a100, h100 = (catalogue().gpu(name) for name in ("a100-80gb-sxm", "h100-80gb-sxm"))
    releases = load_software_rules()["releases"]
    assert parse_release("25.09") == 25.75
    assert find_release(Software(release="24.06"), "megatron-core@25.09", [h100]) == 24.5
    assert find_release(None, "megatron-core@25.09", [h100]) == 25.75
    assert find_release(None, "megatron-core", [a100, h100]) == releases["hopper"]
    assert find_release(Software(), None, [a100]) == releases["ampere"]
    unknown = h100.replace(name="mine", architecture="custom", year=2030)
    assert find_release(None, None, [unknown]) == 32.0


def test_software_that_cannot_be_is_refused():
    with pytest.raises(InputError):
        parse_scenario("job: {seq_len: 8, global_batch: 1, software: {attention: quick}}\n")
    with pytest.raises(InputError):
        parse_scenario("job: {seq_len: 8, global_batch: 1, software: {release: newest}}\n")


def settled_case(gpu="h100-80gb-sxm", framework="megatron", strategy="{tp: 2, dp: 4, micro_batch: 1}") -> Case:
    text = f"""
model: llama-2-7b
job: {{seq_len: 2048, global_batch: 64, framework: {framework}}}
cluster: {{zones: [{{name: a, nodes: [{{gpu: {gpu}, count: 1, gpus: 8}}]}}]}}
strategy: {strategy}
"""
    scenario = parse_scenario(text).scenario
    case = Case(model=scenario.model, job=scenario.job, cluster=scenario.cluster, strategy=scenario.strategy)
    return case.with_framework(load_frameworks()[framework])


def test_options_that_were_not_given_are_those_usual_for_framework_and_release():
    """[J4] Megatron on H100: the sequence split, its collectives overlapped, ZeRO 1; on V100, 2020: full recomputation."""
    recent, first = settled_case().strategy, settled_case("v100-32gb-sxm").strategy
    assert (recent.sequence_parallel, recent.zero, recent.communication.overlap_tensor) == (True, 1, True)
    assert recent.recompute == "none" and recent.communication.overlap_gradients
    assert (first.sequence_parallel, first.recompute) == (False, "full")
    assert not first.communication.overlap_gradients


def test_options_that_were_given_stay():
    """[J4]"""
    given_options = "{tp: 2, dp: 4, micro_batch: 1, sequence_parallel: false, zero: 0, recompute: selective}"
    strategy = settled_case(strategy=given_options).strategy
    assert (strategy.sequence_parallel, strategy.zero, strategy.recompute) == (False, 0, "selective")
    assert not strategy.communication.overlap_tensor  # needs the sequence split


def test_an_option_that_was_given_brings_what_it_needs():
    """[J4] Megatron gathers weights ahead only where it reduces gradients ahead, which software of 2022 does not by itself."""
    ahead = "{dp: 8, micro_batch: 1, zero: 1, communication: {overlap_parameters: true}}"
    assert settled_case("a100-80gb-sxm", strategy=ahead).strategy.communication.overlap_gradients
    usual = settled_case("a100-80gb-sxm", strategy="{dp: 8, micro_batch: 1, zero: 1}").strategy.communication
    assert not usual.overlap_gradients and not usual.overlap_parameters


def test_who_says_how_much_hides_says_that_it_may():
    """[J4] `overlap: 1` would be of no effect where the usual software reduces after the backward pass."""
    share = "{dp: 8, micro_batch: 1, zero: 1, communication: {overlap: 1.0}}"
    communication = settled_case("a100-80gb-sxm", strategy=share).strategy.communication
    assert communication.overlap_gradients and communication.overlap_parameters


def test_switches_of_a_stack_hold_only_where_it_is_named():
    """[J4] The usual stack of Megatron on A100 is that of 2021; its softmax is no preset of a job that names no stack.

    Asked in either order: what is remembered of one is not told of the other.
    """
    for order in ((None, "megatron-lm-2021"), ("megatron-lm-2021", None)):
        profiles = Profiles.load_shipped().with_values(Profiles.load_shipped().values)
        for stack in order:
            job = Job(seq_len=4096, global_batch=8, framework="megatron", stack=stack)
            software = profiles.settle_software(job, "megatron", "megatron-lm-2021", 22.0, "ampere")
            expected = ("flash", "assumed") if stack is None else ("softmax", "preset")
            assert (software["attention"], software.origins["attention"]) == expected
