# An agent is bad. Is it the critic, the gradient, or a part of the state space?
cojax train ppo --fixture arm-n2-p0.80-s7 --seeds 1 --timesteps 4096 --set learning_rate=0.03 --keep-learners --out bad
cojax diagnose bad --trials 16 --steps 64 --out why.png
