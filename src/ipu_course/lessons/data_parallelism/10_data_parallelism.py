# %% [markdown]
# # Data parallelism: many replicas, many processes
#
# In 2021, 16 IPUs of a POD16 trained ResNet-50 on ImageNet at **43.19 s per epoch** [1]. A POD64 has four times as many
# IPUs. Four times as fast would be 10.8 s per epoch, but the published run took **11.8 s** (derived from [1]). Where is
# the missing second? In this lesson you find it, and you write what those 64 IPUs do after every few batches.
#
# *Plan 65 minutes, 31 of them for the exercises; the notebook itself runs in under one. Before it: lessons 02, 03 and
# 05.* You will
#
# * write an all-reduce in a ring,
# * count with replicas and instances,
# * start instances with poprun, and find three silent mistakes,
# * read a scaling curve,
# * find out what limits you.

# %%
import torch

import poptorch
from ipu_course import quiz, show
from ipu_course.datasets import mnist
from ipu_course.lessons.data_parallelism import (
    bytes_sent, lesson, ring_all_reduce, ring_steps, run_poprun, show_scaling)
from ipu_course.models import Digits
from ipu_course.published_resnet50 import published_resnet50

torch.set_num_threads(1)
digits = mnist(train=True, images=1024)

# %% [markdown]
# ## Write an all-reduce in a ring
#
# A **replica** is a copy of the whole program, with its own weights, on IPUs of its own. Each replica trains on other
# samples. Before every weight update, all of them need the same gradient, the sum over all replicas. (PopTorch then
# divides it, for the mean.) This step is called an **all-reduce**.
#
# If each replica simply sent its gradient to all the others, each of 64 would send it 63 times.
#
# **Predict:** what is the least that each of 64 replicas has to send, as a multiple of the size of its gradient?

# %% tags=["prediction"]
sent = lesson.predict("times the size of its gradient that each of 64 replicas sends", ...)

# %%
sent.reveal(bytes_sent(ring_steps(64), replicas=64, size=1.0))
show.drawing(ring_all_reduce(replicas=4),
             "Sums grow while they travel round the ring, and then the complete sums travel on.")

# %% [markdown]
# Each gradient is cut into as many parts as there are replicas. In the **reduce-scatter**, a replica adds what arrives
# to its own part. In the **all-gather**, it stores what arrives.
#
# **Exercise 1** (9 min). Write `all_reduce(held, pass_on)` for any number of replicas. `held[r][i]` is part `i` of
# replica `r`'s gradient, and afterwards it must be the sum over all replicas. `pass_on(parts)` takes one tensor from
# each replica and returns what each receives: `received[r]` was sent by replica `r - 1`. The check compares your result
# with the plain sum, and counts what each replica sends.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def all_reduce(held, pass_on):
### STARTER:     n = len(held)
### STARTER:     for step in range(n - 1):  # reduce-scatter
### STARTER:         ...
### STARTER:     for step in range(n - 1):  # all-gather
### STARTER:         ...
def all_reduce(held, pass_on):
    n = len(held)
    for step in range(n - 1):  # reduce-scatter
        received = pass_on([held[r][(r - step) % n] for r in range(n)])
        for r in range(n):
            held[r][(r - 1 - step) % n] += received[r]
    for step in range(n - 1):  # all-gather
        received = pass_on([held[r][(r + 1 - step) % n] for r in range(n)])
        for r in range(n):
            held[r][(r - step) % n] = received[r]
### END SOLUTION
lesson.check(1, all_reduce)

# %% [markdown] tags=["hint"]
# In step 0, let replica `r` send part `r`. It then receives part `r - 1`, and that is what it sends in step 1. After
# the reduce-scatter, replica `r` has the complete sum of part `r + 1`. Use `% n` to stay in the ring.

# %% [markdown] tags=["solution"]
# Each replica sends one n-th of its gradient in each of 2 (n - 1) steps. That is less than twice its size, however many
# replicas there are. ResNet-50 has 51 MB of gradients in half precision, so each of 16 replicas sends
# 96 MB.

