"""Stop a run, save model, optimiser and scheduler, resume in new objects: the result is the uninterrupted run's."""

import pathlib
import tempfile

import torch

import poptorch

STEPS, STOP_AT = 12, 6


def make_model():
    torch.manual_seed(0)
    body = torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x, y):
            self.seen += 1.0
            return self.body(x), torch.nn.functional.mse_loss(self.body(x), y)

    return WithLoss()


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(16, 8, generator=g)
    return x, x.sum(1, keepdim=True)


class Run:
    def __init__(self):
        self.model = make_model()
        self.optimizer = poptorch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        opts = poptorch.Options()
        opts.Training.gradientAccumulation(2)
        opts.randomSeed(3)
        self.training = poptorch.trainingModel(self.model, opts, self.optimizer)
        self.step = 0

    def run(self, until):
        loss = None
        while self.step < until:
            _, loss = self.training(*batch(self.step))
            self.scheduler.step()
            self.training.setOptimizer(self.optimizer)
            self.step += 1
        return loss

    def save(self, path):
        torch.save(
            {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "rng": self.training.rng_state,
            },
            path,
        )

    def load(self, path):
        checkpoint = torch.load(path)
        self.step = checkpoint["step"]
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.training.compile(*batch(0))
        self.training.copyWeightsToDevice()
        self.training.rng_state = checkpoint["rng"]

    def weights(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def main():
    whole = Run()
    whole_loss = whole.run(STEPS)
    expected = whole.weights()
    whole.training.destroy()

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.pt"
        first = Run()
        first.run(STOP_AT)
        first.save(path)
        first.training.destroy()

        second = Run()
        second.load(path)
        loss = second.run(STEPS)
    print(f"uninterrupted {whole_loss.item():.6f}, resumed {loss.item():.6f}")
    for name, value in second.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    state = second.optimizer.state_dict()
    assert state["param_groups"] or state["state"]
    assert whole_loss.item() == loss.item() or abs(whole_loss.item() - loss.item()) < 1e-5


if __name__ == "__main__":
    main()
