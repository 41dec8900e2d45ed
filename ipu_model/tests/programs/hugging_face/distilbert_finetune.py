# needs: transformers
"""DistilBERT for token classification: frozen embeddings, a learning-rate schedule of transformers, early stopping."""

import logging
from dataclasses import dataclass

import torch
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
    get_cosine_schedule_with_warmup,
    set_seed,
)

import poptorch

log = logging.getLogger(__name__)


@dataclass
class TrainingArguments:
    batch_size: int = 8
    device_iterations: int = 2
    epochs: int = 8
    learning_rate: float = 4e-3
    warmup: int = 3
    patience: int = 3


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, value):
        if value < self.best - 1e-3:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def dataset(size, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 30, (size, 12), generator=g)
    labels = (ids > 20).long() + (ids > 25).long()
    lengths = torch.randint(6, 13, (size,), generator=g)
    outside = torch.arange(12)[None] >= lengths[:, None]
    ids[outside], labels[outside] = 0, -100
    return torch.utils.data.TensorDataset(ids, (~outside).long(), labels)


class Model(DistilBertForTokenClassification):
    def forward(self, input_ids, attention_mask, labels):
        loss, logits = super().forward(input_ids, attention_mask, labels=labels, return_dict=False)
        return logits, loss


def main():
    logging.basicConfig(level="INFO")
    set_seed(0)
    args = TrainingArguments()
    config = DistilBertConfig(
        vocab_size=30, max_position_embeddings=16, n_layers=2, n_heads=2, dim=32, hidden_dim=64, dropout=0.0,
        attention_dropout=0.0, num_labels=3,
    )  # fmt: skip
    model = Model(config)
    for parameter in model.distilbert.embeddings.position_embeddings.parameters():
        parameter.requires_grad = False
    frozen = model.distilbert.embeddings.position_embeddings.weight.detach().clone()

    opts = poptorch.Options().deviceIterations(args.device_iterations).outputMode(poptorch.OutputMode.All)
    valid_opts = poptorch.Options().deviceIterations(4)
    train = poptorch.DataLoader(opts, dataset(128, 0), batch_size=args.batch_size, shuffle=True)
    valid = poptorch.DataLoader(valid_opts, dataset(32, 1), batch_size=args.batch_size)

    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = poptorch.optim.AdamW(trainable, lr=args.learning_rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, args.warmup, args.epochs * len(train))
    training = poptorch.trainingModel(model, opts, optimizer)
    validation = poptorch.inferenceModel(model, valid_opts)
    stop = EarlyStopping(args.patience)

    for epoch in range(args.epochs):
        model.train()
        for ids, mask, labels in train:
            training(ids, mask, labels)
            schedule.step()
            training.setOptimizer(optimizer)
        training.detachFromDevice()
        model.eval()
        right = count = total = 0
        for ids, mask, labels in valid:
            logits, loss = validation(ids, mask, labels)
            keep = labels != -100
            right += (logits.argmax(-1) == labels)[keep].sum().item()
            count += keep.sum().item()
            total += loss.mean().item()
        validation.detachFromDevice()
        log.info(
            "epoch %d validation loss %.3f accuracy %.3f lr %.1e",
            epoch,
            total,
            right / count,
            schedule.get_last_lr()[0],
        )
        if stop(total):
            break
    assert torch.equal(model.distilbert.embeddings.position_embeddings.weight, frozen)
    assert right / count > 0.9


if __name__ == "__main__":
    main()
