//! Free space per storage class, as its source last told.

use std::collections::HashMap;

/// Free space per storage class.
#[derive(Debug, Default)]
pub struct Capacities(pub HashMap<String, ()>);
