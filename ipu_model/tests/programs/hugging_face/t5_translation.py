# needs: transformers
"""T5 on a toy translation (every word to its partner): training on two IPUs, then stepwise decoding.

The encoder runs once per sentence, in an executor of its own; the decoder takes the encoder's states.
"""

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

import poptorch

BATCH, LENGTH, VOCAB, PAD, EOS = 4, 8, 32, 0, 1


class T5Training(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.t5 = model
        self.t5.encoder.block[0] = poptorch.BeginBlock(self.t5.encoder.block[0], "encoder", ipu_id=0)
        self.t5.decoder.block[0] = poptorch.BeginBlock(self.t5.decoder.block[0], "decoder", ipu_id=1)

    def forward(self, input_ids, attention_mask, labels):
        out = self.t5(input_ids=input_ids, attention_mask=attention_mask, labels=labels, use_cache=False)
        return out.loss, out.logits


class EncoderOnly(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.encoder = model.encoder

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class DecoderStep(torch.nn.Module):
    """The logits after position `step` of what was decoded so far."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, states, attention_mask, decoder_input_ids, step):
        out = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
            return_dict=True,
        )
        return torch.index_select(out.logits, 1, step).squeeze(1).argmax(-1)


def make_batch(size):
    words = torch.randint(2, VOCAB // 2, (size, LENGTH))
    source = words.clone()
    source[:, -1] = EOS
    target = VOCAB - 1 - words
    target[:, -1] = EOS
    return source, torch.ones_like(source), target


def main():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
        dropout_rate=0.0, feed_forward_proj="gated-gelu", decoder_start_token_id=PAD, pad_token_id=PAD,
        eos_token_id=EOS, attn_implementation="eager",
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.outputMode(poptorch.OutputMode.All)
    training_model = T5Training(model).train()
    training = poptorch.trainingModel(training_model, opts, poptorch.optim.Adam(model.parameters(), lr=5e-3))
    losses = []
    for step in range(80):
        loss, logits = training(*make_batch(4 * BATCH))
        losses.append(loss.mean().item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; logits {tuple(logits.shape)}")
    training.destroy()
    poptorch.removeBlocks(training_model)

    model.eval()
    encoder = poptorch.inferenceModel(EncoderOnly(model))
    decoder = poptorch.inferenceModel(DecoderStep(model))
    source, mask, target = make_batch(BATCH)
    states = encoder(source, mask)
    torch.testing.assert_close(states, EncoderOnly(model)(source, mask).detach(), rtol=1e-4, atol=1e-4)

    decoded = torch.full((BATCH, LENGTH + 1), PAD)
    for position in range(LENGTH):
        decoded[:, position + 1] = decoder(states, mask, decoded[:, :LENGTH].contiguous(), torch.tensor([position]))
    share = (decoded[:, 1:] == target).float().mean().item()
    print(f"share of words right: {share:.2f}")
    assert losses[-1] < 0.5 * losses[0]
    assert decoded.shape == (BATCH, LENGTH + 1)


main()
