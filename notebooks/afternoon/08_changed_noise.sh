# Does a policy hold where there is more noise than it was trained with?
cojax derive arm-n2-p0.80-s7 --set Sigma=1e-5 --set horizon=64 --out noisy.yaml
cojax show noisy.yaml
cojax validate noisy.yaml
cojax train ppo --fixture noisy.yaml --seeds 1 --timesteps 512 --points 2 --set hidden=[8] --out trained
cojax evaluate --fixture noisy.yaml --policy lqr --policy zero --trials 8
