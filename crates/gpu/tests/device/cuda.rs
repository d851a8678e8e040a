//! CUDA, on the first GPU. WEIR_GPU_PTX names compiled PTX; without it NVRTC compiles the source.

use std::sync::{Arc, OnceLock};

use weir_gpu::cuda::{self, Cuda, CudaRing};
use weir_gpu::{DeviceError, Shape};

use super::{Checks, SHAPE, vectors};

fn device() -> Option<&'static Arc<Cuda>> {
    static DEVICE: OnceLock<Result<Arc<Cuda>, DeviceError>> = OnceLock::new();
    let open = || {
        let ptx = std::env::var_os("WEIR_GPU_PTX").map(|path| std::fs::read(path).expect("WEIR_GPU_PTX can be read"));
        Cuda::open(0, ptx.as_deref())
    };
    match DEVICE.get_or_init(open) {
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

fn ring(shape: Shape, zero_copy: bool) -> Option<CudaRing> {
    device().map(|device| CudaRing::new(device, shape, zero_copy).expect("memory of a ring"))
}

#[test]
fn cuda_vectors() {
    for zero_copy in [false, true] {
        // Each vector has a key, and groups keep theirs.
        let Some(ring) = ring(Shape { keys: 1024, ..SHAPE }, zero_copy) else { return };
        let mut checks = Checks::new(ring);
        assert_eq!(checks.vectors(vectors::mc_grew_viega()), 5);
        assert!(checks.vectors(vectors::nist()) >= 300 && checks.vectors(vectors::wycheproof()) >= 150);
    }
}

#[test]
fn cuda_every_length() {
    let Some(ring) = ring(SHAPE, false) else { return };
    Checks::new(ring).every_length(9000);
}

#[test]
fn cuda_random_batches() {
    for zero_copy in [false, true] {
        let Some(ring) = ring(SHAPE, zero_copy) else { return };
        Checks::new(ring).random_batches(40, 9000);
    }
}

#[test]
fn cuda_keys() {
    let Some(ring) = ring(SHAPE, false) else { return };
    Checks::new(ring).keys_come_and_go();
}

#[test]
fn cuda_shapes_that_the_kernel_cannot_address_are_refused() {
    let Some(device) = device() else { return };
    for shape in [Shape { slots: 0, ..SHAPE }, Shape { bytes: 8, ..SHAPE }, Shape { keys: 1 << 23, ..SHAPE }] {
        assert!(matches!(CudaRing::new(device, shape, false), Err(DeviceError::Shape { .. })), "{shape:?}");
    }
}

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    match Cuda::open(999, Some(b"")) {
        Err(DeviceError::NoLibrary { library, .. }) => assert_eq!(library, "libcuda.so"),
        Err(DeviceError::NoDevice { number, .. }) => assert_eq!(number, 999),
        // A driver without any device reports that at once.
        Err(DeviceError::Call { call, .. }) => assert_eq!(call, "cuInit"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn the_kernel_compiles_to_ptx() {
    match cuda::compile() {
        Ok(ptx) => assert!(String::from_utf8_lossy(&ptx).contains(".entry aes_gcm")),
        Err(DeviceError::NoLibrary { library, why }) => println!("skipped: {library}: {why}"),
        Err(error) => panic!("{error}"),
    }
}
