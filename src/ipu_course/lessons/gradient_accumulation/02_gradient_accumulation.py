# %% [markdown]
# # Gradient accumulation: many micro-batches, one weight update
#
# *Plan 45 minutes, 13 of them for the exercises; the notebook itself runs in under one. Before it: lesson 01.*
#
# Half precision made ResNet-101 fit on two IPUs. Now both are to be busy, and the batch is to grow although
# the memory is full. One number does that. You will
#
# * count the images of a weight update,
# * respect the rule for the smallest accumulation,
# * predict the gain, and compare it with the model,
# * keep the memory as it is,
# * choose between Mean and Sum,
# * adapt the learning rate,
# * climb the ladder.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.gradient_accumulation.checks import check_enough, check_plan, check_sum
from ipu_course.lessons.gradient_accumulation.explorer import explore_accumulation
from ipu_course.lesson import Lesson
from ipu_course.loops import train_epoch
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.schedule import pipelined
from ipu_course.lessons.gradient_accumulation.rates import share_of_highest_rate, show_rates
from ipu_course.views.epoch import show_epoch_parts

lesson = Lesson("02")
torch.set_num_threads(1)  # for so small a model, more would only wait for each other

# %% [markdown]
# ## Count the images of a weight update
#
# A **micro-batch** is what passes through the model at once; it has to fit into memory. **Gradient
# accumulation** sends several micro-batches through, one after the other, and adds up their gradients. Then
# the weights change, once. All images of one update are the **global batch**.
#
# **Predict:** with micro-batches of 64 images and an accumulation of 8, how many images share an update?
# Write your number in place of the dots.

# %%
guess = lesson.predict("images in one weight update", ...)

shapes = colour_shapes(train=True, images=1024)
options = poptorch.Options()
options.Training.gradientAccumulation(8)
options.showCompilationProgressBar(False)  # keeps this page tidy
loader = poptorch.DataLoader(options, shapes, batch_size=64)  # batch_size: of a micro-batch
guess.reveal(loader.combinedBatchSize, "combinedBatchSize of the loader")
print("updates in an epoch of 50,000 images:", 50_000 // loader.combinedBatchSize)

# %% [markdown]
# ## Respect the rule for the smallest accumulation
#
# Our ResNet-101 is cut in two: its first part, a **stage**, is on IPU 0, the second on IPU 1. Alone, a
# micro-batch would keep one IPU waiting while it is on the other. So the next one follows at once: a
# **pipeline**.
#
# In every pipeline step, an IPU does at most one forward and one backward pass. The first steps fill the
# pipeline (**ramp-up**), the last ones empty it (**ramp-down**), and then the weights are updated. With *N*
# stages, at least *2N - 1* micro-batches are needed before any step is full. PopTorch refuses fewer when it
# compiles. (Its message counts *2N - 1* stages: the way forwards and the way back.)

# %%
figures.show(
    figures.schedule_figure(pipelined(stages=2, micro_batches=3), "Schedule of one weight update: accumulation 3"),
    "Two IPUs, five pipeline steps, three micro-batches: steps 1 and 2 are the ramp-up, only step 3 has both "
    "passes on both IPUs, steps 4 and 5 are the ramp-down. Then the weights are updated.")

network = SmallNetwork()
network.head = poptorch.BeginBlock(network.head, ipu_id=1)  # the second stage begins here
too_few = options.clone()
too_few.Training.gradientAccumulation(2)
optimiser = poptorch.optim.SGD(network.parameters(), lr=0.1)
try:
    poptorch.trainingModel(WithLoss(network), too_few, optimiser).compile(shapes.images[:32], shapes.labels[:32])
except poptorch.Error as error:
    print(str(error).split(". ")[0].replace("'poptorch_py_error': ", ""))

# %% [markdown]
# *m* micro-batches take *m + 2(N - 1)* steps, so each IPU works in *m / (m + 2(N - 1))* of them: its
# **utilisation**, counted in steps.
#
# **Exercise 1** (5 min). A model over **four** IPUs is to learn from 512 images in each update, and to be busy
# in at least 70 % of the steps. Choose the **largest** micro-batch for that, and the accumulation.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: micro_batch = ...
### STARTER: accumulation = ...
micro_batch = 32
accumulation = 16
### END SOLUTION
check_plan(micro_batch, accumulation)

# %% [markdown] tags=["hint"]
# Solve *m / (m + 6) = 0.7*, then take the next number that divides 512.

# %% [markdown] tags=["solution"]
# 14 micro-batches would be enough, but 512 / 14 is no whole number. 16 x 32 = 512, and 16 / 22 is 72.7 %.

# %% [markdown]
# ## Predict the gain, and compare it with the model
#
# Now the hands-on's own program: ResNet-101 in half precision on two IPUs, micro-batches of 64 images of
# 64 x 64 pixels. By the formula, accumulation 3 keeps the IPUs busy in 60 % of the steps, and 8 in 80 %.
#
# **Predict:** from accumulation 3 to 8, how many times as many images a second do the **IPUs alone** process?

# %%
guess = lesson.predict("images a second, accumulation 8 against 3, as a factor", ...)

def captured_resnet(micro_batch):  # captured once, modelled with many settings
    model = torchvision.models.resnet101()
    model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)
    model = models.ClassifierWithLoss(model).half()
    optimiser = poptorch.optim.AdamW(
        model.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16, second_order_momentum_accum_type=torch.float32)
    return engine.modelled_module(model, ladder.micro_batch(torch.float16, micro_batch), options, optimiser)

