"""The report's CSS, with a light and a dark theme for narrow and wide screens, and the page around the content."""

from __future__ import annotations

from html import escape


def _named(text: str) -> dict[str, str]:
    return {name: colour for name, _, colour in (each.partition("=") for each in text.split())}


# Colours by name.
LIGHT = _named(
    """
    back=#f7f7f5 card=#ffffff text=#1f2328 faint=#636c76 grid=#e3e6ea edge=#d8dce1 link=#2559a8 bad=#b3261e
    badback=#fdecea c0=#3a6fc4 c1=#d0632f c2=#2a8f6d c3=#8c5fb8 c4=#a67c00 c5=#2f93ad c6=#c04f86 c7=#8a929b
    quiet=#b9c3cf
    """
)
DARK = _named(
    """
    back=#121518 card=#1a1e23 text=#e4e7eb faint=#9aa4af grid=#2a3038 edge=#323943 link=#8ab4f8 bad=#ff9d94
    badback=#3a1f1d c0=#76a5f0 c1=#f0935f c2=#5cc7a0 c3=#bd97e8 c4=#d8b24a c5=#67c3db c6=#ec8ab9 c7=#7d8792
    quiet=#525d6a
    """
)


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_COLOURS = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""
_TEXT = """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1120px; overflow-wrap: anywhere; padding: 28px 20px 80px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; }
h2 { border-top: 1px solid var(--edge); font-size: 20px; line-height: 1.3; margin: 44px 0 4px; padding-top: 20px; }
h3 { font-size: 15px; margin: 0; } p { margin: 4px 0; } a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; } .sub { color: var(--faint); } .small { font-size: 13px; }
.bad { color: var(--bad); font-weight: 600; }
.top { float: right; font-size: 13px; font-weight: 400; padding-left: 12px; }
.notice { background: var(--badback); border-left: 4px solid var(--bad); border-radius: 4px; margin: 12px 0;
  padding: 10px 14px; } .notice b { color: var(--bad); }
.facts { display: grid; gap: 2px 24px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 190px), 1fr));
  margin: 12px 0 16px; } .facts div { min-width: 0; padding: 4px 0; }
.facts .long { grid-column: 1 / -1; }
.overview td.words + td.words, .overview td.count + td.words, .overview th.words { padding-left: 10px; }
.overview th:first-child { padding-left: 0; }
dt { color: var(--faint); font-size: 13px; } dd { margin: 0; }
.numbers { display: grid; gap: 6px 8px; grid-template-columns: repeat(auto-fill, minmax(56px, 1fr)); margin: 10px 0 0;
  font-variant-numeric: tabular-nums; } .numbers.wide { grid-template-columns: repeat(auto-fill, minmax(124px, 1fr)); }
.numbers dd { font-size: 14px; } .numbers dt { font-size: 12px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; width: 100%; }
td, th { border-bottom: 1px solid var(--grid); padding: 6px 10px 6px 0; text-align: right; vertical-align: top; }
th { color: var(--faint); font-size: 13px; font-weight: 500; } tr:last-child td { border-bottom: 0; }
td:first-child, th:first-child, td.words, th.words { text-align: left; } td { overflow-wrap: anywhere; }
td.count { white-space: nowrap; } .most td { font-size: 14px; padding: 3px 10px 3px 0; }
.overview td:first-child { min-width: 150px; width: 30%; }
"""
_CHARTS = """
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr));
  margin-top: 12px; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; min-width: 0; padding: 14px 16px; }
.card .note { color: var(--faint); font-size: 13px; margin: 2px 0 0; }
.plot { display: block; height: 190px; margin: 18px 6px 32px 58px; overflow: visible; width: calc(100% - 64px); }
.scatter { display: block; height: auto; margin-top: 12px; width: 100%; }
.label { fill: var(--faint); font-size: 12px; } .grid { stroke: var(--grid); }
.one, .moved { background: var(--c0); fill: var(--c0); } .out, .removed { background: var(--c1); fill: var(--c1); }
.added { background: var(--c2); fill: var(--c2); } .quiet { background: var(--quiet); fill: var(--quiet); }
.dot { fill: var(--c0); fill-opacity: 0.5; }
.keys { display: flex; flex-wrap: wrap; font-size: 13px; gap: 2px 16px; margin: 0; color: var(--faint); }
.keys span { max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.keys i { border-radius: 2px; display: inline-block; height: 10px; margin-right: 6px; width: 10px; }
"""
_LINES = "".join(
    f".line{at} {{ background: var(--c{at}); fill: var(--c{at}); stroke: var(--c{at}); stroke-width: 2; }}\n"
    for at in range(8)
)
# On narrow screens each line of the overview becomes a block.
_PHONE = """
@media (max-width: 720px) {
  body { padding: 18px 14px 60px; } .card { padding: 12px; } .facts { grid-template-columns: 1fr 1fr; }
  .overview td { padding: 1px 0 !important; }
  .overview thead, .overview br { display: none; }
  .overview tr { border-bottom: 1px solid var(--edge); display: block; padding: 8px 0; }
  .overview tr:last-child { border: 0; } .overview td { border: 0; display: flex; gap: 12px;
    text-align: left; white-space: normal; }
  .overview td:nth-child(4), .overview td:nth-child(5) { display: none; }
  .overview td:first-child { display: block; font-weight: 600; width: auto; }
  .overview td[data-name]::before { color: var(--faint); content: attr(data-name); flex: 0 0 84px; font-size: 13px; } }
@media print { body { max-width: none; } .card { break-inside: avoid; } .top { display: none; } }
"""


def page(title: str, content: str) -> str:
    """Return a whole page. content: HTML."""
    style = _COLOURS + _TEXT + _CHARTS + _LINES + _PHONE
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>{content}</body></html>\n"
    )
