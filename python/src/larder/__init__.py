"""Says to a Larder mount what a program reads next, so that it is there when it is read.

A plan is a hint: on a folder that is no mount, or if the mount cannot take it, nothing happens and nothing fails. The
package starts no thread, and changes no sample, no order and no random state. `larder.torch` is for PyTorch.
"""

from ._files import files
from ._mount import MountInfo, mount_info
from ._plan import Plan

__all__ = ["MountInfo", "Plan", "files", "mount_info"]
