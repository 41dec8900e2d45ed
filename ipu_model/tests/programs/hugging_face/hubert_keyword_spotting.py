# needs: transformers
"""Hubert for keyword spotting on generated chirps, in half precision with saved and reloaded weights."""

import tempfile

import torch
from transformers import HubertConfig, HubertForSequenceClassification

import poptorch


class Chirps(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        label = index % 2
        t = torch.linspace(0, 1, 480)
        slope = 40.0 if label else 8.0
        audio = torch.sin(slope * t * (1 + t) + torch.rand((), generator=g))
        return {"input_values": audio + 0.05 * torch.randn(480, generator=g), "labels": torch.tensor(label)}


class Spotter(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.hubert = HubertForSequenceClassification(config)

    def forward(self, input_values, labels=None):
        outputs = self.hubert(input_values=input_values, labels=labels)
        return outputs


def main():
    torch.manual_seed(0)
    config = HubertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, conv_dim=(16, 16),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=False, hidden_dropout=0.0, layerdrop=0.0,
        attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        apply_spec_augment=False, num_labels=2, classifier_proj_size=16, attn_implementation="eager",
    )  # fmt: skip
    model = Spotter(config).train()
    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(opts, Chirps(96), batch_size=4, shuffle=True, drop_last=True)
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=2e-3))
    losses = []
    for _ in range(4):
        for batch in loader:
            outputs = training(**batch)
            losses.append(outputs["loss"].item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the outputs are a {type(outputs).__name__}")

    with tempfile.TemporaryDirectory() as folder:
        model.hubert.save_pretrained(folder)
        restored = HubertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    training.destroy()

    samples = torch.stack([Chirps(8)[i]["input_values"] for i in range(8)])
    labels = torch.tensor([i % 2 for i in range(8)])
    with torch.no_grad():
        expected = restored(samples).logits
    half = poptorch.inferenceModel(Spotter(config).eval())
    half.hubert.load_state_dict(restored.state_dict())
    half.half()
    logits = half(samples.half())["logits"]
    assert logits.dtype == torch.float16
    assert (logits.float() - expected).abs().max() < 0.1, (logits, expected)
    assert (logits.argmax(1) == labels).sum() >= 7


if __name__ == "__main__":
    main()
