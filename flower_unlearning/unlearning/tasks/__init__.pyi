from unlearning.tasks import *
