from strategies import *
