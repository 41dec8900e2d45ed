# %% [markdown]
# # Gradient accumulation: many micro-batches, one weight update
#
# Half precision made ResNet-101 fit on two IPUs, and an epoch takes **52 seconds** [1]. Even when the IPUs have data,
# they do not compute all the time: in a published trace of one call (with profiling on), IPU 0 runs code in only
# **51.57 %** of its cycles [1]. The rest is exchange, streams and waiting. You would also like to learn from more than
# 192 images at once, but the memory is nearly full. One option helps with both. What does it buy, and what does it
# cost?
#
# *Plan 50 minutes, 21 of them for the exercises; the notebook itself runs in under one. Before it: lesson 01.* You will
#
# * write accumulation yourself,
# * fill a pipeline,
# * predict the gain,
# * find the longest stage,
# * use no more memory,
# * choose between Mean and Sum,
# * climb the ladder, and see the price.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.gradient_accumulation import lesson, percent_apart, show_epoch_parts, show_rates, show_stages
from ipu_course.models import ClassifierWithLoss, SmallNetwork, WithLoss
from ipu_course.schedule import pipelined

torch.set_num_threads(1)  # a small network would only make more threads wait for each other
shapes = colour_shapes(train=True, images=256)
Mean, Sum = poptorch.ReductionType.Mean, poptorch.ReductionType.Sum

# %% [markdown]
# ## Write accumulation yourself
#
# A **micro-batch** is what passes through the model at once, so its activations have to fit into memory.
# **Gradient accumulation** sends several micro-batches through, one after the other, adds up their gradients, and only
# then changes the weights. All images of one update are the **global batch**: with micro-batches of 64 images and an
# accumulation of 8, it has 64 x 8 = 512.
#
# PopTorch does this on the IPU with one option. Write it once in plain PyTorch, and you know what the option does.
#
# **Exercise 1** (8 min). Complete `accumulate`: one weight update from all `images`, in `micro_batches` equal parts.
# Afterwards the weights must equal those after one update with all images at once. `network(images, labels)` returns
# the logits and the mean loss of the images that you give it.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def accumulate(network, optimiser, images, labels, micro_batches):
### STARTER:     ...
def accumulate(network, optimiser, images, labels, micro_batches):
    optimiser.zero_grad()
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        _, loss = network(part, right)
        (loss / micro_batches).backward()
    optimiser.step()
### END SOLUTION

lesson.check(1, accumulate)

# %% [markdown] tags=["hint"]
# `tensor.chunk(n)` cuts a tensor into n parts. `backward()` adds to the gradients that are already there. How does the
# sum of four means become one mean?

# %% [markdown] tags=["solution"]
# Each loss is a mean over its micro-batch, so their sum is `micro_batches` times the mean over all images. Dividing
# each loss before `backward()` makes up for that. (Dividing the gradients before `step()` is as good.)

# %% [markdown]
# ## Fill a pipeline
#
# ResNet-101 is cut in two **stages**, one on each IPU. A single micro-batch would leave one IPU idle while the other
# works on it, so the next micro-batch follows at once: this is a **pipeline**. In each step, an IPU does at most one
# forward and one backward pass. The first steps fill the pipeline (**ramp-up**), and the last ones drain it
# (**ramp-down**) before the weights are updated. Accumulation decides how many steps lie between.

# %%
show.drawing(figures.schedule(pipelined(stages=2, micro_batches=3)),
             "With three micro-batches, most of the update is ramp-up and ramp-down.")
options = poptorch.Options().showCompilationProgressBar(False)
options.Training.gradientAccumulation(2)
network = SmallNetwork()
network.head = poptorch.BeginBlock(network.head, ipu_id=1)  # the second stage begins here
optimiser = poptorch.optim.SGD(network.parameters(), lr=0.1)
try:
    poptorch.trainingModel(WithLoss(network), options, optimiser).compile(shapes.images[:32], shapes.labels[:32])
