# %% [markdown]
# # Asynchronous data loading: load while the IPUs work
#
# *Plan 50 minutes, 15 of them for the exercises; the notebook itself runs in under one. Before it:
# lesson 04.*
#
# After lesson 04 the host still takes longer to load a call's images than the IPUs to train on them, and each
# waits for the other. In this lesson they work at the same time. You will
#
# * read who waits for whom in a timeline,
# * load ahead in another process,
# * predict the throughput from two times,
# * follow the bottleneck, and find the next one,
# * choose a buffer,
# * measure a really asynchronous loader on your machine,
# * guard the main module, and see what happens without.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.async_data_loading.number_stream import NumberStream, divides_itself
from ipu_course.lessons.async_data_loading.slow_images import SlowImages
from ipu_course.lessons.async_data_loading.checks import check_arguments, check_keep, check_rates
from ipu_course.lessons.async_data_loading import calls_timed
from ipu_course.lessons.async_data_loading.safe_script import run_scripts
from ipu_course.lessons.async_data_loading.explorer import explore_loading
from ipu_course.lesson import Lesson
from ipu_course.views.call import call_parts

# %% [markdown]
# ## Read the timeline
#
# The hands-on's program after lesson 04: ResNet-101 on two IPUs, 2,048 uint8 images in one **call** of the
# training model. `DataLoaderMode.Sync` is the default: the program loads, then calls, then loads again.
# In the modelled timeline, "load" is the host's work on the images; "call" is the call on the host, within
# which the device works. Host costs are fitted on the published epochs, as lesson 04 explains.

# %%
lesson = Lesson("05")
torch.set_num_threads(1)
options = poptorch.Options()
options.deviceIterations(4)
options.Training.gradientAccumulation(8)

model = torchvision.models.resnet101()
model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # from here on: the second IPU
model = models.ClassifierWithLoss(model, models.NormaliseOnDevice(torch.float16)).half()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
                                 first_order_momentum_accum_type=torch.float16)
program = engine.modelled_module(model, ladder.micro_batch(torch.uint8), options, optimizer)
sync = program and program.profile(host=ladder.host(eight_bit_io=True))
show.host_and_device(sync)

# %% [markdown]
# While the host loads, the IPUs have nothing to do, and the other way round. With `DataLoaderMode.Async`,
# another process loads the next call's images while this call runs.
#
# **Predict:** how many images a second will the program train on then? With Sync, 1.77 calls a second were
# published [1], which are 3,625 images.

# %%
guess = lesson.predict("images a second with asynchronous loading", ...)

background = program and program.profile(host=ladder.host(eight_bit_io=True, asynchronous=True))
published_rate = 2048 / ladder.published("asynchronous loading").seconds_per_call
guess.reveal(background.samples_per_second if background else None, "modelled, host costs fitted",
             f"{published_rate:,.0f}, from 2.75 calls a second (mean of epochs 2 to 5) [1]")
show.host_and_device(background)

# %% [markdown]
# Now the IPUs' work is hidden behind the loading. They still wait: the slower of the two sets the pace.
#
# ## Load ahead
#
# `poptorch.DataLoader` has three modes:
#
# * **Sync**: PyTorch's own loading. `num_workers` adds PyTorch's worker processes, which load ahead as well.
# * **Async**: one process iterates over the data and writes each call's data into a ring of slots in shared
#   memory. It may have workers itself.
# * **AsyncRebatched**: as Async, but the workers give pieces, and the process joins them into full calls.
#
# The items are the same, in the same order. Whatever the mode, call `terminate()` when you are done, also after
# an error: `finally` does that.

# %%
tidy = poptorch.Options()
tidy.showCompilationProgressBar(False)  # keeps this page tidy
images = colour_shapes(train=True, images=100)

expected = torch.arange(100).view(10, 10) % 10  # the labels go round
for mode in poptorch.DataLoaderMode:
    loader = poptorch.DataLoader(tidy, images, batch_size=10, mode=mode)
    try:
        same = all(torch.equal(labels, want) for (_, labels), want in zip(loader, expected))
        print(f"{mode.name:14}: {len(loader)} items, in the same order? {same}")
    finally:
        loader.terminate()

# %% [markdown]
# What is left over? `drop_last=True` is PopTorch's default (PyTorch's is `False`): an incomplete last call is
# dropped, because a compiled program takes full calls only. If several workers stream *different* parts of an
# iterable data set, each drops its own rest. Re-batching joins the rests first. Here 44 numbers, two workers,
# calls of 8:

# %%
rows = []
for mode in (poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched):
    loader = poptorch.DataLoader(tidy, NumberStream(44), batch_size=8, num_workers=2, mode=mode,
                                 worker_init_fn=divides_itself)
    try:
        items = [item.clone() for item in loader]
    finally:
        loader.terminate()
    rows.append({"mode": mode.name, "calls": len(items), "numbers used": sum(len(item) for item in items)})
show.table(rows, index="mode")

# %% [markdown]
# Now a trap. Collect all items of an asynchronous loader in a list, and look at their first labels. The
# data set has eight items, which begin with the labels 0, 8, 6, 4, 2, 0, 8, 6.

