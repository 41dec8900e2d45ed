"""Retrieval with two towers and in-batch negatives; the towers are exported and used apart."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn

import poptorch


class Tower(nn.Module):
    def __init__(self, vocabulary, dim, output):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim), nn.Linear(dim, output))

    def forward(self, tokens):
        mask = (tokens != 0).unsqueeze(-1).float()
        mean = (self.tokens(tokens) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        out = self.mlp(mean)
        return out / out.norm(dim=-1, keepdim=True)


class TwoTowers(nn.Module):
    def __init__(self, vocabulary=50, dim=16, output=8):
        super().__init__()
        self.query, self.document = Tower(vocabulary, dim, output), Tower(vocabulary, dim, output)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, query, document):
        with poptorch.Block("query", ipu_id=0):
            q = self.query(query)
        with poptorch.Block("document", ipu_id=1):
            d = self.document(document)
            logits = q @ d.T * self.temperature.exp()
            labels = torch.arange(logits.shape[0], dtype=torch.long)
            loss = (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)) / 2
            return poptorch.identity_loss(loss, reduction="mean")


class Pairs(torch.utils.data.Dataset):
    """A query shares the topic (a range of tokens) with its document."""

    def __init__(self, length, topics=16):
        self.length, self.topics = length, topics

    def __len__(self):
        return self.length

    def tokens(self, topic, length, generator):
        tokens = 1 + 3 * topic + torch.randint(3, (length,), generator=generator)
        tokens[int(torch.randint(2, length, (), generator=generator)) :] = 0
        return tokens.to(torch.int32)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        topic = index % self.topics
        return self.tokens(topic, 4, generator), self.tokens(topic, 8, generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = TwoTowers()
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
    opts.Training.gradientAccumulation(2)
    data = Pairs(320)
    loader = poptorch.DataLoader(opts, data, batch_size=args.batch_size, shuffle=False, num_workers=0)
    parameters = [
        {"params": [p for n, p in model.named_parameters() if n != "temperature"]},
        {"params": [model.temperature], "lr": 0.001, "weight_decay": 0.0},
    ]
    optimizer = poptorch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01)
    trainer = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for epoch in range(args.epochs):
        losses.append(torch.stack([trainer(query, document) for query, document in loader]).mean().item())
        print(f"epoch {epoch}: {losses[-1]:.3f}, temperature {model.temperature.item():.3f}")

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "towers.pt")
        torch.save({name: getattr(model, name).state_dict() for name in ("query", "document")}, path)
        saved = torch.load(path)
    query_tower, document_tower = Tower(50, 16, 8), Tower(50, 16, 8)
    query_tower.load_state_dict(saved["query"])
    document_tower.load_state_dict(saved["document"])
    embed_query = poptorch.inferenceModel(query_tower.eval())
    embed_document = poptorch.inferenceModel(document_tower.eval())
    queries, documents = (torch.stack(part) for part in zip(*(data[1000 + 8 + i] for i in range(16))))
    scores = embed_query(queries) @ embed_document(documents).T
    recall = (scores.argmax(dim=1) == torch.arange(16)).float().mean().item()
    print(f"recall at 1: {recall:.2%}")
    assert losses[-1] < 0.5 * losses[0]
    assert recall > 0.6


if __name__ == "__main__":
    main()
