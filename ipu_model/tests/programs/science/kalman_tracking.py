"""Learn the noise covariances of a Kalman filter by maximum likelihood; 2 x 2 inverses are written out."""

import argparse

import torch
import torch.nn as nn

import poptorch


def inverse_2x2(m):
    a, b, c, d = m[..., 0, 0], m[..., 0, 1], m[..., 1, 0], m[..., 1, 1]
    determinant = a * d - b * c
    adjugate = torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)
    return adjugate / determinant[..., None, None], determinant


class KalmanFilter(nn.Module):
    """Constant velocity in the plane; observes positions."""

    def __init__(self, dt=1.0):
        super().__init__()
        transition = torch.eye(4)
        transition[0, 2] = transition[1, 3] = dt
        self.register_buffer("transition", transition)
        self.register_buffer("observation", torch.eye(4)[:2])
        self.log_process = nn.Parameter(torch.tensor(-1.0))
        self.log_measurement = nn.Parameter(torch.tensor(1.0))

    def forward(self, measurements):
        batch, steps, _ = measurements.shape
        mean = torch.cat([measurements[:, 0], torch.zeros(batch, 2)], dim=1).unsqueeze(-1)
        covariance = torch.eye(4).repeat(batch, 1, 1)
        q, r = torch.exp(self.log_process) * torch.eye(4), torch.exp(self.log_measurement) * torch.eye(2)
        nll, means = 0.0, []
        for t in range(1, steps):
            mean = self.transition @ mean
            covariance = self.transition @ covariance @ self.transition.t() + q
            innovation = measurements[:, t].unsqueeze(-1) - self.observation @ mean
            s = self.observation @ covariance @ self.observation.t() + r
            s_inverse, determinant = inverse_2x2(s)
            gain = covariance @ self.observation.t() @ s_inverse
            nll = nll + 0.5 * (innovation.transpose(1, 2) @ s_inverse @ innovation).flatten()
            nll = nll + 0.5 * torch.log(determinant)
            mean = mean + gain @ innovation
            covariance = covariance - gain @ self.observation @ covariance
            means.append(mean[:, :2, 0])
        return torch.stack(means, dim=1), poptorch.identity_loss(nll / (steps - 1), reduction="mean")


def tracks(count, steps, process, measurement):
    state, rows, truth = torch.randn(count, 4), [], []
    for _ in range(steps):
        state = torch.cat([state[:, :2] + state[:, 2:], state[:, 2:]], dim=1) + process * torch.randn(count, 4)
        truth.append(state[:, :2])
        rows.append(state[:, :2] + measurement * torch.randn(count, 2))
    return torch.stack(rows, dim=1), torch.stack(truth, dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--calls", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = KalmanFilter()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.replicationFactor(2)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for _ in range(args.calls):
        measurements, _ = tracks(64, args.steps, process=0.1, measurement=0.5)
        _, loss = trainer(measurements)
        losses.append(loss.mean().item())
    trainer.copyWeightsToHost()
    process, measurement = (0.5 * model.log_process).exp().item(), (0.5 * model.log_measurement).exp().item()
    print(f"nll {losses[0]:.3f} -> {losses[-1]:.3f}; process {process:.3f} (0.1), measurement {measurement:.3f} (0.5)")
    trainer.detachFromDevice()

    measurements, truth = tracks(32, args.steps, 0.1, 0.5)
    estimate, _ = poptorch.inferenceModel(model)(measurements)
    filtered = (estimate - truth[:, 1:]).square().mean().sqrt().item()
    raw = (measurements - truth)[:, 1:].square().mean().sqrt().item()
    print(f"RMSE filtered {filtered:.3f}, measured {raw:.3f}")
    assert losses[-1] < losses[0]
    assert abs(measurement - 0.5) < 0.15
    assert filtered < raw


if __name__ == "__main__":
    main()
