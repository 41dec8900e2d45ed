"""Skip-gram with negative sampling: words of one topic end near each other."""

import itertools
import random

import torch

import poptorch
from poptorch.optim import SGD

TOPICS = {
    "kitchen": ["pan", "stove", "salt", "knife", "plate"],
    "sea": ["wave", "sail", "anchor", "gull", "tide"],
    "wood": ["oak", "fern", "moss", "fox", "owl"],
}
NEGATIVES = 4


class PairDataset(torch.utils.data.IterableDataset):
    """An endless stream of (word, neighbour, words drawn at random)."""

    def __init__(self, vocabulary, length, seed=0):
        self.vocabulary = vocabulary
        self.length = length
        self.seed = seed

    def __len__(self):
        return self.length

    def __iter__(self):
        rng = random.Random(self.seed)
        for _ in range(self.length):
            topic = rng.choice(list(TOPICS.values()))
            centre, context = (self.vocabulary.index(word) for word in rng.sample(topic, 2))
            negatives = [rng.randrange(len(self.vocabulary)) for _ in range(NEGATIVES)]
            yield torch.tensor(centre), torch.tensor(context), torch.tensor(negatives)


class SkipGram(torch.nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.centre = torch.nn.Embedding(vocab_size, dim)
        self.context = torch.nn.Embedding(vocab_size, dim)
        torch.nn.init.uniform_(self.centre.weight, -0.5 / dim, 0.5 / dim)
        torch.nn.init.zeros_(self.context.weight)

    def forward(self, centre, context, negatives):
        v = self.centre(centre)
        positive = (v * self.context(context)).sum(-1)
        negative = torch.bmm(self.context(negatives), v.unsqueeze(-1)).squeeze(-1)
        loss = -torch.nn.functional.logsigmoid(positive) - torch.nn.functional.logsigmoid(-negative).sum(-1)
        return poptorch.identity_loss(loss, reduction="mean")


def main():
    random.seed(0)
    torch.manual_seed(0)
    vocabulary = list(itertools.chain.from_iterable(TOPICS.values()))
    opts = poptorch.Options()
    opts.deviceIterations(20)
    opts.outputMode(poptorch.OutputMode.Final)
    opts.showCompilationProgressBar(False)

    loader = poptorch.DataLoader(opts, PairDataset(vocabulary, 16 * 20 * 12), batch_size=16, drop_last=True)
    model = SkipGram(len(vocabulary), 12)
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9, dampening=0.0, use_combined_accum=True)
    trainer = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    for number, (centre, context, negatives) in enumerate(loader):
        loss = trainer(centre, context, negatives)
        if number == 6:
            optimizer.param_groups[0]["lr"] = 0.1
            trainer.setOptimizer(optimizer)
        print(f"call {number:2d}: loss {loss:.3f}")

    trainer.copyWeightsToHost()
    vectors = torch.nn.functional.normalize(model.centre.weight.detach(), dim=-1)
    similarity = vectors @ vectors.t()
    similarity.fill_diagonal_(-1)
    nearest = similarity.argmax(1)
    right = sum(
        next(t for t, words in TOPICS.items() if vocabulary[i] in words)
        == next(t for t, words in TOPICS.items() if vocabulary[int(nearest[i])] in words)
        for i in range(len(vocabulary))
    )
    print(f"{right} of {len(vocabulary)} nearest neighbours share the topic")
    assert right >= 13


if __name__ == "__main__":
    main()
