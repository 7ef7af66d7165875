//! Admission: pure functions, one file per kind.
