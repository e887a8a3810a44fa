//! What goes wrong is said, once, by name, and nothing hangs.

mod support;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferronickel::{Communicator, Config, Device, DeviceBuffer, Error, ErrorKind, RedOp, Stream, UniqueId, group};
use support::{Numbers, ROADS, Rank, config, in_one_thread, on_threads, settings};

/// Makes one call and waits for it.
fn call(rank: &Rank, count: usize, op: RedOp) -> Result<(), Error> {
    let buffer = rank.device.alloc::<f32>(count)?;
    rank.communicator.all_reduce(&buffer, &buffer, op, &rank.stream)?;
    rank.stream.synchronize()
}

/// Every rank must fail with this kind, and say these words.
fn assert_all(results: Vec<Result<(), Error>>, kind: ErrorKind, words: &[&str]) {
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    }
}

#[test]
fn counts_that_differ_are_a_mismatch_on_every_road_with_every_algorithm() {
    // pairs of counts that take the same algorithm, different ones, and none at all
    for (a, b) in [(10, 11), (0, 10), (10, 1_000_000), (1_000_000, 1_000_001), (3_000, 3_001), (3_000, 300_000)] {
        for (_, closed) in ROADS {
            let all_have_called = Barrier::new(3);
            let results = on_threads(3, &config(closed), |rank| {
                call(&rank, 5, RedOp::Sum).unwrap();
                // a failure ends what is under way, and so it may end a call before it on a rank that is behind
                all_have_called.wait();
                call(&rank, if rank.communicator.rank() == 1 { b } else { a }, RedOp::Sum)
            });
            let words =
                [format!("(count {a}, float32, sum)"), format!("rank 1 made all_reduce(count {b}, float32, sum)")];
            assert_all(results, ErrorKind::Mismatch, &[&words[0], &words[1], "in call 2"]);
        }
    }
}

#[test]
fn types_and_operations_that_differ_are_a_mismatch() {
    for (_, closed) in ROADS {
        let results = on_threads(2, &config(closed), |rank| {
            call(&rank, 100, if rank.communicator.rank() == 0 { RedOp::Sum } else { RedOp::Max })
        });
        assert_all(results, ErrorKind::Mismatch, &["rank 0 made all_reduce(count 100, float32, sum)", "float32, max)"]);
        let results = on_threads(2, &config(closed), |rank| match rank.communicator.rank() {
            0 => call(&rank, 100, RedOp::Sum),
            _ => {
                let buffer = rank.device.alloc::<i32>(100)?;
                rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream)?;
                rank.stream.synchronize()
            }
        });
        assert_all(results, ErrorKind::Mismatch, &["(count 100, float32, sum)", "(count 100, int32, sum)"]);
    }
}

#[test]
fn a_failure_stays_and_carries_what_led_to_it() {
    let results = on_threads(2, &config(&["NCCL_P2P_DISABLE"]), |rank| {
        let failed = call(&rank, 1 + rank.communicator.rank(), RedOp::Sum);
        let later = call(&rank, 1, RedOp::Sum).unwrap_err();
        assert_eq!(later.kind(), ErrorKind::Mismatch);
        assert_eq!(rank.communicator.async_error().unwrap().seen(), later.seen());
        assert!(rank.communicator.finalize().is_err());
        failed
    });
    for (number, result) in results.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!((error.rank(), error.device()), (Some(number), Some(number as u32)));
        assert!(
            error
                .decisions()
                .iter()
                .any(|decision| decision.to_string().contains("NCCL_P2P_DISABLE=1 set by the program"))
        );
        assert!(error.advice().is_some());
    }
}

#[test]
fn abort_ends_everyone_wherever_they_are() {
    for (_, closed) in ROADS {
        for count in [1, 2_000, 2_000_000] {
            // rank 2 never calls, so the others wait for it until somebody aborts
            let results = on_threads(3, &config(closed), |rank| match rank.communicator.rank() {
                2 => {
                    std::thread::sleep(Duration::from_millis(20));
                    rank.communicator.abort();
                    call(&rank, count, RedOp::Sum)
                }
                _ => call(&rank, count, RedOp::Sum),
            });
            assert_all(results, ErrorKind::Aborted, &["rank 2 called abort"]);
        }
    }
}

