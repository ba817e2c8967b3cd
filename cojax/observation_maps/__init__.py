"""Known maps of what a learner sees: o = m(s). The state, V*, π* and every gap stay what they are.

    m = sines(labels)               θ ↦ (sin θ, cos θ), in its place; the rest as it is
    m = linear(C), rotation(d)      C s, C of full column rank
    m = scaled(c), warped(c)        c_i s_i, c_i tanh(s_i/c_i)
    m = lifted(d, k)                tanh(W s/c), k > d, W with orthogonal columns
    m = chained(m_1, m_2, …)        m_1 first

    env = cojax.envs.observed(env, m)                   # a learner sees m(s)
    run = cojax.train("ppo", params, key, env=env)
    cojax.evaluate(seen_through(run.policy, m), params)       # gap on the problem as it is

Maps are static: frozen, hashable, of Python's numbers, and equal ones share a compilation.
``lossless`` says whether m is injective on all states, ``lossless_on(s)`` whether floats keep s:
s = ``inverse(m(s))`` there, up to rounding.
"""

from cojax.observation_maps.making import chained as chained
from cojax.observation_maps.making import lifted as lifted
from cojax.observation_maps.making import linear as linear
from cojax.observation_maps.making import rotation as rotation
from cojax.observation_maps.making import scaled as scaled
from cojax.observation_maps.making import seen_through as seen_through
from cojax.observation_maps.making import sines as sines
from cojax.observation_maps.making import warped as warped
from cojax.observation_maps.maps import Chained as Chained
from cojax.observation_maps.maps import Lifted as Lifted
from cojax.observation_maps.maps import Linear as Linear
from cojax.observation_maps.maps import ObservationMap as ObservationMap
from cojax.observation_maps.maps import Scaled as Scaled
from cojax.observation_maps.maps import Sines as Sines
from cojax.observation_maps.maps import Warped as Warped
