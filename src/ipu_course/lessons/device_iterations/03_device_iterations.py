# %% [markdown]
# # Device iterations: let the loop run on the device
#
# *Plan 40 minutes, 13 of them for the exercises; the notebook itself runs in under one. Before it: lesson 02.*
#
# Every call from Python costs time, however little it computes. The cure is one option: the IPUs repeat the
# training step, and Python waits. It helps some programs a lot, others hardly, and it has a price. You will
#
# * count the images of a call,
# * move the loop to the device,
# * choose what comes back,
# * see when more iterations do not help,
# * see when they do,
# * see when they hurt.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.device_iterations.checks import check_call, check_in_time, check_mean_loss
from ipu_course.lessons.device_iterations.explorer import explore_device_iterations
from ipu_course.lesson import Lesson
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.views.epoch import show_epoch_parts
from ipu_course.lessons.device_iterations.long_calls import show_long_calls

lesson = Lesson("03")
torch.set_num_threads(1)  # for so small a model, more would only wait for each other

# %% [markdown]
# ## Count the images of a call
#
# A **call** is one line of Python: `training_model(images, labels)`. The host, the computer that Python runs
# on, hands over the images, starts the IPUs, waits, and gets results. That is a **round trip**. Each has a fixed
# cost. With `deviceIterations(n)`, the IPUs make *n* weight updates in one round trip.
#
# **Predict:** micro-batches of 64 images, gradient accumulation 8, 4 device iterations. How many images must
# Python hand over for one call?

# %%
guess = lesson.predict("images in one call", ...)

shapes = colour_shapes(train=True, images=2048)
options = poptorch.Options()
options.deviceIterations(4)
options.Training.gradientAccumulation(8)
loader = poptorch.DataLoader(options, shapes, batch_size=64)  # batch_size: of a micro-batch
images, labels = next(iter(loader))
guess.reveal(len(images), "handed out by the loader")
print("with two replicas:", 2 * len(images))

# %% [markdown]
# Micro-batch x accumulation x device iterations (x replicas, which are copies of the model): the loader knows
# the options and hands out whole calls.
#
# ## Move the loop to the device
#
# Does the model learn the same? The next cell trains for real, eight updates from the same start: in eight
# calls, and in two calls with 4 device iterations each. Then once more, with a learning rate that the host
# halves after every call.

# %%
eight_updates = torch.utils.data.Subset(shapes, range(8 * 2 * 8))

def weights_after(iterations, halve=False):
    torch.manual_seed(1)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)  # a tidy page
    options.Training.gradientAccumulation(2)
    network, rate = WithLoss(SmallNetwork(width=8)), 0.02
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=rate))
    for images, labels in poptorch.DataLoader(options, eight_updates, batch_size=8):
        model(images, labels)
        rate /= 2 if halve else 1
        model.setOptimizer(poptorch.optim.SGD(network.parameters(), lr=rate))
    model.copyWeightsToHost()
    return nn.utils.parameters_to_vector(network.parameters())

# %%
for halve in (False, True):
    same = torch.allclose(weights_after(1, halve), weights_after(4, halve), atol=1e-5)
    print(f"{'rate halved after every call' if halve else 'constant rate'}: the same weights? {same}")

# %% [markdown]
# The loop on the device computes what the loop in Python computes. But Python acts only **between** calls: a
# new learning rate, a look at the weights, a checkpoint. The second program halved its rate twice instead of
# eight times. If you raise the device iterations, count your schedule in updates, not in calls.
#
# ## Choose what comes back
#
# One call with 4 device iterations and an accumulation of 2 has 8 micro-batches, and so 8 losses. Which of them
# come back is the **output mode**: `Final`, the last micro-batch only (the default for training); `All` (the
# default for inference); `EveryN`, each N-th; `Sum`, everything added up.

# %%
def returned(mode, *period):
    torch.manual_seed(1)
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    options.outputMode(mode, *period)
    network = WithLoss(SmallNetwork(width=8))
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.02))
    return model(images[:128], labels[:128])  # micro-batches of 16

mode = poptorch.OutputMode
results = {"Final": returned(mode.Final), "EveryN, 2": returned(mode.EveryN, 2),
           "Sum": returned(mode.Sum), "All": returned(mode.All)}