resnet = captured_resnet(micro_batch=64)
rates = [p.profile.device_samples_per_second for p in resnet.sweep("gradient_accumulation", [3, 8])] if resnet else []
cycles = {3: 24_342_210, 8: 56_541_731}  # published: cycles of a call on IPU 0, traces of the hands-on [1]
guess.reveal(rates[1] / rates[0] if rates else None, "modelled",
             f"{(8 / cycles[8]) / (3 / cycles[3]):.3f} from the cycles of two traces [1]")

# %% [markdown]
# The formula promised 80 / 60 = 1.33. It counts all steps as equally long, but a ramp step is shorter: it has
# only a forward pass, or only a backward pass. Weighted by time, the pipeline works for *m / (m + N - 1)*.
#
# The figure has both formulas, the model, and the published traces. "Highest rate" is that of an endless row
# of micro-batches. (Some of the model's constants were fitted on these traces, so close agreement is no proof.)
# The table has what happens once an update, too: the **weight update** itself gets rarer.
#
# Below it, turn the knobs: the timeline shows who works when. R is recomputation: IPU 0 repeats the forward
# pass, so that fewer results have to wait in memory for the backward pass.

# %%
profiles = {}
if resnet:
    points = resnet.sweep("gradient_accumulation", [3, 4, 5, 8, 12, 16, 32, 64])
    profiles = {point.value: point.profile for point in points}
endless = resnet.profile(gradient_accumulation=4096).device_samples_per_second if resnet else 0
show_rates(profiles, endless, published=share_of_highest_rate(cycles))

# %%
if profiles:
    print(f"fullest tile with accumulation 3: {profiles[3].memory.max_tile_bytes / 1024:.0f} KiB (modelled)")
explore_accumulation(resnet)

# %% [markdown]
# ## Keep the memory as it is
#
# There are two ways to 512 images an update: 64 x 8, or 128 x 4.
#
# **Predict:** the last output begins with what the fullest tile holds of its 624 KiB with accumulation 3. How many KiB
# does it hold with 8?

# %%
guess = lesson.predict("KiB on the fullest tile with accumulation 8", ...)
fullest = round(profiles[8].memory.max_tile_bytes / 1024) if profiles else None
guess.reveal(fullest, "modelled", '"without increase in memory usage" [1]')

larger = captured_resnet(micro_batch=128)
programs = {"64 x 3": profiles.get(3), "64 x 8": profiles.get(8),
            "128 x 4": larger.profile(gradient_accumulation=4) if larger else None}
show.table([{"micro-batch x accumulation": name,
             "fullest tile": f"{program.memory.max_tile_bytes / 1024:.0f} KiB",
             "of it on IPU 0, activations": f"{program.memory[0].bytes_by_category['activations'] / 1024:.0f} KiB",
             "fits into 624 KiB": engine.fits_in_a_word(program)}
            for name, program in programs.items() if program], index="micro-batch x accumulation")

