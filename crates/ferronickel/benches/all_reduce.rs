//! How long a small call takes, and how fast elements are reduced, each beside the least that the machine allows: a
//! flag that goes from one thread to another and back, and a plain copy.
//!
//! `cargo bench -p ferronickel`. The numbers mean something only on a machine that does nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use ferronickel::measure::reduce_copy;
use ferronickel::{Communicator, Config, Device, DeviceBuffer, Element, F8E4m3, F8E5m2, RedOp, Stream, UniqueId};
use half::{bf16, f16};

fn main() {
    divan::main();
}

/// One rank, its stream and a buffer of `bytes` bytes.
fn rank(id: &UniqueId, number: usize, bytes: usize, config: &Config) -> (Communicator, Stream, DeviceBuffer<f32>) {
    let device = Device::host(number as u32);
    let communicator = Communicator::init_rank(id, 2, number, &device, config).expect("two ranks meet");
    let (stream, buffer) = (device.stream(), device.alloc(bytes / 4));
    (communicator, stream.expect("a stream"), buffer.expect("a buffer"))
}

/// Times one rank's call and wait, while a thread makes the other rank's.
fn call_latency(bencher: Bencher<'_, '_>, bytes: usize, closed: &[&str]) {
    let quiet = Config::default().with("FERRONICKEL_ANNOUNCE", "0").expect("a known variable");
    let config = closed.iter().fold(quiet, |config, name| config.with(name, "1").expect("a known variable"));
    let id = UniqueId::new().expect("random bytes");
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (communicator, stream, buffer) = rank(&id, 1, bytes, &config);
            // until the other rank aborts
            while communicator.all_reduce(&buffer, &buffer, RedOp::Max, &stream).is_ok() && stream.synchronize().is_ok()
            {
            }
        });
        let (communicator, stream, buffer) = rank(&id, 0, bytes, &config);
        bencher.bench_local(|| {
            communicator.all_reduce(&buffer, &buffer, RedOp::Max, &stream).expect("queued");
            stream.synchronize().expect("done");
        });
        communicator.abort();
        peer.join().expect("the peer ends");
    });
}

const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10];

#[divan::bench(args = SIZES, sample_count = 3000)]
fn call_over_p2p(bencher: Bencher<'_, '_>, bytes: usize) {
    call_latency(bencher, bytes, &[]);
}

#[divan::bench(args = SIZES, sample_count = 3000)]
fn call_over_shm(bencher: Bencher<'_, '_>, bytes: usize) {
    call_latency(bencher, bytes, &["NCCL_P2P_DISABLE"]);
}

#[divan::bench(args = SIZES, sample_count = 3000)]
fn call_over_net(bencher: Bencher<'_, '_>, bytes: usize) {
    call_latency(bencher, bytes, &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]);
}

/// The floor of a call: a number that goes to another thread and comes back.
#[divan::bench]
fn floor_flag_round_trip(bencher: Bencher<'_, '_>) {
    #[repr(align(128))]
    struct Flag(AtomicU64);
    let (there, back) = (Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0)));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while last != u64::MAX {
                let now = there.0.load(Ordering::Acquire);
                if now != last {
                    back.0.store(now, Ordering::Release);
                    last = now;
                }
            }
        });
        let mut number = 0;
        bencher.bench_local(|| {
            number += 1;
            there.0.store(number, Ordering::Release);
            while back.0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        });
        there.0.store(u64::MAX, Ordering::Release);
    });
}

/// Bytes of each operand: they fit the second-level cache, so that the arithmetic is what is timed.
const OPERAND: usize = 128 << 10;

/// Reduces two operands into a third; the bytes counted are those of one operand.
#[divan::bench(types = [i8, u8, i32, u32, i64, u64, f16, bf16, F8E4m3, F8E5m2, f32, f64], args = [RedOp::Sum, RedOp::Max])]
fn reduce<T: Element + Default>(bencher: Bencher<'_, '_>, op: RedOp) {
    let operand = vec![T::default(); OPERAND / size_of::<T>()];
    let mut target = operand.clone();
    bencher.counter(BytesCount::new(OPERAND)).bench_local(|| {
        reduce_copy(op, black_box(&mut target), black_box(&operand), black_box(&operand));
    });
}

/// The floor of a reduction: a copy of one operand.
#[divan::bench]
fn floor_copy(bencher: Bencher<'_, '_>) {
    let operand = vec![0u8; OPERAND];
    let mut target = operand.clone();
    bencher.counter(BytesCount::new(OPERAND)).bench_local(|| {
        black_box(&mut target).copy_from_slice(black_box(&operand));
    });
}
