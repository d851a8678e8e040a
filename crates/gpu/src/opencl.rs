//! A device of OpenCL 1.2: any GPU with a driver for it, and CPUs with PoCL.
#![allow(unsafe_code)]

mod sys;

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::packet::{LANES_MAX, LANES_PER_UNIT, WORK_GROUP};
use crate::{Device, DeviceError, KERNEL_SOURCE, KEY_WORDS, KeyWords, Launch, Shape};
use sys::{Api, Handle};

/// Bytes of a key slot.
const KEY_BYTES: usize = 4 * KEY_WORDS;
const _: () = assert!(WORK_GROUP.is_multiple_of(LANES_MAX));

fn check(call: &'static str, code: i32) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(DeviceError::Call { call, code: code.into() }) }
}

/// A device with the compiled kernel, shared by the rings that use it.
pub struct OpenCl {
    api: Api,
    device: Handle,
    context: Handle,
    program: Handle,
    lanes_at_once: usize,
    name: String,
}

// SAFETY: objects of OpenCL 1.2 may be used from any thread, and all functions but clSetKernelArg
// by several at a time (§A.2); kernels, which these take, are in `Ring` only.
unsafe impl Send for OpenCl {}
// SAFETY: as above.
unsafe impl Sync for OpenCl {}

impl OpenCl {
    /// Opens the device of a number, which counts through all platforms, and compiles the kernel.
    ///
    /// # Errors
    /// No loader, no such device, or a failure of the driver.
    pub fn open(number: usize) -> Result<Arc<Self>, DeviceError> {
        let api = Api::load()?;
        let device = devices(&api)?.into_iter().nth(number);
        let device = device.ok_or(DeviceError::NoDevice { api: "OpenCL", number })?;
        let (mut units, mut kind, mut code) = (0_u32, 0_u64, 0);
        // SAFETY: each value has the type that the parameter has in the specification, table 4.3.
        unsafe {
            let into = std::ptr::from_mut(&mut units).cast();
            check(
                "clGetDeviceInfo",
                (api.clGetDeviceInfo)(device, sys::DEVICE_MAX_COMPUTE_UNITS, 4, into, null_mut()),
            )?;
            let into = std::ptr::from_mut(&mut kind).cast();
            check("clGetDeviceInfo", (api.clGetDeviceInfo)(device, sys::DEVICE_TYPE, 8, into, null_mut()))?;
        }
        let name =
            format!("{}, driver {}", text(&api, device, sys::DEVICE_NAME), text(&api, device, sys::DRIVER_VERSION));
        // A CPU runs a few lanes per core, in vectors.
        let per_unit = if kind & sys::DEVICE_TYPE_GPU != 0 { LANES_PER_UNIT } else { 16 };
        // SAFETY: one device, no properties, no callback.
        let context = unsafe { (api.clCreateContext)(null(), 1, &device, None, null_mut(), &mut code) };
        check("clCreateContext", code)?;
        let mut opened =
            Self { api, device, context, program: null_mut(), lanes_at_once: units as usize * per_unit, name };
        opened.build()?;
        Ok(Arc::new(opened))
    }

    /// Name of the device and version of its driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn build(&mut self) -> Result<(), DeviceError> {
        let (source, len, mut code) = (KERNEL_SOURCE.as_ptr().cast(), KERNEL_SOURCE.len(), 0);
        // SAFETY: one string with its length; the options end with a zero; the log has the length
        // that was asked for.
        unsafe {
            self.program = (self.api.clCreateProgramWithSource)(self.context, 1, &source, &len, &mut code);
            check("clCreateProgramWithSource", code)?;
            let options = c"-cl-std=CL1.2".as_ptr();
            if (self.api.clBuildProgram)(self.program, 1, &self.device, options, None, null_mut()) == 0 {
                return Ok(());
            }
            let mut log = vec![0_u8; 1 << 16];
            let mut len = 0;
            let (info, into) = (self.api.clGetProgramBuildInfo, log.as_mut_ptr().cast());
            let code = info(self.program, self.device, sys::PROGRAM_BUILD_LOG, log.len(), into, &mut len);
            check("clGetProgramBuildInfo", code)?;
            log.truncate(len);
            Err(DeviceError::Compile { log: String::from_utf8_lossy(&log).into_owned() })
        }
    }

    fn queue(&self) -> Result<Handle, DeviceError> {
        let mut code = 0;
        // SAFETY: context and device belong together; the queue is in order.
        let queue = unsafe { (self.api.clCreateCommandQueue)(self.context, self.device, 0, &mut code) };
        check("clCreateCommandQueue", code).map(|()| queue)
    }

    fn buffer(&self, flags: u64, bytes: usize) -> Result<Handle, DeviceError> {
        let mut code = 0;
        // SAFETY: the memory is that of the driver.
        let buffer = unsafe { (self.api.clCreateBuffer)(self.context, flags, bytes, null_mut(), &mut code) };
        check("clCreateBuffer", code).map(|()| buffer)
    }
}