except poptorch.Error as error:
    print(str(error).split(". ")[0].replace("'poptorch_py_error': ", ""))

# %% [markdown]
# PopTorch refuses an accumulation of 2: *N* stages need at least *2N - 1* micro-batches. Its message counts stages on
# the way forward and on the way back, and the last one only once, which makes 3.
#
# If all stages take equally long, *m* micro-batches keep each IPU busy for *m / (m + N - 1)* of the **time**. So the
# guide's rule is to choose an accumulation **much greater than the number of stages** [2].
#
# (The share of the **steps**, *m / (m + 2(N - 1))*, is a lower bound, because a ramp step has only one pass.)
#
# **Exercise 2** (5 min). A model with four equal stages should learn from 512 images in each update, and each IPU
# should be busy at least 80 % of the time. Find the **largest** micro-batch that allows this, and its accumulation.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: micro_batch = ...
### STARTER: accumulation = ...
micro_batch = 32
accumulation = 16
### END SOLUTION
lesson.check(2, micro_batch, accumulation)

# %% [markdown] tags=["hint"]
# Solve *m / (m + 3) = 0.8*, then take the next number that divides 512.

# %% [markdown] tags=["solution"]
# 12 micro-batches would do, but 512 / 12 is not a whole number. 16 x 32 = 512, and 16 / 19 is 84.2 %.

# %% [markdown]
# ## Predict the gain
#
# Now the workshop's own program: ResNet-101 in half precision, micro-batches of 64 images of 64 x 64 pixels.
#
# **Predict:** by which factor do the **IPUs alone** process more images per second with accumulation 8 than with 3?
# Leave the host out. (The **highest rate**, in the figure below, is the rate with so many micro-batches that the ramps
# no longer matter.)

# %% tags=["prediction"]
gain = lesson.predict("images per second of the IPUs, accumulation 8 as a multiple of accumulation 3", ...)

# %%
def captured_resnet(micro_batch):  # captured once, then modelled with many settings
    model = torchvision.models.resnet101()
    model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # the workshop's cut
    model = ClassifierWithLoss(model).half()
    optimiser = poptorch.optim.AdamW(
        model.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16, second_order_momentum_accum_type=torch.float32)
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    return engine.modelled_module(model, ladder.micro_batch(torch.float16, micro_batch), options, optimiser)

resnet = captured_resnet(micro_batch=64)
rate = {m: resnet.profile(gradient_accumulation=m).device_samples_per_second for m in (3, 8)}
gain.reveal(rate[8] / rate[3], "modelled", published="gain_3_to_8")
show_rates(resnet, {m: lesson.published(f"cycles_{m}").value for m in (3, 8)})

# %% [markdown]
# Counting steps promises 80 / 60 = 1.33, and the formula by time (8 / 9) / (3 / 4) = 1.19. The real stages are not
# equally long: a ramp step with only the shorter one costs less, so accumulation 3 was better than the formulas say.
#
# The two diamonds are **derived** from two published cycle counts [1]. Some of the model's constants were **fitted** on
# the same traces, so the close agreement proves little.
#
# The next figure shows one update in true order. During **recomputation**, IPU 0 repeats a forward pass so that fewer
# activations have to wait in memory.

# %%
lesson.explore(resnet, accumulation=8)
show_stages(resnet)

# %% [markdown]
# **Exercise 3** (4 min). Move the slider: what is the smallest accumulation with which the modelled IPUs reach at
# least 95 % of their highest rate?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: smallest = ...
smallest = 16
### END SOLUTION
lesson.check(3, smallest, using=resnet)

# %% [markdown] tags=["hint"]
# The table before this figure shows between which two accumulations the answer lies. The column to watch is called
# "percentage of the highest rate".

# %% [markdown] tags=["solution"]
# The formula by time would say 19, and the count of steps 38: the shorter second stage makes the ramps cheaper.

