"""Parts of share.py for PyTorch, CuPy, Numba and JAX. Each runs in a process of its own."""

import hashlib
import json
import os
import subprocess
import time

from share_steps import MIB, dd, dump, equal, gives_eio, patch, step

import resident


def use_torch(mount, options):
    import torch

    device = torch.device("cuda", options.ordinal)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)  # the context
    source = options.source
    with open(source, "rb") as file:
        content = file.read()
    path = f"{mount}/torch"
    dd(source, path, "bs=1M")
    mapping = resident.map(path)
    view = mapping.view("int32")

    def expected(offset, count):
        part = content[4 * offset : 4 * (offset + count)]
        return [int.from_bytes(part[i : i + 4], "little", signed=True) for i in range(0, len(part), 4)]

    @step("from_dlpack: the same memory, the same bytes")
    def _():
        tensor = torch.from_dlpack(view)
        equal(tensor.data_ptr(), mapping.address)
        equal((tuple(tensor.shape), tensor.dtype), ((len(content) // 4,), torch.int32))
        equal(tensor[1000:1016].tolist(), expected(1000, 16))
        equal(hashlib.sha256(tensor.cpu().numpy().tobytes()).digest(), hashlib.sha256(content).digest())
        return str(tensor.device)

    @step("as_tensor (CUDA Array Interface): the same memory")
    def _():
        tensor = torch.as_tensor(view, device=device)
        equal(tensor.data_ptr(), mapping.address)
        equal(tensor[-4:].tolist(), expected(len(content) // 4 - 4, 4))

    @step("a kernel's writes are read from the file after synchronize")
    def _():
        tensor = torch.from_dlpack(mapping.view("uint8"))
        for i in range(20):
            tensor[1 * MIB : 3 * MIB].fill_(i + 1)
            torch.cuda.synchronize()
            equal(dump(path, 2 * MIB, 16), bytes([i + 1]) * 16)

    @step("the file's writes are seen by kernels after fsync")
    def _():
        tensor = torch.from_dlpack(mapping.view("uint8"))
        descriptor = os.open(path, os.O_WRONLY)
        for i in range(20):
            os.pwrite(descriptor, bytes([i + 100]) * MIB, 3 * MIB + 77)
            os.fsync(descriptor)
            equal(int((tensor[3 * MIB + 77 : 4 * MIB + 77] == i + 100).sum()), MIB)
        os.pwrite(descriptor, b"\x07" * 100, 50)
        mapping.sync()
        equal(int(tensor[50:150].sum()), 700)
        os.close(descriptor)

    @step("tensors keep the memory, the last one unmaps")
    def _():
        dd(source, f"{mount}/torch_kept", "bs=1M", "count=2")
        with resident.map(f"{mount}/torch_kept") as kept:
            tensor = torch.from_dlpack(kept.view())
            other = torch.as_tensor(kept.view(), device=device)
            del kept
        equal(tensor[:8].tolist(), list(content[:8]))

        def shared():
            with open(f"{mount}/.resident/buffers") as file:
                return any(f"{os.getpid()}:" in line for line in file if "torch_kept" in line)

        del tensor
        equal(shared(), True)
        del other
        equal(shared(), False)

    @step("bfloat16, float8 and read-only views", observe=True)
    def _():
        found = [str(torch.from_dlpack(mapping.view("bfloat16")).dtype)]
        for name, take in (
            ("float8_e4m3fn", lambda: torch.from_dlpack(mapping.view("float8_e4m3fn")).dtype),
            ("read-only, DLPack", lambda: torch.from_dlpack(
                resident.map(path, read_only=True).view("int32"))[1000:1002].tolist()
                == expected(1000, 2)),
            ("read-only, array interface", lambda: torch.as_tensor(
                resident.map(path, read_only=True).view("int32"), device=device)[1000:1002].tolist()
                == expected(1000, 2)),
        ):
            try:
                found.append(f"{name}: {take()}")
            except Exception as error:
                found.append(f"{name}: {type(error).__name__}: {error}")
        return "; ".join(found)

    @step("safetensors: streamed in by cp, a product as on the CPU")
    def _():
        generator = torch.Generator().manual_seed(3)
        a = torch.randn(512, 1024, generator=generator).half()
        b = torch.randn(1024, 256, generator=generator)
        parts = [("a", "F16", a), ("b", "F32", b)]
        header, data = {}, b""
        for name, dtype, tensor in reversed(parts):
            raw = tensor.numpy().tobytes()
            header[name] = {"dtype": dtype, "shape": list(tensor.shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        local, there = f"{options.scratch}/model.safetensors", f"{mount}/model.safetensors"
        with open(local, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)
        subprocess.run(["cp", local, there], check=True)
        with resident.safetensors(there) as tensors:
            x, y = torch.from_dlpack(tensors["a"]), torch.from_dlpack(tensors["b"])
            equal(x.data_ptr(), tensors.mapping.address + 8 + len(text) + header["a"]["data_offsets"][0])
            product = (x.float() @ y).cpu()
        wanted = a.float() @ b
        worst = float((product - wanted).abs().max() / wanted.abs().max())
        if not worst < 1e-2:  # TF32 may be on
            raise AssertionError(f"off by {worst}")
        return f"relative difference {worst:.1e}"

    @step("two tensors of one block of the allocator are attached: read, patched")
    def _():
        a = torch.arange(25600, dtype=torch.float32, device=device)
        b = torch.arange(25600, dtype=torch.float32, device=device) + 7
        torch.cuda.synchronize()
        first = resident.attach(f"{mount}/tensor_a", a)
        second = resident.attach(f"{mount}/tensor_b", b)
        equal(os.stat(f"{mount}/tensor_a").st_size, 102400)
        equal(dump(f"{mount}/tensor_a", 4, 8), bytes.fromhex("0000803f00000040"))  # 1.0, 2.0
        equal(dump(f"{mount}/tensor_b", 0, 4), bytes.fromhex("0000e040"))  # 7.0
        patch(f"{mount}/tensor_a", 12, bytes.fromhex("00004842"))  # 50.0
        equal((a * 2)[2:5].tolist(), [4.0, 100.0, 8.0])
        b.mul_(2)
        torch.cuda.synchronize()
        equal(dump(f"{mount}/tensor_b", 0, 4), bytes.fromhex("00006041"))  # 14.0
        first.detach()
        equal(gives_eio(f"{mount}/tensor_a"), True)
        equal(dump(f"{mount}/tensor_b", 0, 4), bytes.fromhex("00006041"))
        second.detach(unlink=True)
        os.unlink(f"{mount}/tensor_a")
        return f"{abs(b.data_ptr() - a.data_ptr())} bytes apart"

    @step("a parameter that requires a gradient, and a bfloat16 tensor, are attached")
    def _():
        weight = torch.nn.Parameter(torch.ones(300, device=device))
        half = torch.ones(16, dtype=torch.bfloat16, device=device)
        torch.cuda.synchronize()
        with resident.attach(f"{mount}/weight", weight), resident.attach(f"{mount}/half", half):
            equal(dump(f"{mount}/weight", 0, 4), bytes.fromhex("0000803f"))
            equal(dump(f"{mount}/half", 0, 4), bytes.fromhex("803f803f"))

    @step("sha256sum of a file while a kernel fills another mapped one")
    def _():
        hashed, filled = f"{mount}/hashed", f"{mount}/filled"
        piece, count = content, 64 if options.real else 4
        digest = hashlib.sha256()
        with open(hashed, "wb", buffering=0) as file:
            for _ in range(count):
                file.write(piece)
                digest.update(piece)
        with open(filled, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 256 * MIB if options.real else 8 * MIB)
        with resident.map(filled) as other:
            tensor = torch.from_dlpack(other.view("int32"))
            start = time.monotonic()
            process = subprocess.Popen(["sha256sum", hashed], stdout=subprocess.PIPE, text=True)
            rounds = 0
            while process.poll() is None:
                rounds += 1
                tensor.fill_(rounds)
                torch.cuda.synchronize()
            seconds = time.monotonic() - start
            equal(process.stdout.read().split()[0], digest.hexdigest())
            for offset in (0, tensor.numel() * 4 - 4):
                equal(int.from_bytes(dump(filled, offset, 4), "little"), rounds)
            del tensor
        return f"{count * len(piece) >> 20} MiB in {seconds:.2f} s, filled {rounds} times"

    @step("memory of the device is given back", observe=True)
    def _():
        before = torch.cuda.mem_get_info(device)[0]
        for _ in range(100):
            with resident.map(path) as again:
                torch.from_dlpack(again.view("int32"))[0].item()
        return f"{(before - torch.cuda.mem_get_info(device)[0]) >> 10} KiB less after 100 mappings"


def use_torch_expandable(mount, options):
    import torch

    device = torch.device("cuda", options.ordinal)

    @step("expandable_segments: attaching a tensor", observe=True)
    def _():
        from share_steps import Driver

        small = torch.arange(1000, dtype=torch.int32, device=device)
        large = torch.arange(30 * MIB, dtype=torch.int32, device=device)
        torch.cuda.synchronize()
        driver = Driver(options.ordinal)
        found = []
        for name, tensor in (("small", small), ("large", large)):
            said = driver.describe(tensor.data_ptr())
            try:
                with resident.attach(f"{mount}/expandable_{name}", tensor):
                    good = dump(f"{mount}/expandable_{name}", 4, 4) == b"\1\0\0\0"
                    last = dump(f"{mount}/expandable_{name}", 4 * tensor.numel() - 4, 4)
                    good = good and int.from_bytes(last, "little") == tensor.numel() - 1
                found.append(f"{name}: {'works' if good else 'WRONG BYTES'} ({said})")
            except resident.Error as error:
                found.append(f"{name}: {error} ({said})")
        return "; ".join(found)


def use_cupy(mount, options):
    import cupy

    cupy.cuda.Device(options.ordinal).use()
    with open(options.source, "rb") as file:
        content = file.read()
    path = f"{mount}/cupy"
    dd(options.source, path, "bs=1M")
    mapping = resident.map(path)
    view = mapping.view("uint32", (-1, 256))

    for name, take in (("asarray", cupy.asarray), ("from_dlpack", cupy.from_dlpack)):

        @step(f"{name}: the same memory, the same bytes")
        def _(take=take):
            array = take(view)
            equal((array.data.ptr, array.shape), (mapping.address, (len(content) // 1024, 256)))
            equal(cupy.asnumpy(array).tobytes() == content, True)

    @step("a kernel's writes are read from the file")
    def _():
        array = cupy.asarray(mapping.view("uint8"))
        array[4096:8192] = 7
        array[4096:8192] *= 6
        cupy.cuda.Device(options.ordinal).synchronize()
        equal(dump(path, 4090, 12)[6:], bytes([42]) * 6)

    @step("an array is attached")
    def _():
        array = cupy.arange(1000, dtype=cupy.int32)
        cupy.cuda.Device(options.ordinal).synchronize()
        with resident.attach(f"{mount}/cupy_array", array):
            equal(dump(f"{mount}/cupy_array", 4 * 258, 4), bytes([2, 1, 0, 0]))

    @step("a read-only view", observe=True)
    def _():
        read_only = resident.map(path, read_only=True).view("uint8")
        found = [f"asarray {cupy.asnumpy(cupy.asarray(read_only)[:2]).tobytes() == content[:2]}"]
        try:
            array = cupy.from_dlpack(read_only)
            found.append(f"from_dlpack {cupy.asnumpy(array[:2]).tobytes() == content[:2]}")
        except Exception as error:
            found.append(f"from_dlpack: {type(error).__name__}: {error}")
        return ", ".join(found)


def use_numba(mount, options):
    from numba import cuda

    cuda.select_device(options.ordinal)
    path = f"{mount}/numba"
    dd(options.source, path, "bs=1M", "count=1")
    with open(options.source, "rb") as file:
        content = file.read(MIB)
    mapping = resident.map(path)
    state = {}

    @step("as_cuda_array: the same memory, the same bytes")
    def _():
        array = state["array"] = cuda.as_cuda_array(mapping.view("uint32"))
        equal(array.__cuda_array_interface__["data"][0], mapping.address)
        equal(array.copy_to_host().tobytes() == content, True)

    @step("a kernel's writes are read from the file")
    def _():
        @cuda.jit
        def invert(array):
            i = cuda.grid(1)
            if i < array.size:
                array[i] ^= 0xFFFFFFFF

        array = state["array"]
        try:
            invert[(array.size + 255) // 256, 256](array)
        except AttributeError as error:
            # A numba that its numpy is too new for: it copies, but compiles nothing.
            array.copy_to_device(array.copy_to_host() ^ 0xFFFFFFFF)
            told = f"by a copy: {error}"
        else:
            told = None
        cuda.synchronize()
        equal(dump(path, MIB - 8, 8), bytes(byte ^ 0xFF for byte in content[-8:]))
        return told


def use_jax(mount, options):
    import jax
    import jax.dlpack
    import jax.numpy as jnp
    import numpy

    path = f"{mount}/jax"
    dd(options.source, path, "bs=1M", "count=1")
    with open(options.source, "rb") as file:
        content = file.read(MIB)
    mapping = resident.map(path)

    @step("dlpack.from_dlpack: the same memory, the same bytes")
    def _():
        view = mapping.view("uint32", (512, 512))
        array = jax.dlpack.from_dlpack(view)
        equal(numpy.asarray(array).tobytes() == content, True)
        equal(array.unsafe_buffer_pointer(), mapping.address)
        wanted = int(numpy.frombuffer(content, "<u4").astype(numpy.uint32).sum(dtype=numpy.uint32))
        equal(int(jnp.sum(array, dtype=jnp.uint32)), wanted)
        return str(array.device)

    @step("a view within the file", observe=True)
    def _():
        view = mapping.view("float32", (64,), offset=400)
        array = jax.dlpack.from_dlpack(view)
        kept = array.unsafe_buffer_pointer() == view.address
        return f"{'the same memory' if kept else 'a copy'} at offset 400"

    @step("an array is attached", observe=True)
    def _():
        array = jnp.arange(1000, dtype=jnp.int32)
        array.block_until_ready()
        with resident.attach(f"{mount}/jax_array", array):
            equal(dump(f"{mount}/jax_array", 4 * 258, 4), bytes([2, 1, 0, 0]))
        return "works"


PARTS = {
    "torch": use_torch,
    "torch_expandable": use_torch_expandable,
    "cupy": use_cupy,
    "numba": use_numba,
    "jax": use_jax,
}
