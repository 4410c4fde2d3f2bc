"""GPU memory of residentfs files for PyTorch, CuPy, Numba, JAX and others, without a copy.

    import resident, torch

    with resident.map("/mnt/vram/weights") as mapping:
        weights = torch.from_dlpack(mapping.view("float16", (4096, 4096)))

    tensors = resident.safetensors("/mnt/vram/model.safetensors")
    embedding = torch.from_dlpack(tensors["model.embed_tokens.weight"])

    with resident.attach("/mnt/vram/activations", some_cuda_tensor):
        ...             # xxd, cmp, dd and sha256sum work on the live tensor

Views follow the DLPack protocol (``torch.from_dlpack``, ``cupy.from_dlpack``,
``jax.dlpack.from_dlpack``) and the CUDA Array Interface (``cupy.asarray``, ``torch.as_tensor``,
``numba.cuda.as_cuda_array``). What was written through the file is seen by kernels that start once
the writer's fsync or close has returned, or after Mapping.sync(). What a kernel wrote is seen by
reads of the file that begin when its work has been synchronised.

Nothing here is compiled: it calls libresident, which is looked for where RESIDENT_LIBRARY says,
then in the folder of this package and in the one around it, then where the loader looks.
"""

from ._attachment import Attachment, attach
from ._library import Error
from ._mapping import Mapping, View, map
from ._safetensors import Tensors, safetensors

__all__ = ["Attachment", "Error", "Mapping", "Tensors", "View", "attach", "map", "safetensors"]
