# needs: transformers
"""Wav2vec 2.0 with a CTC head on generated tones. The feature encoder is frozen, as usual in fine-tuning."""

import torch
import torch.nn.functional as F
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

import poptorch

SAMPLES = 640


def tones(count, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(1, 5, (count, 3), generator=g)
    t = torch.arange(SAMPLES) / 16.0
    frequency = labels.float().repeat_interleave(SAMPLES // 3 + 1, dim=1)[:, :SAMPLES]
    audio = torch.sin(t * frequency) + 0.01 * torch.randn(count, SAMPLES, generator=g)
    return audio, labels


class Wav2Vec2CTC(Wav2Vec2ForCTC):
    def forward(self, input_values, labels=None):
        hidden = self.wav2vec2(input_values, return_dict=False)[0]
        logits = self.lm_head(self.dropout(hidden))
        if labels is None:
            return logits
        log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
        input_lengths = torch.full((logits.size(0),), logits.size(1), dtype=torch.long)
        target_lengths = torch.full((labels.size(0),), labels.size(1), dtype=torch.long)
        loss = F.ctc_loss(log_probs, labels, input_lengths, target_lengths, blank=0, reduction="mean")
        return poptorch.identity_loss(loss, reduction="none"), logits


def main():
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=6, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        conv_dim=(16, 16, 16), conv_stride=(5, 4, 2), conv_kernel=(10, 8, 4), feat_extract_norm="group",
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = Wav2Vec2CTC(config)
    for parameter in model.wav2vec2.feature_extractor.parameters():
        parameter.requires_grad = False

    model.eval()
    audio, labels = tones(4, 5)
    inference = poptorch.inferenceModel(model)
    logits = inference(audio)
    with torch.no_grad():
        expected = Wav2Vec2ForCTC.forward(model, audio).logits
    assert torch.allclose(logits, expected, atol=1e-4), (logits - expected).abs().max()
    inference.detachFromDevice()

    opts = poptorch.Options()
    opts.deviceIterations(1)
    opts.Training.gradientAccumulation(4)
    opts.setAvailableMemoryProportion({"IPU0": 0.1})
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = poptorch.optim.AdamW(trainable, lr=2e-3, loss_scaling=16.0, weight_decay=0.0)
    model.train()
    training = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for step in range(25):
        audio, labels = tones(16, step)
        loss, _ = training(audio, labels)
        losses.append(loss.item())
    print(f"{losses[0]:.2f} -> {losses[-1]:.2f}; {tuple(logits.shape)}")
    assert sum(losses[-3:]) / 3 < 0.8 * losses[0]


if __name__ == "__main__":
    main()
