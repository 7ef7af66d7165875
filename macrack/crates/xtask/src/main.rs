//! `cargo run -p xtask -- generate`: writes `deploy/crds/*.yaml` and `docs/conditions.md`.
//! `cargo run -p xtask -- check`: fails when they differ from what the code says, and when a rule of
//! the code base is broken (see `rules.rs`).

mod generate;
mod limit;
mod marks;
mod rules;
mod walk;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("generate") => generate::write(),
        Some("check") => {
            generate::check()?;
            rules::check()
        }
        _ => bail!("usage: cargo run -p xtask -- generate | check"),
    }
}
