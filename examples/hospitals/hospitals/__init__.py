"""Four hospitals learn together who has a heart disease, and can forget a hospital or single patients."""

from flower_unlearning_names import refuse_shadows

refuse_shadows()  # first of all: says so where a module of yours hides one of flower-unlearning's packages
