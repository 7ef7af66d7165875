//! What the acceptance tests share: a cluster with MacRack installed as a user installs it, the operator as a process
//! with its own ServiceAccount, and puppet agents where no real one is needed.

pub mod mac;
pub mod objects;
pub mod puppet;
pub mod rack;
pub mod scene;

pub use mac::Mac;
pub use puppet::{Manners, Puppet};
pub use rack::{Operator, Rack};
pub use scene::{SOON, Scene, reason};
