"""The scenario pane in a real browser: guided steps, free editing, text, links, files and saved scenarios."""

import re

import pytest

pytestmark = pytest.mark.browser

ENGLISH = ["Cluster", "Model", "Job", "Options", "Next", "See the plan"]
CHINESE = ["集群", "模型", "任务", "选项", "下一步", "查看方案"]


def expects(locator):
    from playwright.sync_api import expect

    return expect(locator)


def field(page, path):
    return page.locator(f'[data-field="{path}"]')


def step_time(page):
    return page.locator("[data-strip] dd[data-figure]").first


def answered(page):
    """Waits until a step time stands there that belongs to the present scenario, and gives it."""
    step_time(page).wait_for()
    expects(page.locator(".stale")).to_have_count(0)
    return step_time(page).inner_text()


def cell(page, start, end):
    return page.locator(f'[data-link="{start} {end}"]')


def open_zone(page, name):
    page.locator(f'[data-zone="{name}"] > summary').click()


def text_of(page):
    """The scenario as the text tab shows it once it has been written."""
    page.get_by_role("tab").nth(1).click()
    page.wait_for_timeout(500)
    return page.locator("textarea").input_value()


def edit_text(page, old, new):
    area = page.locator(".editor textarea")
    area.wait_for()
    assert old in area.input_value()
    area.fill(area.input_value().replace(old, new))


@pytest.mark.parametrize(("language", "words"), [("en", ENGLISH), ("zh", CHINESE)])
def test_the_steps_lead_to_the_same_plan_in_both_languages(open_page, language, words):
    page = open_page(f"/?lang={language}&example=two-zones-7b")
    for step, word in zip(["cluster", "model", "job"], words, strict=False):
        page.locator(f'[data-step="{step}"]').wait_for()
        expects(page.locator("[aria-current=step]")).to_contain_text(word)
        page.get_by_role("button", name=words[4], exact=True).click()
    page.locator('[data-step="options"]').wait_for()
    page.get_by_role("button", name=words[5]).click()
    assert answered(page)
    heading = page.locator(".place h2").first.inner_text()
    assert re.search(r"dp \d+|tp \d+", heading), heading
    shown = page.locator("[data-strip] [data-figure]").all_inner_texts()
    page.get_by_role("button", name="English" if language == "zh" else "中文").click()
    expects(page.locator("[aria-current=step]")).to_contain_text(CHINESE[3] if language == "en" else ENGLISH[3])
    page.wait_for_load_state("networkidle")
    digits = [re.findall(r"\d[\d.,]*", text)[:1] for text in shown[:3]]
    after = page.locator("[data-strip] [data-figure]").all_inner_texts()
    assert [
        re.findall(r"\d[\d.,]*", text)[:1] for text in after[:3]
    ] == digits  # the same numbers in the other language


@pytest.mark.long
def test_next_waits_with_the_reason_until_the_step_is_in_order(open_page):
    page = open_page("/?step=job")
    following = page.get_by_role("button", name="Next", exact=True)
    expects(following).to_be_enabled()
    field(page, "job.seq_len").fill("long")
    expects(following).to_be_disabled()
    expects(page.locator("#step-reason")).to_contain_text('job.seq_len = "long" must be a whole number.')
    expects(field(page, "job.seq_len")).to_have_attribute("aria-invalid", "true")
    note = page.locator("#" + field(page, "job.seq_len").get_attribute("aria-describedby"))
    expects(note).to_contain_text("must be a whole number")
    page.get_by_role("navigation", name="Steps").get_by_role("button", name="Cluster").click()  # one may go anywhere
    expects(page.get_by_role("button", name="Next", exact=True)).to_be_enabled()  # the cluster itself is in order
    expects(page.locator(".steps .wrong")).to_contain_text("Job")
    page.get_by_role("navigation", name="Steps").get_by_role("button", name="Job").click()
    field(page, "job.seq_len").fill("2048")
    expects(following).to_be_enabled()
    expects(page.locator("#step-reason")).to_have_text("")
    following.click()
    page.locator('[data-step="options"]').wait_for()


