//! What machines are made of, held against the files in `tests/golden` (UPDATE_GOLDEN=1 writes them anew) and against
//! the real definitions of KubeVirt and CDI.

mod golden;
mod input;
mod refusals;
mod schema;
