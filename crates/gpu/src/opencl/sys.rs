//! The functions of OpenCL 1.2 that are needed, found in the ICD loader at run time.

use std::ffi::{c_char, c_void};

use libloading::Library;

use crate::DeviceError;

/// Any object of OpenCL.
pub(super) type Handle = *mut c_void;
type Code = i32;
type Callback = Option<unsafe extern "C" fn()>;

pub(super) const DEVICE_TYPE_GPU: u64 = 1 << 2;
pub(super) const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
pub(super) const DEVICE_TYPE: u32 = 0x1000;
pub(super) const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub(super) const DEVICE_NAME: u32 = 0x102b;
pub(super) const DRIVER_VERSION: u32 = 0x102d;
pub(super) const PROGRAM_BUILD_LOG: u32 = 0x1183;
pub(super) const EVENT_STATUS: u32 = 0x11d3;
pub(super) const COMPLETE: i32 = 0;
pub(super) const MEM_READ_WRITE: u64 = 1;
pub(super) const MEM_ALLOC_HOST_PTR: u64 = 1 << 4;
pub(super) const MAP_READ_WRITE: u64 = 3;
pub(super) const TRUE: u32 = 1;
pub(super) const FALSE: u32 = 0;

const LIBRARY: &str = "libOpenCL.so.1";

macro_rules! functions {
    ($($name:ident($($arg:ty),*) -> $result:ty;)*) => {
        /// The loader and its functions.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
            /// Dropped last: the functions are in it.
            _library: Library,
        }

        impl Api {
            pub(super) fn load() -> Result<Self, DeviceError> {
                let missing = |error: libloading::Error| {
                    DeviceError::NoLibrary { library: LIBRARY, why: error.to_string() }
                };
                // SAFETY: the initialisers of the ICD loader need nothing of this process.
                let library = unsafe { Library::new(LIBRARY) }.map_err(missing)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the types are those of the headers of OpenCL 1.2.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(missing)?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    clGetPlatformIDs(u32, *mut Handle, *mut u32) -> Code;
    clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> Code;
    clGetDeviceInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Code;
    clCreateContext(*const isize, u32, *const Handle, Callback, *mut c_void, *mut Code) -> Handle;
    clReleaseContext(Handle) -> Code;
    clCreateCommandQueue(Handle, Handle, u64, *mut Code) -> Handle;
    clReleaseCommandQueue(Handle) -> Code;
    clCreateProgramWithSource(Handle, u32, *const *const c_char, *const usize, *mut Code) -> Handle;
    clBuildProgram(Handle, u32, *const Handle, *const c_char, Callback, *mut c_void) -> Code;
    clGetProgramBuildInfo(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> Code;
    clReleaseProgram(Handle) -> Code;
    clCreateKernel(Handle, *const c_char, *mut Code) -> Handle;
    clSetKernelArg(Handle, u32, usize, *const c_void) -> Code;
    clReleaseKernel(Handle) -> Code;
    clCreateBuffer(Handle, u64, usize, *mut c_void, *mut Code) -> Handle;
    clReleaseMemObject(Handle) -> Code;
    clEnqueueMapBuffer(
        Handle, Handle, u32, u64, usize, usize, u32, *const Handle, *mut Handle, *mut Code
    ) -> *mut c_void;
    clEnqueueUnmapMemObject(Handle, Handle, *mut c_void, u32, *const Handle, *mut Handle) -> Code;
    clEnqueueWriteBuffer(
        Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle
    ) -> Code;
    clEnqueueFillBuffer(
        Handle, Handle, *const c_void, usize, usize, usize, u32, *const Handle, *mut Handle
    ) -> Code;
    clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle) -> Code;
    clEnqueueNDRangeKernel(
        Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle
    ) -> Code;
    clGetEventInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Code;
    clWaitForEvents(u32, *const Handle) -> Code;
    clReleaseEvent(Handle) -> Code;
    clFlush(Handle) -> Code;
    clFinish(Handle) -> Code;
}