# %% [markdown]
# ## Count with replicas and instances
#
# * **Global batch**, the samples of one weight update: micro-batch x accumulation x replicas.
# * **Rows of a call**, which the loader gives: the same, times the device iterations.
# * **Results of a call**: the last micro-batch of *each* replica, by default.
# * **Memory**: every replica holds everything. Replicas make no room.
#
# Replicas need one option. Is training with four replicas of 8 x 2 digits really the same as with a batch of 64?

# %%
def train(data):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.replicationFactor(4)
    options.Training.gradientAccumulation(2)
    network = Digits()  # the same first weights every time
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))
    loader = poptorch.DataLoader(options, data, batch_size=8)
    for images, labels in loader:
        _, loss = model(images, labels)
    model.copyWeightsToHost()
    model.detachFromDevice()
    return list(network.parameters()), images.shape, loss.shape

weights, rows, losses = train(digits)
print("rows of a call:", rows[0], "- losses that come back:", losses[0])

# %%
def same(some, others):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(some, others))

network = Digits()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for images, labels in torch.utils.data.DataLoader(digits, batch_size=64):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network.layers(images), labels).backward()
    optimizer.step()
print("the same weights as with 4 replicas?", same(weights, network.parameters()))
print("trained at all?", not same(weights, Digits().parameters()))

# %% [markdown]
# It is the same. Replicas make the batch larger, so what [lesson 02](02) says about large batches holds: there are
# fewer updates, and SGD needs a learning rate in proportion to the batch, with a warm-up [2]. (Batch normalisation
# still sees one micro-batch.)
#
# An **instance** is a process on the host. A run may have several, each with its own loader and some of the replicas.
# In its options, `replicationFactor` counts the replicas of *this* instance.
#
# **Exercise 2** (4 min). A run has micro-batch 20, accumulation 10, 4 device iterations, and 64 replicas in 32
# instances. Find the global batch, the rows in one item of an instance's loader, how many calls each instance makes in
# an epoch of 1,281,167 images, and the learning rate, if 0.1 is right for SGD with 256 images.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: global_batch = ...
### STARTER: rows_per_item = ...
### STARTER: calls = ...
### STARTER: learning_rate = ...
global_batch = 20 * 10 * 64
rows_per_item = 20 * 10 * 4 * 2
calls = 1_281_167 // (rows_per_item * 32)
learning_rate = 0.1 * global_batch / 256
### END SOLUTION
lesson.check(2, global_batch, rows_per_item, calls, learning_rate)

# %% [markdown] tags=["hint"]
# Which replicas share one update? Which of them does one loader feed? How many loaders share the images?

# %% [markdown] tags=["solution"]
# All 64 replicas share an update: 20 x 10 x 64 = 12,800 images. One loader feeds 2 of them for 4 device iterations:
# 20 x 10 x 4 x 2 = 1,600 rows. All 32 instances take 51,200 images in a call, and the epoch has 25 full calls. The
# batch is 50 times 256, so the rate is 50 times 0.1.

# %% [markdown]
# ## Start instances with poprun, and find three silent mistakes
#
# Why several processes? One process can only load so much: in the workshop, 8 IPUs fed by one process were 1.4 times as
# fast as 2, not 4 times [3]. `poprun` starts a program several times, and tells each instance which replicas are
# its own. Below, two instances with two replicas each train on the 1,024 digits with this program:
#
# ```python
# def train(network):
#     options = make_options()  # popdist.poptorch.Options() with accumulation 2
#     optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
#     model = poptorch.trainingModel(network, options, optimizer)
#     loader = poptorch.DataLoader(options, mnist(train=True, images=1024), batch_size=8)
#     losses = [model(images, labels)[1].mean().item() for images, labels in loader]
#     model.copyWeightsToHost()
#     model.detachFromDevice()
#     return losses
# ```
#
# **Exercise 3** (3 min). This is a bug hunt. The same run then makes three mistakes, one at a time, and all of them
# train without an error. The second table shows what each does. Which mistake is it?
#
# * A: the loader has `shuffle=True`.
# * B: each instance sets a seed of its own before it makes its network.
# * C: the options are plain `poptorch.Options()`.
# * D: the loader has `auto_distributed_partitioning=False`.