show.table([{"mode": name, "predictions": str(list(predictions.shape)), "losses": str(list(loss.shape)),
             "bytes that come back": sum(each.numel() * each.element_size() for each in (predictions, loss))}
            for name, (predictions, loss) in results.items()], index="mode")

# %% [markdown]
# **Exercise 1** (4 min). `Sum` returns as little as `Final`, but the loss of **every** micro-batch is in it. (Its
# predictions are added up, too, and of no use.) Compute the mean loss of the call from `summed_loss`.

# %% tags=["exercise"]
_, summed_loss = results["Sum"]
### BEGIN SOLUTION
### STARTER: mean_loss = ...
mean_loss = summed_loss / (4 * 2)
### END SOLUTION
check_mean_loss(mean_loss, results["All"][1])

# %% [markdown] tags=["hint"]
# How many losses were added? A loss is a mean over its micro-batch already.

# %% [markdown] tags=["solution"]
# Device iterations x accumulation: 8 losses. In a training loop this gives an exact mean at the price of
# `Final`.

# %% [markdown]
# What does `All` cost? Ask the model about two networks: ResNet-101, which answers with 1,000 numbers for each
# image, and a small network that answers with 10 numbers for each **pixel**, as in segmentation.
#
# **Predict:** by which factor does `All` slow the second one down?

# %%
class PixelNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 10, 3, padding=1))

    def forward(self, images, labels):
        answers = self.layers(images)
        return answers, nn.functional.cross_entropy(answers, labels)

resnet = torchvision.models.resnet101()
resnet.layer3[8] = poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
resnet = models.ClassifierWithLoss(resnet).half()
adam = poptorch.optim.AdamW(resnet.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
                            first_order_momentum_accum_type=torch.float16)

# %%
guess = lesson.predict("images a second with Final, divided by those with All", ...)
pixels, sgd = PixelNetwork(), torch.optim.SGD
whole_images = (torch.zeros(16, 3, 32, 32), torch.zeros(16, 32, 32, dtype=torch.int64))
programs = {
    "ResNet-101": engine.modelled_module(resnet, ladder.micro_batch(torch.float16), options, adam),
    "pixel network": engine.modelled_module(pixels, whole_images, options, sgd(pixels.parameters(), lr=0.1))}
rates = {name: [program.profile(output_mode=each).samples_per_second for each in ("final", "all")]
         for name, program in programs.items() if program}
factors = {name: final / everything for name, (final, everything) in rates.items()}
guess.reveal(factors.get("pixel network"), "modelled", '"has an impact on the speed of training" (no figure) [3]')
bands = {name: program.profile().error_band for name, program in programs.items() if program}
show.table([{"network": name, "Final, images a second": f"{final:,.0f}", "All": f"{everything:,.0f}",
             "time on hardware": f"{bands[name].low:.2f} to {bands[name].high:.2f} times the modelled one"}
            for name, (final, everything) in rates.items()], index="network")

# %% [markdown]
# The cost follows the bytes. A classifier's answers are small beside its images: `All` costs it next to nothing on
# the IPUs. An answer for every pixel is larger than the image, and then all wait for the transfer. (The last
# column is the model's error band: the modelled times of such small networks are rough.)
#
# ## See when more iterations do not help
#
# Back on the ladder: ResNet-101, accumulation 8.
#
# **Predict:** the published epoch took 46 s with one device iteration [1]. How many seconds with four?

# %%
guess = lesson.predict("seconds an epoch with 4 device iterations", ...)
large = programs["ResNet-101"]
profiles = {n: large.profile(host=ladder.host(), device_iterations=n) if large else None for n in (1, 4, 16, 64)}
guess.reveal(ladder.epoch_seconds(profiles[4]), "modelled", "45 s an epoch [1]")
lesson.show_ladder("device iterations 4")

# %%
show_epoch_parts({"1 iteration": profiles[1], "4 iterations": profiles[4]})

# %% [markdown]
# A quarter of the calls cost a quarter of the seconds: that works. But calls were a small part. Loading takes
# most of the epoch, and device iterations change nothing there: each image still has to be prepared. This is the
# usual reason why "the knob does nothing": **another part is the bottleneck**. Lessons 04 and 05 attack it.
#
# ## See when they do
#
# Now a small, fast program: `SmallNetwork` answers 16 images a call, which are ready in memory.
#
# **Predict:** how many times as many images a second does it answer with 64 device iterations?

