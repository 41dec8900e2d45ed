# %% [markdown]
# # Device iterations: let the loop run on the device
#
# The same small network reads 18,000 images per second on one IPU, or 154,000 (both modelled). The IPU computes the
# same in both cases. What differs is how often Python calls it: every call is a **round trip** between host and IPU,
# and a training loop in Python pays for one with every batch. One option repeats the loop on the device instead. It
# makes some programs several times as fast and others hardly faster, and it has traps.
#
# *Plan 45 minutes, 19 of them for the exercises; the notebook itself runs in under one. Before it: lesson 02.* You will
#
# * take a call apart,
# * move the loop to the device, with its learning-rate schedule,
# * choose what comes back,
# * see when iterations help,
# * climb the ladder,
# * choose how many are enough.

# %%
import torch
from torch import nn

import poptorch
from ipu_course import ladder, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.device_iterations import (
    RESNET, SMALL, lesson, modelled_programs, rate_at, round_trips, show_call,
    show_epoch_parts, show_long_calls)
from ipu_course.models import SmallNetwork, WithLoss

torch.set_num_threads(1)  # a small network would only make more threads wait for each other
shapes = colour_shapes(train=True, images=128)
programs = modelled_programs()

# %% [markdown]
# ## Take a call apart
#
# A **call** is one line of Python: `model(images)`. The host, which is the computer that runs Python, hands over the
# images, starts the IPU, waits, and fetches the results.
#
# **Predict:** a call with 16 small images takes **0.88 ms** (modelled). For what percentage of it does the IPU compute?

# %% tags=["prediction"]
computing = lesson.predict("percentage of the call in which the IPU computes", ...)

# %%
small = programs[SMALL]
one = small.profile()
computing.reveal(round(100 * one.shares["main"] * one.device_seconds_per_call / one.call_seconds, 1), "modelled")
show_call(small)

# %% [markdown]
# You pay for PopTorch's own work and for the start of the IPU in **every call**, whatever the call computes. (The
# 0.30 ms for PopTorch are *estimated*. The 0.48 ms for the start are *fitted* on traces of the workshop's ResNet-101;
# for this network nobody has measured them. A published small CNN trained at 375 calls per second [3], which is 2.7 ms
# per call with all the host's work. The last column is the model's **error band**: on hardware, the part on the
# device may take 0.66 to 1.52 times as long.)
#
# ## Move the loop to the device
#
# With `deviceIterations(n)`, the device repeats the training step *n* times in one call, on images that the host
# hands over together. This is not accumulation: accumulation repeats the passes **before** one weight update, and
# device iterations repeat the update, too. A call then takes micro-batch x accumulation x device iterations (x
# replicas) images, and PopTorch's loader knows that.
#
# Does the network learn the same? The next cells make eight updates with 1 and with 4 device iterations, so in eight
# calls and in two. Then they do it once more, while the host halves the learning rate after every call.

# %%
def trained(iterations, halve):
    torch.manual_seed(1)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    network, rate = WithLoss(SmallNetwork(width=8)), 0.02
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=rate))
    for images, labels in poptorch.DataLoader(options, shapes, batch_size=8):
        model(images, labels)
        rate /= 2 if halve else 1
        model.setOptimizer(poptorch.optim.SGD(network.parameters(), lr=rate))
    model.copyWeightsToHost()
    return nn.utils.parameters_to_vector(network.parameters())

# %%
show.drawing(round_trips(), "The host pays for one call instead of four, and loads the images all the same.")
for halve in (False, True):
    same = torch.allclose(trained(1, halve), trained(4, halve), atol=1e-5)
    print(f"{'rate halved after every call' if halve else 'constant rate'}: the same weights? {same}")

# %% [markdown]
# The loop on the device computes what the loop in Python computes. But Python acts only **between** calls, so the
# second program halved its rate twice instead of eight times. The same happens to every scheduler, log and checkpoint
# that counts calls.
#
# **Exercise 1** (8 min). Write `train`, whose weights equal those of plain PyTorch with the schedule
# `rate_at(update)`, with 1, 2 or 4 device iterations. (`rate_at` counts updates from 0 and halves the rate after
# every 4 of them.) `network` returns the loss, too. Wrap it with `options` and `poptorch.optim.SGD`, train on every
# batch of `loader`, and copy the weights back at the end.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def train(network, options, loader):
### STARTER:     ...
def train(network, options, loader):
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=rate_at(0)))
    updates = 0
    for images, labels in loader:
        model.setOptimizer(poptorch.optim.SGD(network.parameters(), lr=rate_at(updates)))
        model(images, labels)
        updates += options.device_iterations
    model.copyWeightsToHost()