# %%
loader = poptorch.DataLoader(tidy, colour_shapes(train=True, images=64), batch_size=8,
                             mode=poptorch.DataLoaderMode.Async,
                             async_options={"buffer_size": 3, "load_indefinitely": False})
try:
    collected = [labels for _, labels in loader]
finally:
    loader.terminate()
print("right:    ", [0, 8, 6, 4, 2, 0, 8, 6])
print("collected:", [int(labels[0]) for labels in collected])

# %% [markdown]
# The loader only **lends** its tensors. They are views of the three slots, and a later item overwrites them.
# In a training loop you never notice: each item is used before the next arrives.
#
# **Exercise 1** (4 min). Write a function `keep` of one tensor, so that `[keep(labels) for _, labels in loader]`
# is right.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: keep = ...
keep = torch.clone
### END SOLUTION
check_keep(keep)

# %% [markdown] tags=["hint"]
# Which tensor methods copy the data always, and which only sometimes or never?

# %% [markdown] tags=["solution"]
# `clone()` copies. `detach()`, `view()` and `numpy()` share the memory; `to()` and `contiguous()` copy only
# when they have something to change. Results of the model are new tensors: they need no copy.

# %% [markdown]
# ## Predict the throughput
#
# Two times are enough. *L* is the time to load one call's data, *C* the time of the call itself (on host
# and device).
#
# * Sync: a call every *L + C*, so the rate is *images / (L + C)*.
# * Async: a call every *max(L, C)*, so the rate is *images / max(L, C)*.
# * *w* workers that share the work evenly, with enough cores: *images / max(L / w, C)*.
#
# Async at most doubles the rate, exactly where *L = C*. Far from there it gains little.

# %%
def rates(load, call):  # seconds of one call of 2,048 images
    return {"Sync": 2048 / (load + call), "Async": 2048 / max(load, call)}

if sync:
    host_ms = [0.01, 0.02, 0.05, 0.1, 0.18, 0.4, 0.8]
    computed = [rates(2048 * ms / 1000, call_parts(sync).rest) for ms in host_ms]
    points = {"13 s": (0.18, 2048 / ladder.published("8-bit I/O").seconds_per_call), "8 s": (0.18, published_rate)}
    figures.show(figures.curves_figure(
        host_ms, {mode: [each[mode] for each in computed] for mode in ("Sync", "Async")},
        "host, milliseconds an image", "images a second", "Closed form: rates of the hands-on's program",
        log_x=True, from_zero=True, marked=points),
        "Images a second against the host's time an image. Async stays flat up to about 0.1 ms, then falls; Sync falls "
        "from the start. Both published points [1], 13 and 8 s an epoch, lie near their lines at 0.18 ms.")
    print(f"Async at 0.18 ms, modelled / closed form: {background.samples_per_second / computed[4]['Async']:.3f}")

# %% [markdown]
# **Exercise 2** (6 min). Another program: 1,000 images a call, 0.5 ms each to load, 180 ms for the call itself.
# How many images a second with Sync, with Async, and how many workers are at least needed until the IPUs
# no longer wait for data?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: sync_rate = ...
### STARTER: async_rate = ...
### STARTER: workers = ...
sync_rate = 1000 / (0.5 + 0.18)
async_rate = 1000 / max(0.5, 0.18)
workers = 3
### END SOLUTION
check_rates(sync_rate, async_rate, workers)

# %% [markdown] tags=["hint"]
# *L* = 1,000 x 0.5 ms = 0.5 s, *C* = 0.18 s. For the workers: *L / w* must not be above *C*.

# %% [markdown] tags=["solution"]
# 1,471 and 2,000 images a second. Two workers need 250 ms, still more than 180; three need 167.

# %% [markdown]
# ## Follow the bottleneck
#
# The last step of the ladder, then a look ahead: loader workers. **No published run had workers**; those rows
# are a what-if, and assume that workers share the work perfectly. "Limited by" comes from the model: "stage 0" is
# the IPU with the first part of the network.

# %%
lesson.show_ladder("asynchronous loading")
if program:
    rows = []
    for workers in (0, 2, 4, 8):
        profile = program.profile(host=ladder.host(eight_bit_io=True, asynchronous=True, workers=workers))
        rows.append({"workers (what if)": workers, "load, ms a call": f"{1000 * call_parts(profile).load:.0f}",
                     "all but loading, ms": f"{1000 * call_parts(profile).rest:.0f}",
                     "an epoch": f"{ladder.epoch_seconds(profile):.1f} s", "limited by": profile.limited_by})
    show.table(rows, index="workers (what if)")

