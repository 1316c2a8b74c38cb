"""Puts what the program answers today, and the last benchmarks, into READMEs and guides.

    .venv/bin/python scripts/readme.py

The scenario is a README's own YAML block; the first strategy in its text is refused, the second is predicted, and
without one it is planned. Tables come from benchmarks/RESULTS.md. In a guide (docs/first-*.md) each console block says
its own command, which runs on the files that the guide told the reader to save. Tests fail while one of them differs
from what this would write.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path
from unittest.mock import patch

from crosszone.cli import run

ROOT = Path(__file__).resolve().parents[1]
README = {"README.md": "en", "README_zh.md": "zh"}
GUIDES = ("docs/first-plan.md", "docs/first-bundle.md")
SHOWN = 10
"""Lines of a prediction that the README shows."""
SHOWN_PLAN = 21
"""Lines of a plan: the best one and those after it."""
BUNDLE = "examples/fourteen-gpus.yaml"
CHANGE = ("--set", "cluster.links[0].gbps=100", "--switch", "flows=8")
"""The what-if that the README shows."""


def fill_answers(text: str, language: str) -> str:
    """The README's text with its console blocks as the program answers them."""
    (scenario,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    refused, good = re.findall(r"`(strategy: \{[^`]*\})`", text)
    checked = _run_on_scenario(scenario, language, "scenario", "check")
    clash = _run_on_scenario(scenario + refused + "\n", language, "scenario", "check")
    predicted = _run_on_scenario(scenario + good + "\n", language, "predict")
    planned = [line.rstrip() for line in _run_on_scenario(scenario, language, "plan").splitlines()]
    name = "./crosszone" if language == "en" else f"./crosszone --lang {language}"
    answers = iter(
        [
            f"$ {name} scenario check my.yaml\n{checked}",
            "\n".join(clash.splitlines()[:2]) + "\n",
            f"$ {name} predict my.yaml\n" + "\n".join(predicted.splitlines()[:SHOWN]) + "\n...\n",
            f"$ {name} plan my.yaml\n" + "\n".join(planned[:SHOWN_PLAN]) + "\n...\n",
            f"$ {name} what-if my.yaml {' '.join(CHANGE)}\n" + _run_what_if(scenario + good + "\n", language),
            f"$ {name} deploy {BUNDLE}\n" + _deploy_example(language),
        ]
    )
    return re.sub(r"```console\n.*?```", lambda _: f"```console\n{next(answers)}```", text, flags=re.DOTALL)


def fill_guide(text: str) -> str:
    """A guide's text with its console blocks as the program answers their commands, one after the other in one folder.

    A YAML block is a file: the last `name.yaml` in the text before it says which. `<!-- lines: N -->` before a console
    block says how many lines are shown.
    """
    shown = r"(?P<head><!-- lines: (?P<lines>\d+) -->\n```console\n)\$ (?P<command>[^\n]*)\n.*?```"
    block = re.compile(rf"```yaml\n(?P<yaml>.*?)```|{shown}", re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:

        def answer(match: re.Match[str]) -> str:
            if match["yaml"] is not None:
                name = re.findall(r"`([\w-]+\.yaml)`", text[: match.start()])[-1]
                (Path(folder) / name).write_text(match["yaml"], encoding="utf-8")
                return match[0]
            program, *arguments = shlex.split(match["command"])
            if program != "./crosszone":
                raise ValueError(f"a console block of a guide begins with ./crosszone, not {program}")
            lines = [line.rstrip() for line in _run_command(folder, "en", *arguments).splitlines()]
            kept = [*lines[: int(match["lines"])], *(["..."] if len(lines) > int(match["lines"]) else [])]
            return f"{match['head']}$ {match['command']}\n" + "\n".join(kept) + "\n```"

        return block.sub(answer, text)


def _deploy_example(language: str) -> str:
    """A dry run of an example, as it is."""
    told = _run_on_scenario((ROOT / BUNDLE).read_text(encoding="utf-8"), language, "deploy")
    return "\n".join(line.rstrip() for line in told.splitlines()) + "\n"


def _run_what_if(scenario: str, language: str) -> str:
    """A what-if, without its notices."""
    told = _run_on_scenario(scenario, language, "what-if", *CHANGE)
    lines = [line.rstrip() for line in told.splitlines()]
    end = next(at for at, line in enumerate(lines) if line.startswith("flows:"))
    return "\n".join(lines[: end + 1]) + "\n...\n"


ROWS = (
    (
        ("First contact", "how runs are entered"),
        {
            "**first contact**": ("published runs, entered as a user would", "公开的运行，按用户的写法输入"),
            "**first contact, source left out of the fit**": (
                "the same, from a source the fit did not see",
                "同上，拟合未见过其来源",
            ),
            "first contact, source left out of the fit: dense models": ("its dense models", "其中的稠密模型"),
            "first contact, source left out of the fit: mixtures of experts": (
                "its mixtures of experts",
                "其中的混合专家模型",
            ),
            "**software stated, source left out of the fit**": (
                "software stated, from a source the fit did not see",
                "给出软件，拟合未见过其来源",
            ),
            "**new sources, software stated, all left out of the fit**": (
                "newer sources, software stated, none of them seen",
                "较新来源，给出软件，均未见过",
            ),
        },
    ),
    (
        ("Accuracy on runs left out of the fit", "left out of the fit"),
        {
            "whole models": ("a model the fit did not see", "拟合未见过的模型"),
            "whole GPU families": ("a GPU family the fit did not see", "拟合未见过的 GPU 系列"),
        },
    ),
    (
        ("H200 profile", "whole steps"),
        {
            "**not fitted to**: Hugging Face, all": (
                "one H200, models and shapes the fit did not see",
                "单块 H200，拟合未见过的模型与形状",
            ),
        },
    ),
    (
        ("First contact", "how runs are entered"),
        {"**software stated, rows of the fit**": ("software stated, runs of the fit", "给出软件，拟合所用的运行")},
    ),
    (
        ("Accuracy", "rows of"),
        {
            "measured_runs_vtrain_single.csv": ("more runs on one node (vTrain)", "更多单节点运行（vTrain）"),
            "measured_runs_h200.csv": ("one H200, Hugging Face models", "单块 H200，Hugging Face 模型"),
        },
    ),
    (("Accuracy", "memory"), {"**all**": ("peak memory", "显存峰值")}),
)
"""Rows of RESULTS.md that READMEs show: section and start of the table's heading; name there, name in each language."""
COLUMNS = {
    "rows": ("rows", "行数"),
    "mean %": ("mean error %", "平均误差 %"),
    "median %": ("median %", "中位数 %"),
    "within 10 %": ("within 10 %", "10 % 以内"),
    "in band %": ("in range %", "落入区间 %"),
}
FIRST = ("step time", "每步时间")
SPEED = (
    "One prediction takes {one} ms of CPU time, a strategy in a batch of thousands {many} us "
    "(`.venv/bin/python benchmarks/prediction.py`).",
    "一次预测占用 CPU {one} ms；成千上万个策略成批计算时，每个 {many} us"
    "（`.venv/bin/python benchmarks/prediction.py`）。",
)


PUBLISHED = {
    "dtfm": ("DT-FM, five networks: iteration time", "DT-FM 五种网络：迭代时间"),
    "tc-micro": ("transfers over shaped links (NCCL, Gloo)", "限速链路上的传输（NCCL、Gloo）"),
    "streaming-diloco": ("Streaming DiLoCo: rate a utilisation needs", "Streaming DiLoCo：利用率所需带宽"),
    "intellect-1": ("INTELLECT-1: utilisation and MFU", "INTELLECT-1：利用率与 MFU"),
}
"""Publications that READMEs show: name in RESULTS.md, name in each language."""
PUBLISHED_HEAD = (("over wide-area links", "figures", "median error %"), ("广域链路", "数值个数", "误差中位数 %"))
RIG = ("all-reduce between emulated zones, best run", "仿真可用区之间的 all-reduce，最佳一次")
CHANGED = (
    "A what-if takes {what_if} ms of CPU time, a sweep of 20 x 20 cells of three cities, each planned anew, {sweep} s "
    "on two cores (`.venv/bin/python benchmarks/communication.py`, `benchmarks/sweep.py`).",
    "一次假设分析占用 CPU {what_if} ms；三座城市 20 x 20 格的扫描（每格重新规划）在两核上用 {sweep} 秒"
    "（`.venv/bin/python benchmarks/communication.py`、`benchmarks/sweep.py`）。",
)
SEARCHES = {
    ("whole grid", "GPT-3 175B"): (
        "GPT-3 175B on 4096 A100, every strategy scored",
        "GPT-3 175B，4096 块 A100，逐一评分",
    ),
    ("search", "5 zones x 128 A100, 70B, equal links; any"): (
        "LLaMA-2-70B on 5 zones of 128 A100, all frameworks",
        "LLaMA-2-70B，5 个可用区各 128 块 A100，所有框架",
    ),
    ("search", "4 zones x 128 A100, 70B; any"): (
        "LLaMA-2-70B on 4 zones of 128 A100, all frameworks",
        "LLaMA-2-70B，4 个可用区各 128 块 A100，所有框架",
    ),
    ("search", "4 zones x 4096 H100, 405B; any"): (
        "LLaMA-3.1-405B on 4 zones of 4096 H100, all frameworks",
        "LLaMA-3.1-405B，4 个可用区各 4096 块 H100，所有框架",
    ),
    ("command", "`crosszone plan examples/three-cities.yaml`, without its strategy"): (
        "three cities without its strategy, start of the program included",
        "三座城市，不带策略，含程序启动",
    ),
}
"""Rows of the searches that READMEs show: start of the table's heading and name there; name in each language."""
PAGE = {
    ("Page", "page opened: first content"): ("page opened: first content", "打开页面：首次内容"),
    ("Page", "page opened: step time shown"): ("page opened: first answer", "打开页面：首个答案"),
    ("Page", "slider to new step time, strategy given"): (
        "slider to a new prediction, three cities",
        "拖动滑块到新的预测，三座城市",
    ),
    ("Page", "slider to new plans, strategy given"): (
        "slider to a new plan, three cities",
        "拖动滑块到新的方案，三座城市",
    ),
    ("Page", "slider to new plans, strategy free"): ("the same with nothing pinned", "同上，不固定任何策略"),
    ("Timeline", "zoom step"): ("timeline of some 5,000 bars: one step of zoom", "约 5,000 条的时间线：缩放一步"),
    ("Load", "/analyse"): ("50 users on two cores: prediction", "50 个用户、两个核：预测"),
    ("Load", "/plan"): ("50 users on two cores: new plan", "50 个用户、两个核：新方案"),
}
"""Rows of the page's speed that READMEs show: section and name there; name in each language."""
PAGE_WORST = {"Page": "longest ms", "Timeline": "longest ms", "Load": "p95 ms"}
PAGE_HEAD = (("page", "median ms", "longest, or p95 of users, ms"), ("页面", "中位数 ms", "最长（多用户为 p95）ms"))
SEARCH_HEAD = (("search", "strategies", "CPU s"), ("搜索", "策略数", "CPU 秒"))


def fill_results(text: str, results: str, language: str) -> str:
    """The README's text with its table as the last benchmarks found it."""
    number = list(README.values()).index(language)
    lines = [f"| {' | '.join([FIRST[number], *(name[number] for name in COLUMNS.values())])} |", "|---" * 6 + "|"]
    for (section, heading), wanted in ROWS:
        found = _read_table(results, section, heading)
        for row, names in wanted.items():
            if row in found:
                lines.append(f"| {' | '.join([names[number], *(found[row].get(key, '-') for key in COLUMNS)])} |")
    timed = {name: float(row["time"].split()[0]) for name, row in _read_table(results, "Prediction", "what").items()}
    one = [value for name, value in timed.items() if name.startswith("one prediction")]
    many = [value for name, value in timed.items() if name.startswith("arrays")]
    if one and many:
        spans = {key: f"{min(values):.2g} - {max(values):.2g}" for key, values in (("one", one), ("many", many))}
        lines += ["", SPEED[number].format(**spans)]
    lines += _build_search_rows(results, number)
    lines += _build_published_rows(results, number)
    lines += _build_page_rows(results, number)
    inside = "\n".join(["<!-- results -->", *lines, "<!-- end -->"])
    return re.sub(r"<!-- results -->.*?<!-- end -->", lambda _: inside, text, flags=re.DOTALL)


def _build_search_rows(results: str, number: int) -> list[str]:
    """The table of searches in one language; nothing before the first benchmark."""
    lines = []
    for (heading, row), names in SEARCHES.items():
        found = _read_table(results, "Search", heading).get(row)
        if found is not None:
            lines.append(f"| {names[number]} | {found.get('strategies', '-')} | {found['CPU s']} |")
    return ["", f"| {' | '.join(SEARCH_HEAD[number])} |", "|---" * 3 + "|", *lines] if lines else []


def _build_published_rows(results: str, number: int) -> list[str]:
    """The table of results over wide-area links in one language, and the times of a what-if and a sweep."""
    families, rig = (_read_table(results, "Communication", heading) for heading in ("publication", "operation"))
    rows = [
        f"| {names[number]} | {families[row]['predicted']} | {families[row]['median %']} |"
        for row, names in PUBLISHED.items()
        if row in families
    ]
    if "all_reduce" in rig:
        one = rig["all_reduce"]
        rows.append(f"| {RIG[number]} | {one['rows']} | {one['against the best run %']} |")
    if not rows:
        return []
    timed = _read_table(results, "Communication", "answer")
    swept = _read_table(results, "Sweep", "20 x 20 cells").get("its strategy pinned", {})
    told = CHANGED[number].format(
        what_if=timed["what-if: a rate, three cities"]["CPU ms"], sweep=swept.get("wall s", "-")
    )
    return ["", f"| {' | '.join(PUBLISHED_HEAD[number])} |", "|---" * 3 + "|", *rows, "", told]


def _build_page_rows(results: str, number: int) -> list[str]:
    """The table of the page's speed in one language; nothing before the first benchmark."""
    lines = []
    for (section, row), names in PAGE.items():
        found = _read_table(results, section, "what").get(row)
        if found is not None:
            lines.append(f"| {names[number]} | {found['median ms']} | {found[PAGE_WORST[section]]} |")
    return ["", f"| {' | '.join(PAGE_HEAD[number])} |", "|---" * 3 + "|", *lines] if lines else []


def _read_table(results: str, section: str, heading: str) -> dict[str, dict[str, str]]:
    """A table of RESULTS.md: cells by row and column; empty where there is none."""
    body = results.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in body.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not columns and cells[0].startswith(heading):
            columns = cells
        elif columns and not cells:
            break
        elif columns and not cells[0].startswith("---"):
            found[cells[0]] = dict(zip(columns, cells, strict=True))
    return found


def _run_on_scenario(scenario: str, language: str, *verb: str) -> str:
    """What a command prints on a scenario of that name in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my.yaml").write_text(scenario, encoding="utf-8")
        return _run_command(folder, language, *verb, "my.yaml")


def _run_command(folder: str, language: str, *arguments: str) -> str:
    """What a command prints in a folder, which is its home too: the answer, or what is wrong."""
    out, err = io.StringIO(), io.StringIO()
    home = patch.dict(os.environ, {"CROSSZONE_HOME": folder})
    with contextlib.chdir(folder), home, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run(["--lang", language, *arguments])
    return out.getvalue() or err.getvalue()


if __name__ == "__main__":
    for file, language in README.items():
        path = ROOT / file
        results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
        text = fill_results(path.read_text(encoding="utf-8"), results, language)
        path.write_text(fill_answers(text, language), encoding="utf-8")
        print(path)
    for file in GUIDES:
        path = ROOT / file
        path.write_text(fill_guide(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)
