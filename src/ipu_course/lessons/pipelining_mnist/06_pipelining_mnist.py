# %% [markdown]
# # Pipelining: one network on several IPUs
#
# In lesson 01 you had to give up single precision, because ResNet-101 did not fit on two IPUs. It fits on four
# (modelled). But an image is only in one place at a time: if you simply cut a network into four parts, **three of your
# four IPUs, 75 % of the machine, wait** at any moment. A pipeline puts them to work. Graphcore's own pipelining
# tutorial [1] does so, and still its four IPUs wait most of the time. Why?
#
# *Plan 80 minutes, 32 of them for the exercises; the notebook itself runs in under one. Before it: lessons 00
# and 02.*
#
# You will
#
# * load and normalise the digits,
# * split a network into blocks,
# * choose stages and a strategy,
# * write the schedule of a pipeline,
# * explore what waits in the stashes,
# * compute the utilisation,
# * train, and choose what comes back,
# * find what limits the tutorial,
# * run the program and read its profile,
# * compare five cuts of a large network,
# * place ResNet-101 over four IPUs.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, ladder, models, show
from ipu_course.datasets import mnist
from ipu_course.lessons.pipelining_mnist import (
    ConvLayer, captured_resnet, lesson, percentage_between, run_program, show_all_placements, show_cuts,
    show_placement, show_schedule, show_stages, show_strategies, utilisation)

torch.set_num_threads(1)  # the network is so small that more threads would only wait for each other

# %% [markdown]
# ## Load and normalise the digits
#
# The hyper-parameters are the tutorial's. Its data set is MNIST, with 60,000 training and 10,000 test images of
# 28 x 28 grey pixels. We use 20,000 training digits in the same format, which come with the course. To get MNIST
# itself, call `mnist(train=True, root="mnist_data", download=True)`.
#
# torchvision's `ToTensor()` turns pixels from 0 to 255 into numbers from 0 to 1. `Normalize((0.1307,), (0.3081,))` then
# subtracts the mean of MNIST's pixels and divides by their standard deviation. Our digits were prepared in the same
# way.

# %%
learning_rate, epochs = 0.001, 3
batch_size, test_batch_size = 40, 8  # images in a micro-batch
gradient_accumulation = 10           # micro-batches in a weight update
training_iterations = 10             # weight updates in a call
inference_iterations = 100           # micro-batches in a call, when testing

training_set, test_set = mnist(train=True), mnist(train=False)
print(training_set.description)
by_hand = (training_set.pixels[:100, None] / 255 - 0.1307) / 0.3081
print("normalised as in the tutorial?", torch.allclose(by_hand, training_set.images[:100], atol=1e-6))

# %% [markdown]
# ## Split a network into blocks
#
# A **block** is a named part of `forward`. Blocks do not change what a model computes. They are the pieces that you
# later place on IPUs. PopTorch has three ways to mark them:
#
# * `with poptorch.Block("B1"):` around lines of `forward`, as here,
# * `poptorch.BeginBlock(layer, "B1")` for a layer of a network that you cannot edit: the block begins when the
#   layer is called and lasts until the next one begins,
# * the decorator `@poptorch.BlockFunction("B1")` for a function.

# %%
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = ConvLayer(1, 10, 5, 2), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4 = torch.nn.Linear(320, 256), torch.nn.Linear(256, 10)

    def forward(self, x):
        with poptorch.Block("B1"):
            x = self.layer1(x)  # convolution, max-pooling, ReLU
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = torch.relu(self.layer3(x.view(-1, 320)))
        with poptorch.Block("B4"):
            return self.layer4(x)

# %%
class TrainingModelWithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, torch.nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        output = self.model(images)
        if labels is None:
            return output
        with poptorch.Block("B4"):  # after the first block, every operation has to be in one
            return output, self.loss(output, labels)

def make_training_model(model, options):
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=learning_rate)
    return poptorch.trainingModel(TrainingModelWithLoss(model), options, optimizer)

