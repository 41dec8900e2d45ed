# needs: transformers
"""DeBERTa for extractive question answering: disentangled attention, start and end positions."""

import torch
from transformers import DebertaConfig, DebertaForQuestionAnswering

import poptorch

LENGTH = 16


class QuestionAnswering(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = DebertaForQuestionAnswering(config)

    def forward(self, input_ids, attention_mask, start_positions=None, end_positions=None):
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            start_positions=start_positions,
            end_positions=end_positions,
            return_dict=False,
        )
        if start_positions is None:
            return out
        loss, start_logits, end_logits = out
        return poptorch.identity_loss(loss, "none"), start_logits, end_logits


def questions(count):
    """The answer begins at word 5 and ends at word 6."""
    ids = torch.randint(7, 40, (count, LENGTH))
    start = torch.randint(1, LENGTH - 3, (count,))
    end = start + 2
    ids[torch.arange(count), start], ids[torch.arange(count), end] = 5, 6
    return ids, torch.ones_like(ids), start, end


torch.manual_seed(0)
config = DebertaConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=32, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=0, position_biased_input=False,
)  # fmt: skip
model = QuestionAnswering(config)

model.eval()
ids, mask, start, end = questions(4)
inference = poptorch.inferenceModel(model)
start_logits, end_logits = inference(ids, mask)[:2]
with torch.no_grad():
    expected = model.model(ids, mask)
torch.testing.assert_close(start_logits, expected.start_logits, rtol=1e-4, atol=1e-4)
torch.testing.assert_close(end_logits, expected.end_logits, rtol=1e-4, atol=1e-4)
inference.detachFromDevice()

model.train()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
opts.outputMode(poptorch.OutputMode.Final)
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=4e-3))
losses = []
for _ in range(25):
    loss, *_ = training(*questions(16))
    losses.append(float(loss))
print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.7 * losses[0]
