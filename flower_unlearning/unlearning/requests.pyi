from unlearning.requests import *
