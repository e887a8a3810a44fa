//! Streams and groups: a call queues and never waits for a peer, so that orders which would deadlock do not.

mod support;

use std::time::{Duration, Instant};

use ferronickel::{Communicator, Device, ErrorKind, RedOp, UniqueId, group};
use support::{ROADS, config, in_one_thread, on_threads};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn one_thread_may_call_for_two_ranks_without_a_group() {
    for (_, closed) in ROADS {
        let ranks = in_one_thread(2, &config(closed));
        for count in [4, 40_000] {
            let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<u32>(count).unwrap()).collect();
            buffers.iter().for_each(|buffer| buffer.copy_from_host(&vec![4; count]).unwrap());
            for (rank, buffer) in ranks.iter().zip(&buffers) {
                rank.communicator.all_reduce(buffer, buffer, RedOp::Prod, &rank.stream).unwrap();
            }
            // only the second is waited for: the first is taken over by its worker
            ranks[1].stream.synchronize().unwrap();
            assert_eq!(buffers[0].to_vec().unwrap(), vec![16; count]);
        }
    }
}

#[test]
fn what_nobody_waits_for_runs_all_the_same() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i64>(10).unwrap()).collect();
    for (rank, buffer) in ranks.iter().zip(&buffers) {
        rank.communicator.all_reduce(buffer, buffer, RedOp::Sum, &rank.stream).unwrap();
    }
    let began = Instant::now();
    while !ranks.iter().all(|rank| rank.stream.is_idle().unwrap()) {
        assert!(began.elapsed() < PATIENCE, "nobody ran it");
        std::thread::yield_now();
    }
}

#[test]
fn two_communicators_in_opposite_order_on_streams_of_their_own() {
    let id = [UniqueId::new().unwrap(), UniqueId::new().unwrap()];
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let id = &id;
            scope.spawn(move || {
                let device = Device::host(rank as u32);
                let make = |id| Communicator::init_rank(id, 2, rank, &device, &config(&[])).unwrap();
                let communicators = [make(&id[0]), make(&id[1])];
                let streams = [device.stream().unwrap(), device.stream().unwrap()];
                for round in 0..20 {
                    let buffers = [device.alloc::<i32>(9).unwrap(), device.alloc::<i32>(9).unwrap()];
                    buffers.iter().for_each(|buffer| buffer.copy_from_host(&[round; 9]).unwrap());
                    for turn in 0..2 {
                        let which = (turn + rank) % 2;
                        let buffer = &buffers[which];
                        communicators[which].all_reduce(buffer, buffer, RedOp::Sum, &streams[which]).unwrap();
                    }
                    // wait in the other order than the peer
                    streams[rank].synchronize().unwrap();
                    streams[1 - rank].synchronize().unwrap();
                    assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [2 * round; 9]));
                }
            });
        }
    });
}

#[test]
fn calls_of_one_communicator_on_several_streams_keep_their_order() {
    on_threads(3, &config(&[]), |rank| {
        let streams: Vec<_> = (0..3).map(|_| rank.device.stream().unwrap()).collect();
        let buffers: Vec<_> = (0..3).map(|_| rank.device.alloc::<u64>(5).unwrap()).collect();
        for round in 0..30 {
            buffers.iter().enumerate().for_each(|(n, buffer)| buffer.copy_from_host(&[n as u64 + 1; 5]).unwrap());
            for which in [(round + 1) % 3, round % 3, (round + 2) % 3] {
                rank.communicator.all_reduce(&buffers[which], &buffers[which], RedOp::Sum, &streams[which]).unwrap();
            }
            // waited for in an order that has nothing to do with it
            streams.iter().rev().for_each(|stream| stream.synchronize().unwrap());
            for (n, buffer) in buffers.iter().enumerate() {
                assert_eq!(buffer.to_vec().unwrap(), [3 * (n as u64 + 1); 5]);
            }
        }
    });
}

#[test]
fn a_thousand_calls_may_be_queued_before_anyone_waits() {
    on_threads(2, &config(&[]), |rank| {
        let buffer = rank.device.alloc::<u64>(3).unwrap();
        buffer.copy_from_host(&[1, 2, 3]).unwrap();
        for _ in 0..1000 {
            rank.communicator.all_reduce(&buffer, &buffer, RedOp::Max, &rank.stream).unwrap();
        }
        rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream).unwrap();
        rank.stream.synchronize().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2, 4, 6]);
    });
}

#[test]
fn a_buffer_in_use_on_one_stream_is_refused_on_another() {
    let ranks = in_one_thread(2, &config(&[]));
    let (rank, buffer) = (&ranks[0], ranks[0].device.alloc::<f32>(4).unwrap());
    let other = rank.device.stream().unwrap();
    // rank 1 has not called yet, so that this one cannot be done
    rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream).unwrap();
    let error = rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.to_string().contains("still in use by a call on another stream"), "{error}");
    let theirs = ranks[1].device.alloc::<f32>(4).unwrap();
    ranks[1].communicator.all_reduce(&theirs, &theirs, RedOp::Sum, &ranks[1].stream).unwrap();
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
    // the refused call did not count
    rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &other).unwrap();
    ranks[1].communicator.all_reduce(&theirs, &theirs, RedOp::Sum, &ranks[1].stream).unwrap();
    other.synchronize().unwrap();
}

#[test]
fn ranks_that_would_wait_for_each_other_on_one_stream_are_refused_and_named() {
    let device = Device::host(7);
    let ranks = Communicator::init_all(&[device.clone(), device.clone()], &config(&[])).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffers: Vec<_> = (0..4).map(|_| device.alloc::<i32>(3).unwrap()).collect();
    let call = |rank: usize, buffer: usize, stream: usize| {
        ranks[rank].all_reduce(&buffers[buffer], &buffers[buffer], RedOp::Sum, &streams[stream])
    };
    let error = group(|| call(0, 0, 0).and_then(|()| call(1, 1, 0))).unwrap_err();
    assert_eq!((error.kind(), error.call(), error.rank()), (ErrorKind::InvalidUsage, Some("all_reduce"), Some(1)));
    assert!(error.to_string().contains("ranks 0 and 1 of one communicator make calls on one stream"), "{error}");
    // rank 0's second call would lie before rank 1's first, and wait for its own first, which waits for that
    let crossed = group(|| {
        call(0, 0, 0)?;
        call(0, 1, 1)?;
        call(1, 2, 1)?;
        call(1, 3, 0)
    });
    assert_eq!(crossed.unwrap_err().kind(), ErrorKind::InvalidUsage);
    // both streams hold calls of both ranks, in an order that works
    group(|| {
        buffers.iter().try_for_each(|buffer| buffer.copy_from_host(&[3; 3]))?;
        call(0, 0, 0)?;
        call(1, 1, 1)?;
        call(1, 2, 0)?;
        call(0, 3, 1)
    })
    .unwrap();
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [6; 3]));
}

#[test]
fn dropping_streams_buffers_and_communicators_early_loses_nothing() {
    for (_, closed) in ROADS {
        let results = on_threads(2, &config(closed), |rank| {
            let buffer = rank.device.alloc::<i32>(1000).unwrap();
            buffer.copy_from_host(&[5; 1000]).unwrap();
            rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream).unwrap();
            let view = buffer.clone();
            drop((rank.communicator, rank.stream, buffer));
            view.to_vec().unwrap()
        });
        assert_eq!(results, vec![vec![10; 1000]; 2]);
    }
}
