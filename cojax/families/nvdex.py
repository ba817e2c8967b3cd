"""NVDEx: nonholonomic vehicles with dynamic extension (paper, Section VI-C).

Each of K modules has s_i = [x, y, φ, v⁽⁰⁾ … v⁽ʳᵛ⁻¹⁾, ω⁽⁰⁾ … ω⁽ʳʷ⁻¹⁾] and two accelerations, which
enter at the top of the chains: G = τ there, 0 elsewhere. S_ν(s) applies, module by module and in
this order, G(x, y; φ), G(v⁽⁰⁾, ω⁽⁰⁾; α tanh(κ v⁽⁰⁾ω⁽⁰⁾)), then G(x, v⁽⁰⁾; ·) and G(y, ω⁽⁰⁾; ·) by
α_xy tanh(κ φ). The angles are those of s; the rotations act on (P - Q)^{1/2} s.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import errors, linalg
from cojax.geometry import Knob
from cojax.initial import Ring
from cojax.linalg import rotate
from cojax.quadratic import Geometry


class Preset(NamedTuple):
    """One of the authors' four difficulty settings; the sigmas are variances."""

    p: float
    alpha: float
    kappa: float
    sigma_pose: float
    sigma_v: float
    sigma_w: float
    rho_target: float


PRESETS = {
    "easy": Preset(0.5, 0.04, 0.20, 0.0, 1e-4, 3e-5, 1.001),
    "medium": Preset(0.8, 0.06, 0.23, 0.0, 2e-4, 1e-5, 1.002),
    "hard": Preset(1.0, 0.07, 0.27, 1e-12, 3e-4, 2e-5, 1.004),
    "insane": Preset(1.0, 0.08, 0.30, 1e-6, 5e-4, 5e-5, 1.005),
}


