"""What the programs share and PopTorch has no part in: data that is made item by item, and a loop over it."""

import torch


class Items(torch.utils.data.Dataset):
    """`length` items; `make(index, generator)` makes one, with a generator that is seeded by `seed` and the index."""

    def __init__(self, length, make, seed=0):
        self.length, self.make, self.seed = length, make, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index, torch.Generator().manual_seed(self.seed + index))


def stacked(items):
    """Stack items to a batch: a tuple of tensors for items that are tuples."""
    return tuple(torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*items))


def train(executor, batches, epochs=1, after=None):
    """Call the executor with every batch, and `after` after each call; return each call's loss, its last output."""
    losses = []
    for epoch in range(epochs):
        for batch in batches:
            outputs = executor(*batch)
            loss = outputs[-1] if isinstance(outputs, (tuple, list)) else outputs
            losses.append(loss.float().mean().item())
            if after is not None:
                after()
        print(f"epoch {epoch}: {len(losses)} calls, loss {losses[-1]:.4f}")
    return losses


def accuracy(scores, labels):
    """Return the share of labels that have the highest score."""
    return (scores.argmax(dim=-1) == labels).float().mean().item()
