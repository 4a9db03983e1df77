"""A measured figure is stated on one page: another page that needs it links to it, so that no two differ one day.

A figure is a number with decimals and a unit in which kvemb is measured, such as 37.7 M rows/s, 6.3 us or 1.13 times.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a command writes, and arithmetic in which numbers of other pages appear.
LEFT_OUT = {"CHANGELOG.md", "FORMAT.md", "docs/operate/cluster_scale.md"}
UNITS = "rows/s|keys/s|steps/s|us|ns|ms|MB|GB|times"
FIGURE = re.compile(rf"(?<![\d.,])(\d+\.\d+) ((?:[kM] )?(?:{UNITS}))\b")


def prose() -> dict[str, str]:
    """The texts of all pages by their path, without code; README: the part that the page of benchmarks has, too."""
    pages = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
    pages |= {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
    pages["README.md"] = pages["README.md"].partition("<!-- figures -->")[2].partition("<!-- /figures -->")[0]
    return {
        page: re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for page, text in pages.items()
        if page not in LEFT_OUT
    }


def test_no_figure_is_stated_on_two_pages() -> None:
    stated = defaultdict(set)
    for page, text in prose().items():
        for number, unit in FIGURE.findall(text):
            stated[f"{number} {unit}"].add(page)
    assert len(stated["3.3 us"]) == 1, "figures are found as docs/inside/benchmarks.md writes them"
    twice = {figure: sorted(pages) for figure, pages in stated.items() if len(pages) > 1}
    assert twice == {}, "state it on one page, and link to it from the others"
