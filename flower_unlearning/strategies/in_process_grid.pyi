from strategies.in_process_grid import *
