from unlearning.evaluation import *