# %% [markdown]
# ## Find the longest stage
#
# With accumulation 8, why does IPU 1 spend about a third of its time waiting? The last table says it.
#
# The pipeline moves at the pace of its **longest stage** [2]. IPU 0 receives the images and recomputes; IPU 1, the
# last stage, goes straight from its forward to its backward pass and then waits. More accumulation shortens the ramps
# but not this wait. Only moving work out of the longest stage helps, and lesson 06 does that.
#
# <details>
# <summary>Is it really a third?</summary>
#
# In the model, IPU 1 runs code for 44.9 / 57.7 = 78 % as many cycles as IPU 0; in the published trace, for 85 to 90 %
# [1]. On hardware it probably waits less.
#
# </details>
#
# ## Use no more memory
#
# There are two ways to 512 images per update: eight micro-batches of 64, or four of 128. What does each cost in
# memory?

# %%
programs = {"64 x 3": (resnet, 3), "64 x 8": (resnet, 8), "128 x 4": (captured_resnet(micro_batch=128), 4)}
profiles = {name: program.profile(gradient_accumulation=m) for name, (program, m) in programs.items()}
show.table([{"micro-batch x accumulation": name,
             "fullest tile of 624 KiB": f"{profile.memory.max_tile_bytes / 1024:.0f} KiB",
             "activations, IPU 0": f"{profile.memory[0].bytes_by_category['activations'] / 1024:.0f} KiB",
             "the model's verdict": engine.memory_verdict(profile)}
            for name, profile in profiles.items()], index="micro-batch x accumulation")

# %% [markdown]
# PopTorch keeps one **accumulator** for each weight, however many gradients you add to it, so memory use does not
# change with the accumulation. A larger micro-batch enlarges all activations. Read the last verdict as "probably not":
# it lies only just above the model's band of *too close to call*, and that band was fitted.
#
# ## Choose between Mean and Sum
#
# By default, PopTorch divides the sum of the gradients by the accumulation, as you did: `ReductionType.Mean`. `Sum`
# does not divide. The next cell trains for real, four updates of 64 images each: in plain PyTorch with large batches,
# and in PopTorch as 4 x 16. It prints how far apart the weights end, as a percentage of the distance that training
# moves them.
# With `SGD`, the same learning rate and group normalisation, that is 0 % with `Mean` and 434 % with `Sum`.
#
# **Predict** this percentage for `AdamW` with `Sum`.

# %% tags=["prediction"]
apart = lesson.predict("percentage apart: AdamW with Sum and one large batch, same learning rate", ...)

# %%
def accumulated(network, optimiser):  # each call updates the weights once, from 4 x 16 images
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4).accumulationAndReplicationReductionType(reduction)
    model = poptorch.trainingModel(network, options, optimiser)
    for images, labels in zip(shapes.images.split(64), shapes.labels.split(64)):
        model(images, labels)
    model.copyWeightsToHost()

rows = []
for name, large_rate in (("SGD", 0.02), ("AdamW", 0.001)):
    for reduction, rate in ((Mean, large_rate), (Sum, large_rate), (Sum, large_rate / 4)):
        group, batch = (percent_apart(accumulated, shapes, name, rate, large_rate, norm) for norm in (False, True))
        rows.append({"training": f"{name}, {reduction.name}, rate {rate}", "GroupNorm": group, "BatchNorm": batch})
apart.reveal(round(rows[4]["GroupNorm"], 1))
show.table([{**row, **{norm: f"{row[norm]:.0f} % apart" for norm in ("GroupNorm", "BatchNorm")}} for row in rows],
           index="training")

