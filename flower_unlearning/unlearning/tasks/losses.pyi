from unlearning.tasks.losses import *
