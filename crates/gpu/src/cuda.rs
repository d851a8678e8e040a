//! A device of CUDA, through the library of its driver.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::nvrtc;

use crate::packet::{LANES_PER_UNIT, WORK_GROUP};
use crate::{Device, DeviceError, KERNEL_SOURCE, KEY_WORDS, KeyWords, Launch, Shape};

/// Bytes of a key slot.
const KEY_BYTES: usize = 4 * KEY_WORDS;
/// Virtual architecture of the kernel: that of Hopper, which later GPUs run as well.
const ARCHITECTURE: &str = "compute_90";
/// Host memory that all contexts can use, and the device as well.
const HOST_FLAGS: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

fn failed(call: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| DeviceError::Call { call, code: error.0 as i64 }
}

/// Compiles the kernel to PTX, with the library NVRTC.
///
/// # Errors
/// No library, or an error of the compiler.
pub fn compile() -> Result<Vec<u8>, DeviceError> {
    // SAFETY: loads a library; its initialisers need nothing of this process.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary { library: "libnvrtc.so", why: "not found".to_owned() });
    }
    let options = nvrtc::CompileOptions { arch: Some(ARCHITECTURE), ..Default::default() };
    let ptx = nvrtc::compile_ptx_with_opts(KERNEL_SOURCE, options).map_err(|error| match error {
        nvrtc::CompileError::CompileError { log, .. } => {
            DeviceError::Compile { log: log.to_string_lossy().into_owned() }
        }
        other => DeviceError::Compile { log: format!("{other:?}") },
    })?;
    Ok(ptx.as_bytes().unwrap_or_default().to_vec())
}

/// A device with the kernel, shared by the rings that use it.
pub struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    module: sys::CUmodule,
    function: sys::CUfunction,
    lanes_at_once: usize,
    name: String,
}