impl Drop for OpenCl {
    fn drop(&mut self) {
        // SAFETY: rings have a reference to this; nothing uses the objects any more.
        unsafe {
            if !self.program.is_null() {
                (self.api.clReleaseProgram)(self.program);
            }
            (self.api.clReleaseContext)(self.context);
        }
    }
}

/// Devices of all platforms.
fn devices(api: &Api) -> Result<Vec<Handle>, DeviceError> {
    const MOST: usize = 16;
    let (mut platforms, mut count) = ([null_mut(); MOST], 0);
    // SAFETY: the array has as many places as it is said to have.
    let code = unsafe { (api.clGetPlatformIDs)(MOST as u32, platforms.as_mut_ptr(), &mut count) };
    // The loader has a separate code for no platform at all.
    const NO_PLATFORM: i32 = -1001;
    if code == NO_PLATFORM {
        return Ok(Vec::new());
    }
    check("clGetPlatformIDs", code)?;
    let mut found = Vec::new();
    for platform in &platforms[..MOST.min(count as usize)] {
        let (mut devices, mut count) = ([null_mut(); MOST], 0);
        // SAFETY: as above. A platform without a device returns an error, and none.
        unsafe {
            let all = sys::DEVICE_TYPE_ALL;
            if (api.clGetDeviceIDs)(*platform, all, MOST as u32, devices.as_mut_ptr(), &mut count) == 0 {
                found.extend_from_slice(&devices[..MOST.min(count as usize)]);
            }
        }
    }
    Ok(found)
}

/// A text about a device; empty if there is none.
fn text(api: &Api, device: Handle, what: u32) -> String {
    let (mut bytes, mut len) = ([0_u8; 256], 0);
    // SAFETY: the array has as many bytes as it is said to have.
    let code = unsafe { (api.clGetDeviceInfo)(device, what, bytes.len(), bytes.as_mut_ptr().cast(), &mut len) };
    let text = if code == 0 { &bytes[..len.min(bytes.len())] } else { &[] };
    String::from_utf8_lossy(text).trim_end_matches('\0').to_owned()
}

struct Slot {
    queue: Handle,
    kernel: Handle,
    /// Host memory that the driver allocated, mapped as long as the slot exists.
    host: Handle,
    memory: *mut u8,
    device: Handle,
    /// The read of the last launch; null before the first.
    event: Handle,
    /// A launch failed halfway: the device may still use the memory.
    lost: bool,
}

/// Slots of one ring on an OpenCL device.
pub struct OpenClRing {
    shared: Arc<OpenCl>,
    shape: Shape,
    slots: Vec<Slot>,
    keys: Handle,
    control: Handle,
}

// SAFETY: as `OpenCl`; kernels are used through exclusive references only.
unsafe impl Send for OpenClRing {}

impl OpenClRing {
    /// Allocates the memory of a ring.
    ///
    /// # Errors
    /// An invalid shape, or a failure of the driver.
    pub fn new(shared: &Arc<OpenCl>, shape: Shape) -> Result<Self, DeviceError> {
        shape.check()?;
        let (shared, control) = (Arc::clone(shared), shared.queue()?);
        let mut ring = Self { shared, shape, slots: Vec::new(), keys: null_mut(), control };
        ring.keys = ring.shared.buffer(sys::MEM_READ_WRITE, shape.keys.max(1) * KEY_BYTES)?;
        ring.write_keys(0, &vec![0; shape.keys * KEY_WORDS])?;
        for _ in 0..shape.slots {
            ring.add_slot()?;
        }
        Ok(ring)
    }

