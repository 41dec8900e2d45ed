"""An explorer as HTML: native controls, the first view, and a script with the other views."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape

from course_site.recorded import RecordedControl, RecordedExplorer, RecordedState

FOLDER = "../_static/explorers"
LEFT_OUT = "This page has some of the values; the notebook has all of them."
NO_SCRIPT = "The controls need JavaScript. Without it, you see the first view."


def explorer_html(name: str, explorer: RecordedExplorer) -> str:
    """Return the controls and the first view of an ``explorer``; ``name`` is its folder, such as "02_topic/1"."""
    controls = "".join(_control(name, number, control) for number, control in enumerate(explorer.controls))
    note = f'<p class="explorer-note">{LEFT_OUT}</p>' if explorer.left_out else ""
    return (
        f'<section class="explorer" data-explorer="{escape(name)}" data-pictures="{FOLDER}/{escape(name)}/" '
        f'aria-label="Explorer">\n<form class="explorer-controls">{controls}</form>\n'
        f"<noscript><p>{NO_SCRIPT}</p></noscript>\n{note}"
        f'<div class="explorer-view" aria-live="polite">{_view(name, explorer.states[explorer.first])}</div>\n'
        f'<script src="{FOLDER}/{escape(name)}/states.js"></script>\n</section>'
    )


def states_script(name: str, explorer: RecordedExplorer) -> str:
    """Return the script that gives the page an explorer's views; a script, as pages on a file share cannot fetch."""
    states = json.dumps({key: asdict(state) for key, state in explorer.states.items()}, separators=(",", ":"))
    return f"(window.courseExplorers = window.courseExplorers || {{}})[{json.dumps(name)}] = {states};\n"


def _control(name: str, number: int, control: RecordedControl) -> str:
    own = f"{name.replace('/', '-')}-{number}"
    label = escape(control.label)
    if len(control.words) == 1:
        return f"<p>{label}: {escape(control.words[0])}<input type='hidden' value='0'></p>"
    if control.kind == "switch":
        checked = " checked" if control.first else ""
        return f'<label><input type="checkbox"{checked}> {label}</label>'
    if control.kind == "slider":
        words = escape(json.dumps(list(control.words)), quote=True)
        return (
            f'<label for="{own}">{label}</label> <span><input type="range" id="{own}" min="0" '
            f'max="{len(control.words) - 1}" step="1" value="{control.first}" data-words="{words}" '
            f'aria-valuetext="{escape(control.words[control.first])}"> '
            f'<output for="{own}">{escape(control.words[control.first])}</output></span>'
        )
    options = "".join(
        f'<option value="{place}"{" selected" if place == control.first else ""}>{escape(words)}</option>'
        for place, words in enumerate(control.words)
    )
    return f'<label for="{own}">{label}</label> <select id="{own}">{options}</select>'


def _view(name: str, state: RecordedState) -> str:
    picture = (
        f'<figure><img src="{FOLDER}/{escape(name)}/{escape(state.picture)}" width="{state.width}" '
        f'alt="{escape(state.description)}"><figcaption>{escape(state.takeaway)}</figcaption></figure>'
        if state.picture
        else "<figure hidden><img alt=''><figcaption></figcaption></figure>"
    )
    return f'{picture}<div class="explorer-below">{state.below}</div>'
