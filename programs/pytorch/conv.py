"""Trains a small residual network on made-up pictures whose sizes vary from step to step."""

import random

import common

options = common.arguments(__doc__)
torch = common.start(options)
from torch import nn
from torch.nn import functional as F

CLASSES = 100


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(16, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(16, after),
        )
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.main(x) + self.skip(x))


widths = [64, 64, 128, 128, 256, 256, 512, 512]
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False),
    *(Block(a, b, 1 if a == b else 2) for a, b in zip([64, *widths], widths)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(512, CLASSES),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
shapes = random.Random(options.seed)


def step(_):
    batch, height, width = shapes.randint(4, 32), shapes.randint(6, 32) * 16, shapes.randint(6, 32) * 16
    pictures = torch.randn(batch, 3, height, width).cuda()
    classes = torch.randint(CLASSES, (batch,)).cuda()
    loss = F.cross_entropy(model(pictures), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


common.run("conv", options, torch, step)