@pytest.mark.long
def test_an_error_elsewhere_keeps_the_last_step_and_leads_to_its_field(open_page):
    page = open_page("/?step=options")
    field(page, "strategy.tp").fill("3")
    expects(page.locator("#step-reason")).to_contain_text("strategy.tp=3 does not divide the 64 heads.")
    expects(page.get_by_role("button", name="See the plan")).to_be_disabled()
    field(page, "strategy.pp").focus()
    page.locator("#step-reason button").first.click()
    expects(field(page, "strategy.tp")).to_be_focused()


@pytest.mark.long
def test_errors_move_nothing(open_page):
    page = open_page("/?step=job")
    field(page, "job.seq_len").wait_for()
    page.wait_for_load_state("networkidle")
    places = "[...document.querySelectorAll('[data-field]')].map((one) => one.getBoundingClientRect().top)"
    before = page.evaluate(places)
    field(page, "job.seq_len").fill("long")
    expects(field(page, "job.seq_len")).to_have_attribute("aria-invalid", "true")
    assert page.evaluate(places) == before


@pytest.mark.long
def test_a_cell_of_the_matrix_changes_the_link_and_gives_it_back(open_page):
    page = open_page("/")
    to_shenzhen = cell(page, "beijing-a", "shenzhen-c")
    expects(to_shenzhen.locator("[data-figure=gbps]")).to_have_class(re.compile("example"))
    to_shenzhen.click()
    rate = page.get_by_role("group", name="beijing-a – shenzhen-c").get_by_label("Rate, Gbit/s").first
    rate.fill("40")
    expects(to_shenzhen.locator("[data-figure=gbps]")).to_have_text("40")
    expects(to_shenzhen.locator("[data-figure=gbps]")).to_have_class(re.compile("typed"))
    page.get_by_label("Rate shenzhen-c to beijing-a, if it differs").fill("4")
    expects(cell(page, "shenzhen-c", "beijing-a").locator("[data-figure=gbps]")).to_have_text("4")
    expects(to_shenzhen.locator("[data-figure=gbps]")).to_have_text("40")
    assert "between: [beijing-a, shenzhen-c]" in text_of(page)
    page.get_by_role("tab").first.click()
    to_shenzhen.click()
    rate.fill("")
    page.get_by_label("Rate shenzhen-c to beijing-a, if it differs").fill("")
    expects(to_shenzhen.locator("[data-figure=gbps]")).to_have_class(re.compile("example"))
    assert "shenzhen-c]" not in text_of(page)


def test_zones_come_go_and_change_names_and_all_else_stays(open_page):
    page = open_page("/")
    page.get_by_role("button", name="Add zone").click()
    field(page, "cluster.zones[3].name").fill("wuhan")
    field(page, "cluster.zones[3].name").press("Enter")
    field(page, "cluster.zones[3].region").fill("cn-chengdu")
    expects(cell(page, "beijing-a", "wuhan")).to_be_visible()
    cell(page, "shanghai-a", "wuhan").click()
    page.get_by_role("group", name="shanghai-a – wuhan").get_by_label("Rate, Gbit/s").first.fill("7")
    expects(cell(page, "wuhan", "shanghai-a").locator("[data-figure=gbps]")).to_have_text("7")

    open_zone(page, "shanghai-a")
    name = field(page, "cluster.zones[1].name")
    name.fill("wuhan")
    name.press("Enter")
    expects(name).to_have_attribute("aria-invalid", "true")  # another zone has that name
    name.fill("suzhou")
    name.press("Enter")
    expects(cell(page, "beijing-a", "suzhou").locator("[data-figure=gbps]")).to_have_text("10")
    expects(cell(page, "suzhou", "wuhan").locator("[data-figure=gbps]")).to_have_text("7")

    open_zone(page, "shenzhen-c")
    page.get_by_role("button", name="Remove zone").click()
    expects(page.locator("[data-zone]")).to_have_count(3)
    open_zone(page, "wuhan")
    page.get_by_role("button", name="Move up").click()
    expects(page.locator("[data-zone]").nth(1)).to_have_attribute("data-zone", "wuhan")
    text = text_of(page)
    assert "{between: [beijing-a, suzhou], gbps: 10, rtt_ms: 25, usd_per_gb: 0.02}" in text
    assert "shanghai-a" not in text
    assert "shenzhen" not in text
    assert "# samples per optimizer step" in text  # comments of what did not change


