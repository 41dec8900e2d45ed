"""Session-based recommendation with a GRU: ranking loss over sampled items, hit rate, checkpoint every epoch."""

import os
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

import poptorch


class SessionDataset(torch.utils.data.Dataset):
    """Each session walks a hidden cycle of items, from a random start and with a few slips."""

    def __init__(self, sessions, items, length, seed):
        generator = np.random.default_rng(seed)
        cycle = np.random.default_rng(99).permutation(items)
        start = generator.integers(0, items, sessions)
        walk = (start[:, None] + np.arange(length + 1)) % items
        self.sessions = cycle[walk] + 1
        slips = generator.random(self.sessions.shape) < 0.05
        self.sessions[slips] = generator.integers(1, items + 1, int(slips.sum()))

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, index):
        session = torch.from_numpy(self.sessions[index])
        return session[:-1], session[1:]


class GRU4Rec(nn.Module):
    def __init__(self, items, dim=24, hidden=32, layers=1):
        super().__init__()
        self.item = nn.Embedding(items + 1, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, num_layers=layers, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(hidden, dim)
        self.loss = nn.CrossEntropyLoss(ignore_index=0)

    def forward(self, session, following=None):
        h, _ = self.gru(self.item(session))
        scores = self.out(self.dropout(h)) @ self.item.weight.t()
        if following is None:
            return torch.topk(scores[:, -1], k=3, dim=-1).indices
        return self.loss(scores.flatten(0, 1), following.flatten())


def main():
    args = SimpleNamespace(items=20, length=6, epochs=6, batch_size=16)
    torch.manual_seed(0)
    opts = poptorch.Options()
    opts.deviceIterations(4)
    opts.outputMode(poptorch.OutputMode.All)
    train = SessionDataset(512, args.items, args.length, seed=0)
    loader = poptorch.DataLoader(opts, train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = GRU4Rec(args.items)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.02)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    history = []
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            losses = torch.cat([training_model(session, following) for session, following in loader])
            history.append(losses.mean().item())
            torch.save(
                {"epoch": epoch, "model": training_model.state_dict(), "optimizer": optimizer.state_dict()},
                os.path.join(folder, f"epoch{epoch}.pt"),
            )
            print(f"epoch {epoch}: {history[-1]:.3f}")
        checkpoint = torch.load(os.path.join(folder, f"epoch{args.epochs - 1}.pt"))
    training_model.destroy()

    restored = GRU4Rec(args.items)
    restored.load_state_dict(checkpoint["model"])
    recommender = poptorch.inferenceModel(restored.eval())
    session, following = (torch.stack(part) for part in zip(*SessionDataset(64, args.items, args.length, seed=1)))
    top = recommender(session)
    hits = (top == following[:, -1:]).any(dim=1).float().mean().item()
    print(f"hit rate at 3: {hits:.2%}")
    assert top.shape == (64, 3)
    assert history[-1] < 0.6 * history[0]
    assert hits > 0.7


if __name__ == "__main__":
    main()
