from unlearning.errors import *