# %% tags=["exercise"]
run = run_poprun(
    "poprun --num-replicas 4 --num-instances 2 python -m ipu_course.instances.distributed_digits")
print(run.problem or "no instance failed")
show.table(run.rows[:4], index="fact")
show.table(run.rows[4:], index="fact")
### BEGIN SOLUTION
### STARTER: mistakes = ...  # three letters in the order of the table, such as "A B C"
mistakes = "C D B"
### END SOLUTION
lesson.check(3, mistakes)

# %% [markdown] tags=["hint"]
# How many rows does one item have for one replica, and for two? Which digits does each instance load?

# %% [markdown] tags=["solution"]
# 1. Plain options know the instances but not the replicas, so each instance has one: 8 x 2 x 1 = 16 rows. Half of the
#    IPUs have nothing to do. Use `popdist.poptorch.Options()`.
# 2. Every instance loads all digits. PyTorch's own loader would do the same.
# 3. Weights that differ at first still differ after equal updates, so each instance trains a network of its own with
#    an average of gradients from both. Use one seed, or `hvd.broadcast_parameters(network.state_dict(), root_rank=0)`.

# %% [markdown]
# **Exercise 4** (8 min). Write `instance(network, data)`, which prepares one instance and returns `(model, loader)`:
# micro-batch 8, accumulation 2, SGD with a rate of 0.1. All instances must begin with the weights of instance 0. The
# check starts your function with `poprun` as above, and each instance has other first weights. (Horovod, `hvd`, is a
# library for communication between processes.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def instance(network, data):
### STARTER:     import horovod.torch as hvd  # popdist.init() and hvd.init() are already called
### STARTER:     import popdist.poptorch
### STARTER:     ...
def instance(network, data):
    import horovod.torch as hvd  # popdist.init() and hvd.init() are already called
    import popdist.poptorch
    options = popdist.poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
    model = poptorch.trainingModel(network, options, optimizer)
    return model, poptorch.DataLoader(options, data, batch_size=8)
### END SOLUTION
lesson.check(4, instance)

# %% [markdown] tags=["hint"]
# Begin with the body of `train` above. Which line does `poprun` make wrong, and which line is missing?

# %% [markdown] tags=["solution"]
# `replicationFactor` has to go: the options of popdist refuse it, because `poprun` decides. Broadcast before the model
# is compiled. `poptorch.DataLoader` finds this instance's part of the data in the options.

# %% [markdown]
# ## Read a scaling curve
#
# Here is a full-size PopTorch program with the settings that were submitted to MLPerf [1]: ResNet-50 on photographs of
# 224 x 224 pixels, one IPU for each replica, micro-batch 20, half precision, bytes as input, and recomputation. (The
# submission used TensorFlow, and LARS instead of SGD.) The POD16's run has accumulation 10, the POD64's 3.

# %%
program = published_resnet50()
show_scaling(program)

# %% [markdown]
# From 1 to 4 replicas both lines fall, because the all-reduce appears and the IPUs share a host link. But more replicas
# are not the problem: from 16 to 64, neither line falls by more than about 1 %, because the ring's bytes hardly grow.
# With accumulation 10, 64 replicas are 3.99 times as fast as 16 (modelled); the published runs differ by 3.66 times
# (derived), because the lines are 9 to 10 % apart. **Efficiency** is the rate divided by that of perfect scaling.
#
# ## Find out what limits you
#
# So far, loading has cost nothing. Now assume that a core decodes and crops a photograph in 2 ms while the IPUs work.
# (Measure yours, as in lesson 05.) Which is the bottleneck: workers, processes, cores, or what an update does once?

# %%
lesson.explore(program)