### END SOLUTION
lesson.check(1, train)

# %% [markdown] tags=["hint"]
# The loop of `trained` above is nearly right. `options.device_iterations` says how many updates a call makes.

# %% [markdown] tags=["solution"]
# Count updates, not calls. This works because 1, 2 and 4 divide 4. With 8 device iterations, the rate would have to
# change in the middle of a call, and the host cannot do that.

# %% [markdown]
# ## Choose what comes back
#
# One call with 4 device iterations and an accumulation of 2 has 8 micro-batches, and so 8 losses. The **output mode**
# decides which come back to the host: `Final` only those of the last micro-batch (the default for training), `All`
# those of every one (the default for inference), `EveryN` those of each N-th, and `Sum` the sum over all of them.

# %%
def returned(mode, *period):
    torch.manual_seed(1)
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    options.outputMode(mode, *period)
    network = WithLoss(SmallNetwork(width=8))
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.02))
    return model(shapes.images[:128], shapes.labels[:128])  # micro-batches of 16

mode = poptorch.OutputMode
results = {"Final": returned(mode.Final), "EveryN, 2": returned(mode.EveryN, 2),
           "Sum": returned(mode.Sum), "All": returned(mode.All)}
show.table([{"mode": name, "predictions": str(list(predictions.shape)), "losses": str(list(loss.shape)),
             "bytes that come back": f"{sum(each.numel() * each.element_size() for each in (predictions, loss)):,}"}
            for name, (predictions, loss) in results.items()], index="mode")

# %% [markdown]
# **Exercise 2** (3 min). `Sum` returns as few bytes as `Final`, but the loss of **every** micro-batch is in it. (It
# adds up the predictions, too, which is of no use.) Compute the mean loss of the call from `summed_loss`.

# %% tags=["exercise"]
_, summed_loss = results["Sum"]
### BEGIN SOLUTION
### STARTER: mean_loss = ...
mean_loss = summed_loss / (4 * 2)
### END SOLUTION
lesson.check(2, mean_loss, using=results["All"][1])

# %% [markdown] tags=["hint"]
# How many losses were added? Each of them is already a mean over its micro-batch.

# %% [markdown] tags=["solution"]
# The call added device iterations x accumulation = 8 losses. In a training loop, this gives you the exact mean of a
# call, and no more bytes come back than with `Final`.

# %% [markdown]
# ## See when iterations help
#
# The explorer has three programs: the small network, one whose outputs are larger than its images (ten numbers for
# each **pixel**), and the workshop's ResNet-101. Move the sliders. What does `All` cost the pixel network, and why?
# (The model's error band is wide for such small networks.)

# %%
lesson.explore(programs, iterations=4)

# %% [markdown]
# **Exercise 3** (4 min). Both questions are about the small network, inference, with `Final`.
#
# * A user waits for the results of a call, which all come back at its end. The host works 1 ms for each call, and the
#   results must come within 4.5 ms. What is the largest number of device `iterations` on the slider?
# * Now the host works 0 ms for each call and 800 µs for each image. By which factor, `gain`, do the images per
#   second grow from 1 to 128 device iterations?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: iterations = ...
### STARTER: gain = ...
iterations = 16
gain = 1.06
### END SOLUTION
lesson.check(3, iterations, gain, using=small)

# %% [markdown] tags=["hint"]
# The table's columns are "results come after" and "images per second".

# %% [markdown] tags=["solution"]
# More iterations raise both throughput and latency. Where loading is the bottleneck, they raise hardly anything but
# the latency.

# %% [markdown]
# ## Climb the ladder
#
# **Predict:** with accumulation 8 and one device iteration, the workshop's epoch took 46 s [1]. How many seconds does
# it take with four?

# %% tags=["prediction"]
epoch = lesson.predict("seconds per epoch with 4 device iterations", ...)

