# %% [markdown]
# # Start here: an IPU in ten minutes
#
# *Plan 30 minutes, 8 of them for the exercises; the notebook itself runs in under one. Before it: PyTorch, and
# a training loop you have written yourself.*
#
# An **IPU** (Intelligence Processing Unit, by Graphcore) is a chip for machine learning that is not a GPU.
# This lesson shows what is different, and how the rest of the course works. You will
#
# * check your installation,
# * meet the chip: its tiles, its memory, and how they take turns,
# * convert a first model from PyTorch,
# * write for one static graph,
# * read a profile.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, ladder, models
from ipu_course.datasets import colour_shapes
from ipu_course.doctor import doctor
from ipu_course.lessons.start_here.checks import check_on_device, check_tile_memory
from ipu_course.lessons.start_here.explorer import explore_profile
from ipu_course.lesson import Lesson
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.lessons.start_here.steps import show_steps

lesson = Lesson("00")
torch.set_num_threads(1)  # for so small a model, more would only wait for each other

# %% [markdown]
# ## Check your installation
#
# The **doctor** looks at everything the lessons need. In a terminal, `python -m ipu_course doctor` says more,
# and how to cure what is wrong.

# %% tags=["nbval-ignore-output"]
doctor(brief=True)

# %% [markdown]
# Three words have one meaning each in this course. **Measured** is time on a clock on your machine.
# **Modelled** is computed by the IPU Model, a program that comes with the course and stands in for the chip.
# **Published** is a result of real hardware that somebody has reported; its source is in the references.
#
# ## Meet the chip
#
# A second-generation IPU is 1,472 small processors, called **tiles**. Every tile has its own memory of 624
# KiB on the chip, and computes only with what is in there: no cache, and no large memory beside the chip that
# all could read at full speed [1].
#
# So a program, its weights and its activations must all fit on the chip, spread over the tiles. Nearly every
# lesson is about this memory, or about time lost while the tiles wait.
#
# **Predict:** how much memory does one IPU have in all, in MiB? Write your number in place of the dots.

# %%
guess = lesson.predict("memory on one IPU, in MiB", ...)

tiles, kib_per_tile = 1472, 624
guess.reveal(tiles * kib_per_tile / 1024, "computed as 1472 x 624 / 1024",
             "900 MB of in-processor memory, Graphcore's round figure [1]")

# %% [markdown]
# An A100 GPU has 40 or 80 GB, but outside the processor. The IPU's memory is small and fast: all tiles
# together read 47.5 TB a second, about thirty times an A100's 1.6 TB a second [1, 2].
#
# **Exercise 1** (4 min). A network with 42.5 million parameters is trained on two IPUs. For each parameter, the
# chip holds 10 bytes: weight, gradient, and what the optimiser remembers. If all is spread evenly, how many
# **KiB** does that take on **each tile**? Use one digit after the point, and compare with 624.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: kib_on_each_tile = ...
kib_on_each_tile = 42.5e6 * 10 / (2 * 1472) / 1024
### END SOLUTION
check_tile_memory(kib_on_each_tile)

# %% [markdown] tags=["hint"]
# Bytes in all, divided by the tiles of both IPUs, then by 1,024.

# %% [markdown] tags=["solution"]
# 425 MB over 2,944 tiles: about 141 KiB, nearly a quarter of the tile. What else needs room, above all the
# activations that the backward pass waits for, is the subject of lesson 01.

# %% [markdown]
# ## Take turns: compute, synchronise, exchange
#
# Tiles do not send each other data while they compute. They work in steps, all together:
#
# 1. **Compute**: every tile works on its own memory.
# 2. **Synchronise**: tiles that have finished wait for the slowest.
# 3. **Exchange**: all tiles send and receive at once, on paths that the compiler has planned.
#
# Then the next step begins. This is called **bulk-synchronous parallel** (BSP). No locks and no surprises: the
# compiler knows each exchange to the cycle. But one tile with more work than the others keeps all of them
# waiting.
#
# The next cell asks the model about a ResNet-101 on two IPUs, which the lessons 01 to 05 will make six times
# faster. `BeginBlock` says where the second IPU's part begins. **fp16** numbers, made by `half()`, take 2 bytes. The
# optimiser's settings keep part of what it remembers in fp16, too: this makes the 10 bytes of exercise 1.

