from unlearning.testing import *
