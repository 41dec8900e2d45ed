# needs: transformers
"""Whisper: cut into an encoder and a decoder executor that transcribe greedily, then one step of training."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

import poptorch

FRAMES, TOKENS = 40, 8

config = WhisperConfig(
    vocab_size=50, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=FRAMES // 2,
    max_target_positions=TOKENS, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager",
)  # fmt: skip


class Encoder(torch.nn.Module):
    def __init__(self, whisper):
        super().__init__()
        self.encoder = whisper.get_encoder()

    def forward(self, input_features):
        return self.encoder(input_features, return_dict=False)[0]


class Decoder(torch.nn.Module):
    def __init__(self, whisper):
        super().__init__()
        self.whisper = whisper

    def forward(self, states, decoder_input_ids):
        return self.whisper(
            encoder_outputs=BaseModelOutput(states), decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits


class Trainer(torch.nn.Module):
    def __init__(self, whisper):
        super().__init__()
        self.whisper = whisper

    def forward(self, input_features, labels):
        output = self.whisper(input_features=input_features, labels=labels, use_cache=False)
        return output.loss, output.logits


torch.manual_seed(0)
model = WhisperForConditionalGeneration(config).eval()
features = torch.randn(2, config.num_mel_bins, FRAMES)

encoder = poptorch.inferenceModel(Encoder(model), poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand))
decoder = poptorch.inferenceModel(Decoder(model))
states = encoder(features)
tokens = torch.full((2, TOKENS), config.pad_token_id)
tokens[:, 0] = config.decoder_start_token_id
for position in range(TOKENS - 1):
    logits = decoder(states, tokens)
    tokens[:, position + 1] = logits[:, position].argmax(-1)
print("IPU:", tokens.tolist())

on_cpu = torch.full((2, TOKENS), config.pad_token_id)
on_cpu[:, 0] = config.decoder_start_token_id
with torch.no_grad():
    for position in range(TOKENS - 1):
        on_cpu[:, position + 1] = model(features, decoder_input_ids=on_cpu).logits[:, position].argmax(-1)
assert torch.equal(tokens, on_cpu)
encoder.detachFromDevice()
decoder.detachFromDevice()

model.train()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
training = poptorch.trainingModel(Trainer(model), opts, poptorch.optim.AdamW(model.parameters(), lr=1e-3))
labels = torch.randint(4, 50, (2, TOKENS))
losses = [training(features, labels)[0].item() for _ in range(8)]
print("losses:", [round(loss, 3) for loss in losses])
assert losses[-1] < losses[0]
