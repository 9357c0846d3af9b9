"""The explorer page: exact columns, a private server, and the same front as `sweeper pareto`."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.explorer import write_million
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.commands.explorer import ServedSweeps, server
from sweeper.query.pareto import pareto_front
from sweeper.report.answers import latest
from sweeper.report.browser.explorer import UNIT_COST, ExploredSweep

SPACE = """\
# Where is it best?
simulator: tests.toys.quadratic
axes: {x: 0..9, y: 0.5..4 log 8, n: [1, 2, 13]}
derived: {twice: "x * 2"}
constraints: ["x + y < 12"]
where: whole < 90
"""
SERVING = """\
simulator: serving
axes: {model: gpt2, gpu: [l4, h100_sxm], fidelity: analytic, qps: [1, 4], max_batch: [8, 32]}
"""
UNNAMED = """
const text = (one) => one.getAttribute("aria-label") || one.textContent.trim();
const named = (one) => one.labels?.length || text(one);
const all = [...document.querySelectorAll("input, select, button")];
return all.filter((one) => one.checkVisibility() && !named(one)).length;
"""
VALUES = """
const columns = arguments[0].map((name) => state.first.columns.get(name).values);
return state.fronts[0].map(({ row, ties }) => [...columns.map((values) => values[row]), ties]);
"""


def sweep(folder: Path, name: str, space: str) -> None:
    (folder / "spaces").mkdir(exist_ok=True)
    (folder / "spaces" / f"{name}.yaml").write_text(space)
    assert main([f"+space={name}", "plot=false", "engine=inline"]) == 0


@pytest.fixture
def swept(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    sweep(workplace, "toy", SPACE)
    return workplace


def decoded(found: ExploredSweep) -> dict[str, list[Any]]:
    """Return the columns as the page reads them."""
    columns = {}
    for place, column in enumerate(found.columns):
        raw = found.column(place)
        if column["levels"] is None:
            columns[column["name"]] = np.frombuffer(raw, "<f8").tolist()
        else:
            levels = dict(enumerate(column["levels"]))
            columns[column["name"]] = [levels.get(code) for code in raw]
    return columns


def test_columns_hold_exact_values(swept: Path) -> None:
    last = latest("toy", "outputs")
    good = last.results.filter(pl.col("status").cast(pl.String) == "ok").collect()
    columns = decoded(ExploredSweep(last))
    assert {"x", "y", "n", "twice", "cost_usd", "whole"} <= set(columns)
    for name, values in columns.items():
        assert values == good[name].to_list(), name


def test_conditions_of_the_space_are_the_first_filters(swept: Path) -> None:
    meta = ExploredSweep(latest("toy", "outputs")).meta
    assert meta["filters"] == {"whole": {"low": None, "high": np.nextafter(90.0, 0.0)}}
    sweep(swept, "toy", SPACE.replace("whole < 90", "whole < 90 OR x = 1"))
    found = ExploredSweep(latest("toy", "outputs"))
    assert found.meta["filters"] == {"meets_conditions": {"values": [True]}}
    columns = decoded(found)
    wanted = [w < 90 or x == 1 for w, x in zip(columns["whole"], columns["x"], strict=True)]
    assert columns["meets_conditions"] == wanted


def test_cost_at_a_new_price_equals_the_cost_in_such_a_price_list(workplace: Path) -> None:
    sweep(workplace, "priced", SERVING)
    last = latest("priced", "outputs")
    found = ExploredSweep(last)
    assert found.rates.keys() == {"l4", "h100_sxm"}
    columns, usd = decoded(found), {"l4": 0.25, "h100_sxm": 7.0}
    again = decoded(ExploredSweep(last.in_prices("public_cloud:l4=0.25+h100_sxm=7")))
    for metric in ("cost_usd_per_mtok", "cost_usd_per_hour"):
        one = np.array(columns[UNIT_COST + metric])
        priced = one * [usd[gpu] for gpu in columns["gpu"]]
        np.testing.assert_allclose(priced, again[metric], rtol=1e-9)


def test_costs_of_designs_with_two_kinds_of_gpu_are_not_repriced(workplace: Path) -> None:
    pools = "pools.decode_gpu: h100_sxm, pools.prefill_gpus: 1, pools.decode_gpus: 1"
    axes = f"model: gpt2, gpu: [l4, h100_sxm], qps: 1, requests: 20, {pools}"
    space = f"simulator: serving\naxes: {{{axes}}}\n"
    sweep(workplace, "pools", space)
    columns = decoded(ExploredSweep(latest("pools", "outputs")))
    missing = dict(
        zip(columns["gpu"], np.isnan(columns[UNIT_COST + "cost_usd_per_mtok"]), strict=True)
    )
    assert missing == {"l4": True, "h100_sxm": False}


def test_page_in_a_file_is_self_contained(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "toy", "--explore", "--file", "page.html"]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    text = Path("page.html").read_text()
    assert not re.search(r"<[^>]*(src|href)=[\"'](?!data:|#)", text)
    assert "connect-src" not in text.split("<style>")[0]


def test_sampled_page_keeps_the_front(swept: Path) -> None:
    last = latest("toy", "outputs")
    found = ExploredSweep(last).sampled(40)
    meta = found.meta
    assert meta["rows"] < meta["total"]
    kept = pareto_front(found.answers.results, last.objectives, where=last.where)
    assert kept.select(*last.objectives).equals(last.front.select(*last.objectives))


@pytest.fixture
def served(swept: Path) -> Iterator[tuple[ServedSweeps, int]]:
    found = ServedSweeps("outputs", "toy")
    with server(found, 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield found, listening.server_port
        listening.shutdown()


def get(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_server_answers_only_this_machine_with_the_token(served: tuple[ServedSweeps, int]) -> None:
    known, port = served
    assert get(port, f"/{known.token}/")[0] == 200
    assert get(port, f"/{known.token}/", f"localhost:{port}")[0] == 200
    assert get(port, f"/{known.token}/", "evil.example")[0] == 403
    assert get(port, f"/{known.token}/", "127.0.0.1.evil.example")[0] == 403
    for path in ("/", "/guess/", f"/{known.token}", f"/{known.token}x/"):
        assert get(port, path) == (403, b"forbidden")


def test_server_serves_only_sweeps_of_its_folder(served: tuple[ServedSweeps, int]) -> None:
    known, port = served
    status, text = get(port, f"/{known.token}/sweeps/toy")
    assert status == 200
    assert json.loads(text)["name"] == "toy"
    for path in ("..%2F..%2Fetc", "other", "toy/columns/999", "toy/designs/999999", "toy/../toy"):
        assert get(port, f"/{known.token}/sweeps/{path}")[0] == 404, path


def test_server_returns_a_design_by_row(served: tuple[ServedSweeps, int]) -> None:
    known, port = served
    found = json.loads(get(port, f"/{known.token}/sweeps/toy/designs/0")[1])
    assert main(["show", "toy", found["key"]]) == 0
    assert "does not report the time of operators" in found["problem"]


def test_ui_needs_results(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui"]) == 2
    assert "there are no results under outputs" in capsys.readouterr().err
    with pytest.raises(UserError, match="no results of 'missing'"):
        ServedSweeps("outputs", "toy").sweep("missing")


def opened(browser: Any, address: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(address)
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(ready))


def front_in(browser: Any, names: list[str]) -> list[tuple[float, ...]]:
    return sorted(map(tuple, browser.execute_script(VALUES, names)))


def front_of(rows: pl.DataFrame, names: list[str]) -> list[tuple[float, ...]]:
    return sorted(tuple(map(float, row)) for row in rows.select(*names, "equivalents").rows())


@pytest.mark.slow
def test_front_in_the_page_equals_pareto(browser: Any, served: tuple[ServedSweeps, int]) -> None:
    known, port = served
    opened(browser, f"http://127.0.0.1:{port}/{known.token}/")
    last = latest("toy", "outputs")
    names = list(last.objectives)
    assert front_in(browser, names) == front_of(last.front, names)
    browser.execute_script("setFilter('x', {low: 3, high: null})")
    narrower = pareto_front(last.results, last.objectives, where="whole < 90 AND x >= 3")
    assert front_in(browser, names) == front_of(narrower, names)
    browser.execute_script("state.objectives = [['y', 'max'], ['whole', 'min']]; update()")
    others = pareto_front(last.results, {"y": "max", "whole": "min"}, where="whole < 90 AND x >= 3")
    assert front_in(browser, ["y", "whole"]) == front_of(others, ["y", "whole"])
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_page_is_used_by_keyboard(browser: Any, swept: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    assert main(["report", "toy", "--explore", "--file", "page.html"]) == 0
    opened(browser, (swept / "page.html").as_uri())
    assert browser.execute_script(UNNAMED) == 0
    status = browser.find_element("id", "status")
    before = status.text
    end = browser.find_element("css selector", "fieldset[data-name='cost_usd'] input[name='high']")
    end.send_keys("$2", Keys.TAB)
    assert status.text != before
    assert browser.execute_script("return state.filters.get('cost_usd').high") == 2
    plot = browser.find_element("id", "plot")
    plot.send_keys(Keys.ARROW_RIGHT)
    first = browser.execute_script("return state.chosen.row")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script("return state.chosen.row") != first
    button = browser.find_element("css selector", "#front-table tbody button")
    button.send_keys(Keys.ENTER)
    assert browser.find_element("id", "design").is_displayed()
    head = browser.find_element("css selector", "#front-table th button")
    head.send_keys(Keys.ENTER)
    sorted_by = "return document.querySelector('#front-table th[aria-sort=descending]') !== null"
    assert browser.execute_script(sorted_by)
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_prices_and_a_second_sweep_change_the_front(browser: Any, workplace: Path) -> None:
    events = SERVING.replace("fidelity: analytic", "requests: 20")
    sweep(workplace, "priced", events)
    sweep(workplace, "other", events.replace("[8, 32]", "[64]"))
    words = ["report", "priced", "--explore", "--against", "other", "--file", "page.html"]
    assert main(words) == 0
    opened(browser, (workplace / "page.html").as_uri())
    last = latest("priced", "outputs").in_prices("public_cloud:l4=50").usual
    browser.execute_script("document.getElementById('prices').open = true")
    price = browser.find_element("css selector", "#rates input")
    assert browser.find_element("css selector", "#rates label").text.startswith("l4")
    price.clear()
    price.send_keys("50\t")
    wait = "return state.rates !== null && state.first.columns.get('cost_usd_per_mtok').stored"
    assert browser.execute_script(wait)
    names = list(last.objectives)
    np.testing.assert_allclose(front_in(browser, names), front_of(last.front, names), rtol=1e-9)
    box = browser.find_element("id", "against")
    box.send_keys("other")
    assert "of" in browser.find_element("id", "status").text
    assert browser.execute_script("return state.second.meta.name") == "other"
    browser.find_element("id", "list-prices").click()
    browser.find_element("css selector", "#front-table tbody button").click()
    note = browser.find_element("id", "design-note").text
    assert "decode" in browser.find_element("id", "breakdown").text, note
    for width, theme in ((1280, "light"), (400, "dark")):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_script(f"theme('{theme}')")
        beyond = (
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert browser.execute_script(beyond) <= 0, width
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_million_designs_are_filtered_in_the_page(browser: Any, workplace: Path) -> None:
    write_million(workplace)
    known = ServedSweeps("outputs", "million")
    with server(known, 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        opened(browser, f"http://127.0.0.1:{listening.server_port}/{known.token}/")
        last = latest("million", "outputs")
        names = list(last.objectives)
        assert front_in(browser, names) == front_of(last.front, names)
        browser.execute_script("setFilter('device', {values: ['device_3', 'device_7']})")
        assert browser.execute_script("return state.first.passing") == 200_000
        narrower = pareto_front(
            last.results, last.objectives, where="device = 'device_3' OR device = 'device_7'"
        )
        assert front_in(browser, names) == front_of(narrower, names)
        assert browser.get_log("browser") == []
        listening.shutdown()
