"""The exercises on data parallelism: a ring all-reduce, counting, a program for poprun, and what limits scaling."""

from __future__ import annotations

from ipu_course.exercises import Exercise, Number, Numbers
from ipu_course.lessons.data_parallelism.instance_trial import instance_hint
from ipu_course.lessons.data_parallelism.mistakes import mistakes_hint
from ipu_course.lessons.data_parallelism.ring import ring_hint
from ipu_course.lessons.data_parallelism.scaling import POD16, POD64
from ipu_course.published_resnet50 import ACCUMULATION, MICRO_BATCH

# Exercise 2: a submission's micro-batch and accumulation, on 64 replicas in 32 instances, 4 device iterations.
ITERATIONS, REPLICAS, INSTANCES, IMAGES = 4, 64, 32, 1_281_167
LOCAL = REPLICAS // INSTANCES
GLOBAL_BATCH = MICRO_BATCH * ACCUMULATION * REPLICAS
ROWS = MICRO_BATCH * ACCUMULATION * ITERATIONS * LOCAL
CALLS = IMAGES // (ROWS * INSTANCES)
KNOWN_BATCH, KNOWN_RATE = 256, 0.1
RATE = KNOWN_RATE * GLOBAL_BATCH / KNOWN_BATCH

# Exercise 5: the updates of the two published runs have 10 and 3 micro-batches, and take so many milliseconds.
STEP_16, STEP_64 = 1000 * POD16.seconds, 1000 * POD64.seconds
MANY, FEW = POD16.accumulation, POD64.accumulation
M = (STEP_16 - STEP_64) / (MANY - FEW)
U = STEP_64 - FEW * M
# Modelled, in the explorer: 1, 2 or 4 hosts for 64 replicas; replicas that share out 64 micro-batches.
HOSTS, EFFICIENT_REPLICAS = 4, 8

RING = Exercise(
    names=("all_reduce",),
    find_hint=ring_hint,
    praise="All replicas hold the plain sum, and each sent 2 (n - 1) / n times its gradient, with 4 replicas and "
    "with 3. No all-reduce can send less.",
)

COUNTS = Numbers(
    Number(
        "global_batch",
        GLOBAL_BATCH,
        wrong={
            GLOBAL_BATCH * ITERATIONS: "Each device iteration is a weight update of its own. Device iterations make "
            "a call larger, but not the batch.",
            GLOBAL_BATCH // INSTANCES: "You counted the replicas of one instance. All replicas share the update, "
            "whichever process they belong to.",
            GLOBAL_BATCH // ACCUMULATION: "Each replica accumulates 10 micro-batches before the all-reduce, so the "
            "accumulation counts.",
            GLOBAL_BATCH * INSTANCES: "64 is the number of replicas of all instances together.",
            MICRO_BATCH * ACCUMULATION: "That is what one replica sees before an update.",
        },
        otherwise="The global batch is micro-batch x accumulation x all replicas.",
    ),
    Number(
        "rows_per_item",
        ROWS,
        wrong={
            ROWS * INSTANCES: "Those are the rows of all instances. Each has a loader of its own, which feeds only "
            "its own replicas.",
            ROWS // ITERATIONS: "A call runs 4 device iterations, and one item of the loader feeds all of them.",
            ROWS // LOCAL: "Those are the rows of one replica, and an instance has two.",
        },
        otherwise="An item has micro-batch x accumulation x device iterations x replicas of this instance rows.",
    ),
    Number(
        "calls",
        CALLS,
        wrong={
            IMAGES // ROWS: "That would be one instance that loads all images. Each of the 32 loads only its part.",
            IMAGES // GLOBAL_BATCH: "Those are weight updates. A call makes as many of them as device iterations.",
            CALLS + 1: "The last call would not be full, and the loader drops it: drop_last=True is the default.",
        },
        otherwise=f"How many full calls of all instances together are in {IMAGES:,} images?",
    ),
    Number(
        "learning_rate",
        RATE,
        wrong={
            KNOWN_RATE: "With the rate unchanged, 50 times fewer updates would each go as far as before.",
            KNOWN_RATE * REPLICAS: "You multiplied by the replicas. The rule looks at the batch: 256 images before, "
            "and how many now?",
            KNOWN_RATE * GLOBAL_BATCH * ITERATIONS / KNOWN_BATCH: "Device iterations do not make the batch larger.",
            KNOWN_RATE * 50**0.5: "The square root is the usual rule for Adam. For SGD, the rate grows in proportion.",
            KNOWN_RATE / 50: "A larger batch has less noise, so its steps may be longer, not shorter.",
        },
        otherwise="The rate grows in proportion to the batch: 0.1 belongs to 256 images.",
        tolerance=0.005,
    ),
    praise="All replicas share an update, a loader feeds the two replicas of its instance, and the 32 loaders share "
    "the epoch. A rate of 5 is so high that such runs need a warm-up and, as in MLPerf, another optimiser (LARS).",
)

