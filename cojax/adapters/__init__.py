"""Our systems for other libraries. Each module needs its own library and nobody else's:

    cojax.adapters.gymnasium           Env, VectorEnv; gymnasium.make("cojax/ConverseArm-v0", n=4)
    cojax.adapters.stable_baselines3   VecEnv: thousands of environments in one compiled call
    cojax.adapters.five_values         for learners written for gymnax before 1.0, such as rejax
    cojax.adapters.brax                Env
    cojax.adapters.dm_env              Environment

Gymnasium comes with cojax. Where another library is not installed, importing the module raises
InputError, one line.
"""
