"""Masked autoencoder: random masking by sorting noise on the host, encoder and decoder on a pipeline of two IPUs."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn

import popart
import poptorch


class MAE(nn.Module):
    def __init__(self, image_size, patch, dim, encoder_layers, decoder_layers, mask_ratio):
        super().__init__()
        self.patch, self.grid = patch, image_size // patch
        self.keep = int(self.grid**2 * (1 - mask_ratio))
        pixels = 3 * patch * patch
        self.embed = nn.Linear(pixels, dim)
        self.encoder_positions = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.encoder = nn.ModuleList([self.layer(dim) for _ in range(encoder_layers)])
        self.encoder_norm = nn.LayerNorm(dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.decoder_positions = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.decoder = nn.ModuleList([self.layer(dim) for _ in range(decoder_layers)])
        self.to_pixels = nn.Linear(dim, pixels)

    @staticmethod
    def layer(dim):
        return nn.TransformerEncoderLayer(
            dim, nhead=2, dim_feedforward=2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def patchify(self, images):
        batch = images.shape[0]
        x = images.reshape(batch, 3, self.grid, self.patch, self.grid, self.patch)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(batch, self.grid**2, -1)

    def forward(self, images, shuffle, restore):
        patches = self.patchify(images)
        x = self.embed(patches) + self.encoder_positions
        kept = shuffle[:, : self.keep].long()
        x = torch.gather(x, 1, kept.unsqueeze(-1).repeat(1, 1, x.shape[-1]))
        for layer in self.encoder:
            x = layer(x)
        x = self.encoder_norm(x)

        tokens = self.mask_token.repeat(x.shape[0], patches.shape[1] - self.keep, 1)
        x = torch.cat([x, tokens], dim=1)
        x = torch.gather(x, 1, restore.long().unsqueeze(-1).repeat(1, 1, x.shape[-1])) + self.decoder_positions
        for layer in self.decoder:
            x = layer(x)
        prediction = self.to_pixels(x)

        mean, var = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
        target = (patches - mean) / (var + 1e-6).sqrt()
        mask = (restore >= self.keep).to(x.dtype)
        loss = (((prediction - target) ** 2).mean(dim=-1) * mask).sum() / mask.sum()
        return prediction, poptorch.identity_loss(loss, reduction="mean")


class MaskCollator:
    """Random permutations are made on the host, because sorting is slow on the device."""

    def __init__(self, patches):
        self.patches = patches

    def __call__(self, samples):
        images = torch.stack(samples)
        shuffle = torch.argsort(torch.rand(len(samples), self.patches), dim=1)
        return images, shuffle.int(), torch.argsort(shuffle, dim=1).int()


class SmoothImages(torch.utils.data.Dataset):
    def __init__(self, length, size):
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        coarse = torch.randn(1, 3, 3, 3, generator=generator)
        return nn.functional.interpolate(coarse, size=(self.size, self.size), mode="bilinear", align_corners=True)[0]


def save_checkpoint(model, optimizer, step, folder):
    path = os.path.join(folder, f"checkpoint-{step}.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    return path


def build(args):
    torch.manual_seed(args.seed)
    model = MAE(args.size, args.patch, args.dim, args.encoder_layers, args.decoder_layers, args.mask_ratio)
    for layer, ipu in zip(model.encoder, args.layers_on_ipu):
        poptorch.BeginBlock(layer, ipu_id=ipu) if ipu else None
    model.decoder[0] = poptorch.BeginBlock(model.decoder[0], "decoder", ipu_id=1)

    opts = poptorch.Options()
    opts.randomSeed(args.seed)
    opts.autoRoundNumIPUs(True)
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    opts._Popart.set(
        "accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.OverlapCycleOptimized)
    )
    opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
    return model, opts, optimizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {
        "size": 16,
        "patch": 4,
        "dim": 32,
        "encoder-layers": 2,
        "decoder-layers": 1,
        "gradient-accumulation": 4,
        "seed": 11,
        "steps": 10,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--mask-ratio", type=float, default=0.75)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--layers-on-ipu", type=int, nargs="+", default=[0, 0])
    args = parser.parse_args()

    model, opts, optimizer = build(args)
    data = SmoothImages(8 * args.gradient_accumulation * args.steps, args.size)
    loader = poptorch.DataLoader(
        opts, data, batch_size=8, shuffle=True, drop_last=True, collate_fn=MaskCollator((args.size // args.patch) ** 2)
    )
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for step, (images, shuffle, restore) in enumerate(loader):
            prediction, loss = training_model(images, shuffle, restore)
            losses.append(loss.item())
            print(f"step {step}: loss {losses[-1]:.3f}")
            if step + 1 == args.steps // 2:
                path = save_checkpoint(model, optimizer, step, folder)
        checkpoint = torch.load(path, map_location="cpu")
    assert prediction.shape == (8, 16, 48)
    training_model.destroy()

    resumed, opts, optimizer = build(args)
    resumed.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    training_model = poptorch.trainingModel(resumed, opts, optimizer)
    _, loss = training_model(images, shuffle, restore)
    print(f"after resuming from step {checkpoint['step']}: {loss.item():.3f}")
    assert losses[-1] < losses[0]
    assert abs(loss.item() - losses[-1]) < 0.3


if __name__ == "__main__":
    main()
