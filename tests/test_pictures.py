"""Charts as files: well formed, legible in both themes, with all text within."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from pictures import WIDE, Categories, picture

from kvemb.tools.report.axes import Linear
from kvemb.tools.report.charts import Curve
from kvemb.tools.report.style import DARK, LIGHT

SVG = "{http://www.w3.org/2000/svg}"


def made(count: int = 6) -> str:
    curves = [Curve(f"line <{at}>", [(0.0, 1.0), (1.0, float(at))], at, at % 2 == 1) for at in range(count)]
    return picture("Speed & more", curves, Categories(("a", "b")), Linear(0, 10), across="place", note="per second")


@pytest.mark.parametrize("count", [1, 2, 6, 12])
def test_a_legend_names_every_line_within_the_picture(count: int) -> None:
    root = ElementTree.fromstring(made(count))
    high = float(root.get("height", "0"))
    texts = [each for each in root.findall(f"{SVG}text") if (each.text or "").startswith("line")]
    assert [each.text for each in texts] == [f"line <{at}>" for at in range(count)]
    for each in texts:
        assert 0 < float(each.get("x", "0")) < WIDE - 6 * len(each.text or "")
        assert 0 < float(each.get("y", "0")) < high - 3
    assert len({(each.get("x"), each.get("y")) for each in texts}) == count


def test_dashed_lines_are_dashed_in_the_plot_and_in_the_legend() -> None:
    root = ElementTree.fromstring(made(2))
    dashed = [each.get("class") for each in root.iter(f"{SVG}line") if each.get("stroke-dasharray")]
    assert dashed == ["line1", "line1"]


def test_both_themes_are_in_it_and_the_light_one_is_the_first() -> None:
    light, dark = made().split("@media (prefers-color-scheme: dark)")
    assert LIGHT["card"] in light
    assert DARK["card"] in dark
    assert "var(" not in light + dark
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", light + dark)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_background(theme: dict[str, str]) -> None:
    """By WCAG's contrast: 4.5 for text, 3 for lines."""
    for name, least in {"text": 4.5, "faint": 4.5, "c0": 3.0, "c1": 3.0, "c2": 3.0}.items():
        assert contrast(theme[name], theme["card"]) >= least, name


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