# %%
network = torchvision.models.resnet101()
network.layer3[8] = poptorch.BeginBlock(network.layer3[8], ipu_id=1)
network = models.ClassifierWithLoss(network).half()

options = poptorch.Options()
options.Training.gradientAccumulation(3)  # lesson 02 says why
optimiser = poptorch.optim.AdamW(  # lesson 01 explains these settings
    network.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
    first_order_momentum_accum_type=torch.float16, second_order_momentum_accum_type=torch.float32)
images_and_labels = ladder.micro_batch(torch.half)  # 64 images of 64 x 64 pixels
resnet = engine.profile_module(network, images_and_labels, options, optimiser, ladder.host())

# %%
show_steps(resnet, ipu=0, first=8)

# %% [markdown]
# ## Convert a first model
#
# PopTorch runs PyTorch models. Here is a small network, and the same network wrapped for the IPU. The first
# call compiles it (on an IPU: seconds to minutes), every later call just runs.

# %%
images = colour_shapes(train=True, images=320)
model = SmallNetwork()  # plain torch.nn: three convolutions and a linear layer
quiet = poptorch.Options()
quiet.showCompilationProgressBar(False)  # keeps this page tidy

ipu_model = poptorch.inferenceModel(model, quiet)
batch = images.images[:16]
print("shape of the answer:", tuple(ipu_model(batch).shape))
print("the same as PyTorch?", torch.allclose(ipu_model(batch), model(batch), atol=1e-4))
ipu_model.detachFromDevice()

# %% [markdown]
# For training, three things change. The **loss** is computed inside `forward`, because backward pass and weight
# update are compiled, too. The **optimiser** is handed over. And there is no `loss.backward()` and no
# `optimizer.step()`: one call does a whole training step.

# %%
torch.manual_seed(1)
network = WithLoss(SmallNetwork())  # forward gives (answers, loss)
optimiser = poptorch.optim.SGD(network.parameters(), lr=0.05)
training_model = poptorch.trainingModel(network, quiet, optimiser)

losses = []
for start in range(0, len(images), 16):
    answers, loss = training_model(images.images[start:start + 16], images.labels[start:start + 16])
    losses.append(loss.item())
print("calls:", len(losses))
print("the loss fell:", sum(losses[-5:]) < sum(losses[:5]))

# %% [markdown]
# The same loop in plain PyTorch gives the same losses. In fp32 the IPU Model computes what PyTorch computes:
# what you learn here about numbers is real, what you read about time is modelled.

# %%
torch.manual_seed(1)
plain = WithLoss(SmallNetwork())
optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
plain_losses = []
for start in range(0, len(images), 16):
    optimiser.zero_grad()
    answers, loss = plain(images.images[start:start + 16], images.labels[start:start + 16])
    loss.backward()
    optimiser.step()
    plain_losses.append(loss.item())
print("the same losses?", torch.allclose(torch.tensor(losses), torch.tensor(plain_losses), rtol=1e-2))

# %% [markdown]
# ## Write for one static graph
#
# PopTorch runs `forward` **once**, and compiles what it saw into one **static graph**: a fixed list of
# operations with fixed sizes. Later calls run the list. Your Python code does not run again.
#
# **Predict:** this model multiplies by the number of times that `forward` ran. What is its third answer to 1.0?

# %%
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return x * self.runs

guess = lesson.predict("third answer to 1.0", ...)
counting = poptorch.inferenceModel(Counter(), quiet)
for _ in range(3):
    answer = counting(torch.ones(1))
guess.reveal(answer.item(), "returned by the third call")

# %% [markdown]
# Python's part is frozen in the graph, and so are the sizes. And an `if` that looks at a tensor's value cannot
# be compiled at all. PopTorch refuses both:

# %%
class Doubler(nn.Module):
    def forward(self, x):
        return 2 * x if x.mean() > 0 else x

for model, inputs in ((counting, torch.ones(5)), (poptorch.inferenceModel(Doubler(), quiet), torch.ones(4))):
    try:
        model(inputs)
    except poptorch.Error as error:
        print(str(error).split(". ")[0].replace("'poptorch_py_error': ", ""))

