# Is one setting better than another? Train both, and compare them on the same trials.
cojax train ppo --fixture arm-n2-p0.80-s7 --seeds 2 --timesteps 2048 --out old
cojax train ppo --fixture arm-n2-p0.80-s7 --seeds 2 --timesteps 2048 --set learning_rate=1e-3 --out new
cojax compare new old --policy ppo
# The same beside a controller, in one folder and under names of my own; then any two of them.
cojax evaluate --fixture arm-n2-p0.80-s7 --policy new=new@ppo --policy old=old@ppo --policy lqr --trials 64 --out both
cojax compare both --policy new --policy old --policy lqr
# Policies of two names in two folders.
cojax compare both old --policy new=ppo
