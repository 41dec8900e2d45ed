# needs: pytorch_lightning
# environment: IPU_MODEL_AS_HARDWARE=1
"""PyTorch Lightning 1.9 on IPUs: a classifier with poptorch.Options passed in an IPUStrategy."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.strategies import IPUStrategy

import poptorch


class Classifier(pl.LightningModule):
    def __init__(self, features=16, classes=3, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.block1 = torch.nn.Sequential(torch.nn.Linear(features, 32), torch.nn.ReLU())
        self.block2 = torch.nn.Linear(32, classes)

    def forward(self, x):
        return self.block2(self.block1(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)]

    def on_fit_start(self):
        self.block2 = poptorch.BeginBlock(self.block2, "block2", ipu_id=1)


class LossHistory(pl.Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.values.append(outputs["loss"].mean().item())


class Data(pl.LightningDataModule):
    def __init__(self, size=256, batch_size=4):
        super().__init__()
        self.size, self.batch_size = size, batch_size

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(0)
        centres = 2 * torch.randn(3, 16, generator=g)
        y = torch.randint(0, 3, (self.size,), generator=g)
        self.dataset = torch.utils.data.TensorDataset(centres[y] + torch.randn(self.size, 16, generator=g), y)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, drop_last=True)


def main():
    pl.seed_everything(42)
    training_opts = poptorch.Options()
    training_opts.deviceIterations(2)
    training_opts.Training.gradientAccumulation(4)
    training_opts.randomSeed(42)
    inference_opts = poptorch.Options()

    history = LossHistory()
    trainer = pl.Trainer(
        accelerator="ipu",
        devices=2,
        max_epochs=3,
        strategy=IPUStrategy(training_opts=training_opts, inference_opts=inference_opts),
        callbacks=[history],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, datamodule=Data())
    print([round(value, 3) for value in history.values])
    assert trainer.global_step == 3 * 8
    assert history.values[-1] < 0.5 * history.values[0]


if __name__ == "__main__":
    main()