    fn add_slot(&mut self) -> Result<(), DeviceError> {
        let (shared, bytes, mut code) = (&self.shared, self.shape.slot_bytes(), 0);
        // Into the ring first, so that a failure further down releases it.
        let empty = null_mut();
        self.slots.push(Slot {
            queue: empty,
            kernel: empty,
            host: empty,
            memory: null_mut(),
            device: empty,
            event: empty,
            lost: false,
        });
        let Some(slot) = self.slots.last_mut() else { return Ok(()) };
        slot.queue = shared.queue()?;
        slot.host = shared.buffer(sys::MEM_READ_WRITE | sys::MEM_ALLOC_HOST_PTR, bytes)?;
        slot.device = shared.buffer(sys::MEM_READ_WRITE, bytes)?;
        // SAFETY: the name ends with a zero; the map waits, and covers the whole buffer; arguments
        // are handles of memory of the same context.
        unsafe {
            slot.kernel = (shared.api.clCreateKernel)(shared.program, c"aes_gcm".as_ptr(), &mut code);
            check("clCreateKernel", code)?;
            let map = shared.api.clEnqueueMapBuffer;
            let (wait, flags) = (sys::TRUE, sys::MAP_READ_WRITE);
            slot.memory = map(slot.queue, slot.host, wait, flags, 0, bytes, 0, null(), null_mut(), &mut code).cast();
            check("clEnqueueMapBuffer", code)?;
            // A slice of it must be initialised.
            slot.memory.write_bytes(0, bytes);
            for (i, buffer) in [(0, &self.keys), (1, &slot.device)] {
                let value = std::ptr::from_ref(buffer).cast();
                check("clSetKernelArg", (shared.api.clSetKernelArg)(slot.kernel, i, size_of::<Handle>(), value))?;
            }
            let keys = self.shape.keys as u32;
            let value = std::ptr::from_ref(&keys).cast();
            check("clSetKernelArg", (shared.api.clSetKernelArg)(slot.kernel, 6, 4, value))?;
        }
        Ok(())
    }

    /// Writes key slots from `first` on, and waits.
    fn write_keys(&mut self, first: u32, words: &[u32]) -> Result<(), DeviceError> {
        let (write, at, bytes) = (self.shared.api.clEnqueueWriteBuffer, first as usize * KEY_BYTES, 4 * words.len());
        if at + bytes > self.shape.keys * KEY_BYTES {
            return Err(DeviceError::Busy { slot: first as usize });
        }
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the call waits until the words were read; the key slots are within the buffer.
        let code = unsafe {
            write(self.control, self.keys, sys::TRUE, at, bytes, words.as_ptr().cast(), 0, null(), null_mut())
        };
        check("clEnqueueWriteBuffer", code)
    }

    fn enqueue(&mut self, at: usize, launch: &Launch) -> Result<(), DeviceError> {
        let (to_device, to_host) = (launch.to_device(), launch.to_host());
        let slot = &mut self.slots[at];
        // SAFETY: the event exists; nothing uses it any more.
        unsafe {
            if !slot.event.is_null() {
                (self.shared.api.clReleaseEvent)(slot.event);
                slot.event = null_mut();
            }
        }
        let mut events = [null_mut(); 2];
        let outcome = self.enqueue_commands(at, launch, (to_device, to_host), &mut events);
        for event in events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: the event exists; commands that wait for it keep it.
            unsafe { (self.shared.api.clReleaseEvent)(event) };
        }
        outcome
    }

    /// Enqueues write, kernel and read. Each waits for the event of the one before: an in-order
    /// queue may run a command after one that failed, and the status of the read is the only one
    /// that [`Device::is_done`] returns.
    fn enqueue_commands(
        &mut self,
        at: usize,
        launch: &Launch,
        (to_device, to_host): (Range<usize>, Range<usize>),
        [written, computed]: &mut [Handle; 2],
    ) -> Result<(), DeviceError> {
        let (api, slot) = (&self.shared.api, &self.slots[at]);
        // SAFETY: the range is within the slot (`Launch::fits`), which nothing writes before the
        // event of the read.
        unsafe {
            let from = slot.memory.add(to_device.start).cast::<c_void>();
            let (write, wait) = (api.clEnqueueWriteBuffer, sys::FALSE);
            let (start, len) = (to_device.start, to_device.len());
            let code = write(slot.queue, slot.device, wait, start, len, from, 0, null(), written);
            check("clEnqueueWriteBuffer", code)?;
        }
        self.run_kernel(at, launch, Some((written, computed)))?;
        let (api, slot) = (&self.shared.api, &mut self.slots[at]);
        // SAFETY: as above; nothing reads the range before the event.
        unsafe {
            let into = slot.memory.add(to_host.start).cast();
            let (read, wait, event) = (api.clEnqueueReadBuffer, sys::FALSE, &mut slot.event);
            let (start, len) = (to_host.start, to_host.len());
            let code = read(slot.queue, slot.device, wait, start, len, into, 1, computed, event);
            check("clEnqueueReadBuffer", code)?;
            check("clFlush", (api.clFlush)(slot.queue))
        }
    }
}

