# needs: transformers
"""Train CLIP contrastively: the image tower on one IPU, the text tower on another, logits on the first."""

import argparse
import sys

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

import poptorch


class PipelinedCLIP(torch.nn.Module):
    def __init__(self, clip):
        super().__init__()
        self.clip = clip

    def features(self, pixel_values, input_ids):
        with poptorch.Block("vision", ipu_id=0):
            vision = self.clip.vision_model(pixel_values=pixel_values)[1]
            image = self.clip.visual_projection(vision)
            image = image / image.norm(p=2, dim=-1, keepdim=True)
        with poptorch.Block("text", ipu_id=1):
            text = self.clip.text_model(input_ids=input_ids)[1]
            text = self.clip.text_projection(text)
            text = text / text.norm(p=2, dim=-1, keepdim=True)
        return image, text

    def forward(self, pixel_values, input_ids):
        image, text = self.features(pixel_values, input_ids)
        with poptorch.Block("loss", ipu_id=1):
            logits = torch.matmul(text, image.t()) * self.clip.logit_scale.exp()
            if not self.training:
                return logits
            labels = torch.arange(logits.size(0))
            loss = (
                torch.nn.functional.cross_entropy(logits, labels)
                + torch.nn.functional.cross_entropy(logits.t(), labels)
            ) / 2
            return poptorch.identity_loss(loss, reduction="mean")


def pairs(classes):
    """One picture and one caption for each of the classes."""
    g = torch.Generator().manual_seed(3)
    patterns = torch.randn(classes, 3, 16, 16, generator=g)
    captions = torch.randint(3, 30, (classes, 6), generator=g)
    captions[:, -1] = 31
    while True:
        order = torch.randperm(classes)
        yield patterns[order] + 0.1 * torch.randn(classes, 3, 16, 16), captions[order]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accumulation", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)

    text = CLIPTextConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8, eos_token_id=31, bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    config = CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    clip = CLIPModel(config)
    model = PipelinedCLIP(clip)

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(args.accumulation)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    model.train()
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1))
    stream = pairs(8)
    losses = []
    for _ in range(args.steps):
        batch = [next(stream) for _ in range(args.accumulation)]
        images, captions = (torch.cat(parts) for parts in zip(*batch))
        losses.append(training(images, captions).item())
    training.detachFromDevice()
    print(f"contrastive loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    model.eval()
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    inference = poptorch.inferenceModel(model, opts)
    images, captions = next(stream)
    logits = inference(images, captions)
    with torch.no_grad():
        expected = clip(input_ids=captions, pixel_values=images).logits_per_text
    if not torch.allclose(logits, expected, atol=1e-3):
        sys.exit(f"logits differ by {(logits - expected).abs().max():.2e}")
    right = (logits.argmax(1) == torch.arange(8)).sum().item()
    print(f"{right} of 8 captions find their picture")
    sys.exit(0 if losses[-1] < 0.7 * losses[0] else 1)


if __name__ == "__main__":
    main()