# %% [markdown]
# One **accumulator** for each weight holds the sum, however many gradients are added. (Only an
# accumulation of 1 needs none: choose *sharded* and 1 in the explorer.) A larger micro-batch makes everything larger
# that waits for the backward pass. It does not fit.
#
# ## Choose between Mean and Sum
#
# `Mean`, the default, divides the sum of the gradients by the accumulation; `Sum` does not. Is that the same
# learning as with one large batch? The next cells train for real: four updates of 64 images in plain PyTorch,
# and as 4 x 16 with accumulation.

# %%
def large_batches(network, rate):
    optimiser = torch.optim.SGD(network.parameters(), lr=rate)
    for first in range(0, 256, 64):
        optimiser.zero_grad()
        network(shapes.images[first:first + 64], shapes.labels[first:first + 64])[1].backward()
        optimiser.step()
    return torch.nn.utils.parameters_to_vector(network.parameters())

def accumulated(network, rate, reduction):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4).accumulationAndReplicationReductionType(reduction)
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=rate))
    for first in range(0, 256, 64):
        model(shapes.images[first:first + 64], shapes.labels[first:first + 64])
    model.copyWeightsToHost()
    return torch.nn.utils.parameters_to_vector(network.parameters())

# %%
def first_network(normalisation):
    torch.manual_seed(1)
    network = SmallNetwork(width=8)  # normalises with GroupNorm
    for place, channels in ((1, 8), (5, 16), (9, 32)) if normalisation == "BatchNorm" else ():
        network.features[place] = torch.nn.BatchNorm2d(channels)
    return WithLoss(network)

vector = torch.nn.utils.parameters_to_vector
for normalisation in ("GroupNorm", "BatchNorm"):
    before = vector(first_network(normalisation).parameters())
    large = large_batches(first_network(normalisation), rate=0.02)
    for reduction, rate in ((poptorch.ReductionType.Mean, 0.02), (poptorch.ReductionType.Sum, 0.02 / 4)):
        small = accumulated(first_network(normalisation), rate, reduction)
        apart = (small - large).norm() / (large - before).norm()  # as a share of the way that the weights went
        verdict = "as one large batch" if apart < 0.01 else "NOT as one large batch"
        print(f"{normalisation}, {reduction.name} with rate {rate}: {verdict}")

# %% [markdown]
# With `GroupNorm`, accumulation **is** the large batch. `Sum` is the same again with the rate divided by 4. But
# **batch normalisation** breaks the equality: it takes mean and variance from its micro-batch, 16 images instead
# of 64. No setting repairs that. So with small micro-batches prefer group or layer normalisation.
#
# **Exercise 2** (4 min). A program learns well with micro-batches of 64, accumulation 8, `Mean` and a learning
# rate of 0.2. You halve the micro-batch and change to `Sum`. Which accumulation and rate keep the learning?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: accumulation = ...
### STARTER: learning_rate = ...
accumulation = 16
learning_rate = 0.2 / 16
### END SOLUTION
check_sum(accumulation, learning_rate)

# %% [markdown] tags=["hint"]
# First keep the global batch. Then: how many times as large as the mean is the sum?

# %% [markdown] tags=["solution"]
# 64 x 8 = 512 = 32 x 16. The sum of 16 gradients is 16 times their mean; a rate of 0.0125 makes up for it.

# %% [markdown]
# ## Adapt the learning rate
#
# Eight times the accumulation means an eighth of the updates in an epoch. Is that bad? The next cell trains a
# small network for four epochs, three times: micro-batches of 8, accumulation 1; accumulation 8; and 8 again
# with the learning rate times 8.

