"""Chromium as tests drive it: the one that `./dev test` has unpacked, or an installed one; and somebody who looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Frame, Page, expect, sync_playwright
from support.api_server import ApiServer
from support.harvesting import PATIENCE

_UNPACKED = Path(__file__).resolve().parents[2] / ".dev" / "chromium"  # by ./dev
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_FONTS = """\
<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
<dir>{unpacked}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir>
{aliases}
</fontconfig>
"""
_ALIAS = "<alias><family>{wanted}</family><prefer><family>{first}</family><family>{then}</family></prefer></alias>"
_ALIASES = {
    "sans-serif": ("Liberation Sans", "DejaVu Sans"),
    "monospace": ("Liberation Mono", "DejaVu Sans Mono"),
}
"""The fonts of the docs' pictures, and those that stand in for them."""
_FRAME = "**/outbox/**"


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser, whose own files are in `folder`.

    Playwright occupies the thread's event loop until it ends: let no other test run meanwhile that needs one.
    """
    program, environment = _program(folder)
    expect.set_options(timeout=2000 * PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=_ARGUMENTS, env=environment, timeout=4000 * PATIENCE
        )
        yield browser
        browser.close()


class Visit:
    """Somebody with a role who looks at Airflow in a window of his own (`options` are those of its context)."""

    def __init__(self, browser: Browser, server: ApiServer, role: str, **options: Any) -> None:
        self._server = server
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(2000 * PATIENCE)
        with server.visitor(role) as visitor:
            token = visitor.cookies["_token"]
        self._context.add_cookies([{"name": "_token", "value": token, "url": server.url}])
        self.page: Page = self._context.new_page()
        self.problems: list[str] = []
        """All that the browser has refused or could not run, in the frame and around it."""
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.problems.append(line.text))

    def close(self) -> None:
        self._context.close()

    def sign_out(self) -> None:
        self._context.clear_cookies()

    def address(self, path: str) -> str:
        """The address of a page of Airflow; ours begin with `outbox/`."""
        return f"{self._server.url}/{path}"

    def open_framed(self, path: str) -> Frame:
        """Open a page of ours in Airflow's; the frame that has it."""
        self.page.goto(self.address(f"plugin/outbox{self._server.base}/outbox/{path}"))
        return self.frame()

    def go(self, frame: Frame, path: str) -> None:
        """Let the frame go to another page of ours, which is quicker than to open Airflow's again."""
        frame.goto(self.address(f"outbox/{path}"))

    def open_alone(self, path: str) -> Page:
        """Open a page of ours outside of any frame."""
        self.page.goto(self.address(f"outbox/{path}"))
        return self.page

    def frame(self) -> Frame:
        """The frame that has our page."""
        element = self.page.wait_for_selector("iframe")
        assert element is not None
        frame = element.content_frame()
        assert frame is not None
        frame.wait_for_url(_FRAME)
        return frame


def _program(folder: Path) -> tuple[Path, dict[str, str | float | bool]]:
    """Chromium, and the environment in which it finds its libraries and fonts."""
    environment = {**os.environ, "HOME": str(folder)}
    unpacked = _UNPACKED / "usr/lib/chromium/chromium"
    if not unpacked.exists():
        installed = shutil.which("chromium")
        assert installed, "Chromium is missing: run the tests by ./dev test, or install it"
        return Path(installed), {**environment}
    places = ("lib/*-linux-gnu", "usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/pulseaudio")
    libraries = [str(path) for place in places for path in _UNPACKED.glob(place)]
    fonts = folder / "fonts.conf"
    aliases = "\n".join(_ALIAS.format(wanted=name, first=one, then=two) for name, (one, two) in _ALIASES.items())
    fonts.write_text(_FONTS.format(unpacked=_UNPACKED, folder=folder, aliases=aliases))
    found = {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "FONTCONFIG_FILE": str(fonts)}
    return unpacked, {**environment, **found}