# %% [markdown]
# **Exercise 5** (7 min). Give every 2 replicas an instance with 8 workers, and find in the explorer:
#
# * the smallest number of `hosts` with which 64 replicas have an efficiency above 90 % (accumulation 16);
# * the largest number of `replicas` above 90 % at a constant global batch, when one replica has accumulation 64.
#
# Then find the missing second. An update of *G* micro-batches takes *G m + u*: the all-reduce, the update itself and
# the start of a call are in *u*, once per update. The POD16's update of 10 micro-batches took **107.9 ms**, the POD64's
# of 3 took **35.4 ms** (derived from [1]). **Assume** that both machines have the same *m* and *u*. How many
# milliseconds are they?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: hosts = ...
### STARTER: replicas = ...
### STARTER: m = ...
### STARTER: u = ...
hosts = 4
replicas = 8
m = (107.9 - 35.4) / (10 - 3)
u = 35.4 - 3 * m
### END SOLUTION
lesson.check(5, hosts, replicas, m, u)

# %% [markdown] tags=["hint"]
# Watch the column of the bottleneck. For *m*: what do 7 more micro-batches cost? Then *u* is what is left of 35.4 ms.

# %% [markdown] tags=["solution"]
# 64 replicas need about 120,000 images a second, and a host of 64 cores loads 32,000. *m* = 10.36 ms and *u* = 4.33 ms:
# 12 % of 35.4 ms, but 4 % of 107.9 ms. With accumulation 10 the POD64 would also take 107.9 ms per update, which makes
# 10.8 s per epoch. But then an update has 12,800 images instead of 3,840.

# %% [markdown]
# **Where does scaling stop?** The guide looks at the host first [4]. Scaling stops
#
# 1. at the **host**, until you start more instances and use more hosts;
# 2. at **u**, when learning does not allow a larger batch. With 3,840 images, 192 replicas have one micro-batch each.
#    **Amdahl's law** says it in general: with a constant share *s* of the time, *R* replicas are at most
#    1 / (*s* + (1 - *s*) / *R*) times as fast;
# 3. at the **memory**, because code grows with the replicas: for BERT-Large, from 1 to 4 replicas, control code grows
#    by 25 MB and internal exchange code by 18 MB. Global exchange code grows from 1.0 to 4.7 MB, which the guide calls
#    negligible (published [4]);
# 4. at the **links**, because racks of 64 IPUs are joined by slower ones.
#
# The halves of your ring have a second use: replicated tensor sharding ([lesson 08](08)). Between reduce-scatter and
# all-gather, each replica updates only its part of the weights, so it needs only that part of the optimiser's state.
# The bytes sent are the same.
#
# ## Summary
#
# * A ring all-reduce sends less than twice the gradient, whatever the number of replicas.
# * Global batch: micro-batch x accumulation x all replicas. The weights are those of that batch in plain PyTorch.
# * Instances multiply loaders, and cores and hosts limit them. You have to make the first weights equal.
# * *u* is paid once per update. If both machines have the same *m* and *u*, the missing second is *u*, paid after 3
#   micro-batches instead of 10. (The published epochs are averages of whole runs, evaluation included.)
#
# **Takeaway:** ask what limits you before you add replicas.
#
# This is the end of part one. At its start you answered six questions. What do you answer now?

# %%
quiz.after("speed", ...)

# %% [markdown]
# `python -m ipu_course report` shows both answers, your predictions and your exercises.
#
# ## On real hardware
#
# The same `poprun` commands start the same programs on IPUs, on several hosts with `--host`. Leave out the first
# reported rate and average the rest. Every instance compiles, unless they share a cache (`--executable-cache-path`).
#
# ## What transfers
#
# `torchrun` with `DistributedDataParallel` does the same on GPUs, in rings, too, and broadcasts the first weights for
# you. `DistributedSampler` is the partition, `no_sync` the accumulation; ZeRO and FSDP share the state out.
#
# ## References
#
# 1. MLCommons, *[MLPerf Training v1.1 results](https://github.com/mlcommons/training_results_v1.1)*, Graphcore,
#    ResNet-50 on IPU-POD16 (43.19 s an epoch) and IPU-POD64.
# 2. Goyal et al., *[Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677)*, 2017.
# 3. IPU hands-on training workshop (2022), day 04, *Distributed data parallelism*: 5.6 and 7.8 thousand images a
#    second.
# 4. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.3, 4.7 and 7.
#
# **Next:** You know how to make programs fast, and `python -m ipu_course bench` lets you ask the same questions about
# the benchmark page's programs. Part two begins with what fills a tile.
