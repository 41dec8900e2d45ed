# %% [markdown]
# # Start here: meet the IPU
#
# In 2022 a workshop trained ResNet-101 on two IPUs. Its first program never ran a step: the compiler wanted 768 KiB
# of memory on processors that have 624 KiB each. Half precision made the program fit, and then an epoch of CIFAR-10
# took 52 seconds. Four small changes later, on the same two chips, it took 8 [1]. This course makes those changes
# with you, one lesson at a time.
#
# *Plan 35 minutes, 14 of them for the exercises; the notebook itself runs in seconds. Before it: PyTorch, and a
# training loop you have written yourself.*
#
# You will
#
# * follow the story of the course,
# * check your installation,
# * meet the chip and its system,
# * see why tiles wait,
# * port a training loop,
# * write for one static graph,
# * read a profile.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, figures, ladder, quiz, show
from ipu_course.lessons.start_here import (
    ClassifierWithLoss, SmallNetwork, bulk_synchronous, chip, colour_shapes, doctor, ipu_system, lesson, show_story)

torch.set_num_threads(1)  # the networks that run here are too small for more

# %% [markdown]
# ## Follow the story of the course
#
# An **IPU** (Intelligence Processing Unit, by Graphcore) is a chip for machine learning that works differently from
# a GPU. **PopTorch** runs PyTorch models on it. The figure shows where lessons 01 to 05 will take you.
#
# What do you expect? The quiz below the figure asks six questions. You need not know its terms yet: guess. Write six
# letters in place of the dots, one for each question. The course asks again in [lesson 10](10).

# %%
show_story()

# %%
quiz.before("speed", ...)

# %% [markdown]
# | lessons | the question | afterwards you can |
# |---|---|---|
# | 01 to 05 | Why 52 seconds, and how do you get to 8? | make a program fit, find its bottleneck and remove it |
# | 06, 07 | How do you split a network over IPUs? | choose a cut, and debug it stage by stage |
# | 08 | What if the optimiser's state is too large? | move it off the chip, and know the cost |
# | 09, 10 | How fast should it be, and how far does it scale? | judge a benchmark, and use many replicas |
# | 11 to 17 | Where does every KiB go? | save memory, read profiles, and fit a large model |
#
# You need no IPU: the course brings an **IPU Model**, which computes PopTorch programs on your CPU and predicts what
# an IPU would do with them. Four words say where a number comes from. **Measured** is time on your machine's clock.
# **Modelled** comes from the IPU Model. **Published** is somebody's result on real hardware, such as the 52 s of the
# workshop's progress bar. **Derived** is computed from published results, such as the figure's 52.6 s.
#
# Where a number of the model was **fitted**, chosen so that its results meet published ones, their agreement proves
# nothing. [Lesson 09](09) asks how far you can trust the model.
#
# ## Check your installation
#
# The next cell checks whether the lessons run here. `python -m ipu_course doctor` in a terminal prints more, and how
# to solve each problem.

# %% tags=["nbval-ignore-output"]
doctor(brief=True)

# %% [markdown]
# ## Meet the chip and its system
#
# A second-generation IPU consists of 1,472 small processors called **tiles**. Each has 624 KiB of its own memory,
# and computes only with what is in it. There is no cache, and no large memory next to the chip that all tiles could
# read at full speed [2].
#
# Code, weights and activations must all fit on the chip, spread over its tiles. An A100 GPU has 40 or 80 GB of
# memory, but outside its processor. The IPU's memory is small and fast: all tiles together read 47.5 TB a second,
# about thirty times an A100's 1.6 [2, 3]. The **exchange** is the network between the tiles. Four IPUs share an M2000
# machine, with **streaming memory** beside the chips (lesson 08). A **host** computer loads the data and starts every
# **call**, a line of Python that runs something on the IPUs.

# %%
show.drawing(figures.tile(), "A tile computes with its own memory and nothing else.")
show.drawing(chip(), "All tiles together hold 897 MiB, and the exchange connects them.")
show.drawing(ipu_system(), "The host loads the data, and the IPUs compute: either can be the bottleneck.")

# %% [markdown]
# **Exercise 1** (3 min). ResNet-101 has 44,549,160 parameters. While it trains in half precision, the chips hold 10
# bytes for each: 2 for the weight, 2 for its gradient, and 6 for what the optimiser remembers. If everything is
# spread evenly over the tiles of two IPUs, how many **KiB** does each tile hold? Give one digit after the decimal
# point, and compare with 624.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: kib_on_each_tile = ...
kib_on_each_tile = 44_549_160 * 10 / (2 * 1472) / 1024
### END SOLUTION
lesson.check(1, kib_on_each_tile)

# %% [markdown] tags=["hint"]
# Divide all bytes by the number of tiles of both IPUs, and then by 1,024.

# %% [markdown] tags=["solution"]
# 445 MB over 2,944 tiles are 147.8 KiB on each, if they are spread evenly. You will see in exercise 3 whether they
# are.

