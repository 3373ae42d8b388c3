# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page for looking at: shot.py BASE OUT [name=query[@WxH][!script] ...]."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

base, out, *wanted = sys.argv[1:]
with sync_playwright() as p:
    browser = p.chromium.launch(
        executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    )
    for item in wanted:
        name, _, rest = item.partition("=")
        rest, _, script = rest.partition("!")
        query, _, size = rest.partition("@")
        w, h = (int(x) for x in (size or "1440x900").split("x"))
        page = browser.new_page(viewport={"width": w, "height": h})
        page.on("console", lambda m: print("console", m.type, m.text))
        page.on("pageerror", lambda e: print("error", e))
        page.goto(f"{base}/?{query}")
        page.wait_for_timeout(2500)
        if script:
            exec(script)
            page.wait_for_timeout(500)
        page.screenshot(path=str(Path(out) / f"{name}.png"))
        page.close()
    browser.close()
