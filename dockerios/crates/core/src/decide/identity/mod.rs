//! `MachineIdentity`.

mod hands;

pub use hands::{NotTakeable, Standing, give_back, standing, take, takeable, unused, used};
