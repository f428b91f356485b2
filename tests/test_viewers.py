"""Which words of a browser's terminal are somebody's, and which are its own."""

from __future__ import annotations

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from ddpviz.cli.viewers import size_of, touches


@pytest.mark.parametrize(
    "typed",
    ["4", "\r", "\x1b", "\x1b[A", "\x1bOP", "\x1b[1;5C", "\x1b[200~pasted\x1b[201~", "ж", "\x1b[<0;4;5M",
     "\x1b[<64;4;5M", "\x1b[<35;4;5M4", "\x1b]"],
)  # fmt: skip
def test_a_key_a_button_and_the_wheel_touch(typed: str) -> None:
    assert touches(typed)


@pytest.mark.parametrize(
    "typed",
    ["", "\x1b[<35;4;5M", "\x1b[<32;4;5M", "\x1b[<39;4;5M", "\x1b[<0;4;5m", "\x1b[I", "\x1b[O", "\x1b[?2026;2$y",
     "\x1b[?1;2c", "\x1b[>0;276;0c", "\x1b[8;40;140t", "\x1b]11;rgb:0000/0000/0000\x1b\\",
     "\x1b[<35;4;5M\x1b[<35;5;5M"],
)  # fmt: skip
def test_movement_and_what_a_terminal_answers_do_not(typed: str) -> None:
    assert not touches(typed)


def test_a_page_cannot_ask_for_a_screen_of_any_size() -> None:
    assert size_of("140", 40) == (140, 40)
    assert size_of(10**9, -1) == (500, 1)
