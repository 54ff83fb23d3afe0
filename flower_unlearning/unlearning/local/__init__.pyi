from unlearning.local import *
