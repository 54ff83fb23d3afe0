from unlearning.methods.method import *