// SAFETY: handles of the driver may be used from any thread on which their context is current;
// every function here sets it first.
unsafe impl Send for Cuda {}
// SAFETY: as above, and by several threads at a time.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens a device and loads the kernel: PTX or a cubin, or without one what [`compile`] makes.
    ///
    /// # Errors
    /// No driver, no such device, no compiler, or a failure of the driver.
    pub fn open(number: usize, image: Option<&[u8]>) -> Result<Arc<Self>, DeviceError> {
        // The functions of cudarc panic without the library: this must come first.
        // SAFETY: loads a library; its initialisers need nothing of this process.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoLibrary { library: "libcuda.so", why: "not found".to_owned() });
        }
        result::init().map_err(failed("cuInit"))?;
        let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
        if number >= usize::try_from(count).unwrap_or(0) {
            return Err(DeviceError::NoDevice { api: "CUDA", number });
        }
        let device = result::device::get(number as i32).map_err(failed("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(failed("cuDeviceGetName"))?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the device exists; the attribute is an integer.
        let units =
            unsafe { result::device::get_attribute(device, attribute) }.map_err(failed("cuDeviceGetAttribute"))?;
        let mut image = match image {
            Some(image) => image.to_vec(),
            None => compile()?,
        };
        // PTX is a string for the driver; a cubin has its length in it.
        image.push(0);
        // SAFETY: the device exists, and its primary context is released when this is dropped; the
        // image ends with a zero, and the driver copies what it needs of it.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(failed("cuDevicePrimaryCtxRetain"))?;
            let mut opened = Self {
                device,
                context,
                module: std::ptr::null_mut(),
                function: std::ptr::null_mut(),
                lanes_at_once: usize::try_from(units).unwrap_or(1) * LANES_PER_UNIT,
                name,
            };
            opened.enter()?;
            opened.module = result::module::load_data(image.as_ptr().cast()).map_err(failed("cuModuleLoadData"))?;
            opened.function = result::module::get_function(opened.module, c"aes_gcm".to_owned())
                .map_err(failed("cuModuleGetFunction"))?;
            Ok(Arc::new(opened))
        }
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the context that of the calling thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as this exists.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: rings have a reference to this; nothing uses the module any more. Nothing can be
        // done about a failure.
        unsafe {
            if self.enter().is_ok() && !self.module.is_null() {
                let _ = result::module::unload(self.module);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

struct Slot {
    stream: sys::CUstream,
    /// After the copy to the host.
    event: sys::CUevent,
    memory: *mut u8,
    device: sys::CUdeviceptr,
    in_flight: bool,
    /// A launch failed halfway: the device may still use the memory.
    lost: bool,
}

/// Parameters of the kernel, in its order and with its types.
struct Parameters {
    keys: sys::CUdeviceptr,
    memory: sys::CUdeviceptr,
    data: u32,
    tags: u32,
    packets: u32,
    lanes_shift: u32,
    key_slots: u32,
}

impl Parameters {
    /// Starts the kernel in `stream`.
    ///
    /// # Safety
    /// Function and stream must exist, their context must be current, and nothing else may use the
    /// memory of the launch before the kernel has ended.
    unsafe fn launch(&mut self, function: sys::CUfunction, stream: sys::CUstream) -> Result<(), DeviceError> {
        let lanes = (self.packets as usize) << self.lanes_shift;
        let groups = lanes.div_ceil(WORK_GROUP as usize) as u32;
        let mut parameters: [*mut c_void; 7] = [
            (&raw mut self.keys).cast(),
            (&raw mut self.memory).cast(),
            (&raw mut self.data).cast(),
            (&raw mut self.tags).cast(),
            (&raw mut self.packets).cast(),
            (&raw mut self.lanes_shift).cast(),
            (&raw mut self.key_slots).cast(),
        ];
        // SAFETY: as the caller guarantees; the call copies the parameters.
        unsafe { result::launch_kernel(function, (groups, 1, 1), (WORK_GROUP, 1, 1), 0, stream, &mut parameters) }
            .map_err(failed("cuLaunchKernel"))
    }
}

/// Slots of one ring on a CUDA device.
pub struct CudaRing {
    shared: Arc<Cuda>,
    shape: Shape,
    slots: Vec<Slot>,
    keys: sys::CUdeviceptr,
    control: sys::CUstream,
    /// The kernel reads and writes host memory; nothing is copied.
    zero_copy: bool,
}

// SAFETY: as `Cuda`.
unsafe impl Send for CudaRing {}

impl CudaRing {
    /// Allocates the memory of a ring. With `zero_copy` the kernel reads and writes the host memory
    /// of a slot over PCIe; otherwise it is copied to the device and back.
    ///
    /// # Errors
    /// An invalid shape, or a failure of the driver.
    pub fn new(shared: &Arc<Cuda>, shape: Shape, zero_copy: bool) -> Result<Self, DeviceError> {
        shape.check()?;
        shared.enter()?;
        let shared = Arc::clone(shared);
        let none = std::ptr::null_mut();
        let mut ring = Self { shared, shape, slots: Vec::new(), keys: 0, control: none, zero_copy };
        ring.control = stream()?;
        let bytes = shape.keys.max(1) * KEY_BYTES;
        // SAFETY: the memory is zeroed before anything reads it.
        unsafe {
            ring.keys = result::malloc_sync(bytes).map_err(failed("cuMemAlloc"))?;
            result::memset_d8_async(ring.keys, 0, bytes, ring.control).map_err(failed("cuMemsetD8Async"))?;
        }
        ring.wait_for_keys()?;
        for _ in 0..shape.slots {
            ring.add_slot()?;
        }
        Ok(ring)
    }

    fn add_slot(&mut self) -> Result<(), DeviceError> {
        let bytes = self.shape.slot_bytes();
        let none = std::ptr::null_mut();
        // Into the ring first, so that a failure further down releases it.
        self.slots.push(Slot {
            stream: none,
            event: none.cast(),
            memory: none.cast(),
            device: 0,
            in_flight: false,
            lost: false,
        });
        let Some(slot) = self.slots.last_mut() else { return Ok(()) };
        slot.stream = stream()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        slot.event = result::event::create(flags).map_err(failed("cuEventCreate"))?;
        // SAFETY: a slice of host memory must be initialised; that of the device is written by a
        // copy before the kernel reads it.
        unsafe {
            slot.memory = result::malloc_host(bytes, HOST_FLAGS).map_err(failed("cuMemHostAlloc"))?.cast();
            slot.memory.write_bytes(0, bytes);
            slot.device = if self.zero_copy {
                // With unified addresses, which every 64-bit system has, both sides have one.
                slot.memory as sys::CUdeviceptr
            } else {
                result::malloc_sync(bytes).map_err(failed("cuMemAlloc"))?
            };
        }
        Ok(())
    }

    fn wait_for_keys(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream exists.
        unsafe { result::stream::synchronize(self.control) }.map_err(failed("cuStreamSynchronize"))
    }

    fn key_at(&self, key: u32) -> Result<sys::CUdeviceptr, DeviceError> {
        let at = key as usize;
        if at < self.shape.keys { Ok(self.keys + (at * KEY_BYTES) as u64) } else { Err(DeviceError::Busy { slot: at }) }
    }

    /// Parameters of a launch that fits `slot`.
    fn parameters(&self, slot: usize, launch: &Launch) -> Parameters {
        Parameters {
            keys: self.keys,
            memory: self.slots[slot].device,
            data: (launch.data_at / 4) as u32,
            tags: (launch.tags_at / 4) as u32,
            packets: launch.packets as u32,
            lanes_shift: launch.lanes_shift,
            key_slots: self.shape.keys as u32,
        }
    }

    fn enqueue(&mut self, slot: usize, launch: &Launch) -> Result<(), DeviceError> {
        let (to_device, to_host) = (launch.to_device(), launch.to_host());
        let (function, copies) = (self.shared.function, !self.zero_copy);
        let mut parameters = self.parameters(slot, launch);
        let slot = &mut self.slots[slot];
        slot.in_flight = true;
        // SAFETY: the ranges are within the slot (`Launch::fits`), which nothing reads or writes
        // before the event; the stream runs all in order.
        unsafe {
            if copies {
                let from = std::slice::from_raw_parts(slot.memory.add(to_device.start), to_device.len());
                result::memcpy_htod_async(slot.device + to_device.start as u64, from, slot.stream)
                    .map_err(failed("cuMemcpyHtoDAsync"))?;
            }
            parameters.launch(function, slot.stream)?;
            if copies {
                let into = std::slice::from_raw_parts_mut(slot.memory.add(to_host.start), to_host.len());
                result::memcpy_dtoh_async(into, slot.device + to_host.start as u64, slot.stream)
                    .map_err(failed("cuMemcpyDtoHAsync"))?;
            }
            result::event::record(slot.event, slot.stream).map_err(failed("cuEventRecord"))
        }
    }

    /// Time of `launches` kernels over what the device has of a slot, without copies, in seconds.
    /// For measurements: what the kernel does not change is read again. Waits.
    ///
    /// # Errors
    /// A failure of the driver, or a slot in flight.
    pub fn time_kernel(&mut self, slot: usize, launch: &Launch, launches: usize) -> Result<f64, DeviceError> {
        if !self.is_done(slot)? || !launch.fits(&self.shape) {
            return Err(DeviceError::Busy { slot });
        }
        self.shared.enter()?;
        let (function, mut parameters) = (self.shared.function, self.parameters(slot, launch));
        let stream = self.slots[slot].stream;
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("cuEventCreate"));
        let (start, end) = (event()?, event()?);
        // SAFETY: as in `enqueue`; the events are destroyed after their last use.
        unsafe {
            result::event::record(start, stream).map_err(failed("cuEventRecord"))?;
            for _ in 0..launches {
                parameters.launch(function, stream)?;
            }
            result::event::record(end, stream).map_err(failed("cuEventRecord"))?;
            result::event::synchronize(end).map_err(failed("cuEventSynchronize"))?;
            let ms = result::event::elapsed(start, end).map_err(failed("cuEventElapsedTime"))?;
            for event in [start, end] {
                result::event::destroy(event).map_err(failed("cuEventDestroy"))?;
            }
            Ok(f64::from(ms) / 1e3)
        }
    }
}

/// A stream that does not wait for the default stream of the context, which is current.
fn stream() -> Result<sys::CUstream, DeviceError> {
    result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("cuStreamCreate"))
}

impl Device for CudaRing {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn lanes_at_once(&self) -> usize {
        self.shared.lanes_at_once
    }

    fn memory(&mut self, slot: usize) -> Result<&mut [u8], DeviceError> {
        if !self.is_done(slot)? {
            return Err(DeviceError::Busy { slot });
        }
        let slot = &mut self.slots[slot];
        slot.in_flight = false;
        // SAFETY: the memory has this length, was initialised, and the device has ended its use.
        Ok(unsafe { std::slice::from_raw_parts_mut(slot.memory, self.shape.slot_bytes()) })
    }

    fn launch(&mut self, slot: usize, launch: &Launch) -> Result<(), DeviceError> {
        if !self.is_done(slot)? || !launch.fits(&self.shape) {
            return Err(DeviceError::Busy { slot });
        }
        self.shared.enter()?;
        let outcome = self.enqueue(slot, launch);
        self.slots[slot].lost = outcome.is_err();
        outcome
    }

    fn is_done(&self, slot: usize) -> Result<bool, DeviceError> {
        let Some(slot) = self.slots.get(slot).filter(|slot| !slot.lost) else {
            return Err(DeviceError::Busy { slot });
        };
        if !slot.in_flight {
            return Ok(true);
        }
        self.shared.enter()?;
        // SAFETY: the event exists.
        match unsafe { result::event::query(slot.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(failed("cuEventQuery")(error)),
        }
    }

    fn wipe(&mut self, slot: usize, part: Range<usize>) -> Result<(), DeviceError> {
        if !self.is_done(slot)? || part.start > part.end || part.end > self.shape.slot_bytes() {
            return Err(DeviceError::Busy { slot });
        }
        if self.zero_copy || part.is_empty() {
            return Ok(());
        }
        self.shared.enter()?;
        let slot = &self.slots[slot];
        // SAFETY: the part is within the slot, and nothing is in flight there; the next launch is
        // in the same stream.
        unsafe { result::memset_d8_async(slot.device + part.start as u64, 0, part.len(), slot.stream) }
            .map_err(failed("cuMemsetD8Async"))
    }

    fn set_key(&mut self, key: u32, words: &KeyWords) -> Result<(), DeviceError> {
        let at = self.key_at(key)?;
        self.shared.enter()?;
        // SAFETY: the key slot is within the table, and the words live until the stream has ended.
        unsafe { result::memcpy_htod_async(at, words.words(), self.control) }.map_err(failed("cuMemcpyHtoDAsync"))?;
        self.wait_for_keys()
    }

    fn clear_key(&mut self, key: u32) -> Result<(), DeviceError> {
        let at = self.key_at(key)?;
        self.shared.enter()?;
        // SAFETY: the key slot is within the table.
        unsafe { result::memset_d8_async(at, 0, KEY_BYTES, self.control) }.map_err(failed("cuMemsetD8Async"))?;
        self.wait_for_keys()
    }

    fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for CudaRing {
    fn drop(&mut self) {
        // SAFETY: every stream has ended before what it uses is released. Nothing can be done about
        // a failure; after one of the device, all of these calls return it.
        unsafe {
            if self.shared.enter().is_err() {
                return;
            }
            for slot in self.slots.iter().filter(|slot| !slot.stream.is_null()) {
                let _ = result::stream::synchronize(slot.stream);
                if !slot.event.is_null() {
                    let _ = result::event::destroy(slot.event);
                }
                let bytes = self.shape.slot_bytes();
                if !self.zero_copy && slot.device != 0 {
                    // Bodies of packets.
                    let _ = result::memset_d8_async(slot.device, 0, bytes, slot.stream);
                    let _ = result::stream::synchronize(slot.stream);
                    let _ = result::free_sync(slot.device);
                }
                if !slot.memory.is_null() {
                    slot.memory.write_bytes(0, bytes);
                    let _ = result::free_host(slot.memory.cast());
                }
                let _ = result::stream::destroy(slot.stream);
            }
            if !self.control.is_null() {
                if self.keys != 0 {
                    let _ = result::memset_d8_async(self.keys, 0, self.shape.keys * KEY_BYTES, self.control);
                    let _ = result::stream::synchronize(self.control);
                    let _ = result::free_sync(self.keys);
                }
                let _ = result::stream::destroy(self.control);
            }
        }
    }
}