# %% tags=["nbval-ignore-output"]
def train(accumulation, rate, epochs=4):
    torch.manual_seed(1)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options.deviceIterations(8 // accumulation).outputMode(poptorch.OutputMode.All)  # lesson 03 explains
    network = WithLoss(SmallNetwork(width=4))
    optimiser = poptorch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    model = poptorch.trainingModel(network, options, optimiser)
    batches = poptorch.DataLoader(options, shapes, batch_size=8, shuffle=True)
    return [train_epoch(model, batches).loss for _ in range(epochs)]

often, rarely, scaled = train(1, 0.002), train(8, 0.002), train(8, 0.016)
curves = {"accumulation 1": often, "8, rate x 8": scaled, "8, same rate": rarely}
figures.show(figures.curves_figure([1, 2, 3, 4], curves, "epoch", "training loss", "Fewer updates learn less"),
             "Training loss over four epochs: it falls fastest with accumulation 1, slowest with accumulation 8 "
             "and the same learning rate; with eight times the rate it lies between.")

# %%
print("accumulation 8, same rate: behind?", rarely[-1] > often[-1] + 0.3)
print("rate x 8: a good part made up?", rarely[-1] - scaled[-1] > 0.3 * (rarely[-1] - often[-1]))

# %% [markdown]
# Hardware says the same: in the hands-on, the rate stayed, and after five epochs 74.0 % of the training images
# were right with accumulation 3, but 67.3 % with 8 [1]. Scaling the rate with the batch is a start; a warm-up
# helps; beyond some size, no rate makes up for the missing updates [3].
#
# ## Climb the ladder
#
# **Predict:** half precision with accumulation 3 took 52 s an epoch [1], loading included. How many does 8 take?

# %%
guess = lesson.predict("seconds an epoch with accumulation 8", ...)
loading = ladder.host()  # what the hands-on's program costs its host, fitted on its published epochs
with_loader = {m: resnet.profile(host=loading, gradient_accumulation=m) if resnet else None for m in (3, 8)}
guess.reveal(ladder.epoch_seconds(with_loader[8]), "modelled", "46 s an epoch [1]")
lesson.show_ladder("gradient accumulation 8")

# %%
show_epoch_parts({f"accumulation {m}": profile for m, profile in with_loader.items()})

# %% [markdown]
# The surprise: the IPUs' gain is only a **small** part of it. A single Python process loads and prepares the
# images, and needs the same seconds as before. Most of what was saved is the work of the calls: one call now
# takes more images, so there are fewer. Which is the next lesson's knob.
#
# **Exercise 3** (4 min). Suppose loading cost nothing; lessons 04 and 05 come near that. What is the smallest
# accumulation with which the modelled IPUs reach at least 95 % of `endless`, their highest rate?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: smallest = ...
smallest = 3
while resnet and resnet.profile(gradient_accumulation=smallest).device_samples_per_second < 0.95 * endless:
    smallest += 1
### END SOLUTION
check_enough(smallest, resnet)

# %% [markdown] tags=["hint"]
# The table brackets it. Ask `resnet.profile(gradient_accumulation=m).device_samples_per_second` for the values
# in between.

# %% [markdown] tags=["solution"]
# A little below the formula for time, *m / (m + 1)*, whose answer is 19: the model's ramps are shorter still.

# %% [markdown]
# ## Summary
#
# * A weight update takes micro-batch x accumulation images (x replicas).
# * A pipeline of *N* stages needs an accumulation of at least *2N - 1*, and more to be busy. The formula
#   that counts steps is too pessimistic at the start.
# * The memory stays, because the accumulators do.
# * `Mean` is the large batch, unless the model has batch normalisation. `Sum` is a larger learning rate.
#
# **Takeaway:** accumulate until the ramps no longer matter, not further: every doubling halves the updates.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# With the Poplar SDK, the same cells compile for IPUs; rates and memory then come from PopVision's execution
# trace and memory report. A new accumulation is a new program: published compilations of this one took about 8
# minutes each [1].
#
# ## What transfers
#
# In plain PyTorch: call `backward` several times and `step` once, with the loss divided by the accumulation,
# because `backward` adds up. Ramps are the same in GPipe, whose authors count *N - 1* of them [4].
#
# ## References
#
# 1. IPU hands-on training workshop, day 03 (2022), sections Half Precision and Gradient Accumulation; slides with
#    PopVision traces. Two Mk2 IPUs, Poplar SDK 2.5/2.6.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. Goyal et al., *[Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677)*, 2017.
# 4. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** [lesson 03](03_device_iterations.ipynb) lets the loop over the updates run on the device.
