from unlearning.methods.registry import *