# %% [markdown]
# ## See why tiles wait
#
# Tiles do not talk while they compute. Together, they repeat three phases:
#
# 1. **Compute**: every tile works on its own memory.
# 2. **Synchronise**: tiles that have finished wait for the slowest.
# 3. **Exchange**: all tiles send and receive at once, by a plan in which the compiler has fixed every cycle.
#
# This is called **bulk-synchronous parallel** (BSP). Suppose one of the 1,472 tiles gets twice the work of the
# others.
#
# **Predict:** look at the time until the slowest tile has finished. Of the time of all tiles together, what percentage
# is spent waiting? Write the number in place of the dots.

# %% tags=["prediction"]
waiting = lesson.predict("percentage of the tiles' time spent waiting when one tile has twice the work", ...)

# %%
work = torch.ones(1472)
work[0] = 2
waiting.reveal(round(100 * (1 - work.mean() / work.max()).item(), 1), "computed")
show.drawing(bulk_synchronous([1000, 1000, 1000, 2000, 1000, 1000]),
             "One slow tile keeps all others waiting before every exchange.")

# %% [markdown]
# So the compiler balances the work carefully, which is one reason why it takes minutes.
#
# ## Port a training loop
#
# You will port this PyTorch loop to PopTorch.

# %%
def train_in_pytorch(model, batches):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for images, labels in batches:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses

data = colour_shapes(train=True, images=320)
batches = list(zip(data.images.split(16), data.labels.split(16)))
torch.manual_seed(1)
losses = train_in_pytorch(SmallNetwork(), batches)
print("batches:", len(losses), "| the loss fell:", sum(losses[-5:]) < sum(losses[:5]))

# %% [markdown]
# For inference, one line is enough: `poptorch.inferenceModel(model, options)` returns a model that compiles at its
# first call and then runs on the IPU. For training, the backward pass and the weight update are compiled, too. So
# the loss has to be computed inside `forward`, and a single call does everything that the loop does by hand:
#
# | in PyTorch | in PopTorch |
# |---|---|
# | the loss is computed in the loop | a wrapper's `forward(images, labels)` returns `(logits, loss)` |
# | `torch.optim.SGD(...)` | `poptorch.optim.SGD(...)`, over the wrapper's parameters |
# | (nothing like it) | `training_model = poptorch.trainingModel(wrapper, options, optimiser)` |
# | `zero_grad`, `backward`, `step` | `logits, loss = training_model(images, labels)` |
# | (nothing like it) | `training_model.detachFromDevice()` copies the weights back and frees the IPU |
#
# PopTorch recognises a loss of PyTorch, such as `cross_entropy`. A loss that you compute in any other way, or a sum of
# several, has to pass through `poptorch.identity_loss(loss, reduction="none")`.
#
# **Exercise 2** (8 min). Write the wrapper `WithLoss`, and `train_on_ipu(model, batches, options)`, which trains
# `model` and returns the list of losses. The check runs both beside plain PyTorch: the losses must be equal, your
# function must use the options, and the trained weights must be back in `model` at the end.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: class WithLoss(nn.Module):
### STARTER:     def __init__(self, model):
### STARTER:         super().__init__()
### STARTER:         self.model = model
### STARTER:
### STARTER:     def forward(self, images, labels):
### STARTER:         ...
### STARTER:
### STARTER: def train_on_ipu(model, batches, options):
### STARTER:     ...
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        logits = self.model(images)
        return logits, nn.functional.cross_entropy(logits, labels)

def train_on_ipu(model, batches, options):
    wrapper = WithLoss(model)
    optimiser = poptorch.optim.SGD(wrapper.parameters(), lr=0.05)
    training_model = poptorch.trainingModel(wrapper, options, optimiser)
    losses = [training_model(images, labels)[1].item() for images, labels in batches]
    training_model.detachFromDevice()
    return losses
### END SOLUTION
lesson.check(2, WithLoss, train_on_ipu)

# %% [markdown] tags=["hint"]
# `forward` takes two lines: the logits, and `nn.functional.cross_entropy(logits, labels)`. The loop needs no
# `zero_grad`, `backward` or `step`. Which of the five rows of the table have you not used yet?

# %% [markdown] tags=["solution"]
# In fp32 the IPU Model computes what PyTorch computes, so the losses agree. Without `detachFromDevice()`, the
# trained weights are lost with the device when the function returns. Every lesson wraps its networks like this.

# %% [markdown]
# ## Write for one static graph
#
# The forward pass of `Counter` counts how often it has run, and multiplies its input by the count. In plain PyTorch,
# three calls with 1.0 return 1, 2 and 3.
#
# **Predict:** what does the third call return in PopTorch?

# %% tags=["prediction"]
third = lesson.predict("third output for 1.0", ...)

# %%
class Counter(nn.Module):
    runs = 0

    def forward(self, x):
        self.runs += 1
        return x * self.runs

quiet = poptorch.Options()
quiet.showCompilationProgressBar(False)  # keeps this page tidy
counting = poptorch.inferenceModel(Counter(), quiet)
outputs = [counting(torch.ones(1)).item() for _ in range(3)]
third.reveal(outputs[2], "computed by the third call")
try:
    counting(torch.ones(5))
except poptorch.Error as error:
    print(str(error).split(". ")[0].replace("'poptorch_py_error': ", ""))