impl OpenClRing {
    /// Time of `launches` kernels over what the device has of a slot, without copies, in seconds.
    /// For measurements; waits.
    ///
    /// # Errors
    /// A failure of the driver, or a slot in flight.
    pub fn time_kernel(&mut self, slot: usize, launch: &Launch, launches: usize) -> Result<f64, DeviceError> {
        if !self.is_done(slot)? || !launch.fits(&self.shape) {
            return Err(DeviceError::Busy { slot });
        }
        let started = std::time::Instant::now();
        for _ in 0..launches {
            self.run_kernel(slot, launch, None)?;
        }
        // SAFETY: the queue exists.
        check("clFinish", unsafe { (self.shared.api.clFinish)(self.slots[slot].queue) })?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Bytes that the device has of a slot, for tests. Waits.
    ///
    /// # Errors
    /// A failure of the driver, or a part that is not in the slot.
    pub fn device_copy(&mut self, slot: usize, part: Range<usize>) -> Result<Vec<u8>, DeviceError> {
        if !self.is_done(slot)? || part.start >= part.end || part.end > self.shape.slot_bytes() {
            return Err(DeviceError::Busy { slot });
        }
        let mut copy = vec![0; part.len()];
        let (read, from) = (self.shared.api.clEnqueueReadBuffer, &self.slots[slot]);
        let into = copy.as_mut_ptr().cast();
        // SAFETY: the part is within the slot; the call waits until it was read.
        let code =
            unsafe { read(from.queue, from.device, sys::TRUE, part.start, part.len(), into, 0, null(), null_mut()) };
        check("clEnqueueReadBuffer", code).map(|()| copy)
    }

    /// Enqueues zeros for a part of what the device has of a slot; start and length are multiples
    /// of 16.
    fn zero(&self, slot: usize, part: Range<usize>) -> Result<(), DeviceError> {
        const PATTERN: [u8; 16] = [0; 16];
        let aligned = part.start.is_multiple_of(PATTERN.len()) && part.end.is_multiple_of(PATTERN.len());
        if !aligned || part.start > part.end || part.end > self.shape.slot_bytes() {
            return Err(DeviceError::Busy { slot });
        }
        if part.is_empty() {
            return Ok(());
        }
        let (fill, slot) = (self.shared.api.clEnqueueFillBuffer, &self.slots[slot]);
        let pattern = PATTERN.as_ptr().cast();
        // SAFETY: the part is within the slot; the pattern is copied by the call; the queue is in
        // order, so that the next launch comes after.
        let code = unsafe {
            fill(slot.queue, slot.device, pattern, PATTERN.len(), part.start, part.len(), 0, null(), null_mut())
        };
        check("clEnqueueFillBuffer", code)
    }

    /// Enqueues the kernel, after the first event if there are events. The second one is its event.
    fn run_kernel(
        &mut self,
        slot: usize,
        launch: &Launch,
        events: Option<(&Handle, &mut Handle)>,
    ) -> Result<(), DeviceError> {
        let (api, slot) = (&self.shared.api, &self.slots[slot]);
        let arguments = [launch.data_at / 4, launch.tags_at / 4, launch.packets, launch.lanes_shift as usize];
        let items = (launch.packets << launch.lanes_shift).next_multiple_of(WORK_GROUP as usize);
        let group = WORK_GROUP as usize;
        let (count, after, event) = match events {
            Some((after, event)) => (1, std::ptr::from_ref(after), std::ptr::from_mut(event)),
            None => (0, null(), null_mut()),
        };
        // SAFETY: arguments are copied by the calls, and have the types of the kernel, which leaves
        // neither slot nor keys.
        unsafe {
            for (i, value) in (2..).zip(arguments.map(|value| value as u32)) {
                let value: *const u32 = &value;
                check("clSetKernelArg", (api.clSetKernelArg)(slot.kernel, i, 4, value.cast()))?;
            }
            let run = api.clEnqueueNDRangeKernel;
            let code = run(slot.queue, slot.kernel, 1, null(), &items, &group, count, after, event);
            check("clEnqueueNDRangeKernel", code)
        }
    }
}

impl Device for OpenClRing {
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
        // SAFETY: the mapping has this length, was initialised, and the device has ended its use.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.slots[slot].memory, self.shape.slot_bytes()) })
    }

