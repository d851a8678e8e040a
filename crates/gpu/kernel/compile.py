#!/usr/bin/env python3
"""Compiles the kernel with NVRTC, without a GPU or a driver, and prints the registers and the stack
frame that it needs on Hopper. WEIR_NVRTC is the path of libnvrtc.so. With a second argument the PTX
goes to that file."""
import ctypes
import os
import struct
import sys


def compile_for(library, source, architecture):
    """The program, for a real architecture (sm_) as a cubin, for a virtual one (compute_) as PTX."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source, b"aes_gcm.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=" + architecture, b"--std=c++17")
    code = library.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if code:
        sys.exit(log.value.decode())
    kind = b"CUBIN" if architecture.startswith(b"sm_") else b"PTX"
    getattr(library, f"nvrtcGet{kind.decode()}Size")(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind.decode()}")(program, image)
    return image.raw


def attributes(cubin):
    """Registers and stack frame of the kernel, from the ELF sections that the driver reads."""
    sections, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    header = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections + i * size) for i in range(count)]
    name = lambda at: cubin[header[names][4] + at:].split(b"\0", 1)[0]
    found = {}
    for entry in header:
        start, length = entry[4], entry[5]
        if name(entry[0]) == b".nv.info":
            at = start
            while at < start + length:
                form, attribute, value = struct.unpack_from("<BBH", cubin, at)
                at += 4
                if form == 4:
                    # A symbol and its value: EIATTR_FRAME_SIZE, EIATTR_REGCOUNT.
                    if attribute in (0x11, 0x2F):
                        found["stack" if attribute == 0x11 else "registers"] = struct.unpack_from("<II", cubin, at)[1]
                    at += value
    return found


library = ctypes.CDLL(os.environ["WEIR_NVRTC"])
text = open(sys.argv[1], "rb").read()
made = attributes(compile_for(library, text, b"sm_90"))
ptx = compile_for(library, text, b"compute_90").rstrip(b"\0")
if len(sys.argv) > 2:
    open(sys.argv[2], "wb").write(ptx)
print(*(f"{key}={value}" for key, value in made.items()), f"ptx={len(ptx)}")
