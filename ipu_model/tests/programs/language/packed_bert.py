"""Packed sequences: several short texts share a row, and a block-diagonal mask keeps them apart."""

import heapq
from typing import List

import torch
from program_kit import train
from torch import nn

import poptorch

LENGTH, PER_PACK, VOCAB, HIDDEN, HEADS, IGNORED = 24, 3, 50, 32, 2, -100


def pack(lengths: List[int]) -> List[List[int]]:
    """Put the longest sequences first, each into the pack with the most room."""
    packs, finished = [], []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not packs or -packs[0][0] < lengths[index]:
            heapq.heappush(packs, (lengths[index] - LENGTH, [index]))
            continue
        room, members = heapq.heappop(packs)
        members.append(index)
        if len(members) < PER_PACK:
            heapq.heappush(packs, (room + lengths[index], members))
        else:
            finished.append(members)
    return finished + [members for _, members in packs]


class PackedDataset(torch.utils.data.Dataset):
    def __init__(self, sequences, labels):
        self.sequences, self.labels, self.packs = sequences, labels, pack([len(s) for s in sequences])

    def __len__(self):
        return len(self.packs)

    def __getitem__(self, index):
        ids, mask, position = torch.zeros(3, LENGTH, dtype=torch.int32)
        starts = torch.zeros(PER_PACK, dtype=torch.int32)
        labels = torch.full((PER_PACK,), IGNORED, dtype=torch.int32)
        offset = 0
        for number, member in enumerate(self.packs[index]):
            end = offset + len(self.sequences[member])
            ids[offset:end], mask[offset:end] = self.sequences[member], number + 1
            position[offset:end] = torch.arange(end - offset)
            starts[number], labels[number] = offset, self.labels[member]
            offset = end
        names = ("input_ids", "attention_mask", "position_ids", "cls_positions", "labels")
        return dict(zip(names, (ids, mask, position, starts, labels)))


class PackedBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        layers = (nn.TransformerEncoderLayer(HIDDEN, HEADS, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers, self.classifier = nn.ModuleList(layers), nn.Linear(HIDDEN, 2)

    def forward(self, input_ids, attention_mask, position_ids, cls_positions, labels=None):
        x = self.word(input_ids) + self.position(position_ids)
        same = attention_mask[:, None, :] == attention_mask[:, :, None]
        bias = ((1.0 - same.float()) * -1e4).repeat_interleave(HEADS, dim=0)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        index = cls_positions.long().unsqueeze(-1).expand(-1, -1, HIDDEN)
        logits = self.classifier(torch.gather(x, 1, index))
        if labels is None:
            return logits
        per_sequence = nn.functional.cross_entropy(
            logits.view(-1, 2), labels.view(-1).long(), ignore_index=IGNORED, reduction="none"
        )
        valid = (labels.view(-1) != IGNORED).float()
        return logits, poptorch.identity_loss((per_sequence * valid).sum() / valid.sum(), reduction="mean")


def main():
    torch.manual_seed(5)
    sequences, labels = [], torch.randint(0, 2, (160,))
    for label in labels:
        sequence = torch.randint(4, VOCAB, (int(torch.randint(5, 14, ())),), dtype=torch.int32)
        sequence[0], sequence[1 + len(sequence) // 3] = 1, 2 + label
        sequences.append(sequence)
    dataset = PackedDataset(sequences, labels)
    assert len(dataset) < len(sequences)

    opts = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(
        opts, dataset, batch_size=4, shuffle=True, mode=poptorch.DataLoaderMode.AsyncRebatched, drop_last=True
    )
    model = PackedBert().train()
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=3e-3))
    epochs = [sum(train(training, loader)) for _ in range(12)]
    loader.terminate()
    training.destroy()
    assert epochs[-1] < 0.5 * epochs[0]

    # A sequence alone gives what it gives in company.
    inference = poptorch.inferenceModel(model.eval())
    sample = {key: value.unsqueeze(0) for key, value in dataset[0].items()}
    assert (sample.pop("labels") != IGNORED).sum() == len(dataset.packs[0])
    together = inference(**sample)
    alone = {
        key: torch.where(sample["attention_mask"] == 1, value, 0) for key, value in sample.items() if "cls" not in key
    }
    assert torch.allclose(inference(**alone, cls_positions=sample["cls_positions"])[0, 0], together[0, 0], atol=1e-4)


if __name__ == "__main__":
    main()
