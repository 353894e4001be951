"""Problems, data and settings that mislead, each with what the library must say of it.

``python -m bilevelax.testing adversarial`` runs the table. A case that says something else, or nothing, has failed: no
wrong number in silence.
"""

from bilevelax.testing.adversarial.case import Case as Case
from bilevelax.testing.adversarial.case import said as said
from bilevelax.testing.adversarial.followers import FOLLOWERS
from bilevelax.testing.adversarial.inputs import INPUTS
from bilevelax.testing.adversarial.intervals import INTERVALS
from bilevelax.testing.adversarial.reports import REPORTS
from bilevelax.testing.adversarial.samplers import SAMPLERS

CASES: tuple[Case, ...] = (*INPUTS, *SAMPLERS, *FOLLOWERS, *REPORTS, *INTERVALS)
