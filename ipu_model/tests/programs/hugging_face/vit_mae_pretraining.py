# needs: transformers
"""Masked autoencoder pretraining. The masking noise is made by the loader, so that it is an input of the program."""

import math

import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

import poptorch


class MAE(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.mae = ViTMAEForPreTraining(config)

    def forward(self, pixel_values, noise):
        outputs = self.mae(pixel_values=pixel_values, noise=noise)
        return poptorch.identity_loss(outputs.loss, reduction="none"), outputs.logits, outputs.mask


class Stripes(torch.utils.data.Dataset):
    def __init__(self, n, patches):
        self.n, self.patches = n, patches

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        phase, slope = torch.rand(2, generator=g).tolist()
        x = torch.arange(16).float()
        image = torch.sin(x[None, :] * (0.5 + slope) + phase * math.pi).expand(3, 16, 16).clone()
        return image, torch.rand(self.patches, generator=g)


def cosine(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4,
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
        decoder_intermediate_size=64, mask_ratio=0.75, norm_pix_loss=False, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = MAE(config).train()
    patches = (config.image_size // config.patch_size) ** 2

    # What PyTorch itself computes, before any training.
    images, noise = (torch.stack(x) for x in zip(*(Stripes(8, patches)[i] for i in range(8))))
    with torch.no_grad():
        expected = model.mae(pixel_values=images, noise=noise).loss.item()

    opts = poptorch.Options()
    opts.replicationFactor(2)
    opts.outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(1)
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(True).useReplicatedTensorSharding(True)
        .minElementsForReplicatedTensorSharding(2)
    )  # fmt: skip
    loader = poptorch.DataLoader(opts, Stripes(128, patches), batch_size=4, shuffle=False)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.05)
    steps = 4 * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, 4, steps))
    training = poptorch.trainingModel(model, opts, optimizer)

    losses = []
    for epoch in range(4):
        for images, noise in loader:
            loss, prediction, mask = training(images, noise)
            scheduler.step()
            training.setOptimizer(optimizer)
            losses.append(loss.mean().item())
            assert mask.sum() == 8 * patches * config.mask_ratio
        print(f"epoch {epoch}: {losses[-1]:.4f}")
    assert prediction.shape == (8, patches, 3 * config.patch_size**2)
    # Two replicas of four images each give the mean over all eight.
    assert abs(losses[0] - expected) < 1e-3, (losses[0], expected)
    assert sum(losses[-4:]) < 0.97 * sum(losses[:4])


if __name__ == "__main__":
    main()
