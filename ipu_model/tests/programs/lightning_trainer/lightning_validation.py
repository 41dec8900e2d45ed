# needs: lightning, lightning_graphcore
# environment: IPU_MODEL_AS_HARDWARE=1
"""Lightning 2.0 with the lightning-graphcore integration: fit with validation, checkpoint, test, predict."""

import os
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_graphcore import IPUAccelerator, IPUPrecision, IPUStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class LitCNN(pl.LightningModule):
    def __init__(self, channels=8, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(2 * channels, 4),
        )  # fmt: skip
        self.validation_accuracy = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def accuracy(self, batch):
        x, y = batch
        return (self(x).argmax(-1) == y).float().mean()

    def validation_step(self, batch, batch_idx):
        return self.accuracy(batch)

    def test_step(self, batch, batch_idx):
        return self.accuracy(batch)

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.validation_accuracy.append(outputs.float().mean().item())
        self.log("val_acc", self.validation_accuracy[-1])

    def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("test_acc", outputs.float().mean().item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def quadrants(n):
    y = torch.randint(0, 4, (n,))
    x = 0.1 * torch.randn(n, 1, 8, 8)
    for image, label in zip(x, y):
        row, column = divmod(int(label), 2)
        image[0, 4 * row : 4 * row + 4, :] += 1
        image[0, :, 4 * column : 4 * column + 4] += 2 * column
    return TensorDataset(x, y)


def main():
    assert IPUAccelerator.is_available()
    pl.seed_everything(0)
    train, valid, test = random_split(quadrants(320), [256, 32, 32])
    loaders = {
        "train": DataLoader(train, batch_size=16, shuffle=True, drop_last=True),
        "valid": DataLoader(valid, batch_size=16, drop_last=True),
        "test": DataLoader(test, batch_size=16, drop_last=True),
    }
    model = LitCNN()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(dirpath=folder, save_last=True, monitor="val_acc", mode="max")
        trainer = pl.Trainer(
            accelerator=IPUAccelerator(),
            devices=1,
            strategy=IPUStrategy(device_iterations=1),
            plugins=[IPUPrecision("32-true")],
            max_epochs=4,
            callbacks=[checkpoint],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(model, loaders["train"], loaders["valid"])
        print("validation accuracy:", model.validation_accuracy)
        assert os.path.exists(checkpoint.last_model_path)
        restored = LitCNN.load_from_checkpoint(checkpoint.last_model_path)
        for mine, theirs in zip(model.parameters(), restored.parameters()):
            assert torch.equal(mine, theirs)
        results = trainer.test(restored, loaders["test"])
        predictions = torch.cat(trainer.predict(restored, DataLoader(test.dataset.tensors[0][:32], batch_size=16)))
    assert predictions.shape == (32, 4)
    assert torch.allclose(predictions, restored.net(test.dataset.tensors[0][:32]), atol=1e-4)
    assert results[0]["test_acc"] > 0.8


if __name__ == "__main__":
    main()
