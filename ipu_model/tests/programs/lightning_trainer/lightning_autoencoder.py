# needs: pytorch_lightning
# environment: IPU_MODEL_AS_HARDWARE=1
"""A convolutional autoencoder with Lightning on four IPU replicas in half precision, compared with the CPU."""

import argparse

import pytorch_lightning as pl
import torch
from torch import nn


class Autoencoder(pl.LightningModule):
    def __init__(self, latent=8, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(16 * 4, latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, 16 * 4), nn.Unflatten(1, (16, 2, 2)), nn.GELU(),
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return nn.functional.mse_loss(self(x), x)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        (x,) = batch
        return self(x)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Recorder(pl.Callback):
    def on_train_start(self, trainer, module):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, *args):
        self.losses.append(float(outputs["loss"].float().mean()))


def images(n):
    phase = torch.rand(n, 1, 1, 1) * 3
    grid = torch.arange(8).float()
    return torch.sin(grid.view(1, 1, 1, 8) + phase) * torch.cos(grid.view(1, 1, 8, 1) * 0.5 + phase)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=4)
    args = parser.parse_args()
    pl.seed_everything(1)
    dataset = torch.utils.data.TensorDataset(images(256))
    recorder = Recorder()
    trainer = pl.Trainer(
        accelerator="ipu",
        devices=args.replicas,
        precision=16,
        accumulate_grad_batches=2,
        max_epochs=args.epochs,
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Autoencoder().half()
    trainer.fit(model, torch.utils.data.DataLoader(dataset, batch_size=4, drop_last=True))
    print(f"{len(recorder.losses)} steps: loss {recorder.losses[0]:.4f} -> {recorder.losses[-1]:.4f}")
    assert len(recorder.losses) == args.epochs * 256 // (4 * args.replicas * 2)

    predictions = trainer.predict(model, torch.utils.data.DataLoader(dataset, batch_size=4))
    predictions = torch.cat([p.float() for p in predictions])
    with torch.no_grad():
        expected = model.float()(dataset.tensors[0])
    assert predictions.shape == expected.shape
    assert (predictions - expected).abs().mean() < 0.02
    assert recorder.losses[-1] < 0.5 * recorder.losses[0]
