"""The programs whose hardware measurements are published, rebuilt from their descriptions.

Each function that ends in `_program` returns a `Program`; the ids are those of `data/published.toml`.

==========================================  ==============================================================
``resnet.day03_program(...)``               ResNet-101 on CIFAR-10, two IPUs (day03)
``resnet.small_resnet50_program()``         ResNet-50 in fp32 on eight images, two IPUs (small)
``resnet.mlperf_program(...)``              ResNet-50 training, POD16 (mlperf)
``resnet.mlperf_pod64_program()``           the same on a POD64 (B1)
``resnet.mlperf_bow_pod64_program()``       the same on a Bow Pod64 (B2)
``resnet.user_guide_program()``             ResNet-50 training with PyTorch on 16 Bow IPUs (B3, F3)
``resnet.bow_training_program()``           ResNet-50 training at micro-batch 22 (F3)
``resnet.resnet50_inference_program(n)``    ResNet-50 inference, one C600: B4 to B7, F1, F2 with ``dtype=FLOAT``
``vision.vit_inference_program(n)``         ViT-B/16 inference, one C600 (B8, B9)
``bert.bert_base_program()``                BERT-Base pretraining, 16 Bow IPUs (B11)
``bert.bert_large_program()``               BERT-Large pretraining with packed sequences, 16 Bow IPUs (B12)
``vision.vit_program()``                    ViT-B/16 pretraining, 16 Bow IPUs (B13)
``vision.swin_program()``                   Swin-T training in fp32, 16 Bow IPUs (B14)
``vision.efficientnet_program()``           EfficientNet-B4 training, 16 Bow IPUs (B15)
``bert.bert_inference_program(n)``          BERT-Base inference in fp32, one C600 (F4)
``digits.digits_program()``                 the pipelining tutorial over four IPUs (mnist)
``digits.digits_inference_program()``       its test program
==========================================  ==============================================================
"""

from ipu_model.validate.programs.bert import bert_base_program, bert_inference_program, bert_large_program
from ipu_model.validate.programs.building import FLOAT, HALF, Classifier, begin_block
from ipu_model.validate.programs.digits import digits_inference_program, digits_program
from ipu_model.validate.programs.resnet import (
    bow_training_program,
    day03,
    day03_program,
    mlperf_bow_pod64_program,
    mlperf_pod64_program,
    mlperf_program,
    mlperf_resnet50,
    resnet50_inference_program,
    small_resnet50_program,
    user_guide_program,
)
from ipu_model.validate.programs.vision import (
    efficientnet_program,
    swin_program,
    vit_inference_program,
    vit_program,
)

__all__ = [
    "FLOAT",
    "HALF",
    "Classifier",
    "begin_block",
    "bert_base_program",
    "bert_inference_program",
    "bert_large_program",
    "bow_training_program",
    "day03",
    "day03_program",
    "digits_inference_program",
    "digits_program",
    "efficientnet_program",
    "mlperf_bow_pod64_program",
    "mlperf_pod64_program",
    "mlperf_program",
    "mlperf_resnet50",
    "resnet50_inference_program",
    "small_resnet50_program",
    "swin_program",
    "user_guide_program",
    "vit_inference_program",
    "vit_program",
]
