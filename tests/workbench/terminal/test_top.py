"""`quire top` in a pseudo-terminal, with a server that sends a live view."""

import signal

from quire.server.observability.live.live_feed import INTERVAL_S
from tests.server.observability.live.frames import two_requests, whole
from tests.server.scripted_engine import NUM_BLOCKS
from tests.server.served import eventually, plain_config, serving
from tests.workbench.terminal.live_samples import FIGURES, changes, engine, picture
from tests.workbench.terminal.live_server import live_server
from tests.workbench.terminal.pseudo_terminal import quire_in_terminal

PLAIN = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


def test_the_view_follows_its_events_pauses_resizes_and_leaves() -> None:
    with live_server() as server, quire_in_terminal("top", server.url) as terminal:
        server.tell(engine("loaded"))
        server.tell(picture())
        terminal.wait_for(r"small at http://127\.0\.0\.1:\d+  loaded")
        terminal.wait_for(r"\n·█▒·····\s*\n")
        terminal.wait_for("cmpl-a-0 .* decode .*12/25 tokens, 4 out")
        assert terminal.style_of("█▒·").fg == "green"
        server.tell(changes((2, 2, 3), progress=[[0, "decode", 14, 6, 0, None]]))
        terminal.wait_for(r"\n·█▓▓····\s*\n")
        terminal.send("p")
        terminal.wait_for("PAUSED")
        server.tell(changes((2, 6, 2), figures={**FIGURES, "running": 77}))
        terminal.resize(12, 40)
        terminal.wait_for(r"p goes on   q leaves\s*\Z")
        assert max(len(line.rstrip()) for line in terminal.visible_screen) <= 40
        assert "running 77" not in terminal.screen
        terminal.send("p")
        terminal.wait_for("running 77")
        terminal.wait_for(r"\n·█▒▒▒▒▒▒\s*\n")
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert terminal.echoes
    assert server.asked == [("/v1/live", None)]
    assert terminal.raw.rstrip().endswith((b"\x1b[?1049l\x1b[?25h", b"\x1b[?25h\x1b[?1049l"))


def test_a_stream_that_ends_is_asked_for_again() -> None:
    with live_server() as server, quire_in_terminal("top", server.url, "--model", "m") as terminal:
        server.tell(picture())
        terminal.wait_for("running 1")
        server.end_stream()
        terminal.wait_for("the stream has ended; asked again in 1 s")
        server.tell(picture())
        terminal.wait_until(lambda: len(server.asked) == 2, "a second request")
        terminal.wait_for(r"loaded\s*\n")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.exit_code() == 130
    assert server.asked[0][0] == "/v1/live?model=m"


def test_colours_and_glyphs_are_those_that_the_terminal_has() -> None:
    with live_server() as server:
        variables = {**PLAIN, "NO_COLOR": "1", "QUIRE_API_KEY": "secret"}
        with quire_in_terminal("top", server.url, variables=variables) as terminal:
            server.tell(picture())
            terminal.wait_for(r"\n\.#c\.\.\.\.\.\s*\n")
            assert terminal.style_of("#c").fg == "default"
            terminal.send("q")
            assert terminal.exit_code() == 0
        assert server.asked == [("/v1/live", "Bearer secret")]
    assert b"\x1b[32m" not in terminal.raw


def test_a_server_that_cannot_be_watched_says_why() -> None:
    refusal = (401, '{"error": {"message": "no \\u001b[31mkey"}}')
    with live_server(refusal) as server, quire_in_terminal("top", server.url) as terminal:
        assert terminal.exit_code() == 1
        assert "quire top: 401 no <U+001B>[31mkey" in terminal.screen


def test_a_server_that_is_still_loading_is_asked_again() -> None:
    refusal = (503, '{"error": {"message": "the model is loading"}}')
    with live_server(refusal) as server, quire_in_terminal("top", server.url) as terminal:
        terminal.wait_for("503 the model is loading; asked again in 1 s")
        server.refusal = None
        server.tell(picture())
        terminal.wait_for("running 1")
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_no_server_is_told() -> None:
    with quire_in_terminal("top", "http://127.0.0.1:9") as terminal:
        assert terminal.exit_code() == 1
        assert "http://127.0.0.1:9 does not answer" in terminal.screen
        assert terminal.echoes


def test_the_view_is_that_of_a_server_of_quire() -> None:
    with serving(plain_config()) as served, quire_in_terminal("top", served.url) as terminal:
        assert eventually(lambda: served.engine.watched == [INTERVAL_S])
        served.do(lambda: served.engine.tell(live=whole(NUM_BLOCKS)))
        served.do(lambda: served.engine.tell(live=two_requests()))
        terminal.wait_for("(?m)^cmpl-a-0 .* decode ")
        terminal.wait_for("(?m)^cmpl-b-0 .* preempted .* Waits for 3 blocks")
        terminal.send("q")
        assert terminal.exit_code() == 0
    assert eventually(lambda: served.engine.watched == [INTERVAL_S, None])