# %%
resnet = programs[RESNET]
profiles = {n: resnet.profile(host=ladder.host(), device_iterations=n) for n in (1, 4)}
epoch.reveal(ladder.epoch_seconds(profiles[4]), "modelled", published="epoch_4")
lesson.show_ladder("device iterations 4")
show_epoch_parts({"1 iteration": profiles[1], "4 iterations": profiles[4]},
                 lesson.takeaway("epoch_parts"))

# %% [markdown]
# A quarter of the calls need a quarter of the call work. But loading takes most of the epoch, and no device iteration
# prepares an image faster. This is the usual reason why an option "does nothing": **something else is the
# bottleneck**. Lessons 04 and 05 turn to it.
#
# **An open question: why 34 ms for the work of one call here, and 0.30 ms before?** The 0.30 ms are PopTorch's own
# work. The 34 ms are everything that the workshop's *training loop* does for each call besides loading, and nobody has
# published what that was. They are **fitted** on these very epochs, so they prove nothing. They do not even fit well:
# in the model, four iterations save 3.0 s, but the published epochs differ by only about 1 s.
#
# ## Choose how many are enough
#
# The workshop warns that more device iterations than the optimum "might cause I/O overhead" [1]. What does the model
# say? The table is about the ladder's program, with the workshop's host.

# %%
show_long_calls(resnet)

# %% [markdown]
# The modelled images per second only ever **rise**. The model has no such overhead, and in it a tile's memory stays the
# same. Is the warning about stream buffers on the host, or about images that are not ready? We do not know. That is
# an **open question** between the workshop and the model.
#
# Three costs are certain. The host must hold **all** images of a call. The first results come only at its end. And an
# epoch has whole calls only, so the remaining images are **left out**: a third of them with 64 iterations.
#
# **Exercise 4** (4 min). The program trains with 512 images per update. The learning rate should change after every
# 12 updates. At most 1,000 of the 50,000 images may be left out, and the host has memory for at most 16 device
# iterations. What is the largest number of `iterations`?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: iterations = ...
iterations = 12
### END SOLUTION
lesson.check(4, iterations)

# %% [markdown] tags=["hint"]
# The number of updates in a call must divide 12. Then look at 50,000 modulo 512 times that number.

# %% [markdown] tags=["solution"]
# A call takes 12 x 512 = 6,144 images, and 8 calls take 49,152. 16 iterations would leave out as few images, but the
# rate would have to change in the middle of a call.

# %% [markdown]
# ## Summary
#
# * A call has a fixed cost. Device iterations share it among several steps.
# * The network learns the same, but Python acts only between calls: count schedules in updates.
# * The output mode decides what comes back. `Final` and `Sum` stay small, and `All` grows with the call.
# * Iterations help where calls are the bottleneck. They cost latency, host memory and the end of the epoch.
#
# **Takeaway:** use as many device iterations as make the call's own cost small, and no more.
#
# `python -m ipu_course report` shows your predictions, checks and ladder.
#
# ## On real hardware
#
# With the Poplar SDK the same cells run on IPUs. `model.getLatency()` tells the time from the arrival of the inputs to
# the outputs; time the call with a clock, too, to see the host's part. A new
# number of iterations is a new program, and so is a call with fewer images. That is why the loader drops the rest,
# and why the guide wants **one** computational graph [2]. To avoid compiling for eight minutes again, call
# `options.enableExecutableCaching("cache")`.
#
# ## What transfers
#
# `steps_per_execution` in Keras and `lax.scan` in JAX do the same: one launch runs several steps. CUDA graphs do it
# on a smaller scale, with one launch for many kernels. The advice transfers, too: find the bottleneck before you
# choose an option.
#
# ## References
#
# 1. IPU training workshop, day 03 (2022), sections Gradient Accumulation and Device Iterations. Two Mk2
#    IPUs, Poplar SDK 2.5/2.6.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.5.2, The
#    one-computational-graph concept, and 4.5.3, Looping.
# 3. IPU training workshop, day 01 (2022): Fashion-MNIST on one Mk2 IPU, all host work included.
#
# **Next:** Most of an epoch is loading, and 8-bit images take most of that away from the host.
