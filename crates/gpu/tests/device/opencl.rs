//! OpenCL, on the first device: that of PoCL in CI. POCL_CACHE_DIR is where PoCL keeps the compiled
//! kernel; otherwise in a folder of the user.

use std::sync::{Arc, OnceLock};

use weir_gpu::opencl::{OpenCl, OpenClRing};
use weir_gpu::{Device, DeviceError, Launch, Shape};

use super::{Checks, SHAPE, vectors};

/// Opens the device once, or prints why there is none.
fn device() -> Option<&'static Arc<OpenCl>> {
    static DEVICE: OnceLock<Result<Arc<OpenCl>, DeviceError>> = OnceLock::new();
    match DEVICE.get_or_init(|| OpenCl::open(0)) {
        Ok(device) => {
            println!("on {}", device.name());
            Some(device)
        }
        Err(why @ (DeviceError::NoLibrary { .. } | DeviceError::NoDevice { .. })) => {
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn ring(shape: Shape) -> Option<OpenClRing> {
    device().map(|device| OpenClRing::new(device, shape).expect("memory of a ring"))
}

#[test]
fn opencl_vectors() {
    // Each vector has a key, and groups keep theirs.
    let Some(ring) = ring(Shape { keys: 1024, ..SHAPE }) else { return };
    let mut checks = Checks::new(ring);
    assert_eq!(checks.vectors(vectors::mc_grew_viega()), 5);
    let ran = (checks.vectors(vectors::nist()), checks.vectors(vectors::wycheproof()));
    println!("{} of NIST, {} of Wycheproof", ran.0, ran.1);
    assert!(ran.0 >= 300 && ran.1 >= 150, "{ran:?}");
}

#[test]
fn opencl_every_length() {
    let Some(ring) = ring(SHAPE) else { return };
    Checks::new(ring).every_length(1500);
}

#[test]
fn opencl_random_batches() {
    let Some(ring) = ring(SHAPE) else { return };
    Checks::new(ring).random_batches(8, 9000);
}

#[test]
fn opencl_keys() {
    let Some(ring) = ring(SHAPE) else { return };
    Checks::new(ring).keys_come_and_go();
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
fn a_device_that_does_not_exist_is_an_error() {
    if device().is_some() {
        assert_eq!(OpenCl::open(999).err(), Some(DeviceError::NoDevice { api: "OpenCL", number: 999 }));
    }
}
