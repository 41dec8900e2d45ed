# %% [markdown]
# # Pipelining: one network on several IPUs
#
# *Plan 55 minutes, 10 of them for the exercises; the notebook itself runs in under one. Before it: lessons 00
# and 02.*
#
# A model that does not fit into one IPU's memory is split over several. Done naively, one IPU works while
# the others wait. A **pipeline** keeps all of them busy. You will
#
# * split a model into blocks, place the blocks on IPUs and fill the pipeline,
# * read a pipeline's schedule and predict its utilisation,
# * balance the stages, and choose a cut with the profile,
# * compare two schedules by the memory of their stashes,
# * run the same model sharded and with offloaded state,
# * choose what comes back, then train, and test on the same weights.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import mnist
from ipu_course.lessons.pipelining_mnist.checks import check_busy_call, check_two_stages
from ipu_course.lessons.pipelining_mnist.explorer import explore_pipeline
from ipu_course.lesson import Lesson
from ipu_course.programs.mnist.model import ConvLayer
from ipu_course.programs.mnist.training import accuracy
from ipu_course.schedule import pipelined
from ipu_course.lessons.pipelining_mnist.balance import fastest_cut, show_cuts, show_stages
from ipu_course.lessons.pipelining_mnist.stash import show_schedules, show_stash

lesson = Lesson("06")
torch.set_num_threads(1)  # for so small a model, more would only wait for each other

# %% [markdown]
# ## Set the hyper-parameters and load the data
#
# The values are those of Graphcore's tutorial [1]. The images are handwritten digits in MNIST's 28x28 format,
# and come with the course. Train and test were separated first; then small rotations, shifts and scalings
# extended the training part to an epoch. `mnist(train=True, root="mnist_data", download=True)` gives MNIST
# itself.

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
        with poptorch.Block("B4"):
            return output, self.loss(output, labels)

def make_training_model(model, options):
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=learning_rate)
    return poptorch.trainingModel(TrainingModelWithLoss(model), options, optimizer)

# %% [markdown]
# ## Place the blocks, and fill the pipeline
#
# A **stage** is one or more blocks that run together on one IPU, forwards and backwards. The execution
# strategy lists the stages in order. If stage *i* goes to IPU *i*, `PipelinedExecution("B1", "B2", "B3", "B4")`
# says the same. (Third way: give each block an `ipu_id`, and PopTorch makes the stages itself.)
#
# * **Gradient accumulation**: so many micro-batches go through the pipeline one after the other. Their
#   gradients are averaged into one weight update.
# * **Device iterations**: so many weight updates happen before the call returns to Python.
#
# **Predict:** how many images does one call take? Write your number in place of the dots, then run the cell.

# %%
guess = lesson.predict("images in one call of the training model", ...)

options = poptorch.Options()
options.setExecutionStrategy(poptorch.PipelinedExecution(
    poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1),
    poptorch.Stage("B3").ipu(2), poptorch.Stage("B4").ipu(3)))
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
# its backward pass in step *2(N - 1) - k + m*.
#
# * **Ramp-up**, 2(N - 1) steps: micro-batch 1 is on its way to the last IPU and back.
# * **Steady state**: every IPU has both passes to do.
# * **Ramp-down**, 2(N - 1) steps: the last micro-batches leave. Then the weights change, once.
#
# The tutorial says that the pipeline is full after nine steps: it counts forward and backward passes singly.
#
# **Predict:** how many pipeline steps do 10 micro-batches need on 4 IPUs? Then turn the knobs: what does
# PopTorch refuse, and what do more IPUs cost?

# %%
guess = lesson.predict("pipeline steps of one weight update", ...)
guess.reveal(pipelined(stages=4, micro_batches=10).steps, "computed as 10 + 2 x (4 - 1)",
             "16 copies between IPUs, counted in the execution trace of the tutorial [1]")
explore_pipeline(stages=4, accumulation=10)

# %% [markdown]
# ## Predict the utilisation
#
# Each IPU works on *m* micro-batches in *m + 2(N - 1)* steps, so it is busy for *m / (m + 2(N - 1))* of them.
# This counts all steps as equally long, and is the careful answer: steps of the ramps hold one kind of pass
# only, and are shorter (the explorer's second percentage).
#
# More accumulation keeps the IPUs busier, but makes weight updates rarer. Below *2N - 1* micro-batches no step
# is steady, and PopTorch refuses to compile.

