# needs: transformers
"""Train GPT-2 on a repeating text over two IPUs and generate greedily with a fixed context."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import poptorch
from poptorch.optim import AdamW

parser = argparse.ArgumentParser()
parser.add_argument("--n-ctx", type=int, default=16)
parser.add_argument("--layers-per-ipu", type=int, nargs="+", default=[1, 1])
parser.add_argument("--gradient-accumulation", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--generate", type=int, default=10)


class GPT2ForPipeline(torch.nn.Module):
    def __init__(self, config, layers_per_ipu):
        super().__init__()
        self.model = GPT2LMHeadModel(config)
        self.layers_per_ipu = layers_per_ipu
        self.nop = poptorch.nop

    def parallelize_(self):
        poptorch.BeginBlock(self.model.transformer.wte, "wte", ipu_id=0)
        boundary = self.layers_per_ipu[0]
        for index, layer in enumerate(self.model.transformer.h):
            if index >= boundary:
                self.model.transformer.h[index] = poptorch.BeginBlock(layer, f"h{index}", ipu_id=1)
        poptorch.BeginBlock(self.model.transformer.ln_f, "ln_f", ipu_id=1)
        self.model.lm_head = poptorch.BeginBlock(self.model.lm_head, "head", ipu_id=0)
        return self

    def forward(self, input_ids, attention_mask=None, labels=None):
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, return_dict=False)
        logits = outputs[0]
        if labels is None:
            return logits
        shifted = logits[..., :-1, :].contiguous()
        targets = labels[..., 1:].contiguous()
        loss = torch.nn.functional.cross_entropy(
            shifted.view(-1, shifted.size(-1)), targets.view(-1), ignore_index=-100
        )
        accuracy = (shifted.argmax(-1) == targets).float().mean()
        return self.nop(loss), accuracy


def main(args):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20,
        n_positions=args.n_ctx,
        n_embd=32,
        n_layer=sum(args.layers_per_ipu),
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    text = torch.arange(7).repeat(20) * 2 + 3
    model = GPT2ForPipeline(config, args.layers_per_ipu).parallelize_().train()

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    optimizer = AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, bias_correction=False)
    training = poptorch.trainingModel(model, opts, optimizer)

    losses = []
    for _ in range(args.steps):
        starts = torch.randint(0, len(text) - args.n_ctx, (args.batch_size * args.gradient_accumulation,))
        ids = torch.stack([text[s : s + args.n_ctx] for s in starts])
        loss, accuracy = training(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy.item():.2f}")
    training.detachFromDevice()

    model.eval()
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    inference = poptorch.inferenceModel(model, opts)
    tokens = text[:4].tolist()
    for _ in range(args.generate):
        padded = torch.zeros(1, args.n_ctx, dtype=torch.long)
        padded[0, : len(tokens)] = torch.tensor(tokens)
        mask = (torch.arange(args.n_ctx) < len(tokens)).long().unsqueeze(0)
        logits = inference(input_ids=padded, attention_mask=mask)
        tokens.append(int(logits[0, len(tokens) - 1].argmax()))
    print("generated:", tokens)

    reference = model.model.generate(
        torch.tensor([tokens[:4]]), max_new_tokens=args.generate, do_sample=False, pad_token_id=0, use_cache=False
    )
    assert losses[-1] < 0.3 * losses[0]
    assert tokens == text[: len(tokens)].tolist()
    assert reference[0].tolist()[: len(tokens)] == tokens


if __name__ == "__main__":
    main(parser.parse_args())
