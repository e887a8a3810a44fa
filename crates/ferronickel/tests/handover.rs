//! Calls that one thread leaves to another, or whose turn never comes: they end all the same.

mod support;

use std::sync::{Barrier, mpsc};
use std::time::Duration;

use ferronickel::{DeviceBuffer, RedOp, Stream, group};
use support::{Rank, config, in_one_thread};

/// Long enough for every thread of the library to have fallen asleep.
const LONG: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `body`, which must not hang.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, end) = mpsc::channel();
    std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    end.recv_timeout(PATIENCE).expect("it hangs, or it has panicked");
}

#[test]
fn what_another_thread_queues_behind_a_call_that_is_waited_for_runs() {
    /// Enough elements that the dispatcher falls asleep over the call.
    const MANY: usize = 8 << 20;
    in_time(|| {
        let ranks = in_one_thread(2, &config(&[]));
        let long = ranks.iter().map(|rank| rank.device.alloc::<i32>(MANY).unwrap()).collect::<Vec<_>>();
        let short = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect::<Vec<_>>();
        short.iter().for_each(|buffer| buffer.copy_from_host(&[3; 4]).unwrap());
        let call = |rank: usize, buffers: &[DeviceBuffer<i32>]| {
            let (buffer, Rank { communicator, stream, .. }) = (&buffers[rank], &ranks[rank]);
            communicator.all_reduce(buffer, buffer, RedOp::Sum, stream).unwrap();
        };
        let has_called = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                call(0, &long);
                has_called.wait();
                ranks[0].stream.synchronize().unwrap();
            });
            scope.spawn(|| {
                call(1, &long);
                call(1, &short);
                ranks[1].stream.synchronize().unwrap();
            });
            has_called.wait();
            // the first thread is in the long call by then, and will not run what comes behind it
            std::thread::sleep(Duration::from_millis(1));
            call(0, &short);
        });
        // waits for the buffers, not for the streams
        assert!(short.iter().all(|buffer| buffer.to_vec().unwrap() == [6; 4]));
    });
}

#[test]
fn a_group_that_outlives_its_streams_runs() {
    in_time(|| {
        let ranks = in_one_thread(2, &config(&[]));
        let buffers = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect::<Vec<_>>();
        buffers.iter().for_each(|buffer| buffer.copy_from_host(&[1; 4]).unwrap());
        let (communicators, streams): (Vec<_>, Vec<_>) =
            ranks.into_iter().map(|rank| (rank.communicator, rank.stream)).unzip();
        let call = |streams: &[Stream]| {
            let mut calls = communicators.iter().zip(&buffers).zip(streams);
            calls.try_for_each(|((rank, buffer), stream)| rank.all_reduce(buffer, buffer, RedOp::Sum, stream))
        };
        // so that there are workers, and that they end with their streams
        group(|| call(&streams)).unwrap();
        assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [2; 4]));
        group(|| {
            let called = call(&streams);
            drop(streams);
            std::thread::sleep(LONG);
            called
        })
        .unwrap();
        assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [4; 4]));
        communicators.iter().for_each(|rank| rank.finalize().unwrap());
    });
}

#[test]
fn calls_on_several_streams_are_all_done_after_an_abort() {
    in_time(|| {
        for _ in 0..20 {
            let ranks = in_one_thread(2, &config(&[]));
            let rank = &ranks[0];
            let streams = [0, 1, 2].map(|_| rank.device.stream().unwrap());
            let buffers = [0, 1, 2].map(|_| rank.device.alloc::<i32>(4).unwrap());
            std::thread::scope(|scope| {
                for (stream, buffer) in streams.iter().zip(&buffers) {
                    rank.communicator.all_reduce(buffer, buffer, RedOp::Sum, stream).unwrap();
                    scope.spawn(|| stream.synchronize().unwrap_err());
                }
                std::thread::sleep(Duration::from_millis(2));
                rank.communicator.abort();
            });
            rank.communicator.finalize().unwrap_err();
        }
    });
}