# %% [markdown]
# To use a batch of another size, compile a second model; `destroy()` frees the first. Training loops
# therefore drop an incomplete last batch. Decisions about values become arithmetic: compute both answers, and
# let `torch.where` choose.
#
# **Exercise 2** (4 min). Write `double_bright(images)` for a batch *[N, 3, H, W]*: every **image** whose mean is
# above 0 is doubled, the others stay as they are. It has to run on the device.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: double_bright = ...
def double_bright(images):
    bright = images.mean(dim=(1, 2, 3), keepdim=True) > 0
    return torch.where(bright, 2 * images, images)
### END SOLUTION
check_on_device(double_bright)

# %% [markdown] tags=["hint"]
# `images.mean(dim=(1, 2, 3), keepdim=True)` has one number for each image.

# %% [markdown] tags=["solution"]
# The comparison stays a tensor: nothing is read by Python, so the graph holds both ways and chooses on the chip.

# %% [markdown]
# ## Read a profile
#
# A **profile** says what a program does with time and memory. `resnet` above is a modelled one. Ask it four
# questions, in this order:
#
# 1. **Does it fit?** The fullest tile decides, not the mean.
# 2. **What limits it?** The host that loads the images, the transfer to the chip, or one of the IPUs.
# 3. **Where do the IPUs' cycles go?** Computing, exchanging, or waiting for others.
# 4. **How sure is that?** The error band, and the notes.
#
# **Predict:** how many seconds does this program take for an epoch, 50,000 images of CIFAR-10?

# %%
guess = lesson.predict("seconds an epoch, ResNet-101 in half precision", ...)
guess.reveal(ladder.epoch_seconds(resnet), "modelled", "52 s an epoch, two IPUs [3]")
if resnet:
    low, high = resnet.error_band
    print("memory:", engine.memory_verdict(resnet), "| limited by:", resnet.limited_by)
    on_ipus, in_all = resnet.device_seconds_per_call, resnet.call_seconds
    print(f"a call: {on_ipus * 1e3:.0f} ms on the IPUs, {in_all * 1e3:.0f} ms in all")
    print(f"time on hardware: {low:.2f} to {high:.2f} times the modelled one")

# %% [markdown]
# The surprise: the IPUs work for a tenth of the time. The rest is Python on the host, which loads and prepares
# the images. A fast chip does not help a program that waits for data. Lessons 03 to 05 cure that; 01, 02 and
# 06 make the IPUs themselves faster.
#
# Look around: every picture answers one of the questions. (Drawn from the profile above.)

# %%
explore_profile(resnet)

# %% [markdown]
# ## Summary
#
# * A tile computes with its own 624 KiB; 1,472 of them are an IPU. What does not fit does not run.
# * Tiles compute, synchronise, exchange: all together, as fast as the slowest.
# * `forward` runs once and becomes a static graph with fixed sizes; the loss belongs inside.
# * A profile answers: does it fit, what limits it, where do the cycles go, how sure is that.
#
# **Takeaway:** first make it fit, then find out who waits for whom.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# With Graphcore's Poplar SDK, `import poptorch` finds Graphcore's package, and all cells that use PopTorch run
# unchanged; compilation takes longer (about 8 minutes for this ResNet-101 [3]). Profiles come from PopVision,
# Graphcore's viewer, after `options.enableProfiling()`; its pictures answer the same four questions.
#
# ## What transfers
#
# Static graphs with fixed shapes are also what `torch.compile`, `jax.jit` and TPUs like best. "Who waits for
# whom" is the first question on every accelerator.
#
# ## References
#
# 1. Graphcore, *[IPU Programmer's Guide](https://docs.graphcore.ai/projects/ipu-programmers-guide/)* and
#    Mk2 (GC200) product descriptions.
# 2. NVIDIA, *A100 Tensor Core GPU* data sheet, 40 GB version (2020).
# 3. IPU hands-on training workshop, day 03 (2022), section Half Precision.
#
# **Next:** [lesson 01](01_half_precision.ipynb) makes a program fit.
