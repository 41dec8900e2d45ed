"""The page's look, light and dark, in a window and on paper."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --sheet: #f6f7f8; --ink: #22272b; --muted: #59636b; --line: #d5dadf; --grid: #ebebeb;
  --focus: #0072b2; --note: #a53c00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #171b20; --sheet: #1f252b; --ink: #e4e7ea; --muted: #a4afb8; --line: #39424b; --grid: #3a424a;
    --focus: #74bdf0; --note: #ff9a5c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2rem) 3rem; max-width: 66rem;
  background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 0.2rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 0.2rem; overflow-wrap: anywhere; }
p, li { margin: 0.4rem 0; max-width: 52rem; overflow-wrap: anywhere; }
ul { margin: 0.4rem 0; padding-left: 1.3rem; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.lead, .details, figcaption, footer { color: var(--muted); }
.details, figcaption, footer { font-size: 0.9em; }
.note { border-left: 0.35rem solid var(--note); padding: 0.3rem 0.9rem; background: var(--sheet); }
.cards { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); margin: 1rem 0; }
.card { background: var(--sheet); border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.7rem 0.9rem; }
.card dt { font-size: 0.85rem; font-weight: 600; color: var(--muted); }
.card dd { margin: 0; }
.card .value { font-size: 1.35rem; font-weight: 650; line-height: 1.4; }
figure { margin: 1rem 0 1.4rem; }
.scroll { overflow-x: auto; max-width: 100%; }
svg.figure { display: block; width: 100%; min-width: 36rem; height: auto; fill: var(--ink); }
svg.figure * { stroke-linejoin: round; stroke-linecap: butt; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.6rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.3rem; }
th, td { padding: 0.3rem 1.1rem 0.3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; }
tbody th, td { overflow-wrap: break-word; max-width: 22rem; }
thead th { vertical-align: bottom; }
.number { text-align: right; }
.predictions { table-layout: fixed; width: 100%; min-width: 50rem; }
.predictions th:nth-child(1) { width: 24%; }
.predictions th:nth-child(2) { width: 13%; }
.predictions th:nth-child(3) { width: 11%; }
.predictions th:nth-child(4) { width: 12%; }
.predictions th:nth-child(5) { width: 17%; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); }
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --sheet: #ffffff; --ink: #000000; --muted: #333333; --line: #999999; --grid: #dddddd;
    --focus: #000000; --note: #000000;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .cards { grid-template-columns: repeat(4, 1fr); }
  .scroll { overflow: visible; }
  svg.figure, .predictions { min-width: 0; }
  h2, h3, caption { break-after: avoid; }
  figure, .card, tr { break-inside: avoid; }
  table { font-size: 8.5pt; }
  th, td { padding-right: 0.6rem; }
}
"""
