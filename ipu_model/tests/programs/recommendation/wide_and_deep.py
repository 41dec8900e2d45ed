"""Wide and deep learning for incomes: crossed features in a linear part, embeddings in the deep part, F1 score."""

import pathlib

import numpy as np
import torch
from program_kit import Items, train
from torch import nn

import poptorch

CATEGORIES = {"education": 5, "occupation": 6, "relation": 4}
NUMERIC = ["age", "hours"]


def make_table(rows, seed):
    """Columns of people: ages and hours are normalised; whoever scores more than 0 has a high income."""
    generator = np.random.default_rng(seed)
    chosen = {name: generator.integers(0, size, rows) for name, size in CATEGORIES.items()}
    age, hours = generator.standard_normal(rows), generator.standard_normal(rows)
    lucky = (chosen["occupation"] == 3) & (chosen["relation"] == 1)
    score = chosen["education"] - 2 + 0.5 * age + 0.6 * hours + 2 * lucky + generator.normal(0, 0.5, rows)
    columns = {
        "categories": np.stack(list(chosen.values()), axis=1),
        "numeric": np.stack([age, hours], axis=1).astype("float32"),
        "crossed": chosen["occupation"] * CATEGORIES["relation"] + chosen["relation"],
        "labels": (score > 0).astype("float32"),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


class WideAndDeep(nn.Module):
    def __init__(self, dim=4, hidden=16):
        super().__init__()
        self.wide = nn.Linear(CATEGORIES["occupation"] * CATEGORIES["relation"], 1)
        self.embeddings = nn.ModuleDict({name: nn.Embedding(size, dim) for name, size in CATEGORIES.items()})
        features = dim * len(CATEGORIES) + len(NUMERIC)
        self.deep = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1))
        self.register_buffer("pos_weight", torch.tensor(1.2))

    def forward(self, categories, numeric, crossed, labels=None):
        one_hot = nn.functional.one_hot(crossed, self.wide.in_features).to(numeric.dtype)
        embedded = [table(categories[:, i]) for i, table in enumerate(self.embeddings.values())]
        logits = (self.wide(one_hot) + self.deep(torch.cat([*embedded, numeric], dim=1))).squeeze(1)
        if labels is None:
            return {"probabilities": logits.sigmoid()}
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, pos_weight=self.pos_weight)
        return {"loss": loss, "probabilities": logits.sigmoid()}


torch.manual_seed(0)
config = pathlib.Path("options.cfg")
config.write_text("deviceIterations(4)\nTraining.gradientAccumulation(2)\n# one IPU\nreplicationFactor(1)\n")
opts = poptorch.Options()
opts.loadFromFile(str(config))
known = make_table(1024, seed=0)
rows = Items(1024, lambda index, generator: {name: column[index] for name, column in known.items()})
loader = poptorch.DataLoader(opts, rows, batch_size=16, shuffle=True)
model = WideAndDeep()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.98))
trainer = poptorch.trainingModel(model.train(), opts, optimizer)
losses = [sum(train(trainer, loader)) for _ in range(8)]
trainer.detachFromDevice()
assert losses[-1] < losses[0]

test = make_table(256, seed=1)
predictor = poptorch.inferenceModel(model.eval())
probabilities = predictor(test["categories"], test["numeric"], crossed=test["crossed"])["probabilities"]
assert probabilities.shape == (256,)
predicted, truth = probabilities > 0.5, test["labels"] > 0.5
assert 2 * (predicted & truth).sum() / (predicted.sum() + truth.sum()) > 0.75