@struct.dataclass
class NVDEx(Geometry):
    """Geometry of K vehicle modules. Positions in metres, angles in radians, τ in seconds.

    Attributes:
        alpha: α, gain of the coupling between the velocities.
        kappa: κ, how soon the couplings saturate.
        alpha_xy: gain of the cross-coupling of pose and velocity; 0 turns it off.
        tau: τ, sampling step.
        K: modules.
        r_v, r_omega: depths of the chains of v and ω.
    """

    alpha: Knob = 0.04
    kappa: Knob = 0.2
    alpha_xy: Knob = 0.3
    tau: Knob = 0.1
    K: int = struct.field(pytree_node=False, default=1)
    r_v: int = struct.field(pytree_node=False, default=1)
    r_omega: int = struct.field(pytree_node=False, default=1)

    family = "NVDEx"
    dimensions = ("K", "r_v", "r_omega")
    settings = ("preset",)
    gains = ("alpha", "alpha_xy")  # of the rotations
    horizon = 700
    positive = ("tau",)
    target = "rho_target"
    target_check = "spectral_radius"
    ranges: ClassVar = {
        "p": {"uniform": [0.4, 1.0]},
        "alpha": {"uniform": [0.02, 0.1]},
        "kappa": {"uniform": [0.1, 0.4]},
        "R": {"log_uniform": [0.1, 0.4]},
        "rho_target": {"uniform": [1.001, 1.005]},
        "Sigma": {"std": {"log_uniform": [1e-3, 3e-2]}, "correlation": 0.0},
    }
    constant_input = True
    one_row_each = True

    @property
    def module_dim(self) -> int:
        """3 + r_v + r_ω."""
        return 3 + self.r_v + self.r_omega

    @property
    def state_dim(self):
        """K (3 + r_v + r_ω)."""
        return self.K * self.module_dim

    @property
    def action_dim(self):
        """2K."""
        return 2 * self.K

    def actuate(self, s, a):
        """G a: τ a on the tops of the chains."""
        a = self.tau * a.reshape(self.K, 2)
        zero = jnp.zeros((self.K, 1), a.dtype)
        columns = [zero] * self.module_dim
        columns[2 + self.r_v], columns[-1] = a[:, :1], a[:, 1:]
        return jnp.concatenate(columns, axis=1).reshape(-1)

    def actuate_transpose(self, s, v):
        """Gᵀ v: τ times the tops of the chains."""
        v = v.reshape(self.K, self.module_dim)
        return self.tau * jnp.stack([v[:, 2 + self.r_v], v[:, -1]], axis=1).reshape(-1)

    def rotate(self, s, x, p):
        """S_ν(s) x, three planar rotations and one pair a module."""
        s, x = s.reshape(self.K, -1), x.reshape(self.K, -1)
        phi, v0, w0 = s[:, 2], s[:, 3], s[:, 3 + self.r_v]
        parts = [x[:, i] for i in range(self.module_dim)]
        v, w = 3, 3 + self.r_v
        parts[0], parts[1] = rotate(parts[0], parts[1], phi)
        parts[v], parts[w] = rotate(parts[v], parts[w], self.alpha * jnp.tanh(self.kappa * v0 * w0))
        cross = self.alpha_xy * jnp.tanh(self.kappa * phi)
        parts[0], parts[v] = rotate(parts[0], parts[v], cross)
        parts[1], parts[w] = rotate(parts[1], parts[w], cross)
        return jnp.stack(parts, axis=1).reshape(-1)

    def input_norm(self):
        """|G|₂ = τ."""
        return abs(float(self.tau))

    def noise_order(self):
        """The chains of every module, then the poses."""
        rows = np.arange(self.state_dim).reshape(self.K, -1)
        return tuple(int(i) for i in np.concatenate([rows[:, 3:].ravel(), rows[:, :3].ravel()]))

    @classmethod
    def defaults(cls, **given):
        """As the authors have it in one of their presets, ``easy`` unless told: p, knobs, noise and
        ``rho_target``; weights 2 on poses and 1 on velocities, R = 0.4 I before it is scaled.
        """
        preset = PRESETS[errors.one_of("preset", given.get("preset", "easy"), PRESETS)]
        chains = given["r_v"], given["r_omega"]
        sigmas = (preset.sigma_pose, preset.sigma_v, preset.sigma_w)
        values = preset._asdict()
        return {
            "P": np.tile(np.repeat([2.0, 1.0], [3, sum(chains)]), given["K"]),
            "R": 0.4,
            "Sigma": np.tile(np.repeat(sigmas, (3, *chains)), given["K"]),
            **{name: values[name] for name in ("p", "alpha", "kappa", "rho_target")},
        }

    def tune(self, P, R, *, gamma, p, target):
        """R scaled by 0.6 until ϱ_base = ϱ(H^{-1/2}P^{1/2}) > 1.01 ϱ_target, and
        β = 1 - (ϱ_target/ϱ_base)²: the drift at the origin has that radius (paper, Section VI-C).
        Raises ValueError where no scale of R reaches the target.
        """
        P_full, P_root = linalg.to_full(P), linalg.to_full(linalg.sqrt_psd(P))
        for _ in range(60):
            D = self.constant_D(p, linalg.inverse_spd(R))
            M = np.linalg.inv(P_full) / gamma + linalg.to_full(D)
            base = float(np.abs(np.linalg.eigvals(linalg.sqrt_psd(M) @ P_root)).max())
            if base > 1.01 * target:
                return R, 1.0 - (target / base) ** 2
            R = 0.6 * R
        raise errors.InputError(
            f"rho_target: no scale of R reaches {target:g}; expected a smaller radius"
        )

    def picture(self):
        """Vehicles in the plane."""
        return "vehicles", {"num": self.K, "module_dim": self.module_dim}

    @classmethod
    def setting(cls, id):
        """The preset: the third word of what ships."""
        return next((word for word in id.split("-")[2:3] if word.isalpha()), "")

    def initial_law(self, dtype=None):
        """The authors' law: a ring of radius 0.12, φ ~ N(0, 0.06²), v and ω ~ N(0, 0.05²)."""
        return Ring(
            radius=jnp.asarray(0.12, dtype),
            inner=jnp.asarray(0.6, dtype),
            heading_std=jnp.asarray(0.06, dtype),
            velocity_std=jnp.asarray(0.05, dtype),
            modules=self.K,
            r_v=self.r_v,
            r_omega=self.r_omega,
        )