@pytest.mark.long
def test_one_zone_needs_no_links_and_ten_have_all_of_them(open_page):
    page = open_page("/?example=single-node")
    page.locator("[data-zone]").wait_for()
    assert page.locator(".matrix").count() == 0
    for _ in range(9):
        page.get_by_role("button", name="Add zone").click()
    expects(page.locator("[data-zone]")).to_have_count(10)
    assert page.locator(".matrix .cell").count() == 90
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
def test_a_slider_changes_the_answer_at_once(open_page):
    page = open_page("/")
    before = answered(page)
    cell(page, "beijing-a", "shanghai-a").click()
    slider = page.locator("[data-slider=gbps]")
    slider.focus()
    for _ in range(24):
        slider.press("ArrowRight")  # 24 stops a factor of ten
    expects(cell(page, "beijing-a", "shanghai-a").locator("[data-figure=gbps]")).to_have_text("100")
    expects(step_time(page)).not_to_have_text(before)
    page.get_by_role("button", name="Undo", exact=True).click()
    expects(cell(page, "beijing-a", "shanghai-a").locator("[data-figure=gbps]")).not_to_have_text("100")
    page.get_by_role("button", name="Redo").click()
    expects(cell(page, "beijing-a", "shanghai-a").locator("[data-figure=gbps]")).to_have_text("100")


@pytest.mark.long
def test_the_model_by_name_size_change_and_hugging_face_config(open_page):
    page = open_page("/?step=model")
    parameters = page.locator('[data-figure="form-parameters"]')
    expects(parameters).to_have_text("68.977 B")
    field(page, "model").fill("llama-2-7b")
    expects(parameters).to_have_text("6.738 B")
    page.get_by_label("Like one of the catalogue, changed").check()
    field(page, "model.layers").fill("16")
    expects(parameters).to_have_text("3.500 B")  # half of the layers of LLaMA-2-7B, all of its embeddings
    page.get_by_label("Only the size is known").check()
    field(page, "model.size_b").fill("13")
    field(page, "model.size_b").press("Enter")
    expects(parameters).to_have_text("13.016 B")
    page.get_by_label("Hugging Face config").check()
    page.get_by_label("Paste or drop a config.json").fill("{")
    page.get_by_role("button", name="Use this model").click()
    expects(page.locator("#hf-said")).to_contain_text("not valid")
    page.get_by_label("Paste or drop a config.json").fill(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,'
        ' "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096}'
    )
    page.get_by_role("button", name="Use this model").click()
    expects(parameters).to_have_text("6.738 B")
    expects(field(page, "model.ffn_hidden")).to_have_value("11008")


@pytest.mark.long
def test_a_pin_keeps_a_degree_and_unpinning_frees_it(open_page):
    page = open_page("/?step=options&example=two-zones-7b")
    answered(page)
    page.get_by_role("button", name="Unpin all").click()
    expects(page.get_by_role("button", name="Pin Pipeline stages (pp)")).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="Pin Pipeline stages (pp)").click()
    field(page, "strategy.pp").fill("2")
    expects(page.locator(".place h2").first).to_contain_text("pp 2")
    assert "strategy:" in text_of(page)
    page.get_by_role("tab").first.click()
    page.get_by_role("button", name="Unpin Pipeline stages (pp)").click()
    assert "strategy:" not in text_of(page)
    page.get_by_role("tab").first.click()
    answered(page)
    page.get_by_role("button", name="Pin as shown").click()
    expects(page.get_by_role("button", name="Unpin Micro-batch")).to_have_attribute("aria-pressed", "true")
    expects(page.locator("[data-field=placement]")).to_be_visible()


@pytest.mark.long
def test_a_link_restores_an_edited_scenario_for_somebody_else(open_page):
    page = open_page("/?step=job")
    field(page, "job.global_batch").fill("512")
    expects(page).to_have_url(re.compile("#s="))
    page.get_by_role("button", name="Link", exact=True).click()
    other = open_page(page.url.removeprefix(page.evaluate("location.origin")))
    expects(field(other, "job.global_batch")).to_have_value("512")
    expects(other.locator(".edited")).to_be_visible()
    assert "global_batch: 512              # samples per optimizer step" in text_of(other)
    other.get_by_role("button", name="Undo edits").click()
    assert "global_batch: 1024" in other.locator("textarea").input_value()