MISTAKES = Exercise(
    names=("mistakes",),
    find_hint=mistakes_hint,
    praise="None of the three raises an error, and in all three the loss falls. Only such facts give them away.",
)

INSTANCE = Exercise(
    names=("instance",),
    find_hint=instance_hint,
    praise="poprun started your function in two processes. Their weights agree, and they equal those of plain "
    "PyTorch with batches of 64.",
)

LIMITS = Numbers(
    Number(
        "hosts",
        HOSTS,
        wrong={
            1: "With one host, the efficiency stays at 24 %: its 64 cores decode 32,000 images a second at most.",
            2: "Two hosts reach 49 %. Look at the column of the bottleneck.",
            3: "The slider offers 1, 2 and 4 hosts.",
            64: "Did you enter the cores of a host? The question is how many hosts.",
        },
        otherwise="Move the slider of the hosts with 64 replicas, an instance for every 2 and 8 workers each.",
    ),
    Number(
        "replicas",
        EFFICIENT_REPLICAS,
        wrong={
            1: "More are possible. Does one process load for all replicas? Give every 2 an instance with 8 workers.",
            2: "More are possible. Does one process load for all replicas? Give every 2 an instance with 8 workers.",
            4: "4 are efficient, but so are more.",
            16: "16 replicas reach 88 %, which is below 90 %.",
            32: "That is below 90 %. Is the switch for the constant global batch on, and the accumulation 64?",
            64: "That is below 90 %. Is the switch for the constant global batch on, and the accumulation 64?",
        },
        otherwise="Switch the constant global batch on, set the accumulation to 64, and move the replicas.",
    ),
    Number(
        "m",
        M,
        wrong={
            STEP_16 / MANY: "That spreads u over the micro-batches. Use both runs: what do 7 more micro-batches cost?",
            STEP_64 / FEW: "That spreads u over the micro-batches. Use both runs: what do 7 more micro-batches cost?",
            STEP_16 - STEP_64: "That is the time of 7 micro-batches.",
            M / 1000: "That is in seconds. The exercise asks for milliseconds.",
        },
        otherwise="The runs differ by 7 micro-batches and by 107.9 - 35.4 ms.",
        tolerance=0.05,
    ),
    Number(
        "u",
        U,
        wrong={
            0: "Then 3 micro-batches would take 3/10 of the time of 10, or 32.4 ms. They take 35.4 ms.",
            STEP_64 - M: "You took off one micro-batch, and the update has 3.",
            STEP_64: "That is the whole update with 3 micro-batches. Take those off.",
        },
        otherwise="u is what is left of 35.4 ms without 3 micro-batches, and of 107.9 ms without 10.",
        tolerance=0.1,
    ),
    praise="The POD64 paid its 4.3 ms after every 3 micro-batches, which is 12 % of its time. The POD16 paid them "
    "after every 10, which is 4 %. If both machines have the same m and u, that is the missing second.",
)
