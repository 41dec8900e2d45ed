# needs: transformers
"""Fine-tune a vision transformer on coloured squares, pipelined over two IPUs with eight-bit input images."""

import argparse

import torch
from transformers import ViTConfig, ViTForImageClassification

import popart
import poptorch


class Normalize(torch.nn.Module):
    def __init__(self, mean=0.5, std=0.25):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 1, 1, 1))

    def forward(self, pixels):
        return (pixels.to(self.mean.dtype) / 255.0 - self.mean) / self.std


class PipelinedViT(ViTForImageClassification):
    def __init__(self, config):
        super().__init__(config)
        self.normalize = Normalize()

    def parallelize(self, attribute="layers"):
        blocks = [m for name, m in self.named_modules() if name.endswith((".layer.1", ".layers.1"))]
        assert len(blocks) == 1
        poptorch.BeginBlock(blocks[0], "second", ipu_id=1)
        return self

    def forward(self, pixels, labels=None):
        outputs = super().forward(pixel_values=self.normalize(pixels), return_dict=False)
        logits = outputs[0]
        if labels is None:
            return logits
        loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        return poptorch.identity_loss(loss, reduction="none"), logits


class Squares(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 3, (n,), generator=g)
        self.images = torch.randint(0, 60, (n, 3, 16, 16), generator=g, dtype=torch.uint8)
        for image, label in zip(self.images, self.labels):
            image[int(label), 4:12, 4:12] += 150

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = PipelinedViT(config).parallelize().train()

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.deviceIterations(1)
    opts.outputMode(poptorch.OutputMode.All)
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.Serial))
    opts.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().minElementsForOffChip(10**9).useOnChipStorage(True)
    )
    train = poptorch.DataLoader(
        opts, Squares(128, 0), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True
    )
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    training = poptorch.trainingModel(model, opts, optimizer)
    for epoch in range(args.epochs):
        hits = count = 0
        for images, labels in train:
            loss, logits = training(images, labels)
            hits += (logits.argmax(1) == labels).sum().item()
            count += len(labels)
        print(f"epoch {epoch}: loss {loss.mean():.3f}, training accuracy {hits / count:.2f}")
    training.destroy()

    model.eval()
    test_opts = poptorch.Options().deviceIterations(2)
    inference = poptorch.inferenceModel(model, test_opts)
    test = poptorch.DataLoader(test_opts, Squares(32, 1), batch_size=8)
    right = sum((inference(images).argmax(1) == labels).sum().item() for images, labels in test)
    print(f"{right} of 32 right")
    assert right >= 28


if __name__ == "__main__":
    main()