# %%
figures.show(
    figures.utilisation_figure((2, 4, 8), largest=64, marked=(4, 10)),
    "Utilisation against gradient accumulation for 2, 4 and 8 IPUs: all lines rise towards 100 percent, "
    "and the more IPUs, the later. 4 IPUs with 10 micro-batches reach 62.5 percent.")
show.table([{"accumulation": m, "steps": pipelined(4, m).steps, "utilisation": f"{m / (m + 6):.1%}",
             "images per update": f"{batch_size * m:,}"} for m in (7, 10, 20, 50, 100)])

# %% [markdown]
# **Exercise 1** (5 min). Put two blocks in each stage: B1 and B2 on IPU 0, B3 and B4 on IPU 1. Which is the
# smallest gradient accumulation that PopTorch accepts now?

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
# **Exercise 2** (5 min). Back to four stages and micro-batches of 40 images. Find the smallest gradient
# accumulation with a utilisation of at least 80 %. Then choose the device iterations so that one call takes
# 4,800 images.

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
# ## Balance the stages
#
# Three rules decide where to cut: every stage must fit into its IPU's memory; stages should take equally
# long, as the longest sets the pace; little data should cross between IPUs. The more blocks, the more choice.
#
# The *modelled* profile gives each stage's time. All but the last stage run their forward pass twice: a
# pipelined PopTorch model keeps only what enters a stage, and **recomputes** the rest for the backward pass.

# %%
model = TrainingModelWithLoss(Network())
micro_batch = (training_set.images[:batch_size], training_set.labels[:batch_size])
tutorial = engine.modelled_module(model, micro_batch, options, poptorch.optim.AdamW(model.parameters()))
profile = tutorial and tutorial.profile()
show_stages(profile, ["B1 on IPU 0", "B2 on IPU 1", "B3 on IPU 2", "B4 on IPU 3"])
if profile:
    low, high = profile.error_band
    print(f"limited by: {profile.limited_by}; so small a model may take {low:.2f} to {high:.2f} times as long")

# %% [markdown]
# A surprise: the uneven stages are not what limits this program. So small a network spends more on its
# **streams**, the transfers between host and IPUs.
#
# ## Choose a cut with the profile
#
# Now full size: ResNet-101 of the hands-on [3] (lessons 01 to 05) over two IPUs, micro-batch 64, 16 bits,
# accumulation 8. Its third group of layers has 23 blocks; the hands-on lets the second IPU begin with the ninth,
# `layer3[8]`. One capture of the model is enough: the IPU Model can then ask "what if" for other cuts.
#
# **Predict:** which cut gives the fastest weight update: before block 3, 6, 8, 10 or 14 of `layer3`?

# %%
resnet = torchvision.models.resnet101().half()
poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
optimizer = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, loss_scaling=1000,
                                 first_order_momentum_accum_type=torch.half)
two_ipus = poptorch.Options()
two_ipus.Training.gradientAccumulation(8)
full_size = engine.modelled_module(
    models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half), two_ipus, optimizer)

# %%
guess = lesson.predict("block of layer3 before which the fastest cut is", ...)

profiles = {block: full_size and full_size.profile(split=f"model.layer3.{block}") for block in (3, 6, 8, 10, 14)}
show_cuts({f"layer3[{block}]": profile for block, profile in profiles.items()})
guess.reveal(fastest_cut(profiles), "modelled", "the hands-on cuts before layer3[8]; there IPU 1 computes 0.85 to "
             "0.9 times as long as IPU 0 [3]")

# %% [markdown]
# Both sides say that IPU 0 is the slower one with the hands-on's cut. Beginning earlier is faster, but loads
# IPU 1 with more of the wide last layers: **time and memory ask for different cuts**. The hands-on's has the
# emptier fullest tile. Look for even times first, and move the cut if the memory is not enough.
#
# ## Compare two schedules by their stashes
#
# Between its forward and its backward pass, a micro-batch's activations wait in a **stash**. In PopTorch's
# schedule, called **grouped**, stage *k* keeps *2(N - 1 - k) + 1* of them. **Interleaved**, neighbours alternate
# forward and backward passes, and it keeps *N - k*; the last stage keeps none. PopTorch has no such option; the
# model can ask "what if".

