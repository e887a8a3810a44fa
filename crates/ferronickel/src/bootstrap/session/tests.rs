use super::*;

const LONG: Duration = Duration::from_secs(30);

fn member(number: u64, ranks: usize, rank: usize, timeout: Duration) -> Member {
    let config = Config::default();
    let presences: Vec<_> = (0..ranks).map(|rank| Presence::new(rank, &config, None)).collect();
    Member::join(number, &presences, rank, &config, timeout).unwrap()
}

#[test]
fn everyone_gets_what_everyone_brought_in_each_round() {
    std::thread::scope(|scope| {
        for rank in 0..5 {
            scope.spawn(move || {
                let mut member = member(1, 5, rank, LONG);
                for round in 0..50 {
                    let all = member.all_gather(Plain((rank, round))).unwrap();
                    let all: Vec<_> = all.into_iter().map(|all| all.0).collect();
                    assert_eq!(all, (0..5).map(|rank| (rank, round)).collect::<Vec<_>>());
                    assert_eq!(member.all_gather(Plain(rank.to_string())).unwrap()[3].0, "3");
                }
                member.complete();
            });
        }
    });
}

#[test]
fn the_missing_are_named_and_one_that_gives_up_stops_the_others() {
    let [first, third] = [0, 2].map(|rank| member(2, 4, rank, Duration::from_millis(30)));
    let error = first.all_gather(Plain(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.seen(), "in init, rank 1, rank 2, rank 3 did not go on within 0.03 s");
    assert_eq!(third.all_gather(Plain(())).unwrap_err().seen(), error.seen());
    let [first, third] = [0, 2].map(|rank| member(3, 4, rank, LONG));
    drop(third);
    assert_eq!(first.all_gather(Plain(())).unwrap_err().seen(), "rank 2 gave up in init");
}

#[test]
fn what_one_computes_is_everyones() {
    let [a, b] = [0, 1].map(|rank| member(4, 2, rank, LONG));
    assert_eq!(*a.once(7, || Ok(3)).unwrap(), 3);
    assert_eq!(*b.once(7, || -> Result<i32> { panic!("computed twice") }).unwrap(), 3);
    assert_eq!(*b.once(8, || Ok(4)).unwrap(), 4);
    assert!(a.once::<i32>(9, || Err(Error::new(ErrorKind::Internal, "on purpose"))).is_err());
}

#[test]
fn values_of_other_processes_complete_an_exchange() {
    let mut exchange = Exchange::new(3, vec![1]);
    let packed = |rank, value: u32| {
        let (bytes, _) = Plain(value).pack();
        Packed { rank, bytes, files: Vec::new() }
    };
    // one process is ahead, and one claims to speak for rank 1
    exchange.receive(1, vec![packed(0, 50)]);
    exchange.receive(0, vec![packed(0, 5), packed(1, 9), packed(77, 1)]);
    assert!(exchange.bring(1, Arc::new(Plain(6u32))));
    assert!(!exchange.try_complete::<Plain<u32>>().unwrap());
    assert_eq!(exchange.missing().collect::<Vec<_>>(), [2]);
    exchange.receive(0, vec![packed(2, 7)]);
    assert!(exchange.try_complete::<Plain<u32>>().unwrap());
    let values: Vec<_> = exchange.gathered::<Plain<u32>>().unwrap().iter().map(|value| value.0).collect();
    assert_eq!(values, [5, 6, 7]);
    exchange.bring(1, Arc::new(Plain("text".to_string())));
    exchange.receive(1, vec![packed(2, 7)]);
    assert!(exchange.try_complete::<Plain<String>>().is_err());
}
