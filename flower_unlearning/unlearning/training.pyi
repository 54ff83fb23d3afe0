from unlearning.training import *
