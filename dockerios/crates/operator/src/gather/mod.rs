//! From the world to the facts of one decision, one file per kind. No decision is made here.