# %% [markdown]
# ## Choose stages and a strategy
#
# A **stage** is one block, or several neighbouring blocks, that run together on one IPU. In training, the forward and
# the backward pass of a stage always run on the same IPU. The **execution strategy** determines when each stage runs.
# PopTorch has three kinds: `PipelinedExecution`, `ShardedExecution` (one IPU at a time: [lesson 07](07)) and phased
# execution, which loads one part of a network after the other from memory outside the chip and is not used here.
#
# You do not always have to write stages. The default is `PipelinedExecution(AutoStage.SameAsIpu)`, where a block's
# `ipu_id` is its stage. With `AutoStage.AutoIncrement`, every new block begins a new stage. Our blocks have no
# `ipu_id`. The next cell tries both automatic ways on them, and then explicit stages.
#
# Two numbers fill the pipeline. **Gradient accumulation** is how many micro-batches go through it, one after
# the other, before their gradients are averaged into one weight update. **Device iterations** is how many such
# updates the device makes before the call returns to Python.

# %%
explicit = poptorch.PipelinedExecution(  # in short: PipelinedExecution("B1", "B2", "B3", "B4")
    poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1), poptorch.Stage("B3").ipu(2), poptorch.Stage("B4").ipu(3))
show_strategies(
    {"the default": poptorch.PipelinedExecution(),
     "AutoIncrement": poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
     "explicit stages": explicit},
    lambda options: make_training_model(Network(), options), training_set.images, training_set.labels, accumulation=8)

options = poptorch.Options().setExecutionStrategy(explicit).showCompilationProgressBar(False)
options.Training.gradientAccumulation(gradient_accumulation)
options.deviceIterations(training_iterations)
options.outputMode(poptorch.OutputMode.All)  # explained further down
options.randomSeed(42)
print(f"images in one call: {batch_size * gradient_accumulation * training_iterations:,}")

# %% [markdown]
# The default needs an `ipu_id`. `AutoIncrement` counts from 1 and keeps stage 0 for operations before the first block.
# We have none, but PopTorch still counts five stages, and five stages need at least nine micro-batches (you will see
# why). Explicit stages avoid both problems.
#
# ## Write the schedule of a pipeline
#
# When IPU 0 has passed a micro-batch on to IPU 1, it can start with the next one. Time is divided into **pipeline
# steps**, with three rules:
#
# * In one step, an IPU runs at most one forward pass and then at most one backward pass.
# * Results move between IPUs only between steps.
# * The last stage has the loss: it runs a micro-batch's backward pass right after its forward pass, in the same step.
#
# **Exercise 1** (10 min). Write `when(stage, micro_batch)` for four stages. It returns two numbers: the step of the
# micro-batch's forward pass in this stage, and the step of its backward pass. Stages, micro-batches and steps count
# from 0. Start each pass as early as the rules allow. `show_schedule` draws your schedule and puts a frame around
# each pass that breaks a rule. The drawing numbers micro-batches from 1: F1 and B1 are the passes of micro-batch 0.

# %% tags=["exercise"]
def when(stage, micro_batch):
    ### BEGIN SOLUTION
    ### STARTER: ...
    return stage + micro_batch, 6 - stage + micro_batch
    ### END SOLUTION

show_schedule(when, stages=4, micro_batches=10)
lesson.check(1, when)

# %% [markdown] tags=["hint"]
# In which step does micro-batch 0 reach the stages 1, 2 and 3? In which steps is it back in the stages 2, 1 and 0?
# Micro-batch 1 does the same one step later.

# %% [markdown] tags=["solution"]
# With *N* stages, stage *k* runs the forward pass of micro-batch *m* in step *k + m* and its backward pass in step
# *2(N - 1) - k + m*. Ten micro-batches take 10 + 2(N - 1) = 16 steps. The tutorial's execution trace agrees: it shows
# 16 copies between IPUs.

# %% [markdown]
# ## Explore what waits in the stashes
#
# The first steps fill the pipeline (**ramp-up**), and the last ones empty it (**ramp-down**). Then the weights are
# updated once. Between the forward and the backward pass of a micro-batch, its activations wait in a **stash** on each
# IPU. Your schedule is called **grouped**: all IPUs run their forward passes at the same time, and then their backward
# passes. In the **interleaved** schedule, an IPU runs a forward pass while its neighbour runs a backward pass. The
# chart assumes that a backward pass takes twice as long as a forward pass.

# %%
lesson.explore(stages=4, accumulation=10)