@pytest.mark.long
def test_two_users_stay_apart(open_page):
    one, other = open_page("/?step=job"), open_page("/?step=job")
    field(one, "job.global_batch").fill("512")
    field(other, "job.global_batch").fill("2048")
    expects(one).to_have_url(re.compile("#s="))
    expects(other).to_have_url(re.compile("#s="))
    one.reload()
    other.reload()
    expects(field(one, "job.global_batch")).to_have_value("512")
    expects(field(other, "job.global_batch")).to_have_value("2048")


def test_what_is_exported_can_be_imported(open_page, tmp_path):
    page = open_page("/?step=job")
    field(page, "job.global_batch").fill("512")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "three-cities.yaml"
    download.value.save_as(tmp_path / "mine.yaml")
    assert "global_batch: 512              # samples" in (tmp_path / "mine.yaml").read_text("utf-8")
    page.locator(".scenario-bar .chooser select").select_option("mixtral")
    expects(field(page, "job.global_batch")).to_have_value("512")  # Mixtral's own batch is 512 too
    expects(field(page, "job.tokens")).to_have_value("3e11")
    page.locator("input[type=file]").set_input_files(tmp_path / "mine.yaml")
    expects(field(page, "job.tokens")).to_have_value("1e12")
    expects(page.locator(".scenario-bar .chooser select option:checked")).to_have_text("mine.yaml")
    page.reload()
    expects(field(page, "job.tokens")).to_have_value("1e12")  # an imported file survives a reload
    page.locator(".scenario-bar .chooser select").select_option("three-cities")
    expects(field(page, "job.global_batch")).to_have_value("1024")


@pytest.mark.long
def test_a_saved_scenario_can_be_opened_again_and_deleted(open_page):
    page = open_page("/?step=job")
    field(page, "job.global_batch").fill("256")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Name", exact=True).fill("my cities")
    page.locator(".save-form button[type=submit]").click()
    expects(page.locator(".scenario-bar .chooser select option:checked")).to_have_text("my cities")
    expects(page.locator(".edited")).to_have_count(0)
    other = open_page(page.url.removeprefix(page.evaluate("location.origin")))
    expects(field(other, "job.global_batch")).to_have_value("256")
    other.get_by_role("button", name="Save", exact=True).click()
    other.get_by_role("button", name="Delete").click()
    expects(other.locator(".scenario-bar .chooser select option:checked")).to_have_text("three cities")
    expects(other.locator(".scenario-bar .chooser option", has_text="my cities")).to_have_count(0)


@pytest.mark.long
def test_the_command_asks_the_command_line_the_same(open_page):
    page = open_page("/?step=job", permissions=["clipboard-read", "clipboard-write"])
    field(page, "job.global_batch").wait_for()
    page.get_by_role("button", name="Command").click()
    expects(page.locator(".told").first).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "crosszone plan examples/three-cities.yaml\n"
    field(page, "job.global_batch").fill("512")
    page.get_by_role("button", name="Command").click()
    page.wait_for_timeout(500)
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == "crosszone plan - <<'EOF'"
    assert lines[-1] == "EOF"


@pytest.mark.long
def test_a_mistake_in_the_text_stands_at_its_line_and_in_its_field(open_page):
    page = open_page("/?tab=text&step=job")
    edit_text(page, "seq_len: 4096", "seq_len: long")
    errors = page.locator("#text-errors")
    expects(errors).to_contain_text('job.seq_len = "long" must be a whole number.')
    lines = page.locator(".editor textarea").input_value().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "seq_len" in text)
    expects(page.locator(".line.error")).to_contain_text("seq_len: long")
    errors.get_by_role("button", name=f"line {line}").click()
    chosen = "(() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); })()"
    assert "seq_len: long" in page.evaluate(chosen)
    page.get_by_role("tab", name="Form").click()
    expects(field(page, "job.seq_len")).to_have_value("long")
    expects(field(page, "job.seq_len")).to_have_attribute("aria-invalid", "true")
    field(page, "job.seq_len").fill("4096")
    expects(page.get_by_role("button", name="Next", exact=True)).to_be_enabled()
    assert "# samples per optimizer step" in text_of(page)


