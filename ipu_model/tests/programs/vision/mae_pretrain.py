"""Masked autoencoder: random masking by sorting noise while batches are collated, a pipeline of two IPUs."""

import torch
from program_kit import Items, check_learned, train
from torch import nn

import poptorch

PATCHES, KEPT, DIM = 16, 4, 32


def transformer_layer():
    return nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, 0.0, activation="gelu", batch_first=True, norm_first=True)


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.to_pixels = nn.Linear(48, DIM), nn.Linear(DIM, 48)
        self.encoder = nn.Sequential(transformer_layer(), transformer_layer(), nn.LayerNorm(DIM))
        self.decoder = poptorch.BeginBlock(transformer_layer(), "decoder", ipu_id=1)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.positions = nn.ParameterList([nn.Parameter(torch.randn(1, PATCHES, DIM) * 0.02) for _ in range(2)])

    def forward(self, images, shuffle, restore):
        patches = images.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, PATCHES, 48)
        x = self.embed(patches) + self.positions[0]
        x = self.encoder(torch.gather(x, 1, shuffle[:, :KEPT].long().unsqueeze(-1).repeat(1, 1, DIM)))
        x = torch.cat([x, self.mask_token.repeat(x.shape[0], PATCHES - KEPT, 1)], dim=1)
        x = torch.gather(x, 1, restore.long().unsqueeze(-1).repeat(1, 1, DIM)) + self.positions[1]
        prediction = self.to_pixels(self.decoder(x))
        target = (patches - patches.mean(-1, keepdim=True)) / (patches.var(dim=-1, keepdim=True) + 1e-6).sqrt()
        mask = (restore >= KEPT).to(x.dtype)
        loss = (((prediction - target) ** 2).mean(dim=-1) * mask).sum() / mask.sum()
        return prediction, poptorch.identity_loss(loss, reduction="mean")


def smooth_image(index, generator):
    coarse = torch.randn(1, 3, 3, 3, generator=generator)
    return nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear", align_corners=True)[0]


def with_masks(images):
    shuffle = torch.argsort(torch.rand(len(images), PATCHES), dim=1)
    return torch.stack(images), shuffle.int(), torch.argsort(shuffle, dim=1).int()


torch.manual_seed(11)
model = MAE()
opts = poptorch.Options().autoRoundNumIPUs(True)
opts.Training.gradientAccumulation(4)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
loader = poptorch.DataLoader(opts, Items(320, smooth_image), batch_size=8, shuffle=True, collate_fn=with_masks)
training = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training, loader), 1)
