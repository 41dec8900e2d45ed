"""Collaborative filtering with biases on a dense rating table; the user table stays in streaming memory."""

import torch
from program_kit import stacked
from torch import nn

import poptorch

USERS, ITEMS, RANK = 60, 40, 4


class MatrixFactorisation(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        self.mean = mean
        for table in (self.user, self.item, self.user_bias, self.item_bias):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, user, item, rating=None):
        score = torch.einsum("bd,bd->b", self.user(user), self.item(item))
        score = score + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1) + self.mean
        return score if rating is None else (score, nn.functional.mse_loss(score, rating))


torch.manual_seed(0)
table = torch.randn(USERS, RANK) @ torch.randn(RANK, ITEMS) / 2 + 3
user, item = torch.meshgrid(torch.arange(USERS), torch.arange(ITEMS), indexing="ij")
rows = torch.utils.data.TensorDataset(user.flatten().int(), item.flatten().int(), table.flatten())
known, test = torch.utils.data.random_split(rows, [2048, 352])

model = MatrixFactorisation(mean=3.0)
opts = poptorch.Options().deviceIterations(8).replicationFactor(2).outputMode(poptorch.OutputMode.Sum)
opts.TensorLocations.setOptimizerLocation(
    poptorch.TensorLocationSettings()
    .minElementsForOffChip(0)
    .useOnChipStorage(False)
    .useReplicatedTensorSharding(True)
    .minElementsForReplicatedTensorSharding(2)
)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.01)
trainer = poptorch.trainingModel(model, opts, optimizer)
loader = poptorch.DataLoader(opts, known, batch_size=16, shuffle=True)
history = [sum(trainer(*batch)[1].sum().item() for batch in loader) for _ in range(25)]
assert history[-1] < 0.4 * history[0]
assert len(optimizer.state_dict()["param_groups"]) == 1
trainer.detachFromDevice()

user, item, rating = stacked(test)
error = (poptorch.inferenceModel(model)(user, item) - rating).square().mean().sqrt()
print(f"test RMSE {error:.3f}; always predicting the mean gives {rating.std():.3f}")
assert error < 0.9 * rating.std()