# %% [markdown]
# PopTorch runs `forward` **once**, and compiles what it saw into one **static graph**: a fixed list of operations
# with fixed sizes. Later calls run that list, not your Python code, so the count stays 1.
#
# Five numbers instead of one were refused, because sizes are fixed, too. An `if` on a tensor's value cannot be
# compiled: use `torch.where` instead.
#
# ## Read a profile
#
# A **profile** says what a program does with time and memory. You will now make one of the workshop's program in half
# precision. `BeginBlock` says where the second IPU's part begins; lessons 01 and 02 explain the settings.

# %%
network = torchvision.models.resnet101()
network.layer3[8] = poptorch.BeginBlock(network.layer3[8], ipu_id=1)
network = ClassifierWithLoss(network).half()

options = poptorch.Options()
options.Training.gradientAccumulation(3)
optimiser = poptorch.optim.AdamW(
    network.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
    first_order_momentum_accum_type=torch.float16, second_order_momentum_accum_type=torch.float32)
images_and_labels = ladder.micro_batch(torch.half)  # 64 images of 64 x 64 pixels
resnet = engine.profile_module(network, images_and_labels, options, optimiser, ladder.host())

# %% [markdown]
# **Predict:** an epoch of 50,000 images takes about 53 s. The IPUs alone could train on about 10,000 images per second.
# During what percentage of a call do the IPUs work?

# %% tags=["prediction"]
working = lesson.predict("percentage of a call during which the IPUs work", ...)

# %%
working.reveal(100 * resnet.device_seconds_per_call / resnet.call_seconds, "modelled")
print(f"seconds per epoch, modelled with a host fitted to the published epochs: {ladder.epoch_seconds(resnet):.1f}")
print(f"seconds per epoch, derived from [1]: {ladder.published('half precision').epoch_seconds:.1f}")
print(f"the bottleneck, modelled: {resnet.limited_by}")
lesson.explore(resnet)

# %% [markdown]
# The IPUs work for less than a tenth of the time, so a faster chip would hardly help. For the rest they wait for the
# host: by the fit, mostly for the loader that prepares images. Then the host spends 34 ms on the call itself (lesson
# 03) before the IPUs start.
#
# Ask four questions of every profile. **Does it fit?** The fullest tile decides. **What is the bottleneck?** **Where
# do the cycles go?** **How sure is that?** The explorer above has pictures for the first three. For the fourth, a
# profile has an **error band**: real IPUs should need 0.85 to 1.17 times this profile's time on the device.
#
# **Exercise 3** (3 min). In exercise 1 you spread 10 bytes for each parameter evenly. What does the model say? Choose
# "What fills the memory?" above, and add up the variables (weights), optimiser state and gradient accumulators on the
# fullest tile of **IPU 1**, in KiB.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: kib_on_ipu_1 = ...
memory = resnet.memory[1].bytes_by_category
kib_on_ipu_1 = (memory["variables"] + memory["optimiser state"] + memory["gradient accumulators"]) / 1024
### END SOLUTION
lesson.check(3, kib_on_ipu_1, using=resnet)

# %% [markdown] tags=["hint"]
# The table below the picture has one row for each part, and one column for each IPU. Add three numbers.

# %% [markdown] tags=["solution"]
# The answer is about 225 KiB, not 147.8. The late layers of ResNet-101 have most of its parameters, and they all lie
# on IPU 1. So the average says little about the fullest tile. Lesson 11 will take such a tile apart.

# %% [markdown]
# ## Summary
#
# * A tile computes with its own 624 KiB, and 1,472 of them make an IPU. A program that does not fit does not run.
# * Tiles compute, synchronise and exchange together, at the speed of the slowest.
# * The loss belongs inside `forward`, which runs once and becomes a static graph with fixed sizes.
# * A profile tells you whether a program fits, and what its bottleneck is.
#
# **Takeaway:** first make it fit, then find out who waits for whom.
#
# `python -m ipu_course report` shows your predictions and exercises.
#
# ## On real hardware
#
# With Graphcore's Poplar SDK, `import poptorch` finds Graphcore's package and these cells run unchanged. This
# ResNet-101 then compiles for about 8 minutes [1], and PopVision, Graphcore's viewer, shows measured profiles.
#
# *Can you still get an IPU?* This course cannot tell: the newest of its sources is from early 2024, and says
# nothing about today's offers. The lessons need none.
#
# ## What transfers
#
# `torch.compile`, `jax.jit` and TPUs prefer static graphs with fixed shapes, too. "Who waits for whom?" is the first
# question on every accelerator.
#
# ## References
#
# 1. IPU training workshop, day 03 (2022), *Memory and Performance Optimisation on the IPU*: two Mk2 IPUs.
# 2. Graphcore, *[IPU Programmer's Guide](https://docs.graphcore.ai/projects/ipu-programmers-guide/)* and Mk2
#    (GC200) product descriptions.
# 3. NVIDIA, *A100 Tensor Core GPU* data sheet, 40 GB version (2020).
#
# **Next:** The workshop's first program does not fit, and half precision makes it fit.