# %% [markdown]
# With two workers the bottleneck moves from the host to the IPUs, if only just: compare the two columns of times. It
# stays there, and more workers change nothing. From now on, only a faster call helps: more IPUs, or less work on
# them. Then the host may limit again.
#
# ## Choose a buffer
#
# If every load takes equally long, two slots are enough: one in use, one being filled. A buffer helps when
# loads are **uneven**: a large file, a slow disk. `async_options` sets it: `buffer_size` slots (3 by default, the
# one in use included), `early_preload=True` fills them before training begins, and `load_indefinitely=True` (the
# default) goes on with the next epoch by itself. Slots cost host memory.
#
# The explorer computes from times that you set. Find a setting with uneven loads in which 3 slots are
# too few and 8 are enough. What does a buffer of one slot do?

# %%
explore_loading()

# %% [markdown]
# **Exercise 3** (5 min). Write the arguments of a loader that runs in another process, holds the data of 8 calls,
# fills its slots before the first epoch asks, and does not begin another epoch by itself.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: arguments = ...
arguments = {
    "mode": poptorch.DataLoaderMode.Async,
    "async_options": {"buffer_size": 8, "early_preload": True, "load_indefinitely": False}}
### END SOLUTION
check_arguments(arguments)

# %% [markdown] tags=["hint"]
# Two keyword arguments: `mode`, and `async_options`, which is a dict itself.

# %% [markdown] tags=["solution"]
# `poptorch.DataLoader(options, data, batch_size=..., **arguments)` makes the loader. For a single test epoch,
# `load_indefinitely=False` saves the work for an epoch that never comes.

# %% [markdown]
# ## Measure it here
#
# No model now, but your machine. `SlowImages` sleeps 3 ms for each image, on purpose, so its loading costs no
# processor time. The call is a real training step on 16 images. The helper times call after call, stops at a
# time limit, and terminates the loader even when you interrupt the cell. If you close the kernel, the loader's
# process ends as well.

# %% tags=["nbval-ignore-output"]
model = models.WithLoss(models.SmallNetwork())
training_model = poptorch.trainingModel(model, tidy, poptorch.optim.SGD(model.parameters(), lr=0.01))
measured = {}
for name, milliseconds, mode in (("call alone", 0, "Sync"), ("Sync", 3, "Sync"), ("Async", 3, "Async")):
    slow = SlowImages(colour_shapes(train=True, images=192), milliseconds)
    loader = poptorch.DataLoader(tidy, slow, batch_size=16, mode=poptorch.DataLoaderMode[mode])
    measured[name] = calls_timed.milliseconds_per_call(loader, training_model, limit_seconds=20)
    print(f"{name:10}: {measured[name]:3.0f} ms a call, measured here")
load = 16 * 3
print(f"closed form: Sync {load + measured['call alone']:.0f} ms, Async {max(load, measured['call alone']):.0f} ms")

# %% [markdown]
# ## Guard the main module
#
# An asynchronous loader starts a new Python process (start methods *spawn* and *forkserver*). The new process
# imports your script once more, to find your classes. If the script makes the loader at its top level, the import
# would start another process, and so on. Python stops that with an error. The guard
# `if __name__ == "__main__":` prevents it.
#
# A notebook is not imported, so it needs no guard. But its classes cannot be found either: **data sets belong
# in a module**. Three scripts try all this beside the notebook, with a time limit.

# %%
script = """
import poptorch, torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([index])
def main():
    spawn = {"sharing_strategy": poptorch.SharingStrategy.SharedMemory}
    loader = poptorch.DataLoader(poptorch.Options(), Numbers(), batch_size=4, mode=poptorch.DataLoaderMode.Async,
                                 async_options=spawn)
    print(len(list(loader)), "items")
    loader.terminate()
"""
guarded = script + "if __name__ == '__main__': main()"
for name, end in run_scripts({"no guard": script + "main()", "guard": guarded}, {"notebook": guarded}).items():
    print(f"{name}: {end.verdict}\n")

# %% [markdown]
# ## Summary
#
# * Sync takes *L + C* a call, Async *max(L, C)*, workers *max(L / w, C)*.
# * The hands-on went from 13 to 8 s, and its host still limits; in the what-if, two workers end that.
# * An asynchronous loader lends its tensors: clone what you keep.
# * A buffer evens out uneven loads. It does not make a slow loader faster.
# * Guard scripts, put data sets into modules, terminate loaders.
#
# **Find the slower of loading and call before you speed up either.**
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# The same cells run with the Poplar SDK. Time an empty loop over your loader and compare it with a training
# epoch: nearly equal means that the host limits. PopVision's System Analyser shows both on one axis.
#
# ## What transfers
#
# PyTorch's `num_workers`, `prefetch_factor` and `persistent_workers` do the same for GPUs, with the same guard.
# `tf.data`'s `prefetch` is a buffer, too. And *max* instead of *sum* is the reason for every pipeline.
#
# ## References
#
# 1. IPU hands-on training workshop, day 03, *Memory and Performance Optimisation on the IPU* (2022), sections
#    8-bit I/O and Asynchronous Data Loading.
# 2. Graphcore, *[Efficient data batching](https://docs.graphcore.ai/projects/poptorch-user-guide/en/latest/batching.html)*,
#    PopTorch user guide: `DataLoader` and `AsynchronousDataAccessor`.
#
# **Next:** [lesson 06](06_pipelining_mnist.ipynb), pipelining.
