from unlearning.parameters import *
