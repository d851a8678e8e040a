//! OpenCL, on the first device: that of PoCL in CI. POCL_CACHE_DIR is where PoCL keeps the compiled
//! kernel; otherwise in a folder of the user.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_gpu::opencl::{OpenCl, OpenClRing};
use weir_gpu::{Device, DeviceError, Launch, Shape};

use super::{Checks, SHAPE, vectors};

/// The device, for one test at a time: PoCL 5.0 aborts in `pocl_release_dlhandle_cache` if one
/// thread releases kernels while another one launches them.
struct Exclusive {
    device: &'static Arc<OpenCl>,
    _turn: MutexGuard<'static, ()>,
}

/// A ring or its checks, and the device that it has until it is dropped. Fields are dropped in this
/// order.
struct With<T>(T, Exclusive);

impl<T> Deref for With<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for With<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Opens the device once, or prints why there is none.
fn device() -> Option<Exclusive> {
    static DEVICE: OnceLock<Result<Arc<OpenCl>, DeviceError>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed leaves the device as usable as one that did not.
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match DEVICE.get_or_init(|| OpenCl::open(0)) {
        Ok(device) => {
            println!("on {}", device.name());
            Some(Exclusive { device, _turn: turn })
        }
        Err(why @ (DeviceError::NoLibrary { .. } | DeviceError::NoDevice { .. })) => {
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn ring(shape: Shape) -> Option<With<OpenClRing>> {
    let exclusive = device()?;
    let ring = OpenClRing::new(exclusive.device, shape).expect("memory of a ring");
    Some(With(ring, exclusive))
}

fn checks(shape: Shape) -> Option<With<Checks<OpenClRing>>> {
    ring(shape).map(|With(ring, exclusive)| With(Checks::new(ring), exclusive))
}

#[test]
fn opencl_vectors() {
    // Each vector has a key, and groups keep theirs.
    let Some(mut checks) = checks(Shape { keys: 1024, ..SHAPE }) else { return };
    assert_eq!(checks.vectors(vectors::mc_grew_viega()), 5);
    let ran = (checks.vectors(vectors::nist()), checks.vectors(vectors::wycheproof()));
    println!("{} of NIST, {} of Wycheproof", ran.0, ran.1);
    assert!(ran.0 >= 300 && ran.1 >= 150, "{ran:?}");
}

#[test]
fn opencl_every_length() {
    let Some(mut checks) = checks(SHAPE) else { return };
    checks.every_length(1500);
}

#[test]
fn opencl_random_batches() {
    let Some(mut checks) = checks(SHAPE) else { return };
    checks.random_batches(8, 9000);
}

#[test]
fn opencl_keys() {
    let Some(mut checks) = checks(SHAPE) else { return };
    checks.keys_come_and_go();
}

#[test]
fn opencl_shapes_that_the_kernel_cannot_address_are_refused() {
    let Some(exclusive) = device() else { return };
    for shape in [Shape { slots: 0, ..SHAPE }, Shape { bytes: 8, ..SHAPE }, Shape { keys: 1 << 23, ..SHAPE }] {
        assert!(matches!(OpenClRing::new(exclusive.device, shape), Err(DeviceError::Shape { .. })), "{shape:?}");
    }
}

#[test]
fn opencl_launches_that_leave_the_slot_are_refused() {
    let Some(mut ring) = ring(SHAPE) else { return };
    let good = Launch { packets: 1, data_at: SHAPE.data_at(), tags_at: SHAPE.data_at() + 16, lanes_shift: 0 };
    let bad = [
        Launch { packets: 0, ..good },
        Launch { packets: SHAPE.packets + 1, ..good },
        Launch { data_at: 32, ..good },
        Launch { tags_at: SHAPE.slot_bytes(), ..good },
        Launch { tags_at: SHAPE.data_at() - 16, ..good },
        Launch { tags_at: SHAPE.data_at() + 4, ..good },
        Launch { lanes_shift: 6, ..good },
        Launch { lanes_shift: 32, ..good },
        Launch { lanes_shift: u32::MAX, ..good },
    ];
    for launch in bad {
        assert_eq!(ring.launch(0, &launch), Err(DeviceError::Busy { slot: 0 }), "{launch:?}");
    }
    assert_eq!(ring.launch(SHAPE.slots, &good), Err(DeviceError::Busy { slot: SHAPE.slots }));
    // A descriptor of zeros has its body before those of the slot: the kernel leaves it alone.
    assert_eq!(ring.launch(0, &good), Ok(()));
    while ring.is_done(0) == Ok(false) {
        std::thread::yield_now();
    }
    assert!(ring.memory(0).is_ok_and(|memory| memory.iter().all(|byte| *byte == 0)));
}

#[test]
fn opencl_wipes_what_the_device_has_of_a_packet() {
    let Some(mut ring) = ring(SHAPE) else { return };
    let at = SHAPE.data_at();
    ring.memory(0).expect("not in flight")[at..at + 96].fill(0x55);
    // The kernel leaves the body of a descriptor of zeros alone.
    assert_eq!(ring.launch(0, &Launch { packets: 1, data_at: at, tags_at: at + 96, lanes_shift: 0 }), Ok(()));
    while ring.is_done(0) == Ok(false) {
        std::thread::yield_now();
    }
    assert_eq!(ring.device_copy(0, at..at + 96), Ok(vec![0x55; 96]));
    assert_eq!(ring.wipe(0, at + 16..at + 64), Ok(()));
    let wiped = [&[0x55; 16][..], &[0; 48], &[0x55; 32]].concat();
    assert_eq!(ring.device_copy(0, at..at + 96), Ok(wiped));
    let end = SHAPE.slot_bytes();
    for (slot, part) in [(0, end - 16..end + 16), (0, 8..16), (0, 0..8), (SHAPE.slots, 0..16)] {
        assert_eq!(ring.wipe(slot, part), Err(DeviceError::Busy { slot }));
    }
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    if let Some(_exclusive) = device() {
        assert_eq!(OpenCl::open(999).err(), Some(DeviceError::NoDevice { api: "OpenCL", number: 999 }));
    }
}
