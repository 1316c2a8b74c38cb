"""Deploy in a real browser: choose, look, type addresses, take along, save and find again."""

import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile

import pytest

from conftest import ROOT

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect

TWO = """# the lab
name: <b>two</b> nodes
model: llama-2-7b
job: {seq_len: 4096, global_batch: 256}
cluster:
  zones:
    - name: here   # the only room
      nodes:
        - {count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}
strategy: {dp: 16, zero: 3, tp: 1, pp: 1}
"""


def call(server, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/api/v1/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        read = answer.read()
        return json.loads(read) if read else None


def settled(page):
    page.wait_for_load_state("networkidle")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    return page


def made(page):
    """The page when the bundle of what is chosen now is there."""
    page.locator("#deploy-start").wait_for()
    expect(page.locator(".deploy .stale")).to_have_count(0)
    return settled(page)


def imported(page, text=TWO):
    page.locator("input[type=file]").set_input_files(
        {"name": "two.yaml", "mimeType": "application/yaml", "buffer": text.encode()}
    )
    page.get_by_text("file:two.yaml", exact=True).or_(
        page.locator("option:checked", has_text="two.yaml")
    ).first.wait_for(state="attached")
    return page


@pytest.fixture
def two(open_page):
    """A page with two nodes whose addresses are not known; its plan is done as written."""

    def opened(query="", *, ready=made, **context):
        return ready(imported(open_page(f"/?place=deploy&plan=given&framework=fsdp{query}", **context)))

    return opened


def shown_file(page):
    return page.locator(".deploy-text").inner_text()


@pytest.mark.long
def test_the_plan_shown_is_made_into_files_at_once(open_page, server):
    page = made(open_page("/?place=deploy&example=single-node"))
    framework = page.locator("[data-choose=framework]")
    assert framework.input_value() == ""
    assert re.match(r"The plan's own \(.+\)", framework.locator("option:checked").inner_text())
    rows = page.locator("[data-node]")
    assert rows.count() == 1
    assert "torchrun" in rows.first.inner_text()
    assert page.locator("[data-shown]").get_attribute("data-shown") == "README.md"
    page.get_by_role("navigation", name="Files").get_by_role("button", name="plan.yaml").click()
    assert "strategy:" in shown_file(page)
    assert "file=plan.yaml" in page.url


@pytest.mark.long
def test_framework_and_launcher_stand_in_the_address(two):
    page = two()
    page.locator("[data-choose=launcher]").select_option("slurm")
    page.get_by_role("navigation", name="Files").get_by_role("button", name="job.sbatch").wait_for()
    assert "launcher=slurm" in page.url
    assert "framework=fsdp" in page.url
    page.locator("details[data-group=launcher] summary").click()
    page.locator("[data-setting='partitions.here']").fill("gpu")
    page.get_by_role("button", name="job.sbatch").click()
    expect(page.locator(".deploy-text")).to_contain_text("gpu")
    page.reload()
    made(page)
    assert page.locator("[data-choose=launcher]").input_value() == "slurm"
    assert page.locator("[data-setting='partitions.here']").input_value() == "gpu"
    assert page.locator("[data-shown]").get_attribute("data-shown") == "job.sbatch"


def test_a_setting_reaches_the_files_and_a_wrong_one_is_told_beside_its_field(two):
    page = two("&file=nodes/000.sh")
    page.locator("details[data-group=network] summary").click()
    port = page.locator("[data-setting=port]")
    port.fill("29599")
    expect(page.locator(".deploy-text")).to_contain_text("29599")
    port.fill("99999")
    expect(port).to_have_attribute("aria-invalid", "true")
    note = page.locator("#setting-port-note")
    expect(note).to_contain_text("65535")
    expect(page.locator("#deploy-start")).to_have_count(0)
    port.fill("")
    made(page)
    assert "29599" not in shown_file(page)
    assert "29500" in shown_file(page)


@pytest.mark.long
def test_without_addresses_they_are_left_to_be_filled_in(two):
    page = two()
    assert page.locator("[data-choose=template]").is_checked()
    assert page.get_by_text("Addresses are still to be filled in").is_visible()
    page.locator("[data-choose=template]").uncheck()
    refusal = page.locator("[data-refusal=launch_no_address]")
    refusal.wait_for()
    assert "cluster.zones[0].nodes[0].hosts" in refusal.inner_text()
    refusal.get_by_role("button", name="Leave addresses to be filled in").click()
    made(page)


@pytest.mark.long
def test_addresses_typed_here_are_written_into_the_scenario_and_its_comments_stay(two):
    page = two("&template=0&file=nodes/001.sh", ready=settled)
    page.locator("[data-refusal=launch_no_address]").get_by_role("button", name="Type the addresses").click()
    first = page.locator("input[data-host=address]").first
    expect(first).to_be_focused()
    first.evaluate(
        """field => {
             const held = new DataTransfer();
             held.setData('text', '10.0.0.1 eth0\\n# spare\\n10.0.0.2 eth1');
             field.dispatchEvent(new ClipboardEvent('paste', {clipboardData: held, bubbles: true, cancelable: true}));
           }"""
    )
    assert [one.input_value() for one in page.locator("input[data-host]").all()] == [
        "10.0.0.1", "eth0", "", "10.0.0.2", "eth1", "",
    ]  # fmt: skip
    page.get_by_role("button", name="Write into the scenario").click()
    made(page)
    assert "10.0.0.1" in shown_file(page)
    assert "10.0.0.2" in page.locator("[data-node='1']").inner_text()
    page.get_by_role("tab", name="Text").click()
    text = page.locator(".sheet textarea").input_value()
    assert "# the only room" in text
    assert re.search(r"hosts:.*address: 10\.0\.0\.1", text, re.DOTALL)
    page.locator("button[aria-label=Undo]").click()
    page.locator("[data-refusal=launch_no_address]").wait_for()


@pytest.mark.long
def test_half_of_the_addresses_are_not_written_and_a_bad_one_is_marked(two):
    page = two()
    page.locator("[data-hosts] summary").first.click()
    fields = page.locator("input[data-host=address]")
    fields.nth(0).fill("10.0.0.1; rm -rf /")
    write = page.get_by_role("button", name="Write into the scenario")
    expect(write).to_be_disabled()
    page.get_by_text("one address is still missing").or_(page.get_by_text("1 address")).first.wait_for()
    fields.nth(1).fill("10.0.0.2")
    write.click()
    expect(fields.nth(0)).to_have_attribute("aria-invalid", "true")
    expect(fields.nth(1)).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.long
def test_what_the_framework_cannot_do_is_said_and_a_plan_for_it_found(open_page):
    page = open_page("/?place=deploy&example=three-cities&framework=ddp")
    refusal = page.locator("[data-refusal]")
    refusal.wait_for()
    assert "PyTorch DDP" in refusal.inner_text()
    refusal.get_by_role("button", name="The plan's own").click()
    made(page)
    assert "framework=" not in page.url


@pytest.mark.long
def test_a_plan_for_another_framework_is_looked_for(two):
    page = two("&template=1")
    page.locator("[data-choose=framework]").select_option("ddp")
    refusal = page.locator("[data-refusal]")
    refusal.wait_for()
    refusal.get_by_role("button", name="Find a plan for PyTorch DDP").click()
    page.get_by_role("tab", name="Text").click()
    expect(page.locator(".sheet textarea")).to_have_value(re.compile(r"framework: ddp"))


def test_a_bundle_is_saved_reopened_downloaded_and_deleted(two, server):
    page = two()
    page.get_by_role("button", name="Save", exact=True).nth(1).click()
    name = page.get_by_label("Name of the bundle")
    assert name.input_value() == "<b>two</b> nodes"
    name.fill("night run")
    name.press("Enter")
    row = page.locator("[data-bundle]").filter(has_text="night run")
    row.wait_for()
    id = row.get_attribute("data-bundle")
    assert call(server, f"bundles/{id}")["framework"] == "fsdp"
    page.get_by_role("button", name="Open “night run”").or_(row.get_by_role("button", name="night run")).first.click()
    page.get_by_text("Saved bundle “night run”").wait_for()
    assert f"bundle={id}" in page.url
    page.reload()
    page.get_by_text("Saved bundle “night run”").wait_for()
    page.get_by_role("navigation", name="Files").get_by_role("button", name="settings.json").click()
    assert json.loads(shown_file(page))["framework"] == "fsdp"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download zip").click()
    assert download.value.suggested_filename == "night-run-fsdp.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        assert "night-run-fsdp/train.py" in archive.namelist()
    page.get_by_role("button", name="Back to the plan shown").click()
    made(page)
    row = page.locator(f"[data-bundle='{id}']")
    row.get_by_role("button", name="Delete “night run”").click()
    row.get_by_role("button", name="Delete", exact=True).click()
    expect(row).to_have_count(0)
    assert id not in [one["id"] for one in call(server, "bundles")["rows"]]


@pytest.mark.long
def test_the_scenario_of_a_saved_bundle_opens_again(two, server):
    kept = call(
        server, "bundles", {"text": TWO.replace("<b>two</b> nodes", "old"), "template": True, "name": "old one"}
    )
    page = two(f"&bundle={kept['id']}", ready=settled)
    page.get_by_role("button", name="Open its scenario").click()
    made(page)
    assert "bundle=" not in page.url
    assert page.locator(".scenario-bar option:checked").inner_text() == "old one"
    call(server, f"bundles/{kept['id']}", method="DELETE")


@pytest.mark.long
def test_a_bundle_that_is_gone_is_said_and_left(open_page):
    page = open_page("/?place=deploy&example=single-node&bundle=nothere")
    page.get_by_role("alert").filter(has_text="nothere").wait_for()
    page.get_by_role("button", name="Back to the plan shown").click()
    made(page)


@pytest.mark.long
def test_the_archive_of_what_is_shown_is_downloaded_without_saving(two, server):
    before = call(server, "bundles")["total"]
    page = two()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert any(name.endswith("/README.md") for name in archive.namelist())
    assert call(server, "bundles")["total"] == before


@pytest.mark.long
def test_the_command_writes_the_files_that_are_shown(two, tmp_path):
    page = two("&file=nodes/001.sh", permissions=["clipboard-read", "clipboard-write"])
    page.locator("details[data-group=network] summary").click()
    page.locator("[data-setting=port]").fill("29577")
    expect(page.locator(".deploy-text")).to_contain_text("29577")
    made(page)
    page.get_by_role("button", name="Copy as command").click()
    page.get_by_text("Copied").first.wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("crosszone deploy - --framework fsdp --set port=29577 --template -o bundle <<'EOF'\n")
    command = command.replace("crosszone", f"{sys.executable} -m crosszone", 1).replace("-o bundle", "-o made", 1)
    environment = {**os.environ, "CROSSZONE_LANG": "en"}
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "made" / "nodes" / "001.sh").read_text("utf-8").rstrip() == shown_file(page).rstrip()


