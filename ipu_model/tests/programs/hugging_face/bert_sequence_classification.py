# needs: transformers
"""Fine-tune a small BERT on a sentence-pair task, evaluate it, and keep the best checkpoint."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

import poptorch


class PairDataset(Dataset):
    """Pairs of short texts; the label says whether the second begins with the last word of the first."""

    def __init__(self, size, vocab_size, length, seed):
        rng = np.random.RandomState(seed)
        half = length // 2
        self.input_ids = rng.randint(10, vocab_size, size=(size, length)).astype(np.int64)
        self.labels = rng.randint(0, 2, size=size).astype(np.int64)
        self.input_ids[:, 0] = 2 + self.labels
        self.token_type_ids = np.zeros_like(self.input_ids)
        self.token_type_ids[:, half:] = 1
        self.attention_mask = np.ones_like(self.input_ids)
        self.attention_mask[:, -2:] = 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.input_ids[i],
            "attention_mask": self.attention_mask[i],
            "token_type_ids": self.token_type_ids[i],
            "labels": self.labels[i],
        }


class PipelinedBertForSequenceClassification(BertForSequenceClassification):
    def parallelize(self):
        self.bert.embeddings = poptorch.BeginBlock(self.bert.embeddings, "Embedding", ipu_id=0)
        for index, layer in enumerate(self.bert.encoder.layer):
            self.bert.encoder.layer[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=index)
        self.classifier = poptorch.BeginBlock(self.classifier, "Classifier", ipu_id=1)
        return self

    def forward(self, input_ids, attention_mask, token_type_ids, labels=None):
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            labels=labels,
            return_dict=False,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=int, default=4)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--max_seq_length", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(42)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
        attn_implementation="eager",
    )
    model = PipelinedBertForSequenceClassification(config).parallelize()

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(args.gradient_accumulation_steps)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.outputMode(poptorch.OutputMode.All)
    eval_opts = poptorch.Options()
    eval_opts.deviceIterations(4)
    eval_opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))

    train_loader = poptorch.DataLoader(
        opts,
        PairDataset(128, config.vocab_size, args.max_seq_length, 0),
        batch_size=args.per_device_train_batch_size,
        shuffle=True,
    )
    eval_loader = poptorch.DataLoader(
        eval_opts, PairDataset(32, config.vocab_size, args.max_seq_length, 1), batch_size=4
    )

    no_decay = ["bias", "LayerNorm.weight"]
    named = list(model.named_parameters())
    optimizer = poptorch.optim.AdamW(
        [
            {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
            {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
        ],
        lr=args.learning_rate,
    )
    training = poptorch.trainingModel(model.train(), opts, optimizer)
    inference = poptorch.inferenceModel(model, eval_opts)

    best_accuracy = -1.0
    with tempfile.TemporaryDirectory() as output_dir:
        checkpoint = os.path.join(output_dir, "pytorch_model.bin")
        for epoch in range(args.num_train_epochs):
            model.train()
            for batch in train_loader:
                loss, logits = training(**batch)[:2]
            training.detachFromDevice()
            model.eval()
            predictions, references = [], []
            for batch in eval_loader:
                labels = batch.pop("labels")
                (logits,) = inference(**batch)
                predictions.extend(logits.argmax(-1).tolist())
                references.extend(labels.tolist())
            inference.detachFromDevice()
            accuracy = float(np.mean(np.array(predictions) == np.array(references)))
            print(f"epoch {epoch}: loss {loss.mean():.4f}, accuracy {accuracy:.3f}")
            if accuracy > best_accuracy:
                best_accuracy = accuracy
                torch.save(model.state_dict(), checkpoint)

        plain = BertForSequenceClassification(config)
        plain.load_state_dict(torch.load(checkpoint))
        plain.eval()
        poptorch.removeBlocks(model)
    assert best_accuracy > 0.9, best_accuracy


if __name__ == "__main__":
    main()
