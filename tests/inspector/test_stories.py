"""From a wrong answer to the node that caused it, and back to before it, in a browser."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from services import parts
from test_changes import choose
from tiers import first_of

from locus_store import StorageBackendAdapter


class Clicks:
    """Clicks in a page, counted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.number = 0

    async def on(self, selector: str) -> None:
        self.number += 1
        await self.page.click(selector)


class Trip(TypedDict):
    city: str
    words: Annotated[list[str], operator.add]


def _graph(backend: Any, log: list[str]) -> Any:
    pytest.importorskip("langgraph")
    from langgraph.graph import START, StateGraph

    from locus_store.adapters.langgraph import LangGraphSaver

    def listen(state: Trip) -> Any:
        log.append("listen")
        return {"words": ["I moved to Basel"]}

    def remember(state: Trip) -> Any:
        log.append("remember")
        return {"city": "Bern" if len(log) < 4 else "Basel", "words": ["noted"]}

    def answer(state: Trip) -> Any:
        log.append("answer")
        return {"words": [f"The weather in {state['city']} is fine"]}

    builder = StateGraph(Trip)
    for node in (listen, remember, answer):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "listen")
    builder.add_edge("listen", "remember")
    builder.add_edge("remember", "answer")
    return builder.compile(checkpointer=LangGraphSaver(backend))


@pytest.mark.parametrize("options", first_of({}, {"java_script_enabled": False}))
async def test_a_stale_city_of_a_graph_is_found_in_four_clicks_and_rewound(
    chromium: Any, visit: Any, any_place: Any, options: Any
) -> None:
    backend, store, _ = parts(any_place)
    log: list[str] = []
    config: Any = {"configurable": {"thread_id": "trip"}}
    graph = _graph(backend, log)
    wrong = await graph.ainvoke({"city": "?", "words": ["hi"]}, config)
    assert "Bern" in wrong["words"][-1]
    site = visit(backend, store, allow_write=True)
    async with chromium.tab(site, **options) as tab:
        page = tab.page
        await tab.goto("version?thread=trip")
        clicks = Clicks(page)
        assert "The weather in Bern is fine" in await page.inner_text("main")
        await clicks.on("main a:text-is('city')")
        assert "remember" in await page.inner_text(".origin")
        await clicks.on(".origin a")
        assert "Bern" in await page.inner_text("ins")
        assert clicks.number <= 4

        await page.click("main p a >> nth=0")  # the version before it
        await choose(page, "Rewind to this version")
        await page.click("button:text-is('Rewind')")
        assert "Bern" not in await page.inner_text("#state")
    assert (await graph.aget_state(config)).next == ("remember",)
    done = await graph.ainvoke(None, config)
    assert log == ["listen", "remember", "answer", "remember", "answer"]
    assert done["words"][-1] == "The weather in Basel is fine"


async def test_a_stale_city_of_a_locus_agent_is_found_and_rewound(
    chromium: Any, visit: Any, place: Any
) -> None:
    locus = pytest.importorskip("locus")
    from locus.testing import FunctionModel, ScriptedModel

    backend, store, _ = parts(place)

    def agent(model: Any) -> Any:
        adapter = StorageBackendAdapter(backend)
        return locus.Agent(agent_id="concierge", model=model, checkpointer=adapter)

    await agent(ScriptedModel(["Noted: Basel."])).arun("I live in Basel.", thread_id="trip")
    await agent(ScriptedModel(["Noted: Bern."])).arun("Thanks.", thread_id="trip")
    site = visit(backend, store, allow_write=True)
    async with chromium.tab(site) as tab:
        page = tab.page
        await tab.goto("bisect?thread=trip")
        clicks = Clicks(page)
        await page.select_option("#test", "text")
        await page.fill("#value", "Bern")
        await clicks.on("button:text-is('Find')")
        await clicks.on("[role=status] a")
        assert "Noted: Bern." in await page.inner_text(".changes")
        await page.click("main p a >> nth=0")
        await choose(page, "Rewind to this version")
        await page.click("button:text-is('Rewind')")
        assert "Bern" not in await page.inner_text("#state")

    def heard(messages: list[Any], tools: Any) -> str:
        return " ".join(it.content for it in messages if it.role.value != "system")

    result = await agent(FunctionModel(heard)).arun("Where?", thread_id="trip")
    assert ("Basel" in result.text, "Bern" in result.text) == (True, False)


@pytest.mark.parametrize("options", first_of({}, {"java_script_enabled": False}))
async def test_a_recent_value_is_chosen_in_bisect_and_its_answer_leads_to_the_difference(
    chromium: Any, visit: Any, options: Any
) -> None:
    backend, store, _ = parts()
    for at, budget in enumerate((210, 200, 12, 12, 190)):
        about = {"node": f"node{at}"}
        await backend.write_state(
            "trip", {"n": at, "plan": {"budget": budget}}, checkpoint_id=f"v{at}", metadata=about
        )
    site = visit(backend, store)
    async with chromium.tab(site, **options) as tab:
        page = tab.page
        await tab.goto("")
        clicks = Clicks(page)
        await clicks.on("main a.id")
        await clicks.on("nav a:has-text('Bisect')")
        assert await page.locator("#paths option[value=plan]").count() == 1
        await page.fill("#path", "plan.budget")
        await clicks.on("button:text-is('Show its values')")
        shown = await page.locator(".suggested a").all_inner_texts()
        assert [it.split() for it in shown] == [
            ["190", "v4"],
            ["12", "v2"],
            ["200", "v1"],
            ["210", "v0"],
        ]
        await clicks.on(".suggested a:has-text('12')")
        assert "v2 of 5 versions" in await page.inner_text("[role=status]")
        await clicks.on("[role=status] a")
        assert "v2" in await page.inner_text("h1")
        assert await page.inner_text(".changes:has-text('budget') del") == "200"
        assert await page.inner_text(".changes:has-text('budget') ins") == "12"
        assert clicks.number == 5
