"""Packed sequences: several short texts share a row, and a block-diagonal mask keeps them apart."""

import heapq
from typing import Dict, List

import torch
import torch.nn as nn

import poptorch

MAX_SEQ_LEN = 24
MAX_SEQ_PER_PACK = 3
VOCAB = 50
HIDDEN = 32
HEADS = 2
NUM_LABELS = 2


def spfhp_like_packing(lengths: List[int]) -> List[List[int]]:
    """Put the longest sequences first, each into the pack with the most room."""
    packs: List[tuple] = []
    finished: List[List[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if packs and -packs[0][0] >= lengths[index]:
            room, members = heapq.heappop(packs)
            members.append(index)
            if len(members) < MAX_SEQ_PER_PACK:
                heapq.heappush(packs, (room + lengths[index], members))
            else:
                finished.append(members)
        else:
            heapq.heappush(packs, (-(MAX_SEQ_LEN - lengths[index]), [index]))
    return finished + [members for _, members in packs]


class PackedDataset(torch.utils.data.Dataset):
    def __init__(self, sequences, labels):
        self.sequences, self.labels = sequences, labels
        self.packs = spfhp_like_packing([len(s) for s in sequences])

    def __len__(self):
        return len(self.packs)

    def __getitem__(self, index) -> Dict[str, torch.Tensor]:
        ids = torch.zeros(MAX_SEQ_LEN, dtype=torch.int32)
        mask = torch.zeros(MAX_SEQ_LEN, dtype=torch.int32)
        position = torch.zeros(MAX_SEQ_LEN, dtype=torch.int32)
        starts = torch.zeros(MAX_SEQ_PER_PACK, dtype=torch.int32)
        labels = torch.full((MAX_SEQ_PER_PACK,), -100, dtype=torch.int32)
        offset = 0
        for number, member in enumerate(self.packs[index]):
            sequence = self.sequences[member]
            end = offset + len(sequence)
            ids[offset:end] = sequence
            mask[offset:end] = number + 1
            position[offset:end] = torch.arange(len(sequence))
            starts[number] = offset
            labels[number] = self.labels[member]
            offset = end
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": position,
            "cls_positions": starts,
            "labels": labels,
        }


class PackedBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, HIDDEN)
        self.position = nn.Embedding(MAX_SEQ_LEN, HIDDEN)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(HIDDEN, HEADS, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.classifier = nn.Linear(HIDDEN, NUM_LABELS)

    def forward(self, input_ids, attention_mask, position_ids, cls_positions, labels=None):
        x = self.word(input_ids) + self.position(position_ids)
        same = attention_mask[:, None, :] == attention_mask[:, :, None]
        bias = (1.0 - same.float()) * -1e4
        bias = bias.repeat_interleave(HEADS, dim=0)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        index = cls_positions.long().unsqueeze(-1).expand(-1, -1, HIDDEN)
        logits = self.classifier(torch.gather(x, 1, index))
        if labels is None:
            return logits
        per_sequence = nn.functional.cross_entropy(
            logits.view(-1, NUM_LABELS), labels.view(-1).long(), ignore_index=-100, reduction="none"
        )
        valid = (labels.view(-1) != -100).float()
        loss = (per_sequence * valid).sum() / valid.sum()
        return logits, poptorch.identity_loss(loss, reduction="mean")


def unpack(logits, labels):
    keep = labels.view(-1) != -100
    return logits.view(-1, NUM_LABELS)[keep], labels.view(-1)[keep]


def main():
    torch.manual_seed(5)
    sequences, labels = [], []
    for _ in range(160):
        label = int(torch.randint(0, 2, ()))
        length = int(torch.randint(5, 14, ()))
        sequence = torch.randint(4, VOCAB, (length,), dtype=torch.int32)
        sequence[0], sequence[1 + length // 3] = 1, 2 + label
        sequences.append(sequence)
        labels.append(label)
    dataset = PackedDataset(sequences, labels)
    print(f"{len(sequences)} sequences in {len(dataset)} packs")
    assert len(dataset) < len(sequences)

    opts = poptorch.Options().deviceIterations(2)
    opts.Training.gradientAccumulation(2)
    opts.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(
        opts, dataset, batch_size=4, shuffle=True, mode=poptorch.DataLoaderMode.AsyncRebatched, drop_last=True
    )

    model = PackedBert().train()
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=3e-3))
    epochs = []
    for epoch in range(12):
        losses = []
        for batch in loader:
            logits, loss = training(**batch)
            losses.append(loss.mean().item())
        epochs.append(sum(losses) / len(losses))
    print("loss per epoch:", " ".join(f"{value:.2f}" for value in epochs))
    loader.terminate()
    training.destroy()

    model.eval()
    inference = poptorch.inferenceModel(model)
    sample = {key: value.unsqueeze(0) for key, value in dataset[0].items()}
    sample_labels = sample.pop("labels")
    logits, kept = unpack(inference(**sample), sample_labels)

    # A sequence alone gives what it gives in company.
    first = sequences[dataset.packs[0][0]]
    alone = {key: torch.zeros_like(value) for key, value in sample.items()}
    alone["input_ids"][0, : len(first)] = first
    alone["attention_mask"][0, : len(first)] = 1
    alone["position_ids"][0, : len(first)] = torch.arange(len(first))
    assert torch.allclose(inference(**alone)[0, 0], logits[0], atol=1e-4)
    assert len(kept) == len(dataset.packs[0])
    assert epochs[-1] < 0.5 * epochs[0]


if __name__ == "__main__":
    main()