    fn launch(&mut self, slot: usize, launch: &Launch) -> Result<(), DeviceError> {
        if !self.is_done(slot)? || !launch.fits(&self.shape) {
            return Err(DeviceError::Busy { slot });
        }
        let outcome = self.enqueue(slot, launch);
        self.slots[slot].lost = outcome.is_err();
        outcome
    }

    fn is_done(&self, slot: usize) -> Result<bool, DeviceError> {
        let Some(Slot { event, lost: false, .. }) = self.slots.get(slot) else {
            return Err(DeviceError::Busy { slot });
        };
        if event.is_null() {
            return Ok(true);
        }
        let mut status = 0_i32;
        // SAFETY: the status is a 32-bit integer (§5.9, table 5.18).
        let code = unsafe {
            let into = std::ptr::from_mut(&mut status).cast();
            (self.shared.api.clGetEventInfo)(*event, sys::EVENT_STATUS, 4, into, null_mut())
        };
        check("clGetEventInfo", code)?;
        check("a command of the launch", status.min(0))?;
        if status != sys::COMPLETE {
            return Ok(false);
        }
        // The status is no synchronization point: what the commands wrote is visible to this thread
        // only after a wait (§5.9), which returns at once.
        // SAFETY: one event, which exists.
        check("clWaitForEvents", unsafe { (self.shared.api.clWaitForEvents)(1, event) })?;
        Ok(true)
    }

    fn wipe(&mut self, slot: usize, part: Range<usize>) -> Result<(), DeviceError> {
        if !self.is_done(slot)? {
            return Err(DeviceError::Busy { slot });
        }
        self.zero(slot, part)?;
        // SAFETY: the queue exists.
        check("clFlush", unsafe { (self.shared.api.clFlush)(self.slots[slot].queue) })
    }

    fn set_key(&mut self, key: u32, words: &KeyWords) -> Result<(), DeviceError> {
        self.write_keys(key, words.words())
    }

    fn clear_key(&mut self, key: u32) -> Result<(), DeviceError> {
        self.write_keys(key, &[0; KEY_WORDS])
    }

    fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for OpenClRing {
    fn drop(&mut self) {
        // SAFETY: every queue is empty before what it uses is released. Nothing can be done about a
        // failure.
        unsafe {
            for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| !slot.queue.is_null()) {
                if !slot.device.is_null() {
                    // Bodies of packets.
                    let _ = self.zero(at, 0..self.shape.slot_bytes());
                }
                (self.shared.api.clFinish)(slot.queue);
            }
            if !self.keys.is_null() {
                let _ = self.write_keys(0, &vec![0; self.shape.keys * KEY_WORDS]);
            }
            let api = &self.shared.api;
            for slot in self.slots.iter().filter(|slot| !slot.queue.is_null()) {
                if !slot.event.is_null() {
                    (api.clReleaseEvent)(slot.event);
                }
                if !slot.memory.is_null() {
                    // Bodies of packets.
                    slot.memory.write_bytes(0, self.shape.slot_bytes());
                    (api.clEnqueueUnmapMemObject)(slot.queue, slot.host, slot.memory.cast(), 0, null(), null_mut());
                    (api.clFinish)(slot.queue);
                }
                for buffer in [slot.host, slot.device] {
                    if !buffer.is_null() {
                        (api.clReleaseMemObject)(buffer);
                    }
                }
                if !slot.kernel.is_null() {
                    (api.clReleaseKernel)(slot.kernel);
                }
                (api.clReleaseCommandQueue)(slot.queue);
            }
            if !self.keys.is_null() {
                (api.clReleaseMemObject)(self.keys);
            }
            (api.clReleaseCommandQueue)(self.control);
        }
    }
}