# %% [markdown]
# ## Compute the utilisation
#
# If all stages take equally long, an IPU works for ***m* / (*m* + *N* - 1)** of the time with *m* micro-batches.
# If you count steps instead of time, you get *m / (m + 2(N - 1))*, a simple lower bound. Both formulas show why the
# guide recommends a gradient accumulation **much greater** than the number of stages. The price is a larger global
# batch. And a pipeline does not help when you need one answer quickly: a single sample passes all stages one after the
# other, so the guide does not recommend pipelines for low-latency inference.
#
# **Exercise 2** (5 min). Eight IPUs with equally long stages: how many `micro_batches` do they need, at the least, to
# be busy for 90 % of the time? With accumulation 20, how many micro-batches wait in the stash of IPU 0 in the `grouped`
# schedule, and how many in the `interleaved` one?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: micro_batches = ...
### STARTER: grouped = ...
### STARTER: interleaved = ...
micro_batches = 63
grouped = 15
interleaved = 8
### END SOLUTION
lesson.check(2, micro_batches, grouped, interleaved)

# %% [markdown] tags=["hint"]
# Solve the first formula for *m*. For the stashes, set both sliders, then change the schedule in the menu.

# %% [markdown] tags=["solution"]
# *m / (m + 7) = 0.9* gives *m = 63*. With *N* IPUs, stage *k* keeps *2(N - 1 - k) + 1* micro-batches in the grouped
# schedule and *N - k* in the interleaved one. The last stage keeps none in either. PopTorch has only the grouped
# schedule.

# %% [markdown]
# PopTorch refuses fewer than *2N - 1* micro-batches (the message above says 9 for five stages), because with fewer the
# pipeline is never full. Count it in your schedule: with four stages, all IPUs run both passes from the seventh step
# on. Some documents count differently. The guide [2] writes *2N + 1* stashed micro-batches on the first IPU, which
# agrees if its *N* is the number of IPUs **after** the first one. The tutorial's pipeline is full "after 2N+1 steps",
# but the 16 copies in its own trace support our count.

# %%
show.drawing(utilisation((2, 4, 8), largest=64, marked=[(4, 10)]),
             "More micro-batches fill the pipeline: four IPUs with ten of them are busy for 76.9 % of the time.")

sample = TrainingModelWithLoss(Network())
micro_batch = (training_set.images[:batch_size], training_set.labels[:batch_size])
tutorial = engine.modelled_module(sample, micro_batch, options, poptorch.optim.AdamW(sample.parameters()))
profile = tutorial.profile()
print(f"modelled: {1e3 * profile.device_seconds_per_call:.1f} ms on the device for a call of the tutorial's network")

# %% [markdown]
# ## Train, and choose what comes back
#
# By default, a training call returns the predictions and losses of its last micro-batch only (`OutputMode.Final`).
# The tutorial chooses `OutputMode.All`, which returns those of all micro-batches. This is slower, because more data go
# to the host. `accuracy` works with both modes: it compares *n* predictions with the last *n* labels, `labels[-n:]`.
# With `Final` it would judge only 40 images of 4,000, in steps of 2.5 %.
#
# The loader prepares the next call in another process (`Async`, [lesson 05](05)). A script of your own then needs the
# guard `if __name__ == "__main__":`.
#
# The second cell tests the network. The inference model shares the parameters of `model`, so it has the trained
# weights. Inference accumulates nothing, so device iterations have to fill the pipeline: PopTorch asks for at least
# *N*.

# %% tags=["nbval-ignore-output"]
def accuracy(predictions, labels):
    labels = labels[-len(predictions):]
    return 100 * (predictions.argmax(1) == labels).float().mean().item()

training_data = poptorch.DataLoader(options, training_set, batch_size=batch_size, shuffle=True,
                                    drop_last=True, mode=poptorch.DataLoaderMode.Async)
torch.manual_seed(42)
model = Network()
training_model = make_training_model(model, options)
for epoch in range(epochs):
    for data, labels in training_data:
        predictions, losses = training_model(data, labels)
    print(f"epoch {epoch + 1}: {losses.mean():.3f}, {accuracy(predictions, labels):.1f} % right (last call)")
training_data.terminate()
training_model.detachFromDevice()  # frees the four IPUs