# %% [markdown]
# With `GroupNorm` and `Mean`, accumulation **is** the large batch. For **SGD**, `Sum` is exactly a learning rate four
# times as high, so a quarter of the rate repairs it. **AdamW** divides each gradient by its own typical size, so it
# hardly notices a factor, and "repairing" the rate makes its updates too small.
#
# **Batch normalisation** breaks the equality, because it takes mean and variance from its 16 images instead of 64. No
# setting repairs that, so use group or layer normalisation with small micro-batches.
#
# **Exercise 4** (4 min). A program trains well with **`SGD`**, micro-batches of 64, accumulation 8, `Mean` and a
# learning rate of 0.2. You halve the micro-batch and change to `Sum`. Which accumulation and which learning rate keep
# the training the same? (It normalises with `GroupNorm`.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: accumulation = ...
### STARTER: learning_rate = ...
accumulation = 16
learning_rate = 0.2 / 16
### END SOLUTION
lesson.check(4, accumulation, learning_rate)

# %% [markdown] tags=["hint"]
# Keep the global batch: how many micro-batches does it need now? Then ask how many times as large as the mean the sum
# is.

# %% [markdown] tags=["solution"]
# 64 x 8 = 512 = 32 x 16. The sum of 16 gradients is 16 times their mean, and a rate of 0.2 / 16 makes up for it.

# %% [markdown]
# ## Climb the ladder, and see the price
#
# **Predict:** with accumulation 3, the workshop's epoch took 52 s [1], loading included. How many seconds does it take
# with accumulation 8? (Each call costs the host some time, too.)

# %% tags=["prediction"]
epoch = lesson.predict("seconds per epoch with accumulation 8", ...)

# %%
loaded = {m: resnet.profile(host=ladder.host(), gradient_accumulation=m) for m in (3, 8)}
epoch.reveal(ladder.epoch_seconds(loaded[8]), "modelled", published="epoch_8")
lesson.show_ladder("gradient accumulation 8")
show_epoch_parts({f"accumulation {m}": profile for m, profile in loaded.items()},
                 lesson.takeaway("epoch_parts"))

# %% [markdown]
# The IPUs became 15 % faster (IPU 0 now runs code in 57.80 % of its cycles, published [1]), and that is the
# **smaller** part of what the epoch gained. A single Python process
# loads the images and takes as long as before. Most of the saved seconds are the host's work around the calls: 97
# calls instead of 260.
#
# The host's part is **fitted**, three numbers on five epochs, so these rows are no predictions.
#
# The price is that fewer updates learn less per epoch. After five epochs the
# run with accumulation 3 printed a training accuracy of 74.0 %; the four runs with accumulation 8 printed 65.1 to
# 68.9 %. (That is one run against four, and PopTorch's default output returns only the last micro-batch of each
# call.) For SGD, people raise the rate in proportion to the batch, with a warm-up [3]; for Adam, with its square root
# [4]. Beyond some size, neither makes up for the missing updates.
#
# ## Summary
#
# * Accumulation adds up the gradients of several micro-batches and updates the weights once.
# * A pipeline of *N* stages needs at least *2N - 1* micro-batches, and many more to be busy.
# * It moves at the pace of its longest stage, whatever the accumulation.
# * Memory use does not depend on the accumulation.
# * `Mean` equals the large batch, unless the model has batch normalisation. `Sum` scales the step of SGD, not of Adam.
#
# **Takeaway:** accumulate until the ramps no longer matter, and no further, because every doubling halves the updates.
#
# ## On real hardware
#
# Every accumulation is a new
# program, and compiling this one took about 8 minutes [1]. `options.enableExecutableCaching("cache")` keeps it for
# the next time.
#
# ## What transfers
#
# Your `accumulate` is what people write on GPUs. GPipe has the same ramps [5].
#
# ## References
#
# 1. IPU training workshop, day 03 (2022), sections Half Precision to Asynchronous Data Loading; slides with
#    PopVision traces. Two Mk2 IPUs, Poplar SDK 2.5/2.6.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. Goyal et al., *[Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677)*, 2017.
# 4. Malladi et al., *[On the SDEs and Scaling Rules for Adaptive Gradient
#    Algorithms](https://arxiv.org/abs/2205.10287)*, 2022.
# 5. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** Each update is still a call of its own, and the loop over the updates can run on the device.
