"""The training loop, and what it prints."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    import poptorch


def train_epoch(training_model: poptorch.PoplarExecutor, loader: poptorch.DataLoader, epoch: int) -> float:
    """Train for one epoch, print its mean loss and accuracy, and give the seconds it took."""
    name, calls, latest = f"[Epoch {epoch:02d}]", len(loader), ""
    losses = accuracies = 0.0
    start = time.perf_counter()
    # disable=None: a bar only where there is a terminal to redraw it.
    bar = tqdm(loader, desc=name, total=calls, disable=None)
    no_bar = bar.disable  # asked now: at its end every bar calls itself disabled
    for images, labels in bar:
        loss, _, accuracy = training_model(images, labels)
        # One result from each replica.
        call_loss, call_accuracy = loss.float().mean().item(), accuracy.float().mean().item()
        losses, accuracies = losses + call_loss, accuracies + call_accuracy
        latest = f"loss={call_loss:.3g}, acc={call_accuracy:.3g}"
        bar.set_postfix_str(latest)
    seconds = time.perf_counter() - start
    if no_bar:
        print(finished_bar(name, calls, seconds, latest), file=sys.stderr, flush=True)
    print(f"{name} loss: {losses / calls:.3f}, acc: {accuracies / calls:.1f}", flush=True)
    return seconds


def finished_bar(name: str, calls: int, seconds: float, postfix: str) -> str:
    """The last state of a bar, for a file or a pipe: there, its earlier states would only leave their remains."""
    plain = "utf" not in (sys.stderr.encoding or "").lower()
    return tqdm.format_meter(calls, calls, seconds, prefix=name, ascii=plain, postfix=postfix)