@pytest.mark.long
def test_a_text_that_is_no_yaml_closes_the_form_until_it_is_mended(open_page):
    page = open_page("/?tab=text")
    edit_text(page, "job:", "job: [")
    expects(page.locator("#text-errors")).to_contain_text("not valid YAML")
    page.get_by_role("tab", name="Form").click()
    page.get_by_role("button", name="Open the text").click()
    page.get_by_role("button", name="Undo", exact=True).click()
    expects(page.locator("#text-errors")).to_have_text("")
    page.get_by_role("tab", name="Form").click()
    page.locator("[data-zone]").first.wait_for()


@pytest.mark.long
def test_late_answers_never_replace_newer_ones(open_page):
    page = open_page("/?step=job")
    facts = page.locator(".steps-body .facts dd").first
    expects(facts).to_have_text("4,194,304")
    held = []

    def slow(route):
        if route.request.post_data_json.get("scenario", {}).get("job", {}).get("global_batch") == 512:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/answers*", slow)
    field(page, "job.global_batch").fill("512")
    page.wait_for_timeout(300)
    field(page, "job.global_batch").fill("2048")
    expects(facts).to_have_text("8,388,608")
    assert held
    page.wait_for_timeout(300)
    expects(facts).to_have_text("8,388,608")


@pytest.mark.long
def test_edits_and_broken_texts_survive_a_reload(open_page):
    page = open_page("/?tab=text")
    edit_text(page, "global_batch: 1024", "global_batch: 512")
    expects(page).to_have_url(re.compile("#s="))
    edit_text(page, "seq_len: 4096", "seq_len: long")
    expects(page.locator("#text-errors")).to_contain_text("must be a whole number")
    page.reload()
    expects(page.locator(".editor textarea")).to_have_value(re.compile("seq_len: long(.|\n)*global_batch: 512"))


@pytest.mark.long
def test_choosing_an_example_changes_the_address_and_back_returns(open_page):
    page = open_page("/?step=job")
    expects(field(page, "job.global_batch")).to_have_value("1024")
    page.locator(".scenario-bar .chooser select").select_option("fourteen-gpus")
    expects(field(page, "job.global_batch")).not_to_have_value("1024")
    assert "example=fourteen-gpus" in page.url
    page.go_back()
    expects(field(page, "job.global_batch")).to_have_value("1024")


@pytest.mark.long
def test_an_unknown_example_is_said_and_another_can_be_chosen(open_page):
    page = open_page("/?example=nowhere")
    expects(page.locator(".panel [role=alert]")).to_contain_text("There is no example 'nowhere'.")
    page.locator(".scenario-bar .chooser select").select_option("three-cities")
    expects(page.locator("[data-zone]")).to_have_count(3)


@pytest.mark.long
def test_a_server_that_is_gone_is_said_and_the_fields_stay(open_page):
    page = open_page("/?step=job")
    field(page, "job.global_batch").wait_for()
    page.route("**/api/v1/answers*", lambda route: route.abort())
    field(page, "job.global_batch").fill("512")
    expects(page.locator("#step-reason")).to_contain_text("The server does not answer.")
    expects(field(page, "job.global_batch")).to_have_value("512")
    open_page.errors.clear()


@pytest.mark.long
def test_on_a_narrow_screen_the_answer_comes_first(open_page):
    page = open_page("/", width=400, height=800)
    answered(page)
    assert not page.locator("#scenario-parts").is_visible()
    page.get_by_role("button", name="Edit scenario").click()
    expects(page.locator("[data-zone]").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.long
def test_the_keyboard_reaches_bar_tabs_steps_and_fields(open_page):
    page = open_page("/?step=job")
    field(page, "job.seq_len").wait_for()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.field ?? document.activeElement.textContent.trim()"))
    for wanted in ("Export", "Form", "job.seq_len", "job.global_batch", "job.framework", "Next"):
        assert any(wanted in name for name in reached), (wanted, reached)
    page.get_by_role("tab", name="Form").focus()
    page.keyboard.press("ArrowRight")
    expects(page.get_by_role("tab", name="Text")).to_be_focused()
    page.locator(".editor textarea").wait_for()
