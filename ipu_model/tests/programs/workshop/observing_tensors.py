"""Look into a running model: printed tensors, anchored gradients and updates, and their changes over training."""

import sys

import torch
import torch.nn as nn

import poptorch


class ClassificationModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.norm = nn.GroupNorm(5, 5)
        self.fc1 = nn.Linear(5 * 5 * 5, 20)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(20, 4)
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.loss = nn.NLLLoss()

    def forward(self, x, labels=None):
        x = self.norm(self.relu(self.pool(self.conv1(x))))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        x = self.log_softmax(self.fc2(x))
        if labels is None:
            return x
        loss = poptorch.ipu_print_tensor(self.loss(x, labels), "loss")
        return x, loss


class TrainingModelWithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        return self.model(x, labels)


def main():
    torch.manual_seed(0)
    images, labels = torch.rand(160, 1, 12, 12), torch.randint(4, (160,))
    images[torch.arange(160), 0, labels * 3] += 2
    opts = poptorch.Options()
    opts.anchorTensor("grad_bias", "Gradient___model.fc2.bias")
    opts.anchorTensor("update_weight", "UpdatedVar___model.fc2.weight")
    opts.anchorTensor("weight", "model.fc1.weight", poptorch.OutputMode.Final)
    opts.deviceIterations(4)

    model = TrainingModelWithLoss(ClassificationModel()).train()
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.003))
    training_model.compile(images[:32], labels[:32])
    names = training_model.getTensorNames()
    gradients = [name for name in names if name.startswith("Gradient___model.")]
    print(f"{len(names)} tensors, gradients: {gradients[:3]} ...", file=sys.stderr)

    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(images, labels), batch_size=8, shuffle=True)
    gradient_norms, losses = [], []
    for _ in range(8):
        for data, target in loader:
            _, loss = training_model(data, target)
            losses.append(loss.item())
            gradient_norms.append(training_model.getAnchoredTensor("grad_bias").norm().item())
    updated = training_model.getAnchoredTensor("update_weight")
    training_model.copyWeightsToHost()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"gradient norm {gradient_norms[0]:.4f} -> {gradient_norms[-1]:.4f}")
    assert training_model.getAnchoredTensor("grad_bias").shape[-1] == 4
    assert gradients
    torch.testing.assert_close(updated.view(-1, 4, 20)[-1], model.model.fc2.weight.detach())
    assert losses[-1] < 0.8 * losses[0]

    class Probe(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            hidden = poptorch.ipu_print_tensor(self.network.conv1(x), "first feature map", False, 10, 2)
            return hidden.abs().mean()

    probe = poptorch.inferenceModel(Probe(model.model))
    print(f"mean activation {probe(images[:1]).item():.4f}")


if __name__ == "__main__":
    main()
