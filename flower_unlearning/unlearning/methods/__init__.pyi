from unlearning.methods import *