# %% tags=["nbval-ignore-output"]
test_options = options.clone()  # the loader has frozen the original
test_options.Training.gradientAccumulation(1)
test_options.deviceIterations(inference_iterations)
test_data = poptorch.DataLoader(test_options, test_set, batch_size=test_batch_size)
inference_model = poptorch.inferenceModel(model.eval(), test_options)
right = [accuracy(inference_model(data), labels) for data, labels in test_data]
print(f"this run: {sum(right) / len(right):.2f} % of {len(test_set)} test images right")
for key in ("training_accuracy", "test_accuracy"):
    print("published:", lesson.published(key).text, lesson.published(key).source)

# %% [markdown]
# ## Find what limits the tutorial
#
# The tutorial's compilation took 1 min 31 s for training and 35 s for inference. How fast does it train after that?
# One call takes 4,000 images, and you saw the modelled time of a call on the device above.
#
# **Predict:** how many calls per second did the tutorial's progress bar show on four IPUs?

# %% tags=["prediction"]
calls = lesson.predict("calls per second in the tutorial", ...)

# %%
calls.reveal(lesson.published("calls_per_second").value, "published, in the second epoch [1]")
device = lesson.published("device_milliseconds")
print(f"{device.kind}: {device.text} {device.source}")

# %% [markdown]
# The tutorial's trace and our model agree that the IPUs need 9 to 10 ms for a call. Between two calls, much more time
# passes. In that time the host loads 4,000 images, normalises each of them in Python, and handles the results of 100
# micro-batches. The asynchronous loader works while the IPUs compute, so the slower of the two is the bottleneck. Most
# likely it is the loader, but the tutorial does not say how many processes load.
#
# **Exercise 3** (5 min). For what percentage of the time are the tutorial's IPUs `working`? By what factor must the
# host speed up (`speed_up`) before the IPUs are the bottleneck?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: working = ...
### STARTER: speed_up = ...
working = 100 * 9.5 / 66.5
speed_up = 66.5 / 9.5
### END SOLUTION
lesson.check(3, working, speed_up)

# %% [markdown] tags=["hint"]
# How many milliseconds pass from one call to the next, at the number of calls per second that you just saw? Compare
# them with the time of a call on the device.

# %% [markdown] tags=["solution"]
# From one call to the next, 1,000 / 15.04 = 66.5 ms pass. Of these, 9.1 to 9.9 ms are 14 to 15 %, and 66.5 ms is about
# seven times as long. Better stages would not change the 15 calls per second at all. Find the bottleneck before you
# tune.

# %% [markdown]
# ## Run the program and read its profile
#
# The tutorial ends with a script, and the course has the same program with the same options. The tutorial's four
# example commands are at the end of its help. Sharded execution and the offloading of optimiser state do not change the
# results; they are the subjects of lessons [07](07) and [08](08). `--profile` writes a report for each model. You can
# read `report.html` in a browser and open `trace.json` in Perfetto, a viewer for traces.
#
# Such a profile answers three questions. Do the stages fit into memory ([lesson 11](11) takes a tile's memory apart)?
# Do the stages take equally long? How much data moves between IPUs? The figure below answers the second question. All
# stages but the last run their forward pass twice: PopTorch keeps only what enters a stage of a pipeline, and
# **recomputes** the other activations for the backward pass.

# %% tags=["nbval-ignore-output"]
run_program("--help")
run_program("--epochs 1 --profile --profile-dir pipeline_profile")

# %%
show_stages(profile, ["B1 on IPU 0", "B2 on IPU 1", "B3 on IPU 2", "B4 on IPU 3"])
print("on the device, this program is limited by:", profile.limited_by)

# %% [markdown]
# The longest stage determines how fast a pipeline is. So the guide recommends that you break it up and balance all
# stages again. It does not help to make another stage shorter. Here not even better balance would help: this network
# is so small that the device spends more time on **streams**, the transfers between host and IPUs, than on any stage.
#
# ## Compare five cuts of a large network
#
# Now take the workshop's ResNet-101 [3] (lessons 01 to 05) in half precision over two IPUs. (ResNet has "blocks", too:
# groups of three convolutions.) `layer3` has 23 of them, and the workshop's second IPU begins at the ninth,
# `layer3[8]`.
#
# **Predict:** let the second IPU begin at `layer3[n]`, with *n* from 5 to 9. By what percentage does a weight update
# take longer with the slowest of these five cuts than with the fastest?

# %% tags=["prediction"]
spread = lesson.predict("percentage by which the slowest of five cuts takes longer than the fastest", ...)

