use macrack_model::{decision, rack::Budget, rest, scene::Scene};
use stateright::{Checker, Model, report::WriteReporter};

fn explore(scene: Scene) {
    let name = scene.name;
    let begun = std::time::Instant::now();
    let mut sink = std::io::sink();
    let checker = scene.clone().checker().threads(2).spawn_bfs().report(&mut WriteReporter::new(&mut sink));
    let (all, unique, depth) = (checker.state_count(), checker.unique_state_count(), checker.max_depth());
    println!(
        "{name}: {all} states, {unique} unique, depth {depth}, {:?}, {} decisions",
        begun.elapsed(),
        decision::decided()
    );
    let mut broken = 0;
    for (property, path) in checker.discoveries() {
        let last = path.last_state().clone();
        println!("{name}: BROKEN {property}");
        for action in path.into_actions() {
            println!("   {action:?}");
        }
        println!(
            "broken {:?}\nrest {:?}\nasleep {:?}\nblind {:?}",
            last.broken,
            rest::comes(&last, scene.agents_count).err(),
            rest::asleep(&last),
            rest::blind(&last)
        );
        broken += 1;
    }
    assert_eq!(broken, 0);
}

fn scene(name: &'static str, budget: Budget) -> Scene {
    Scene {
        name,
        macs: 1,
        budget,
        names: vec![0],
        tenants: vec![0],
        maximum: None,
        agents_count: false,
        begun: (vec![], vec![]),
    }
}

#[test]
fn one() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![], vec![]),
        ..scene(
            "one",
            Budget {
                make_lease: 1,
                delete_lease: 1,
                make_instance: 1,
                delete_instance: 1,
                tick: 1,
                crash: 1,
                ..Budget::default()
            },
        )
    });
}
#[test]
fn raise() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![]),
        ..scene("raise", Budget { delete_lease: 1, raise_minimum: 1, make_instance: 1, tick: 2, ..Budget::default() })
    });
}
#[test]
fn stale() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1],
        begun: (vec![0], vec![0]),
        ..scene("stale", Budget { delete_lease: 1, make_instance: 1, tick: 1, freeze: 1, ..Budget::default() })
    });
}
#[test]
fn stale2() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![0]),
        ..scene(
            "stale2",
            Budget { delete_lease: 1, delete_instance: 1, make_lease: 1, tick: 1, freeze: 1, ..Budget::default() },
        )
    });
}
#[test]
fn three() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1, 2],
        begun: (vec![0], vec![0]),
        ..scene(
            "three",
            Budget { make_instance: 2, delete_instance: 1, force_instance: 1, crash: 1, ..Budget::default() },
        )
    });
}
#[test]
fn threestale() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1, 2],
        begun: (vec![0], vec![0, 1]),
        ..scene("threestale", Budget { make_instance: 1, delete_instance: 1, freeze: 1, ..Budget::default() })
    });
}
#[test]
fn power() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![]),
        ..scene(
            "power",
            Budget {
                make_instance: 1,
                delete_instance: 1,
                power: 2,
                delete_lease: 1,
                tick: 1,
                crash: 1,
                ..Budget::default()
            },
        )
    });
}
#[test]
fn forced() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![0]),
        ..scene(
            "forced",
            Budget { make_lease: 1, force_lease: 1, make_instance: 1, force_instance: 1, tick: 1, ..Budget::default() },
        )
    });
}
#[test]
fn forced2() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![0],
        begun: (vec![0], vec![0]),
        ..scene("forced2", Budget { make_lease: 1, force_lease: 1, tick: 2, freeze: 1, ..Budget::default() })
    });
}
#[test]
fn remade() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1, 2],
        begun: (vec![0], vec![0, 1]),
        agents_count: true,
        ..scene("remade", Budget { force_mac: 1, make_instance: 1, delete_instance: 1, ..Budget::default() })
    });
}
#[test]
fn remade1() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1],
        begun: (vec![0], vec![0]),
        agents_count: true,
        ..scene("remade1", Budget { force_mac: 1, delete_lease: 1, make_instance: 1, tick: 1, ..Budget::default() })
    });
}
#[test]
fn remade2() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![0],
        begun: (vec![0], vec![0]),
        agents_count: true,
        ..scene("remade2", Budget { force_mac: 1, force_lease: 1, make_lease: 1, tick: 2, ..Budget::default() })
    });
}
#[test]
fn retired() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![0],
        begun: (vec![0], vec![0]),
        ..scene("retired", Budget { retire: 1, delete_lease: 1, make_lease: 1, tick: 1, ..Budget::default() })
    });
}
#[test]
fn retired2() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![0]),
        ..scene("retired2", Budget { retire: 1, delete_instance: 1, tick: 1, crash: 1, ..Budget::default() })
    });
}
#[test]
fn lost() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0, 1],
        begun: (vec![0], vec![0]),
        ..scene(
            "lost",
            Budget { lose_vm: 1, make_instance: 1, delete_instance: 1, delete_lease: 1, tick: 1, ..Budget::default() },
        )
    });
}
#[test]
fn expired() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![0]),
        maximum: Some(24),
        ..scene("expired", Budget { delete_lease: 1, tick: 2, force_mac: 1, ..Budget::default() })
    });
}
#[test]
fn expired2() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![0], vec![0]),
        maximum: Some(24),
        ..scene("expired2", Budget { tick: 1, crash: 1, freeze: 1, ..Budget::default() })
    });
}
#[test]
fn namespace() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![0, 1],
        begun: (vec![0], vec![0]),
        ..scene("namespace", Budget { end_namespace: 1, make_lease: 1, make_instance: 1, tick: 1, ..Budget::default() })
    });
}
#[test]
fn two_tenants() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![0, 3],
        begun: (vec![0], vec![0]),
        ..scene(
            "two_tenants",
            Budget { delete_lease: 1, make_lease: 1, make_instance: 1, tick: 1, crash: 1, ..Budget::default() },
        )
    });
}
#[test]
fn two_macs() {
    explore(Scene {
        tenants: vec![0, 1],
        names: vec![],
        begun: (vec![], vec![]),
        macs: 2,
        ..scene("two_macs", Budget { make_lease: 2, delete_lease: 1, freeze: 1, ..Budget::default() })
    });
}
#[test]
fn two_macs_lost() {
    explore(Scene {
        tenants: vec![0],
        names: vec![0],
        begun: (vec![], vec![]),
        macs: 2,
        agents_count: true,
        ..scene(
            "two_macs_lost",
            Budget { make_lease: 1, make_instance: 1, freeze: 1, force_mac: 1, ..Budget::default() },
        )
    });
}
