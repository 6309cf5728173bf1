"""Takes the pictures of the server's page, in a server that runs.

python -m docs.site.page_pictures http://127.0.0.1:8080
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

FOLDER = Path(__file__).parents[1] / "pictures"
FLAGS = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync")
SETTLED = 3000  # milliseconds after which the drawing has its place


def main() -> None:
    """Run the first sample, and take a picture on a wide screen and one on a phone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    address = parser.parse_args().address
    take(address, "page.png", {"width": 1280, "height": 1200}, dark=False)
    take(address, "page-phone.png", {"width": 390, "height": 844}, dark=True)


def take(address: str, name: str, size: ViewportSize, *, dark: bool) -> None:
    """Take one picture of a finished run."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light")
        page.goto(address)
        page.click("#run:enabled")
        page.locator("#cancel:disabled").wait_for()
        page.wait_for_timeout(SETTLED)
        page.screenshot(path=FOLDER / name)
        browser.close()


if __name__ == "__main__":
    main()
