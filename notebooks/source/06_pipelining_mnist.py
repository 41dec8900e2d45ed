# %% [markdown]
# # Pipelining: one network on four IPUs
#
# *Plan 45 minutes; the notebook itself runs in under one. You need: PyTorch, a training loop you have
# written yourself.*
#
# A model that does not fit into one IPU's memory is split over several. Done naively, one IPU works while
# the others wait. A **pipeline** keeps all of them busy. You will
#
# * split a model into blocks and place the blocks on IPUs,
# * choose gradient accumulation and device iterations,
# * read a pipeline's schedule and predict its utilisation,
# * balance the stages, debug with sharded execution, offload the optimiser state,
# * choose what comes back, then train, and test on the same weights.

# %%
import pandas as pd
import torch
from torch import nn

import poptorch
from ipu_course import engine, figures
from ipu_course.datasets import mnist
from ipu_course.exercises.pipelining import check_busy_call, check_two_stages
from ipu_course.lesson import Lesson
from ipu_course.mnist.model import ConvLayer
from ipu_course.mnist.training import accuracy
from ipu_course.schedule import pipelined, sharded

lesson = Lesson("06")
torch.set_num_threads(1)  # for so small a model, more would only wait for each other

# %% [markdown]
# ## Set the hyper-parameters and load the data
#
# The values are those of Graphcore's tutorial [1]. The images are real handwritten digits in MNIST's 28x28
# format, and come with the course. Train and test were separated first; then small rotations, shifts and
# scalings extended the training part to an epoch. `mnist(train=True, root="mnist_data", download=True)`
# gives MNIST itself.

# %%
learning_rate, epochs = 0.001, 3
batch_size, test_batch_size = 40, 8  # images in a micro-batch
gradient_accumulation = 10           # micro-batches in a weight update
training_iterations = 10             # weight updates in a call
inference_iterations = 100           # micro-batches in a call, when testing

training_set, test_set = mnist(train=True), mnist(train=False)
print(training_set.description)
print(test_set.description)

# %% [markdown]
# ## Split the model into blocks
#
# A **block** is a named part of `forward`. Blocks alone change nothing; they are the pieces that you place
# later. Here each layer is one, marked by `with poptorch.Block(name)`. Two other ways:
# `poptorch.BeginBlock(layer, name)` for layers of a model that you cannot edit, and the decorator
# `poptorch.BlockFunction(name)`.
#
# After a first `with` block, every operation needs a block. So the loss, which only training needs, enters
# `"B4"` once more.

# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = ConvLayer(1, 10, 5, 2), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4 = nn.Linear(320, 256), nn.Linear(256, 10)

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
class TrainingModelWithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        output = self.model(images)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            return output, self.loss(output, labels)

def make_training_model(model, options):
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=learning_rate)
    return poptorch.trainingModel(TrainingModelWithLoss(model), options, optimizer)

# %% [markdown]
# ## Place the blocks on IPUs
#
# A **stage** is one or more blocks that run together on one IPU; its backward pass runs there too. The
# execution strategy lists the stages in order. If stage *i* goes to IPU *i*, the short notation says the
# same. (Third way: give each block an `ipu_id`, and PopTorch makes the stages itself.)

# %%
explicit = poptorch.PipelinedExecution(
    poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1),
    poptorch.Stage("B3").ipu(2), poptorch.Stage("B4").ipu(3))
short = poptorch.PipelinedExecution("B1", "B2", "B3", "B4")

# %% [markdown]
# ## Choose gradient accumulation and device iterations
#
# * **Gradient accumulation**: so many micro-batches go through the pipeline one after the other. Their
#   gradients are averaged into one weight update.
# * **Device iterations**: so many weight updates happen before the call returns to Python.
#
# **Predict:** how many images does one call take? Write your number in place of the dots, then run the cell.

# %%
guess = lesson.predict("images in one call of the training model", ...)

options = poptorch.Options()
options.setExecutionStrategy(explicit)
options.Training.gradientAccumulation(gradient_accumulation)
options.deviceIterations(training_iterations)
options.outputMode(poptorch.OutputMode.All)  # explained further down
options.randomSeed(42)
options.showCompilationProgressBar(False)  # keeps this page tidy

