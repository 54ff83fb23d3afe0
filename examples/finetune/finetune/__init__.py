"""A frozen network, and a head or a LoRA adapter on it that sites learn together and can forget."""

from flower_unlearning_names import refuse_shadows

refuse_shadows()  # first of all: says so where a module of yours hides one of flower-unlearning's packages