# %%
resnet = torchvision.models.resnet101().half()
poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
optimizer = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, loss_scaling=1000,
                                 first_order_momentum_accum_type=torch.half)
two_ipus = poptorch.Options()
two_ipus.Training.gradientAccumulation(8)
half = engine.modelled_module(
    models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half), two_ipus, optimizer)
cuts = {block: half.profile(split=f"model.layer3.{block}") for block in (5, 6, 7, 8, 9)}
spread.reveal(percentage_between(cuts), "modelled")
show_cuts(cuts, lesson.published("stage_ratio"))

# %% [markdown]
# **Too close to call.** The model has a winner, but all five cuts lie within its own error. And there is a known
# disagreement: compared with IPU 0, IPU 1 computes for less time in the model than in the published trace. If IPU 1
# really takes as much longer as the trace suggests (last column but one), the best cut moves. So you can say which
# cuts are worth a measurement on your own machine, but not which one is the best. Memory may decide between them:
# look at the last column.
#
# ## Place ResNet-101 over four IPUs
#
# Back to the opening: ResNet-101 in **single precision** on four IPUs, with micro-batches of 64 images and
# accumulation 16. `layer1` to `layer4` have 3, 4, 23 and 3 blocks. Early blocks have large activations, and late
# blocks have many weights. So **time and memory ask for different cuts**.
#
# **Exercise 4** (12 min). Write `place(resnet)`. It begins a block on each of the IPUs 1, 2 and 3, with
# `poptorch.BeginBlock(resnet.layer..., ipu_id=...)` as in the cell of the five cuts. Every IPU may need 624 KiB on its
# fullest tile and no more (here the model's error does not count), and the update has to be at least 95 % as fast as
# with the best such placement. The figure shows how fast yours is, so run the cell as often as you like: the shortest
# update is the best score.

# %% tags=["exercise"]
single = captured_resnet()  # single precision, AdamW, accumulation 16

def place(resnet):
    ### BEGIN SOLUTION
    ### STARTER: ...
    poptorch.BeginBlock(resnet.layer2[3], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[7], ipu_id=2)
    poptorch.BeginBlock(resnet.layer3[16], ipu_id=3)
    ### END SOLUTION

show_placement(place, single)
lesson.check(4, place, using=single)

# %% [markdown] tags=["hint"]
# Start with three cuts that give every IPU about eight blocks. Find the longest bar on the left, and make that stage
# one block shorter at either end. The last stage computes its forward pass only once, but it holds most of the weights.

# %% [markdown] tags=["solution"]
# Of all placements that cut between blocks and fit, this one is the fastest (modelled). One more block on IPU 3, from
# `layer3[15]` on, is faster still, but needs 640 KiB. The model's error in memory is larger than the missing 16 KiB,
# so on a real machine you would try it.

# %%
show_all_placements(single, place)

# %% [markdown]
# Many placements are within the model's error of the best one. Choose two or three of them that leave memory free, and
# measure those.
#
# ## Summary
#
# * Blocks are named pieces of a network, stages put them on IPUs, and the strategy determines when each stage runs.
# * Gradient accumulation fills the pipeline: with *N* equal stages and *m* micro-batches, an IPU works for
#   *m / (m + N - 1)* of the time. PopTorch asks for at least *2N - 1* micro-batches.
# * The longest stage determines the speed, and the fullest tile determines whether the network fits. Balance does not
#   matter while the host is the bottleneck.
# * A pipeline costs a larger global batch, a second forward pass, and in the tutorial a minute and a half of
#   compilation.
#
# Your predictions, exercises and score: `python -m ipu_course report`.
#
# ## On real hardware
#
# With the Poplar SDK, `import poptorch` imports Graphcore's package, and the same cells run. `--profile` then writes
# `profile.pop` for PopVision's Graph Analyser, whose execution trace shows how long each stage really takes.
#
# ## What transfers
#
# Micro-batches, ramps and balanced stages are the same on GPUs and TPUs. GPipe [4] runs all forward passes before the
# first backward pass. The interleaved schedule is `Schedule1F1B` of `torch.distributed.pipelining`, "one forward, one
# backward"; what that package calls *interleaved* is something else, several stages on each device.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022).
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs, execution trace and epoch times.
# 4. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** A pipeline works on many micro-batches at once, which makes every fault hard to find. So you switch it off
# and hunt for a fault.