# %%
show_stash(tutorial, stages=4, accumulation=10)
show_schedules(full_size)

# %% [markdown]
# The guide [2] says that interleaving saves memory and may be slower. Both hold; but once activations are
# recomputed, little is left to save. Of the two remedies, recomputation is the one that makes this model fit.
#
# ## Run the same model sharded, and with offloaded state
#
# `ShardedExecution` takes the same stages, but runs one IPU at a time: slow, and simple to follow. It helps
# with a single sample, or to find out whether the model or the pipeline is at fault: lesson 07.
#
# AdamW keeps two numbers for every parameter, and needs them only in the weight update. They can live in
# memory outside the chip: lesson 08. Neither changes what is computed.

# %%
def one_call(changed):
    torch.manual_seed(1)  # the same first weights every time
    model = make_training_model(Network(), changed)
    results = model(training_set.images[:images_per_call], training_set.labels[:images_per_call])
    model.detachFromDevice()
    return results

_, reference = one_call(options)
sharded, offloaded = options.clone(), options.clone()
sharded.setExecutionStrategy(poptorch.ShardedExecution("B1", "B2", "B3", "B4"))
offloaded.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
for name, changed in (("sharded", sharded), ("state off chip", offloaded)):
    same = torch.allclose(one_call(changed)[1], reference, rtol=1e-3)
    print(f"{name}: the same {len(reference)} losses? {same}")

# %% [markdown]
# ## Choose what comes back, then train
#
# For speed, a training call returns only the results of its last micro-batch: `OutputMode.Final`. We chose
# `OutputMode.All`, which sends everything to the host and costs time there.
#
# **Predict:** how many of the 4,000 predictions does `Final` return? (So an accuracy computed from them moves in
# steps of 2.5 %.)
#
# In `Async` mode another process prepares the next call's images while the model works (lesson 05). After
# training, detaching frees the IPUs. The inference model shares `model`'s parameters, and so has the trained
# weights. Inference accumulates nothing: there the device iterations fill the pipeline (at least *N*).

# %% tags=["nbval-ignore-output"]
guess = lesson.predict("predictions that come back with OutputMode.Final", ...)
guess.reveal(len(one_call(options.clone().outputMode(poptorch.OutputMode.Final))[0]), "returned")

training_data = poptorch.DataLoader(options, training_set, batch_size=batch_size, shuffle=True,
                                    drop_last=True, mode=poptorch.DataLoaderMode.Async)
torch.manual_seed(42)
model = Network()
training_model = make_training_model(model, options)
epoch_losses = []
for epoch in range(epochs):
    calls = [(*training_model(images, labels), labels) for images, labels in training_data]
    epoch_losses.append(sum(loss.mean().item() for _, loss, _ in calls) / len(calls))
    right = accuracy(calls[-1][0], calls[-1][2])
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
# * Accumulation fills the pipeline, device iterations save calls. Utilisation is *m / (m + 2(N - 1))*, and
#   PopTorch asks for *m* of at least *2N - 1*.
# * The longest stage sets the pace, the fullest tile decides whether it fits: the profile shows both.
#
# A pipeline is as fast as its slowest stage, and only when it is full.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# With the Poplar SDK, `import poptorch` finds Graphcore's package. Compilation takes a minute or two (published:
# 1 min 31 s [1]), and learned numbers differ a little. `options.enableProfiling()` records traces for PopVision:
# its execution trace shows how long each stage really takes. As a program: `python -m ipu_course mnist --help`.
#
# ## What transfers
#
# Micro-batches, ramp-up and balanced stages are the same on GPUs and TPUs. GPipe [4] does all forward passes
# first; the interleaved schedule is the "one forward, one backward" of `torch.distributed.pipelining`.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022).
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs, execution trace and epoch times.
# 4. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** [lesson 07](07_sharded_debugging.ipynb), finding faults with sharded execution.
