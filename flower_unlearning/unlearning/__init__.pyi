from unlearning import *
