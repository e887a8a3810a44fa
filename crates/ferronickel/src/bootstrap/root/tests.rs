use super::*;

const LONG: Duration = Duration::from_secs(30);

/// How a rank comes: from this process, or as if from another.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Here,
    Elsewhere,
}

fn come(id: &UniqueId, from: From, size: usize, rank: usize, timeout: Duration) -> Result<Everyone> {
    let (name, info) = (format!("rank {rank} (host test, pid 1)"), vec![rank as u8; rank]);
    let comer = Comer { id, size, rank, name: &name, info, timeout };
    let (everyone, vigil) = match from {
        From::Here => comer.meet()?,
        From::Elsewhere => {
            guest::meet(&comer).map(|(everyone, visit)| (everyone, Vigil::Elsewhere(Box::new(visit))))?
        }
    };
    vigil.end();
    Ok(everyone)
}

fn quick() -> Config {
    Config::default().with("FERRONICKEL_INIT_TIMEOUT", "1").unwrap()
}

fn told(result: Result<Everyone>) -> String {
    result.unwrap_err().seen().to_string()
}

#[test]
fn everyone_learns_what_everyone_says_wherever_they_are() {
    for places in [[From::Here; 4], [From::Elsewhere; 4], [From::Here, From::Elsewhere, From::Elsewhere, From::Here]] {
        let id = UniqueId::with_config(&Config::default()).unwrap();
        std::thread::scope(|scope| {
            for (rank, from) in places.into_iter().enumerate() {
                let id = &id;
                scope.spawn(move || {
                    let everyone = come(id, from, 4, rank, LONG).unwrap();
                    assert_eq!(*everyone, (0..4).map(|rank| vec![rank as u8; rank]).collect::<Vec<_>>());
                });
            }
        });
        assert!(Root::find(&id).is_none(), "a root that is done stays");
    }
}

#[test]
fn the_missing_are_named_to_all_even_to_those_that_come_late() {
    let id = UniqueId::with_config(&Config::default()).unwrap();
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| come(&id, From::Elsewhere, 4, 2, LONG));
        while Root::find(&id).is_some_and(|root| root.lock().size.is_none()) {
            std::thread::yield_now();
        }
        let here = come(&id, From::Here, 4, 0, Duration::from_millis(300));
        for comer in [here, elsewhere.join().unwrap()] {
            let error = comer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert_eq!(error.seen(), "ranks 1, 3 of 4 did not come within 0.3 s");
        }
    });
    assert_eq!(told(come(&id, From::Here, 4, 1, LONG)), "ranks 1, 3 of 4 did not come within 0.3 s");
    assert_eq!(told(come(&id, From::Elsewhere, 4, 3, LONG)), "ranks 1, 3 of 4 did not come within 0.3 s");
}

#[test]
fn a_root_without_ranks_of_its_own_has_a_clock() {
    let id = UniqueId::with_config(&quick()).unwrap();
    assert_eq!(told(come(&id, From::Elsewhere, 2, 1, LONG)), "rank 0 of 2 did not come within 1 s");
}

#[test]
fn ranks_that_do_not_fit_are_refused_and_stop_the_others() {
    for from in [From::Here, From::Elsewhere] {
        for (size, rank, seen) in [
            (2, 1, "rank 1 of this id has been taken already"),
            (3, 2, "rank 2 says that there are 3 ranks, another rank with the same id said 2"),
        ] {
            let id = UniqueId::with_config(&Config::default()).unwrap();
            std::thread::scope(|scope| {
                let first = scope.spawn(|| come(&id, From::Here, 2, 1, LONG));
                while Root::find(&id).is_some_and(|root| root.lock().size.is_none()) {
                    std::thread::yield_now();
                }
                assert_eq!(told(come(&id, from, size, rank, LONG)), seen);
                assert_eq!(told(first.join().unwrap()), seen);
            });
        }
    }
}

#[test]
fn an_id_makes_one_communicator() {
    let id = UniqueId::with_config(&Config::default()).unwrap();
    come(&id, From::Here, 1, 0, LONG).unwrap();
    assert_eq!(told(come(&id, From::Here, 1, 0, LONG)), "this id has made a communicator already");
}

#[test]
fn a_root_that_is_not_there_is_an_error_that_names_its_address() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = UniqueId::at(&[7; 32], false, &[gone]).unwrap();
    let error = come(&id, From::Elsewhere, 2, 1, Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Remote);
    assert!(error.seen().starts_with(&format!("the root cannot be reached at {gone}: ")), "{error}");
}

#[test]
fn a_rank_that_dies_before_all_have_come_is_named() {
    use crate::bootstrap::connection::{Connection, Message};
    use crate::bootstrap::door;
    use crate::bootstrap::handshake::{Kind, Purpose};
    let id = UniqueId::with_config(&Config::default()).unwrap();
    std::thread::scope(|scope| {
        let waiting = [(0, From::Here), (1, From::Elsewhere)].map(|(rank, from)| {
            let id = &id;
            scope.spawn(move || come(id, from, 4, rank, LONG))
        });
        let purpose = Purpose { id: id.public_number(), kind: Kind::Join, from: 2, to: 0 };
        let stream = door::connect(&id.addresses(), id.secret(), purpose, LONG, &mut || false).unwrap();
        let mut dying = Connection::new(stream, 1000);
        let name = "rank 2 (host test, pid 77)".into();
        dying.send(&Message::Join { size: 4, rank: 2, name, info: vec![], patience: 30_000 }).unwrap();
        while !Root::find(&id).is_some_and(|root| root.lock().infos.get(2).is_some_and(Option::is_some)) {
            std::thread::yield_now();
        }
        drop(dying);
        for waiting in waiting {
            let seen = told(waiting.join().unwrap());
            assert_eq!(seen, "rank 2 (host test, pid 77) died in init: its connection to the root closed");
        }
    });
}

#[test]
fn ranks_that_agreed_on_an_address_find_each_other_there() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = UniqueId::at(&[9; 32], true, &[free]).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| come(&id, From::Elsewhere, 2, 1, LONG));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(come(&id, From::Here, 2, 0, LONG).unwrap().len(), 2);
        assert_eq!(late.join().unwrap().unwrap().len(), 2);
    });
}

#[test]
fn a_rank_that_dies_between_meeting_and_connecting_is_told_of() {
    let id = UniqueId::with_config(&Config::default()).unwrap();
    let meet = |rank: usize, elsewhere: bool| {
        let name = format!("rank {rank} (host test, pid 1)");
        let comer = Comer { id: &id, size: 3, rank, name: &name, info: Vec::new(), timeout: LONG };
        match elsewhere {
            false => comer.meet().unwrap().1,
            true => Vigil::Elsewhere(Box::new(guest::meet(&comer).unwrap().1)),
        }
    };
    std::thread::scope(|scope| {
        let others = [1, 2].map(|rank| scope.spawn(move || meet(rank, true)));
        let mut vigils = vec![meet(0, false)];
        vigils.extend(others.map(|other| other.join().unwrap()));
        assert!(vigils.iter_mut().all(|vigil| vigil.look().is_none()));
        drop(vigils.pop());
        for mut vigil in vigils {
            let deadline = Instant::now() + LONG;
            let failure = loop {
                match vigil.look() {
                    Some(failure) => break failure,
                    None => assert!(Instant::now() < deadline, "nobody was told"),
                }
            };
            assert_eq!(failure.seen, "rank 2 (host test, pid 1) died in init: its connection to the root closed");
        }
    });
}
