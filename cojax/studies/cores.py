"""Every core of a CPU as a device of its own. Imported and called before anything of gymnax."""

from __future__ import annotations

import os

import jax

from cojax import inputs

# Threads of XLA's pool on a CPU: each device holds one while it runs, and waits for others.
POOL = ("PJRT_NPROC", "NPROC")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_cores(num: int | None = None) -> None:
    """Make ``num`` CPU devices, or one a core, and a pool of threads large enough for them.

    Call it before JAX has looked at its devices, which importing gymnax makes it do; later, and
    where ``XLA_FLAGS`` or ``JAX_NUM_CPU_DEVICES`` says otherwise, it is without effect. It is
    without effect on accelerators.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" in flags or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    count = num or cores()
    for name in POOL:
        os.environ.setdefault(name, str(cores() + count))
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # the devices are there already
        return


def use_threads(num: int) -> None:
    """Give XLA ``num`` threads on a CPU; before JAX has looked at its devices, as ``use_cores``.

    One learner with networks of 64 is quickest with one: its operations take some ten microseconds,
    less than it takes to hand them to another thread.
    """
    for name in POOL:
        os.environ[name] = str(inputs.whole("threads", num, 1))


def pool() -> int:
    """Threads of XLA's pool on a CPU, as far as one can tell."""
    for name in POOL:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return cores()


def usable(devices: int) -> int:
    """How many CPU devices may run together: a pool without a thread to spare can lock up.

    Seen with jaxlib 0.10 on 2 cores: two devices, each multiplying matrices large enough to be
    split, wait for each other's threads for ever.
    """
    return devices if devices == 1 or pool() > devices else max(1, pool() - 1)
