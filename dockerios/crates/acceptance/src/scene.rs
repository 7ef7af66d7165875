//! Runs scenes, many at once: most of their time is waiting, so there are more of them under way than there are cores.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

type Play = fn() -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// One proof: a sentence, and what shows it.
pub struct Scene {
    name: &'static str,
    play: Play,
}

impl Scene {
    /// Named as libtest names a test.
    pub const fn new(name: &'static str, play: Play) -> Scene {
        Scene { name, play }
    }
}

/// Scenes by the paths of their functions: `scenes![module::function, …]`.
#[macro_export]
macro_rules! scenes {
    ($($module:ident::$function:ident),* $(,)?) => {
        &[$($crate::Scene::new(
            concat!(stringify!($module), "::", stringify!($function)),
            || Box::pin($module::$function()),
        )),*]
    };
}

/// The one runtime: clients, the simulation and every scene live in it.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        built.expect("threads can be started")
    })
}

/// Plays each group after the one before it, at most `side_by_side` scenes of a group at once. Takes the arguments of
/// `cargo test`; waits for nothing that a scene left behind.
pub fn play(side_by_side: usize, groups: &[&[Scene]]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(side_by_side);
    let mut failed = false;
    for scenes in groups {
        let trials = scenes.iter().map(|scene| {
            let play = scene.play;
            Trial::test(scene.name, move || {
                runtime()
                    .block_on(play())
                    .map_err(|error| Failed::from(format!("{error:#}")))
            })
        });
        failed |= libtest_mimic::run(&arguments, trials.collect()).has_failed();
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