@pytest.mark.long
def test_an_example_as_it_is_needs_no_text_in_its_command(open_page):
    query = "/?place=deploy&example=single-node&plan=given"
    page = made(open_page(query, permissions=["clipboard-read", "clipboard-write"]))
    assert not page.locator("[data-choose=template]").is_checked()  # one machine need not be found
    page.get_by_role("button", name="Copy as command").click()
    page.get_by_text("Copied").first.wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == "crosszone deploy examples/single-node.yaml -o bundle\n"
    assert (ROOT / "examples" / "single-node.yaml").is_file()


@pytest.mark.long
def test_a_file_is_copied_as_it_is(two):
    page = two("&file=settings.json", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy file").click()
    page.get_by_text("Copied").first.wait_for()
    held = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert held["name"] == "<b>two</b> nodes"
    assert page.locator(".deploy-text b").count() == 0  # shown as text, never as markup


@pytest.mark.long
def test_colours_change_no_character_of_any_file(two, server):
    page = two()
    bundle = call(server, "bundles/preview", {"text": TWO, "framework": "fsdp", "template": True, "launcher": "slurm"})
    files = [[one["path"], one["text"]] for one in bundle["files"]]
    files += [
        ["x.py", '"""open\n# not a comment'],
        ["x.sh", 'a="b\nc" # d'],
        ["x.json", '{"a": "b'],
        ["x.md", "```\nopen"],
    ]
    wrong = page.evaluate(
        """async (files) => {
             const { languageOf, pieces } = await import('/lib/highlight.js');
             return files.filter(([path, text]) => pieces(text, languageOf(path)).map(([, part]) => part).join('') !== text).map(([path]) => path);
           }""",
        files,
    )
    assert wrong == []
    kinds = page.evaluate(
        """async () => {
             const { pieces } = await import('/lib/highlight.js');
             return [
               pieces('def f(x):  # y\\n    return "a" + 1', 'python'),
               pieces('exec torchrun --nnodes 2 "$X" $ADDRESS # y', 'shell'),
               pieces('{"a": [1, "b", true]}', 'json'),
             ].map((found) => found.filter(([kind]) => kind).map((one) => one.join(' ')));
           }"""
    )
    assert kinds == [
        ["word def", "key f", "comment # y", "word return", 'text "a"', "number 1"],
        ["word exec", "key --nnodes", "number 2", 'text "$X"', "number $ADDRESS", "comment # y"],
        ['key "a"', "number 1", 'text "b"', "word true"],
    ]


@pytest.mark.long
def test_the_keyboard_reaches_files_and_commands(two):
    page = two()
    tree = page.get_by_role("navigation", name="Files")
    tree.get_by_role("button", name="env.sh").focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-shown]").get_attribute("data-shown") == "env.sh"
    expect(tree.get_by_role("button", name="env.sh")).to_have_attribute("aria-current", "true")
    page.locator("[data-node='1']").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-shown]").get_attribute("data-shown") == "nodes/001.sh"


@pytest.mark.long
def test_both_languages_write_the_files_in_theirs(open_page):
    page = made(open_page("/?place=deploy&example=single-node&lang=zh"))
    assert re.search(r"[\u4e00-\u9fff]", shown_file(page))
    whys = page.locator("#deploy-options").locator("..").locator("..").locator("td.words").all_inner_texts()
    assert whys
    assert all(re.search(r"[\u4e00-\u9fff]", why) for why in whys)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["nodes", "ssh", "slurm", "skypilot", "ray"])
def test_every_launcher_can_be_looked_at(two, launcher):
    page = two(f"&launcher={launcher}")
    assert page.locator("[data-node]").count() == 2
    assert page.locator(".deploy-how pre").inner_text().strip()


@pytest.mark.long
def test_at_400_pixels_files_and_fields_fit(two):
    page = two(width=400, height=800)
    for summary in page.locator(".deploy details > summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
