# needs: transformers
"""Fine-tune a small BART with half-precision accumulation; check its logits against the CPU."""

import copy

import torch
from transformers import BartConfig, BartForConditionalGeneration

import poptorch


class WrappedBart(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, decoder_input_ids=None, labels=None):
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            labels=labels,
            use_cache=False,
            return_dict=False,
        )
        if labels is None:
            return outputs[0]
        return poptorch.identity_loss(outputs[0], reduction="none"), outputs[1]


def collate(batch):
    """Pad to one length: a program has static shapes."""
    length = 14
    ids = torch.ones(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), -100)
    for row, (document, summary) in enumerate(batch):
        ids[row, : len(document)] = document
        labels[row, : len(summary)] = summary
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels}


class Documents(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for _ in range(n):
            body = torch.randint(4, 40, (int(torch.randint(6, 12, (), generator=g)),), generator=g)
            ends = torch.tensor([0]), torch.tensor([2])
            self.items.append((torch.cat([ends[0], body, ends[1]]), torch.cat([ends[0], body[:3], ends[1]])))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


if __name__ == "__main__":
    torch.manual_seed(2)
    config = BartConfig(
        vocab_size=40, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, dropout=0.0,
        forced_eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    bart = BartForConditionalGeneration(config)
    reference = copy.deepcopy(bart).eval()

    inference = poptorch.inferenceModel(WrappedBart(bart.eval()))
    batch = collate([Documents(4)[i] for i in range(4)])
    decoder_input_ids = torch.randint(4, 40, (4, 14))
    logits = inference(batch["input_ids"], batch["attention_mask"], decoder_input_ids)
    expected = reference(batch["input_ids"], batch["attention_mask"], decoder_input_ids=decoder_input_ids).logits
    torch.testing.assert_close(logits, expected.detach(), rtol=1e-4, atol=1e-4)
    inference.detachFromDevice()

    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.Training.gradientAccumulation(2)
    opts.Precision.setPartialsType(torch.float)
    loader = poptorch.DataLoader(opts, Documents(64), batch_size=4, shuffle=True, collate_fn=collate)
    wrapped = WrappedBart(bart.train())
    optimizer = poptorch.optim.AdamW(
        wrapped.parameters(), lr=2e-3, eps=1e-6, loss_scaling=512, accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float32, second_order_momentum_accum_type=torch.float32,
    )  # fmt: skip
    trainer = poptorch.trainingModel(wrapped, opts, optimizer)
    losses = []
    for _ in range(6):
        for batch in loader:
            loss, _ = trainer(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
            losses.append(loss.float().item())
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps")
    assert losses[-1] < 0.85 * losses[0]