#[test]
fn abort_in_the_midst_of_calls_never_gives_wrong_data_or_a_hang() {
    for (seed, (_, closed)) in ROADS.iter().enumerate() {
        for count in [3, 3_000, 300_000] {
            on_threads(3, &config(closed), |rank| {
                let number = rank.communicator.rank();
                let began = Instant::now();
                let moment = Duration::from_micros(Numbers(seed as u64 + count as u64).next() % 3_000);
                let buffer = rank.device.alloc::<u64>(count).unwrap();
                for round in 0.. {
                    buffer.copy_from_host(&vec![1; count]).unwrap();
                    if number == 1 && began.elapsed() > moment {
                        rank.communicator.abort();
                    }
                    let called = rank.communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &rank.stream);
                    let done = called.and_then(|()| rank.stream.synchronize());
                    match done {
                        Ok(()) => assert_eq!(buffer.to_vec().unwrap(), vec![3; count], "round {round}"),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Aborted);
                            break;
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn abort_from_another_thread_releases_one_that_waits() {
    let ranks = in_one_thread(2, &config(&[]));
    let waiting = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let buffer = ranks[0].device.alloc::<f32>(8).unwrap();
            ranks[0].communicator.all_reduce(&buffer, &buffer, RedOp::Sum, &ranks[0].stream).unwrap();
            waiting.store(true, Ordering::Release);
            ranks[0].stream.synchronize()
        });
        while !waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        ranks[0].communicator.abort();
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Aborted);
    });
    assert_eq!(ranks[1].communicator.async_error().unwrap().kind(), ErrorKind::Aborted);
}

#[test]
fn a_rank_that_leaves_is_named_by_those_who_wait_for_it() {
    for (_, closed) in ROADS {
        for drops in [false, true] {
            let both_called = Barrier::new(3);
            let results = on_threads(3, &config(closed), |rank| {
                call(&rank, 10, RedOp::Sum).unwrap();
                both_called.wait();
                if rank.communicator.rank() == 1 {
                    if !drops {
                        rank.communicator.finalize().unwrap();
                    }
                    return None;
                }
                Some(call(&rank, 10, RedOp::Sum))
            });
            let results = results.into_iter().flatten().collect::<Vec<_>>();
            assert_eq!(results.len(), 2);
            assert_all(results, ErrorKind::Remote, &["rank 1 left before call 2"]);
        }
    }
}

#[test]
fn a_panic_of_one_rank_does_not_hang_the_others() {
    let id = UniqueId::new().unwrap();
    std::thread::scope(|scope| {
        let make = |rank| {
            let (id, device) = (&id, Device::host(rank as u32));
            move || {
                let communicator = Communicator::init_rank(id, 2, rank, &device, &config(&[])).unwrap();
                let stream = device.stream().unwrap();
                let rank = Rank { communicator, device, stream };
                assert!(rank.communicator.rank() == 0, "on purpose");
                call(&rank, 4, RedOp::Sum)
            }
        };
        let (survivor, victim) = (scope.spawn(make(0)), scope.spawn(make(1)));
        assert!(victim.join().is_err());
        assert_eq!(survivor.join().unwrap().unwrap_err().kind(), ErrorKind::Remote);
    });
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_queued() {
    let ranks = in_one_thread(2, &config(&[]));
    let (rank, elsewhere) = (&ranks[0], Device::host(9));
    let (four, five) = (rank.device.alloc::<i32>(4).unwrap(), rank.device.alloc::<i32>(5).unwrap());
    let far = elsewhere.alloc::<i32>(4).unwrap();
    let far_stream = elsewhere.stream().unwrap();
    let refused = |send: &DeviceBuffer<i32>, receive: &DeviceBuffer<i32>, stream: &Stream| {
        rank.communicator.all_reduce(send, receive, RedOp::Sum, stream).unwrap_err()
    };
    let cases = [
        (refused(&four, &five, &rank.stream), "send has 4 elements, receive 5"),
        (refused(&far, &four, &rank.stream), "send belongs to host device 9, the communicator to host device 0"),
        (refused(&four, &far, &rank.stream), "receive belongs to host device 9"),
        (refused(&four, &four, &far_stream), "stream belongs to host device 9"),
        (
            refused(&five.slice(0..4).unwrap(), &five.slice(1..5).unwrap(), &rank.stream),
            "overlap, but are not the same",
        ),
    ];
    for (error, words) in cases {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("all_reduce: rank 0 on host device 0: invalid argument: "), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // none of them counted as a call
    assert!(rank.stream.is_idle().unwrap());
    rank.communicator.finalize().unwrap();
    let error = refused(&four, &four, &rank.stream);
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.to_string().contains("the communicator is finalized"), "{error}");
    assert_eq!(rank.communicator.finalize().unwrap_err().kind(), ErrorKind::InvalidUsage);
}

#[test]
fn a_group_ends_with_what_has_stopped_its_communicator_meanwhile() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect();
    let call = |n: usize| ranks[n].communicator.all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &ranks[n].stream);
    let error = group(|| {
        (0..2).try_for_each(call)?;
        ranks[1].communicator.abort();
        Ok(())
    });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert_eq!((error.call(), error.rank()), (Some("all_reduce"), Some(0)), "{error}");
    assert!(ranks.iter().all(|rank| rank.stream.is_idle().unwrap()), "something was queued");
}