# %%
guess = lesson.predict("images a second, 64 device iterations against 1, as a factor", ...)
small = engine.modelled_module(SmallNetwork(), (torch.zeros(16, 3, 32, 32),), poptorch.Options())
if small:
    one, many = small.profile(), small.profile(device_iterations=64)
    print(f"one call: {one.call_seconds * 1e3:.2f} ms (modelled), of which the IPU's start takes "
          f"{one.shares['run start'] * one.device_seconds_per_call * 1e3:.2f} ms")
guess.reveal(many.samples_per_second / one.samples_per_second if small else None, "modelled",
             "none for this; a small CNN trained at 375 calls a second, 16 images each, one iteration [4]")

# %%
explore_device_iterations({"small network, inference": small, "ResNet-101, training": large})

# %% [markdown]
# Most of the small program's time was the round trip: it is paid once a call, for 16 images or for 1,024. The
# curve flattens when enough of them share it. Now give the host 800 µs of work for each image: the curve is nearly
# flat from the start.
#
# **Exercise 2** (4 min). The other side: a user waits. All answers of a call come back together, at its end.
# How many device iterations can `small` have at most, if `call_seconds` must not exceed 4 ms?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: iterations = ...
iterations = 1
while small and small.profile(device_iterations=iterations + 1).call_seconds <= 0.004:
    iterations += 1
### END SOLUTION
check_in_time(iterations, small)

# %% [markdown] tags=["hint"]
# Try some values: `small.profile(device_iterations=n).call_seconds`.

# %% [markdown] tags=["solution"]
# A call has a fixed part of under one millisecond, and every iteration adds the same time: solve for their number,
# or search.

# %% [markdown]
# ## See when they hurt
#
# More iterations than needed have a price, which the table shows for the ladder's program. A call needs **all**
# its images before it starts, in the host's memory. Its first results come at its end. An epoch has whole calls
# only: the images that are left over are **left out**.

# %%
show_long_calls(images_per_update=64 * 8, bytes_per_image=3 * 64 * 64 * 2, profiles=profiles)
print("published: 97 calls an epoch with 1 device iteration, 24 with 4 [1]")

# %% [markdown]
# With 64 iterations, a third of the epoch is never seen (not the same third, if the loader shuffles). The saved
# seconds are no gain then: less was learned.
#
# **Exercise 3** (5 min). The program trains with 512 images an update. The learning rate is to change after
# every 12 updates, at most 1,000 of the 50,000 images may be left out, and at most 16 device iterations are
# allowed. What is the largest number?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: iterations = ...
iterations = 12
### END SOLUTION
check_call(iterations)

# %% [markdown] tags=["hint"]
# The rate can change only between calls, so the updates of a call must divide 12. Then look at 50,000 modulo 512
# times that number.

# %% [markdown] tags=["solution"]
# 12 x 512 = 6,144 images a call, 8 calls, 49,152 images. 16 would leave out as few, but passes over the moment
# to change the rate.

# %% [markdown]
# ## Summary
#
# * A call takes micro-batch x accumulation x device iterations (x replicas) images.
# * The loop on the device learns the same; Python acts between calls only.
# * The output mode decides what comes back. `Final` and `Sum` stay small, `All` grows with the call.
# * More iterations save round trips. That helps where round trips are what takes the time.
# * They cost latency, host memory, and the rest of the epoch.
#
# **Takeaway:** as many device iterations as make the call's own cost small, and no more.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# With the Poplar SDK the same cells run on IPUs. There, `model.getLatency()` and PopVision's trace show how long
# a call takes; the first one includes the compilation. Wait for a second call before you trust a time.
#
# ## What transfers
#
# CUDA graphs, `steps_per_execution` in Keras and `lax.scan` in JAX do the same: several steps for one launch. So
# does the advice: find out who waits before you turn a knob.
#
# ## References
#
# 1. IPU hands-on training workshop, day 03 (2022), sections Gradient Accumulation and Device Iterations. Two Mk2
#    IPUs, Poplar SDK 2.5/2.6.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.5.3, Looping.
# 3. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022).
# 4. IPU hands-on training workshop, day 01 (2022): Fashion-MNIST on one Mk2 IPU, all host work included.
#
# **Next:** [lesson 04](04_eight_bit_io.ipynb) takes most of the loading away from the host.
