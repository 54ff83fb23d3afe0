from unlearning.methods.updates import *