#[test]
fn a_call_refused_in_a_group_says_where_as_it_does_outside() {
    let ranks = in_one_thread(2, &config(&[]));
    let (short, long) = (ranks[1].device.alloc::<i32>(3).unwrap(), ranks[1].device.alloc::<i32>(4).unwrap());
    let wrong = || ranks[1].communicator.all_reduce(&short, &long, RedOp::Sum, &ranks[1].stream);
    let (outside, inside) = (wrong().unwrap_err().to_string(), group(wrong).unwrap_err().to_string());
    assert!(outside.starts_with("all_reduce: rank 1 on host device 1: "), "{outside}");
    assert_eq!(outside, inside);
    // also where the program has swallowed the first, and where only the group's end finds out
    let swallowed = group(|| {
        let _ = wrong();
        Ok(())
    });
    assert_eq!(swallowed.unwrap_err().to_string(), outside);
    let other = ranks[1].device.stream().unwrap();
    let late = group(|| {
        let communicator = &ranks[1].communicator;
        communicator.all_reduce(&long, &long, RedOp::Sum, &ranks[1].stream)?;
        communicator.all_reduce(&long, &long, RedOp::Sum, &other)
    });
    let late = late.unwrap_err().to_string();
    assert!(late.starts_with("all_reduce: rank 1 on host device 1: ") && late.contains("in use"), "{late}");
    assert!(ranks[1].stream.is_idle().unwrap(), "half a group was queued");
}

#[test]
fn a_refused_call_refuses_its_whole_group() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(3).unwrap()).collect();
    let wrong = ranks[1].device.alloc::<i32>(2).unwrap();
    let error = group(|| {
        ranks[0].communicator.all_reduce(&buffers[0], &buffers[0], RedOp::Sum, &ranks[0].stream)?;
        ranks[1].communicator.all_reduce(&wrong, &buffers[1], RedOp::Sum, &ranks[1].stream)
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(ranks[0].stream.is_idle().unwrap(), "half a group was queued");
    group(|| {
        ranks
            .iter()
            .zip(&buffers)
            .try_for_each(|(rank, buffer)| rank.communicator.all_reduce(buffer, buffer, RedOp::Sum, &rank.stream))
    })
    .unwrap();
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
}

fn init_error(size: usize, ranks: &[usize], config: &Config) -> Error {
    let ranks: Vec<_> = ranks.iter().map(|&rank| (rank, Device::host(rank as u32))).collect();
    Communicator::init_ranks(&UniqueId::new().unwrap(), size, &ranks, config).unwrap_err()
}

#[test]
fn init_refuses_what_cannot_be() {
    let quiet = config(&[]);
    assert!(init_error(0, &[0], &quiet).to_string().contains("at least one rank"));
    assert!(init_error(2, &[], &quiet).to_string().contains("at least one rank"));
    assert!(Communicator::init_all(&[], &quiet).unwrap_err().to_string().contains("at least one rank"));
    assert!(init_error(2, &[0, 2], &quiet).to_string().contains("rank 2 is not below the size 2"));
    assert!(init_error(usize::MAX, &[0], &quiet).to_string().contains("more than"));
    assert!(init_error(3, &[0, 1, 1], &quiet).to_string().contains("rank 1 of this id has been taken already"));
    let in_group = group(|| Err(init_error(1, &[0], &quiet))).unwrap_err();
    assert_eq!(in_group.kind(), ErrorKind::InvalidUsage);
    assert!(in_group.to_string().contains("inside a group"), "{in_group}");
    let unknown = init_error(2, &[0, 1], &settings(&[("NCCL_ALGO", "Rign")]));
    assert!(unknown.to_string().contains("Unrecognized element token \"rign\""), "{unknown}");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let impatient = settings(&[("FERRONICKEL_INIT_TIMEOUT", "1"), ("FERRONICKEL_ANNOUNCE", "0")]);
    let error = init_error(5, &[0, 3], &impatient);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("ranks 1, 2, 4 of 5 did not come within 1 s"), "{error}");
}

#[test]
fn a_rank_that_cannot_come_is_not_waited_for() {
    let id = UniqueId::new().unwrap();
    let began = Instant::now();
    let init = |rank: usize, config: Config| {
        Communicator::init_rank(&id, 2, rank, &Device::host(rank as u32), &config).unwrap_err().to_string()
    };
    let nowhere = config(&[]).with("NCCL_SOCKET_IFNAME", "=nosuch0").unwrap();
    let (refused, told) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| init(0, config(&[])));
        (init(1, nowhere), waiting.join().unwrap())
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(refused.contains("nosuch0"), "{refused}");
    assert!(told.contains("rank 1 failed in init") && told.contains("nosuch0"), "{told}");
}

#[test]
fn settings_that_ranks_must_share_are_compared() {
    let id = UniqueId::new().unwrap();
    std::thread::scope(|scope| {
        let threads = [("Ring", 0), ("^Ring", 1)].map(|(algorithm, rank)| {
            let (id, config) = (&id, settings(&[("NCCL_ALGO", algorithm)]));
            scope.spawn(move || Communicator::init_rank(id, 2, rank, &Device::host(0), &config).unwrap_err())
        });
        for thread in threads {
            let error = thread.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            assert!(error.to_string().contains("NCCL_ALGO differs: Ring on rank 0, ^Ring on rank 1"), "{error}");
        }
    });
}