images_per_call = batch_size * gradient_accumulation * training_iterations
guess.reveal(images_per_call, "computed as 40 x 10 x 10")
print("calls in an epoch:", len(training_set) // images_per_call)

# %% [markdown]
# ## Read the schedule
#
# When IPU 0 has passed on micro-batch 1, it starts with micro-batch 2. In each **pipeline step**, an IPU
# runs at most one forward and then one backward pass; between steps, results move to the neighbours.
# Counting from 0 and with *N* IPUs, micro-batch *m* is in stage *k*'s forward pass in step *k + m*, and in
# its backward pass in step *2(N - 1) - k + m*. The figure is drawn from this formula. It is a schedule, not
# a time: how long a step takes, it does not say.
#
# * **Ramp-up**, 2(N - 1) steps: micro-batch 1 is on its way to the last IPU and back.
# * **Steady state**: every IPU has both passes to do.
# * **Ramp-down**, 2(N - 1) steps: the last micro-batches leave. Then the weights change, once.
#
# **Predict:** how many pipeline steps do 10 micro-batches need on 4 IPUs?

# %%
guess = lesson.predict("pipeline steps of one weight update", ...)

schedule = pipelined(stages=4, micro_batches=gradient_accumulation)
figures.show(
    figures.schedule_figure(schedule, "Schedule of one weight update: 4 IPUs, 10 micro-batches"),
    "A row for each of 4 IPUs, 16 pipeline steps. Steps 1 to 6, ramp-up: forward passes spread from IPU 0 "
    "to IPU 3, backward passes return. Steps 7 to 10, steady state: every IPU runs a forward and a backward "
    "pass. Steps 11 to 16, ramp-down: the passes get fewer. Then the weights are updated.")
guess.reveal(schedule.steps, "computed as 10 + 2 x (4 - 1)",
             "16 copies between IPUs, counted in the execution trace of the tutorial [1]")

# %% [markdown]
# The tutorial says that the pipeline is full after nine steps. It counts forward and backward passes singly:
# three steps with forward passes only, three with both.
#
# ## Predict the utilisation
#
# Each IPU works on *m* micro-batches in *m + 2(N - 1)* steps, so it is busy for *m / (m + 2(N - 1))* of
# them. This counts all steps as equally long. Two things differ on a device: steps in which nobody has one
# of the two passes are shorter, and the longest stage sets the pace of all.
#
# More accumulation keeps the IPUs busier, but makes weight updates rarer: with 100 micro-batches, 4,000
# images share one. And below *2N - 1* micro-batches no step is steady: PopTorch refuses that when it
# compiles, as the cell after the table shows.

# %%
def utilisation(stages, micro_batches):
    return micro_batches / (micro_batches + 2 * (stages - 1))

figures.show(
    figures.utilisation_figure((2, 4, 8), largest=64, marked=(4, 10)),
    "Utilisation against gradient accumulation for 2, 4 and 8 IPUs: all lines rise towards 100 percent, "
    "and the more IPUs, the later. 4 IPUs with 10 micro-batches reach 62.5 percent.")
accumulations = [7, 10, 20, 50, 100]
pd.DataFrame({
    "accumulation": accumulations,
    "steps": [pipelined(4, m).steps for m in accumulations],
    "utilisation": [f"{utilisation(4, m):.1%}" for m in accumulations],
    "images per update": [batch_size * m for m in accumulations],
}).set_index("accumulation")

# %%
too_few = options.clone()
too_few.Training.gradientAccumulation(6)
rows = batch_size * 6 * training_iterations
try:
    model = make_training_model(Network(), too_few)
    model.compile(training_set.images[:rows], training_set.labels[:rows])
except poptorch.Error as error:
    print(str(error).split(". ")[0])
for m in (6, 7):
    print(f"{m} micro-batches: {len(pipelined(4, m).steady_steps)} steady steps")

# %% [markdown]
# ## Balance the stages
#
# Three rules decide where to cut: every stage must fit into its IPU's memory; stages should take equally
# long; little data should cross between IPUs. The more blocks, the more choice.
#
# **Exercise 1.** Put two blocks in each stage: B1 and B2 on IPU 0, B3 and B4 on IPU 1. Which is the smallest
# gradient accumulation that PopTorch accepts now?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: strategy = ...
### STARTER: accumulation = ...
strategy = poptorch.PipelinedExecution(
    poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3", "B4").ipu(1))
accumulation = 3
### END SOLUTION
check_two_stages(strategy, accumulation)

# %% [markdown] tags=["hint"]
# Every argument of `PipelinedExecution` is one stage, and a `Stage` takes several names. What is *N* now?

# %% [markdown] tags=["solution"]
# Two stages, so *2N - 1 = 3*. The minimum follows the number of stages, not of blocks.

# %% [markdown]
# **Exercise 2.** Back to four stages and micro-batches of 40 images. Find the smallest gradient accumulation
# with a utilisation of at least 80 %. Then choose the device iterations so that one call takes 4,800 images.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: accumulation = ...
### STARTER: device_iterations = ...
accumulation = 24
device_iterations = 5
### END SOLUTION
check_busy_call(accumulation, device_iterations)

# %% [markdown] tags=["hint"]
# Solve *m / (m + 6) = 0.8* for *m*. A device iteration is a whole weight update.

# %% [markdown] tags=["solution"]
# *24 / (24 + 6) = 0.8*. One update takes 40 x 24 = 960 images, and 4,800 / 960 = 5.

# %% [markdown]
# ## Debug with sharded execution
#
# `ShardedExecution` takes the same stages, but runs one IPU at a time: slow, with no minimum for the
# accumulation, and simple to follow. Together with `poptorch.setLogLevel("DEBUG")`, that helps with a single
# sample, or with the question "is it my model or the pipeline?" It never is the pipeline's arithmetic: a
# schedule decides when something is computed, not what.

# %%
def losses_of_one_call(options):
    torch.manual_seed(1)  # the same first weights every time
    model = make_training_model(Network(), options)
    _, losses = model(training_set.images[:images_per_call], training_set.labels[:images_per_call])
    model.detachFromDevice()
    return losses

reference = losses_of_one_call(options)
for strategy in (short, poptorch.ShardedExecution("B1", "B2", "B3", "B4")):
    other = options.clone()
    other.setExecutionStrategy(strategy)
    same = torch.allclose(losses_of_one_call(other), reference, rtol=1e-3)
    print(f"{type(strategy).__name__}: the same {len(reference)} losses? {same}")
figures.show(figures.schedule_figure(sharded(4, 2), "Sharded schedule: 4 IPUs, 2 micro-batches"),
             "One pass at a time: a micro-batch takes 4 pipeline steps, and 3 of 4 IPUs are always idle.")

# %% [markdown]
# ## Offload the optimiser state
#
# AdamW keeps two numbers for every parameter, and needs them only in the weight update. They can stay in the
# memory outside the chip and be streamed in for the update: less memory, slower updates. The results stay
# the same. Memory and time below are *modelled*; an IPU of your own would be profiled with PopVision.

# %%
def profile_of_one_call(options):
    model = TrainingModelWithLoss(Network())
    micro_batch = (training_set.images[:40], training_set.labels[:40])
    return engine.profile_module(model, micro_batch, options, poptorch.optim.AdamW(model.parameters()))

offloaded = options.clone()
offloaded.TensorLocations.setOptimizerLocation(
    poptorch.TensorLocationSettings().useOnChipStorage(False))
for place, profile in (("on", profile_of_one_call(options)), ("off", profile_of_one_call(offloaded))):
    if profile:  # None without the IPU Model
        state = max(ipu.bytes_by_category.get("optimiser state", 0) for ipu in profile.memory)
        print(f"{place:3} chip: {state:6,.0f} bytes of state on the fullest tile,",
              f"{profile.device_seconds_per_call * 1e3:.1f} ms a call")
print("the same losses?", torch.allclose(losses_of_one_call(offloaded), reference, rtol=1e-3))

# %% [markdown]
# ## Choose what comes back
#
# For speed, a training call returns only the results of its last micro-batch: `OutputMode.Final`. We chose
# `OutputMode.All`, which sends everything to the host and costs time there.
#
# **Predict:** how many of the 4,000 predictions does `Final` return?

# %%
guess = lesson.predict("predictions that come back with OutputMode.Final", ...)

final = options.clone()
final.outputMode(poptorch.OutputMode.Final)
model = make_training_model(Network(), final)
predictions, loss = model(training_set.images[:images_per_call], training_set.labels[:images_per_call])
model.detachFromDevice()
guess.reveal(len(predictions), "returned")
print(f"losses: {loss.numel()} instead of {len(reference)}")

# %% [markdown]
# A surprise for many: an accuracy computed from these is one of 40 images, and moves in steps of 2.5 %.
#
# ## Train, and test on the same weights
#
# In `Async` mode another process prepares the next call's images while the model works. The data set's class
# must be importable there, and a script needs `if __name__ == "__main__":`. A loader freezes its options: all
# must be set before, and `clone()` gives a copy to change.
#
# After training, detaching frees the four IPUs. The inference model shares `model`'s parameters, and so has
# the trained weights without a copy in your code. Inference accumulates nothing: there the device iterations
# fill the pipeline (at least *N*). With 8 x 100 images, one call takes the whole test set.

# %% tags=["nbval-ignore-output"]
training_data = poptorch.DataLoader(options, training_set, batch_size=batch_size, shuffle=True,
                                    drop_last=True, mode=poptorch.DataLoaderMode.Async)
assert training_data.combinedBatchSize == images_per_call
torch.manual_seed(42)
model = Network()
training_model = make_training_model(model, options)
epoch_losses = []
for epoch in range(epochs):
    losses = []
    for images, labels in training_data:
        predictions, loss = training_model(images, labels)
        losses.append(loss.mean().item())
    epoch_losses.append(sum(losses) / len(losses))
    right = accuracy(predictions, labels)
    print(f"epoch {epoch + 1}: loss {epoch_losses[-1]:.3f}, last call {right:.1f} % right")

# %% tags=["nbval-ignore-output"]
training_data.terminate()
training_model.detachFromDevice()

test_options = options.clone()
test_options.Training.gradientAccumulation(1)
test_options.deviceIterations(inference_iterations)
test_data = poptorch.DataLoader(test_options, test_set, batch_size=test_batch_size,
                                mode=poptorch.DataLoaderMode.Async)
inference_model = poptorch.inferenceModel(model.eval(), test_options)
calls = [accuracy(inference_model(images), labels) for images, labels in test_data]
test_data.terminate()
test_accuracy = sum(calls) / len(calls)
print(f"this run: {test_accuracy:.2f} % of {len(test_set)} test images right")
print("published: 98.41 % on MNIST's test images, after training on MNIST, 4 IPUs [1]")

# %%
print("loss fell from epoch to epoch:", epoch_losses == sorted(epoch_losses, reverse=True))
print("at least 97 % right:", test_accuracy >= 97)

# %% [markdown]
# ## Summary
#
# * Blocks are named pieces; stages put them on IPUs; the strategy decides who works when.
# * A call takes micro-batch x accumulation x device iterations images. Accumulation fills the pipeline,
#   device iterations save calls.
# * Utilisation is *m / (m + 2(N - 1))*, and PopTorch asks for *m* of at least *2N - 1*.
# * Sharded execution computes the same, one IPU at a time.
#
# ## On real hardware
#
# With the Poplar SDK, `import poptorch` finds Graphcore's package; the cells use nothing but its public
# interface. Compilation takes a minute or two (published: 1 min 31 s [1]), and learned numbers differ a
# little. `options.enableProfiling()` records traces for PopVision, which show how long a step really takes.
#
# As a program: `python -m ipu_course mnist --help`.
#
# ## What transfers
#
# Micro-batches, ramp-up and balanced stages are the same on GPUs and TPUs: GPipe [3] does all forward passes
# first, which leaves *N - 1* steps of ramp-up; `torch.distributed.pipelining` offers several schedules.
# Accumulation works in plain PyTorch, too: call `backward` several times, `step` once.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022).
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** lesson 07, sharded debugging, comes in a later version of the course.
